/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The decay controller: nine simulated caches, at the present decay and at 1,
 * 2, 4 and 8 steps from it. Of the accesses where another and the present one
 * disagree a cumulative sum is kept for each (Page, Biometrika 41, 1954): one
 * up where it alone hits, one down where it alone misses, never below 0. The
 * one whose sum gets to a threshold is the new centre. What spoke for the
 * present decay in the past is no weight in the sum: requests change their
 * nature within a conversation, and the wrong decay costs more the longer it
 * is kept than several moves too many do.
 */
#ifndef _LRU_CAST_DECAY_H
#define _LRU_CAST_DECAY_H

#include <linux/types.h>

#include "sim.h"

#define CAST_DECAYS	9
#define CAST_SEEN	512	/* blocks whose last disagreement is known */

struct cast_decay {
	struct cast_sim sim[CAST_DECAYS];	/* the centre is first */
	u32 better[CAST_DECAYS];	/* it hit, the centre missed */
	u32 worse[CAST_DECAYS];
	u32 sum[CAST_DECAYS];
	u32 enough;			/* of a sum */
	u32 seen[CAST_DECAYS][CAST_SEEN];
	u32 moves;
};

int cast_decay_init(struct cast_decay *decay, struct cast_pages *pages);
void cast_decay_exit(struct cast_decay *decay);
void cast_decay_clear(struct cast_decay *decay);
void cast_decay_set_size(struct cast_decay *decay, u32 capacity,
			 u32 w_permille);
/* Memory has room for so many blocks of the sample. */
void cast_decay_set_blocks(struct cast_decay *decay, u32 blocks);
/* Re-centres at @le, and forgets what was counted. */
void cast_decay_set_le(struct cast_decay *decay, u32 le);

static inline u32 cast_decay_le(const struct cast_decay *decay)
{
	return decay->sim[0].le;
}

/*
 * An access to page @p, which has been recorded in its entry if @recorded.
 * True if the centre had the page.
 */
bool cast_decay_access(struct cast_decay *decay, u32 p, bool recorded);
/* Moves the centre if another is better. True if it moved. */
bool cast_decay_choose(struct cast_decay *decay);
void cast_decay_drop(struct cast_decay *decay, u32 p);

/*
 * An expert, or a run that is read ahead, is one event however many pages it
 * has: true for the first of @block within the round.
 */
bool cast_first_in_round(u32 seen[CAST_SEEN], u32 block, u32 round);

#endif /* _LRU_CAST_DECAY_H */
