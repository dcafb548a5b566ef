/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The sampled pages: what is known of each, held once for all simulated
 * caches, resident ones and ghosts. Time is the sample's own: pages that the
 * cache of the present setting takes in.
 */
#ifndef _LRU_CAST_PAGES_H
#define _LRU_CAST_PAGES_H

#include <linux/types.h>

#include "../core/word.h"

/* Names of pages are u16; about 15,000 are meant to be known. */
#define CAST_SAMPLE_PAGES	16384U
#define CAST_NO_PAGE		0xffffU
/* No more fit into a simulated cache: the rest are ghosts. */
#define CAST_SAMPLE_RESIDENT	8192U

struct cast_page {
	u64 id;		/* of the page; 0: the entry is free */
	u32 block;	/* of the run of pages that it is sampled with */
	u32 tick;	/* of the last read, unbounded */
	u32 left;	/* tick of the last eviction from any cache */
	u16 next;	/* in its hash chain */
	u8 cnt, g1, g2;	/* as in a state word */
	u8 homes;	/* caches that it is in */
};

struct cast_pages {
	struct cast_page *page;
	u16 *chain;
	u32 used;
	u32 hand;	/* where to look for a ghost to forget */
	u32 now;	/* tick */
	u32 step;	/* a tick's pages, in parts of a page */
	u32 intake;	/* since the last tick, likewise */
	u32 round;	/* a quarter of the capacity, whatever made room */
	u32 taken;	/* pages since the last round */
	u64 forgotten;	/* ghosts that were still of use */
};

/* May sleep. 0 or -ENOMEM with nothing left behind. */
int cast_pages_init(struct cast_pages *pages);
void cast_pages_exit(struct cast_pages *pages);
void cast_pages_clear(struct cast_pages *pages);

/*
 * The page named @id (not 0), known from now on. If there is no room, a ghost
 * is forgotten for it; CAST_NO_PAGE if every page is in a cache.
 */
u32 cast_pages_get(struct cast_pages *pages, u64 id, u32 block);
/* Forgets a page that is in no cache. */
void cast_pages_drop(struct cast_pages *pages, u32 p);

/* A read, now. False if it adds nothing: within the tick of the last. */
bool cast_pages_read(struct cast_pages *pages, u32 p);
/* Room for @capacity pages: a quarter of them make a tick. */
void cast_pages_set_capacity(struct cast_pages *pages, u32 capacity);
/* A page more was taken in, which adds so many parts of one to the time. */
void cast_pages_pass(struct cast_pages *pages, u32 parts);

#endif /* _LRU_CAST_PAGES_H */
