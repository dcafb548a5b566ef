/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A simulated cache over sampled pages: the main cache in small. W is a FIFO
 * queue of newcomers, M is ranked; ties go as in the main cache.
 */
#ifndef _LRU_CAST_SIM_H
#define _LRU_CAST_SIM_H

#include <linux/types.h>

#include "../core/key.h"
#include "pages.h"

struct cast_sim {
	struct cast_pages *pages;
	u32 le;
	u32 capacity;		/* pages, 2 at least */
	u32 w_capacity;		/* of them for newcomers, 1 at least */
	u32 order;		/* entries into M so far */
	u32 nr_w, w_first;	/* a ring: the oldest is first */
	u32 nr_m;
	u32 parts;		/* that what was taken in last adds to the time */
	u64 misses;		/* since the counts were last cleared */
	u16 *where;		/* by page: place in the heap, or as below */
	u16 *w;
	u64 *rank;		/* of the heap's entries, a lower bound */
	u16 *heap;		/* the lowest rank first */
};

#define CAST_SIM_NOWHERE	0xffffU
#define CAST_SIM_IN_W		0xfffeU

/* May sleep. 0 or -ENOMEM with nothing left behind. */
int cast_sim_init(struct cast_sim *sim, struct cast_pages *pages);
void cast_sim_exit(struct cast_sim *sim);
/* Empty; the pages' count of homes is not touched. */
void cast_sim_clear(struct cast_sim *sim);

void cast_sim_set_le(struct cast_sim *sim, u32 le);
/* Takes effect as pages come in. */
void cast_sim_set_size(struct cast_sim *sim, u32 capacity, u32 w_permille);
/* All that @from holds, at @sim's own decay and sizes. */
void cast_sim_copy(struct cast_sim *sim, const struct cast_sim *from);

static inline bool cast_sim_has(const struct cast_sim *sim, u32 p)
{
	return sim->where[p] != CAST_SIM_NOWHERE;
}

/* After a read that its page's entry recorded: the page may rank lower. */
void cast_sim_reranked(struct cast_sim *sim, u32 p);
/* Takes in a page that is not there, evicting another if it is full. */
void cast_sim_take(struct cast_sim *sim, u32 p);
/* Takes a page out, wherever it is. */
void cast_sim_drop(struct cast_sim *sim, u32 p);

#endif /* _LRU_CAST_SIM_H */
