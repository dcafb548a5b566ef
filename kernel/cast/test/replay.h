/* SPDX-License-Identifier: GPL-2.0-only */
/* Traces through the simulated caches of tune/. */
#ifndef _CAST_TEST_REPLAY_H
#define _CAST_TEST_REPLAY_H

#include "trace.h"

/* Hits over accesses of the scored window, an expert being one page. */
double replay_fixed(const struct trace *trace, u32 capacity, u32 le,
		    u32 w_permille);

struct replay_tuned {
	double hits;		/* of a cache that the controllers set */
	u32 le, w_permille;	/* at the end */
	u32 moves;
};

/*
 * The controllers see one in @one_in of the experts and start at @le; the one
 * of W's share is at work if @share.
 */
struct replay_tuned replay_tuned(const struct trace *trace, u32 capacity,
				 u32 le, u32 one_in, bool share);

#endif /* _CAST_TEST_REPLAY_H */
