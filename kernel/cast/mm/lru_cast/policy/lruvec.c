// SPDX-License-Identifier: GPL-2.0-only
/*
 * A lruvec's state: its owner tags, the parts of memory its M lies in, and
 * the sizes of its lists.
 */
#include <linux/atomic.h>
#include <linux/lru_cast.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "policy.h"

/* A block is at least this many frames: 2 KB of words. */
#define BLOCK_SHIFT_MIN	9U

static bool lruvecs_wanted;

static atomic_long_t stats[NR_CAST_STATS];

void cast_count(enum cast_stat stat, unsigned long nr)
{
	if (nr)
		atomic_long_add(nr, &stats[stat]);
}

unsigned long cast_stat_read(enum cast_stat stat)
{
	return atomic_long_read(&stats[stat]);
}

/* --- owner tags --- */

/*
 * A list whose tag is its own finds its M by the words alone. There are fewer
 * tags than a machine may have lists: those that come too late have the last
 * one together. By it a sweep would meet words that count another lruvec's
 * ticks, so they are never swept: see cast_tag_shared().
 */
static DEFINE_SPINLOCK(tags_lock);
static unsigned int tag_users[CAST_TAG_MASK + 1];

static u32 tag_get(void)
{
	u32 tag = 1;

	spin_lock(&tags_lock);
	while (tag < CAST_TAG_SHARED && tag_users[tag])
		tag++;
	tag_users[tag]++;
	spin_unlock(&tags_lock);
	return tag;
}

static void tag_put(u32 tag)
{
	spin_lock(&tags_lock);
	tag_users[tag]--;
	spin_unlock(&tags_lock);
}

unsigned int cast_tags_given(unsigned int *shared)
{
	unsigned int given = 0;
	u32 tag;

	spin_lock(&tags_lock);
	for (tag = 1; tag <= CAST_TAG_MASK; tag++)
		given += tag_users[tag];
	*shared = tag_users[CAST_TAG_SHARED];
	spin_unlock(&tags_lock);
	return given;
}

/* --- where M lies --- */

void cast_list_own(struct cast_list *list, unsigned long pfn)
{
	unsigned long block;

	cast_word_set_owner(pfn, list->tag);
	/*
	 * A sweep clears a block's bit before it reads the words, and sets it
	 * again if one is its own. Either it sees this word, or its clearing
	 * is seen here.
	 */
	smp_mb__after_atomic();
	block = (pfn - list->span_start) >> list->block_shift;
	if (pfn < list->span_start || pfn >= list->span_end)
		set_bit(CAST_SPAN_CHANGED, &list->flags);
	else if (!test_bit(block, list->blocks))
		set_bit(block, list->blocks);
}

/* The blocks over the node's span as it is now; none is known to be M's. */
static void span_lay(struct cast_list *list, int nid)
{
	struct pglist_data *pgdat = NODE_DATA(nid);
	unsigned int shift = BLOCK_SHIFT_MIN;

	/* A node that may come later has no frames yet. */
	list->span_start = pgdat ? pgdat->node_start_pfn : 0;
	list->span_end = pgdat ? pgdat_end_pfn(pgdat) : 0;
	while (list->span_end - list->span_start > (unsigned long)CAST_BLOCKS << shift)
		shift++;
	list->block_shift = shift;
	list->cursor = list->span_start;
	list->has_quantile = false;
	list->pass_tick = 0;
	bitmap_zero(list->blocks, CAST_BLOCKS);
}

void cast_list_span(struct cast_list *list, int nid)
{
	struct pglist_data *pgdat = NODE_DATA(nid);

	if (!test_and_clear_bit(CAST_SPAN_CHANGED, &list->flags) &&
	    list->span_start == pgdat->node_start_pfn &&
	    list->span_end == pgdat_end_pfn(pgdat))
		return;
	span_lay(list, nid);
	/* Which blocks are empty, a full turn finds out. */
	bitmap_fill(list->blocks, CAST_BLOCKS);
	list->turn_tick = 0;
}

/* --- making and freeing --- */

void cast_lruvecs_wanted(void)
{
	WRITE_ONCE(lruvecs_wanted, true);
}

static void lruvec_free(struct cast_lruvec *cl)
{
	int type;

	for (type = 0; type < ANON_AND_FILE; type++) {
		if (!cl->list[type])
			continue;
		tag_put(cl->list[type]->tag);
		kvfree(cl->list[type]);
	}
	kfree(cl);
}

static struct cast_lruvec *lruvec_alloc(int nid)
{
	struct cast_lruvec *cl = kzalloc_node(sizeof(*cl), GFP_KERNEL, nid);
	struct cast_list *list;

	if (!cl)
		return NULL;
	list = kvzalloc_node(sizeof(*list), GFP_KERNEL, nid);
	if (!list) {
		kfree(cl);
		return NULL;
	}
	list->tag = tag_get();
	span_lay(list, nid);
	cl->list[WORKINGSET_FILE] = list;
	cl->nid = nid;
	cast_clock_init(&cl->clock);
	return cl;
}

int cast_lruvec_set_up(struct lruvec *lruvec, int nid)
{
	struct cast_lruvec *cl;

	if (cast_of(lruvec))
		return 0;
	cl = lruvec_alloc(nid);
	if (!cl)
		return -ENOMEM;
	/* Readers that see the pointer see what it points to: cast_of(). */
	smp_store_release(&lruvec->cast, cl);
	return 0;
}

/*
 * A new cgroup's lruvec. Making cgroups and switching CAST exclude each other
 * by cgroup_lock(), so each lruvec is set up here or by the switch.
 */
int cast_lruvec_init(struct lruvec *lruvec, int nid)
{
	return READ_ONCE(lruvecs_wanted) ? cast_lruvec_set_up(lruvec, nid) : 0;
}

void cast_lruvec_exit(struct lruvec *lruvec)
{
	struct cast_lruvec *cl = lruvec->cast;

	if (!cl)
		return;
	cast_clock_flush(&cl->clock, cl->nid);
	lruvec->cast = NULL;
	lruvec_free(cl);
}

void cast_lruvec_reset(struct lruvec *lruvec)
{
	struct cast_lruvec *cl = cast_of(lruvec);
	int type;

	if (!cl)
		return;
	/* A sweep that is still on finds no tag of its own any more. */
	spin_lock_irq(&lruvec->lru_lock);
	for (type = 0; type < ANON_AND_FILE; type++) {
		struct cast_list *list = cl->list[type];

		if (!list)
			continue;
		list->nr = 0;
		list->filling = false;
		list->arrived = 0;
		list->turn_tick = 0;
		clear_bit(CAST_SPAN_CHANGED, &list->flags);
		span_lay(list, cl->nid);
	}
	spin_unlock_irq(&lruvec->lru_lock);
}

/* --- sizes --- */

/*
 * Not from the memcg's statistics: they are summed up every couple of seconds
 * only, and a cgroup that fills up to its limit would seem empty.
 */
unsigned long cast_list_pages(struct lruvec *lruvec, enum lru_list lru)
{
	struct pglist_data *pgdat = lruvec_pgdat(lruvec);
	unsigned long pages = 0;
	int zid;

	for (zid = 0; zid < MAX_NR_ZONES; zid++) {
		struct zone *zone = &pgdat->node_zones[zid];

		if (!managed_zone(zone))
			continue;
		if (mem_cgroup_disabled())
			pages += zone_page_state(zone, NR_ZONE_LRU_BASE + lru);
		else
			pages += mem_cgroup_get_zone_lru_size(lruvec, lru, zid);
	}
	return pages;
}

unsigned long cast_lruvec_pages(struct lruvec *lruvec)
{
	return cast_list_pages(lruvec, LRU_INACTIVE_FILE) +
	       cast_list_pages(lruvec, LRU_ACTIVE_FILE);
}

u32 cast_word_ranked(unsigned long pfn, u32 now, u32 le)
{
	u32 word = cast_word(pfn);

	if (!cast_word_cnt(word))
		return cast_word_as_cold(word, now);
	if (cast_word_age(word, now) >= CAST_AGE_OLD)
		word = cast_word_normalise(pfn, now, le);
	return word;
}
