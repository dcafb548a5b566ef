// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pressure clock. Time is not wall time: it is the pages taken in, less
 * those that their owners free, weighed by what made room for them
 * (CAST_PARTS), and it ticks every quarter of what the lruvec holds. While
 * nothing comes in, nothing ages.
 *
 * One clock a lruvec, not one a node: keys only ever compare within a lruvec,
 * and the pages of a small cgroup on a large host would all be of one tick of
 * the node's.
 */
#include <linux/atomic.h>
#include <linux/minmax.h>
#include <linux/numa.h>

#include "core.h"

/* A small lruvec would tick at every batch of pages, and ages are finite. */
#define STEP_MIN_PAGES	1024UL

static struct {
	atomic64_t in;
	atomic64_t evicted;
} node_sums[MAX_NUMNODES];

void cast_clock_init(struct cast_clock *clock)
{
	clock->intake = 0;
	atomic_long_set(&clock->left, 0);
	clock->step = STEP_MIN_PAGES;
	clock->in = 0;
	clock->tick = CAST_TICK_FIRST;
}

void cast_clock_flush(struct cast_clock *clock, int nid)
{
	atomic64_add(clock->in, &node_sums[nid].in);
	clock->in = 0;
}

void cast_clock_tick(struct cast_clock *clock, int nid, unsigned long pages)
{
	u32 ticks = 0;

	/* A large folio may be more than one step. */
	do {
		clock->intake -= cast_clock_step(clock);
		ticks++;
	} while (clock->intake >= cast_clock_step(clock));
	WRITE_ONCE(clock->tick, clock->tick + ticks);
	clock->step = max(STEP_MIN_PAGES, pages / 4);
	cast_clock_flush(clock, nid);
}

void cast_clock_evicted(int nid, unsigned long nr)
{
	atomic64_add(nr, &node_sums[nid].evicted);
}

struct cast_node_clock cast_clock_read(int nid)
{
	return (struct cast_node_clock) {
		.in = atomic64_read(&node_sums[nid].in),
		.evicted = atomic64_read(&node_sums[nid].evicted),
	};
}
