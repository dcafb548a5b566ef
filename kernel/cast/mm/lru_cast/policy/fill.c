// SPDX-License-Identifier: GPL-2.0-only
/*
 * While memory fills nothing is reclaimed, so nothing has to outrank anything
 * to get from W to M, and W would be all there is when reclaim begins. So what
 * W has no share for goes to M as pages come in, the oldest first.
 */
#include <linux/list.h>
#include <linux/lru_cast.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/swap.h>
#include <linux/vmstat.h>

#include "../tune/tune.h"
#include "policy.h"

/* W is looked at each time that so many pages have come in. */
#define FILL_EVERY	64U
/* So many are moved then: twice what came, so that W gets to its share. */
#define FILL_PAGES	(2 * FILL_EVERY)

/*
 * PG_active of a folio with PG_lru changes under lru_lock only: who clears
 * PG_lru meanwhile finds the folio by its flags once it has the lock.
 */
void cast_move_to_m(struct lruvec *lruvec, struct folio *folio)
{
	long nr = folio_nr_pages(folio);

	lruvec_del_folio(lruvec, folio);
	folio_set_active(folio);
	lruvec_add_folio(lruvec, folio);
	__count_vm_events(PGACTIVATE, nr);
	__count_memcg_events(lruvec_memcg(lruvec), PGACTIVATE, nr);
	workingset_age_nonresident(lruvec, nr);
}

/*
 * W far over its share, further than what arrives between two reclaims: then
 * memory has been filling. It ends at its share.
 */
static long overflow(struct lruvec *lruvec, struct cast_list *list)
{
	unsigned long w = cast_list_pages(lruvec, LRU_INACTIVE_FILE);
	unsigned long all = w + cast_list_pages(lruvec, LRU_ACTIVE_FILE);
	unsigned long share = all * cast_w_permille(true) / 1000;
	unsigned long slack = max(all >> 5, 2UL * SWAP_CLUSTER_MAX);

	if (w > share + slack)
		list->filling = true;
	else if (w <= share)
		list->filling = false;
	return list->filling ? w - share : 0;
}

/* @nr pages of files came in. Under lru_lock. */
void cast_fill(struct lruvec *lruvec, struct cast_lruvec *cl, unsigned long nr)
{
	struct list_head *head = &lruvec->lists[LRU_INACTIVE_FILE];
	struct cast_list *list = cl->list[WORKINGSET_FILE];
	long left;

	if (!list)
		return;
	list->arrived += nr;
	if (list->arrived < FILL_EVERY)
		return;
	list->arrived = 0;
	left = min(overflow(lruvec, list), (long)FILL_PAGES);
	while (left > 0 && !list_empty(head)) {
		struct folio *folio = lru_to_folio(head);

		/* Somebody is about to take it off. */
		if (!folio_test_lru(folio))
			return;
		left -= folio_nr_pages(folio);
		cast_move_to_m(lruvec, folio);
	}
}
