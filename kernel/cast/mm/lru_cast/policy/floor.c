// SPDX-License-Identifier: GPL-2.0-only
/*
 * The clean-file floor, after le9uo's description: while a node has little
 * clean cache left and there is anonymous memory to take, cache is not taken.
 * A system that runs out of memory then swaps, and at last kills, instead of
 * reading its own code from the disk over and over.
 */
#include <linux/lru_cast.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/vmstat.h>

#include "policy.h"

unsigned int cast_clean_min_ratio = 10;

/* Pages that could be dropped without being written. */
static unsigned long clean_pages(struct pglist_data *pgdat)
{
	unsigned long file = node_page_state(pgdat, NR_ACTIVE_FILE) +
			     node_page_state(pgdat, NR_INACTIVE_FILE);
	unsigned long busy = node_page_state(pgdat, NR_FILE_DIRTY) +
			     node_page_state(pgdat, NR_WRITEBACK);

	return file > busy ? file - busy : 0;
}

/*
 * Whether reclaim of @pgdat is to leave file alone. For reclaim that may swap,
 * that has where to, and that no cgroup's own limit forces: a cgroup is never
 * killed while it has file to give.
 */
bool cast_floor_holds(struct pglist_data *pgdat)
{
	unsigned int ratio = READ_ONCE(cast_clean_min_ratio);

	if (!ratio || clean_pages(pgdat) >
		      pgdat->node_present_pages / 100 * ratio)
		return false;
	if (!node_page_state(pgdat, NR_ACTIVE_ANON) &&
	    !node_page_state(pgdat, NR_INACTIVE_ANON))
		return false;
	cast_count(CAST_STAT_FLOOR_HELD, 1);
	return true;
}
