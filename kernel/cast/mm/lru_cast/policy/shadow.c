// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shadows of evicted pages: a page that comes back within 8 turnovers of
 * memory has its history again, one read more, and enters W like any other.
 * Nothing is activated at once: it must outrank M's lowest.
 */
#include <linux/lru_cast.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/rcupdate.h>
#include <linux/swap.h>
#include <linux/vmstat.h>
#include <linux/xarray.h>

#include "../compat/kernel.h"
#include "../core/core.h"
#include "policy.h"
#include "shadow.h"

#define NODE_SHIFT	CAST_SHADOW_FLAG_BITS
#define MEMCG_SHIFT	(NODE_SHIFT + NODES_SHIFT)
#define PAYLOAD_SHIFT	(MEMCG_SHIFT + MEM_CGROUP_ID_SHIFT)

static_assert(PAYLOAD_SHIFT + CAST_SHADOW_BITS <= BITS_PER_XA_VALUE);

/* A page read this often before it was evicted was of the working set. */
#define WORKINGSET_CNT	3

/* Evicted within one turnover: a little more memory would have kept it. */
#define RECENT_TICKS	4U

/*
 * The folio is frozen, locked and out of the lists. The shadow is charged to
 * the folio's own lruvec, whatever cgroup's limit evicts it: the ticks in its
 * word are of that lruvec's clock.
 */
void *cast_pack(struct folio *folio, struct mem_cgroup *target_memcg)
{
	struct mem_cgroup *memcg = folio_memcg(folio);
	struct pglist_data *pgdat = folio_pgdat(folio);
	struct lruvec *lruvec = mem_cgroup_lruvec(memcg, pgdat);
	struct cast_lruvec *cl = cast_of(lruvec);
	u32 word = cast_word(folio_pfn(folio));
	u64 value;

	if (cl)
		cast_clock_left(&cl->clock, folio_nr_pages(folio),
				cast_word_cnt(word) <= 1);

	value = cast_shadow_payload(word, cast_now(lruvec));
	value = value << MEM_CGROUP_ID_SHIFT |
		mem_cgroup_id(lruvec_memcg(lruvec));
	value = value << NODES_SHIFT | pgdat->node_id;
	value = value << CAST_SHADOW_FLAG_BITS | CAST_SHADOW_OURS;
	if (folio_test_workingset(folio))
		value |= CAST_SHADOW_WORKINGSET;

	/* Anonymous memory's refault distances count these evictions too. */
	workingset_age_nonresident(mem_cgroup_lruvec(target_memcg, pgdat),
				   folio_nr_pages(folio));
	return xa_mk_value(value);
}

bool cast_shadow(const void *shadow)
{
	return xa_to_value(shadow) & CAST_SHADOW_OURS;
}

/*
 * The lruvec that evicted, NULL if its cgroup is gone; under rcu. In rare
 * cases the id is another cgroup's by now: then the ages are wrong once.
 */
static struct lruvec *evictor(unsigned long value)
{
	int id = value >> MEMCG_SHIFT & ((1UL << MEM_CGROUP_ID_SHIFT) - 1);
	int nid = value >> NODE_SHIFT & ((1UL << NODES_SHIFT) - 1);
	struct mem_cgroup *memcg = mem_cgroup_from_id(id);

	if (!mem_cgroup_disabled() && !memcg)
		return NULL;
	return mem_cgroup_lruvec(memcg, NODE_DATA(nid));
}

/* The caller holds the folio locked and charged, and it is on no list yet. */
void cast_refault(struct folio *folio, void *shadow)
{
	unsigned long value = xa_to_value(shadow);
	bool file = folio_is_file_lru(folio);
	long nr = folio_nr_pages(folio);
	struct lruvec *lruvec, *from;
	u32 now, history = 0;

	rcu_read_lock();
	lruvec = mem_cgroup_lruvec(folio_memcg(folio), folio_pgdat(folio));
	mod_lruvec_state(lruvec, WORKINGSET_REFAULT_BASE + file, nr);

	from = cast_shadow(shadow) ? evictor(value) : NULL;
	now = cast_now(lruvec);
	if (from)
		history = cast_shadow_history(value >> PAYLOAD_SHIFT,
					      cast_now(from), now);
	if (!history)
		goto out;

	cast_word_set_history(folio_pfn(folio),
			      cast_word_after_read(history, now));
	mod_lruvec_state(lruvec, WORKINGSET_ACTIVATE_BASE + file, nr);
	/* Waits for these are stalls; a stream's are not. */
	if (cast_word_cnt(history) >= WORKINGSET_CNT) {
		folio_set_workingset(folio);
		mod_lruvec_state(lruvec, WORKINGSET_RESTORE_BASE + file, nr);
	}
out:
	rcu_read_unlock();
}

/* Under rcu, for cachestat(): any shadow may come. */
bool cast_test_recent(void *shadow, bool file, bool *workingset)
{
	unsigned long value = xa_to_value(shadow);
	struct lruvec *from;

	*workingset = value & CAST_SHADOW_WORKINGSET;
	if (!cast_shadow(shadow))
		return false;
	from = evictor(value);
	return from && cast_shadow_ago(value >> PAYLOAD_SHIFT,
				       cast_now(from)) <= RECENT_TICKS;
}
