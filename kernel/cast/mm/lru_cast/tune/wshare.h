/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The controller of W's share: two simulated caches, whose W is 10 % of the
 * type's pages smaller and larger than the present one. The share moves by
 * a step when a sign test on where they disagree, gathered since the last
 * step, says where to.
 *
 * A scan speaks for a small W as long as it lasts and what comes after it for
 * a large one: so the deviation is that of the differences from tick to tick,
 * and a step takes four turnovers of memory at least.
 */
#ifndef _LRU_CAST_WSHARE_H
#define _LRU_CAST_WSHARE_H

#include <linux/types.h>

#include "decay.h"
#include "sim.h"

struct cast_wshare {
	struct cast_sim smaller, larger;
	u32 w_permille;		/* the present share */
	u32 capacity;
	u32 for_larger;		/* only the larger hit */
	u32 for_smaller;
	u32 since;		/* tick of the last step */
	u32 tick;		/* that is counted now */
	s64 in_tick;		/* larger - smaller in it */
	u64 squares;		/* of that, over the ticks before */
	u32 seen[CAST_SEEN];
	u32 moves;
};

int cast_wshare_init(struct cast_wshare *w, struct cast_pages *pages);
void cast_wshare_exit(struct cast_wshare *w);
void cast_wshare_clear(struct cast_wshare *w);
void cast_wshare_set_size(struct cast_wshare *w, u32 capacity);
void cast_wshare_set(struct cast_wshare *w, u32 w_permille);
void cast_wshare_set_le(struct cast_wshare *w, u32 le);
void cast_wshare_access(struct cast_wshare *w, u32 p, bool recorded);
/* Moves the share if there is evidence. True if it moved. */
bool cast_wshare_choose(struct cast_wshare *w);
void cast_wshare_drop(struct cast_wshare *w, u32 p);

/* The sign test: whether @n events, @d more for than against, are evidence. */
bool cast_is_evidence(s64 d, u32 n);

#endif /* _LRU_CAST_WSHARE_H */
