/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The main cache inside reclaim. Each type of each lruvec is one: W, the
 * newcomers in order of arrival, is the stock inactive list; M, the rest in
 * no order, is the stock active list, its frames tagged in their state words.
 */
#ifndef _LRU_CAST_POLICY_H
#define _LRU_CAST_POLICY_H

#include <linux/bitmap.h>
#include <linux/lru_cast.h>
#include <linux/mmzone.h>
#include <linux/types.h>

#include "../core/core.h"

/* M's lowest that a sweep keeps, four batches of reclaim. */
#define CAST_CANDIDATES		128U
/* A candidate is to be one of the lowest 16th of M. */
#define CAST_QUANTILE		16U
/* The parts of a node's memory that a sweep may skip. */
#define CAST_BLOCKS		256U
/* Of the histogram that the quantile is read from: 16 bins an octave. */
#define CAST_BINS		256U
/* The owner tag of all lists for which no other was left. */
#define CAST_TAG_SHARED		CAST_TAG_MASK

struct cast_candidate {
	u64 rank;		/* cast_rank(), of the tick that it was swept at */
	unsigned long pfn;
};

/* Bits of cast_list.flags */
enum {
	CAST_SWEEPING,		/* one CPU sweeps; it owns the candidates */
	CAST_SPAN_CHANGED,	/* a frame beyond the blocks entered M */
};

/*
 * One type of one lruvec. Under lru_lock, but for @flags and @blocks (atomic)
 * and the rest of the sweep's own, which CAST_SWEEPING guards.
 */
struct cast_list {
	unsigned long flags;
	u32 tag;		/* owner tag of M's frames; 0: none yet */
	bool filling;		/* W's overflow goes to M uncontested */
	unsigned long arrived;	/* pages, since W was looked at for that */

	/* What is known of M's lowest, sorted: the lowest is the last. */
	u32 nr;
	u32 swept;		/* tick of the keys */
	u32 le;			/* decay of the keys */
	struct cast_candidate candidates[CAST_CANDIDATES];

	/* The node's span in blocks of 1 << @block_shift frames. */
	unsigned long span_start, span_end;
	unsigned int block_shift;
	unsigned long cursor;	/* the next frame to sweep */
	DECLARE_BITMAP(blocks, CAST_BLOCKS);

	u32 turn_tick;		/* when all of M had last been met */

	/* The keys met in this pass over the span, relative to @pass_tick. */
	u32 pass_tick;
	u32 pass_le;
	unsigned long binned;
	u32 bins[CAST_BINS];

	/* The quantile of the last full pass, relative to @quantile_tick. */
	bool has_quantile;
	s32 quantile;
	u32 quantile_tick;
};

/* What struct lruvec points to. */
struct cast_lruvec {
	struct cast_clock clock;
	int nid;
	struct cast_list *list[ANON_AND_FILE];	/* NULL: a type of the stock lists */
};

/* For sysfs; summed over all lruvecs. */
enum cast_stat {
	CAST_STAT_FRAMES,	/* words read by sweeps */
	CAST_STAT_WORDS,	/* of those, words of the swept M */
	CAST_STAT_CANDIDATES,	/* candidates taken */
	CAST_STAT_STALE,	/* candidates that were no more */
	CAST_STAT_FALLBACK,	/* folios looked at in lists instead */
	CAST_STAT_TOOK_ANON,	/* reclaim batches that freed anon */
	CAST_STAT_TOOK_FILE,
	CAST_STAT_TOOK_NONE,
	CAST_STAT_FLOOR_HELD,	/* reclaim passes that left file alone */
	NR_CAST_STATS,
};

void cast_count(enum cast_stat stat, unsigned long nr);
unsigned long cast_stat_read(enum cast_stat stat);

/* --- lruvec.c --- */

static inline struct cast_lruvec *cast_of(const struct lruvec *lruvec)
{
	return smp_load_acquire(&lruvec->cast);
}

/* The lruvec's time; may be a tick late. */
static inline u32 cast_now(const struct lruvec *lruvec)
{
	struct cast_lruvec *cl = cast_of(lruvec);

	return cl ? cast_clock_now(&cl->clock) : CAST_TICK_FIRST;
}

/* From now on every lruvec that is made has its state; what there is keeps it. */
void cast_lruvecs_wanted(void);
/* For lruvecs made before that; may sleep. 0 or -ENOMEM. */
int cast_lruvec_set_up(struct lruvec *lruvec, int nid);
/* Forgets candidates and blocks: no hook has been running. */
void cast_lruvec_reset(struct lruvec *lruvec);

/* Pages on one list; exact under lru_lock with memcgs, within batches without. */
unsigned long cast_list_pages(struct lruvec *lruvec, enum lru_list lru);
/* Pages of the types that CAST owns. */
unsigned long cast_lruvec_pages(struct lruvec *lruvec);

/* Whether other lists may have this one's tag too: then M is read by its list. */
static inline bool cast_tag_shared(const struct cast_list *list)
{
	return list->tag == CAST_TAG_SHARED;
}

/* Tags held by lists, a shared one as often as it is; @shared: that one alone. */
unsigned int cast_tags_given(unsigned int *shared);

/* A frame enters M: under lru_lock. */
void cast_list_own(struct cast_list *list, unsigned long pfn);
/* Lays the blocks over the node's span as it is now, if it changed. */
void cast_list_span(struct cast_list *list, int nid);

/* The word to rank @pfn by: made fit if it is old, cold if nothing is known. */
u32 cast_word_ranked(unsigned long pfn, u32 now, u32 le);

/* --- fill.c, under lru_lock --- */

/* From W to M. */
void cast_move_to_m(struct lruvec *lruvec, struct folio *folio);
/* File pages came in: W's overflow goes to M while memory fills. */
void cast_fill(struct lruvec *lruvec, struct cast_lruvec *cl, unsigned long nr);

/* --- sweep.c --- */

/* Whether reclaim has candidates it can go on with. */
bool cast_candidates_fit(const struct cast_list *list, u32 now, u32 le);
/*
 * Finds M's lowest. Without lru_lock, may take and drop it. Nothing is done
 * while another CPU sweeps the same list.
 */
void cast_sweep(struct lruvec *lruvec, struct cast_lruvec *cl, bool file);

/* --- floor.c --- */

/* Percent of a node's memory, 0 to 100; 0: no floor. */
extern unsigned int cast_clean_min_ratio;

#endif /* _LRU_CAST_POLICY_H */
