// SPDX-License-Identifier: GPL-2.0-only
/*
 * debugfs lru_cast/check, in kernels with CONFIG_DEBUG_VM: walks every list of
 * file pages and compares it with what the counters and the words say. A list
 * is walked under one hold of lru_lock, so it is for tests.
 */
#include <linux/debugfs.h>
#include <linux/init.h>
#include <linux/lru_cast.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmzone.h>
#include <linux/seq_file.h>
#include <linux/swap.h>

#include "policy/policy.h"
#include "switch.h"

struct tally {
	unsigned long lists, pages, lruvecs;
	unsigned long wrong_size;	/* lists that are not as long as counted */
	unsigned long wrong_flags;	/* folios whose flags name another list */
	unsigned long wrong_owner;	/* M's without the tag, or others with it */
	unsigned long unmarked;		/* M's in a block that sweeps skip */
};

static struct tally tally;

static void check_folio(struct cast_list *list, struct folio *folio,
			enum lru_list lru)
{
	unsigned long pfn = folio_pfn(folio);
	unsigned long block = (pfn - list->span_start) >> list->block_shift;
	u32 tag = cast_word_tag(cast_word(pfn));

	if (folio_lru_list(folio) != lru)
		tally.wrong_flags++;
	if (tag != (is_active_lru(lru) ? list->tag : 0))
		tally.wrong_owner++;
	if (is_active_lru(lru) &&
	    !test_bit(CAST_SPAN_CHANGED, &list->flags) &&
	    !test_bit(CAST_SWEEPING, &list->flags) &&
	    (block >= CAST_BLOCKS || !test_bit(block, list->blocks)))
		tally.unmarked++;
}

static void check_list(struct lruvec *lruvec, struct cast_list *list,
		       enum lru_list lru)
{
	unsigned long pages = 0, counted, slack = 0;
	struct folio *folio;

	spin_lock_irq(&lruvec->lru_lock);
	list_for_each_entry(folio, &lruvec->lists[lru], lru) {
		pages += folio_nr_pages(folio);
		check_folio(list, folio, lru);
	}
	counted = cast_list_pages(lruvec, lru);
	spin_unlock_irq(&lruvec->lru_lock);

	/* A zone's count is in parts, one a CPU; a memcg's is one number. */
	if (mem_cgroup_disabled())
		slack = num_online_cpus() * 125UL * MAX_NR_ZONES;
	tally.lists++;
	tally.pages += pages;
	if (max(pages, counted) - min(pages, counted) > slack)
		tally.wrong_size++;
}

static int check_lruvec(struct lruvec *lruvec, int nid)
{
	struct cast_lruvec *cl = cast_of(lruvec);

	if (!cl || !lruvec_pgdat(lruvec) || !cl->list[WORKINGSET_FILE])
		return 0;
	check_list(lruvec, cl->list[WORKINGSET_FILE], LRU_INACTIVE_FILE);
	check_list(lruvec, cl->list[WORKINGSET_FILE], LRU_ACTIVE_FILE);
	tally.lruvecs++;
	return 0;
}

static int check_show(struct seq_file *m, void *unused)
{
	int err = cast_for_each_lruvec_on(check_lruvec, &tally, sizeof(tally));
	unsigned int tags, shared;

	if (err)
		return err;
	tags = cast_tags_given(&shared);
	seq_printf(m, "lists %lu pages %lu wrong-size %lu wrong-flags %lu wrong-owner %lu unmarked %lu isolated %lu lruvecs %lu tags %u shared %u\n",
		   tally.lists, tally.pages, tally.wrong_size,
		   tally.wrong_flags, tally.wrong_owner, tally.unmarked,
		   global_node_page_state(NR_ISOLATED_FILE), tally.lruvecs,
		   tags, shared);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(check);

static int __init check_init(void)
{
	debugfs_create_file("check", 0400, debugfs_create_dir("lru_cast", NULL),
			    NULL, &check_fops);
	return 0;
}
late_initcall(check_init);
