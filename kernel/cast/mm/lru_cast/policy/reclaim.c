// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which folios reclaim gets. While W is over its share its tail, the oldest of
 * the newcomers, meets M's lowest and the lower of the two goes; otherwise M's
 * lowest goes.
 */
#include <linux/list.h>
#include <linux/lru_cast.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmzone.h>
#include <linux/rcupdate.h>
#include <linux/swap.h>
#include <linux/vmstat.h>

#include "../compat/kernel.h"
#include "../tune/tune.h"
#include "policy.h"

/* Folios that a batch may pass over: not evictable now, or of other zones. */
#define SKIP_FOLIOS	1024U

struct pick {
	struct lruvec *lruvec;
	struct cast_list *list;
	struct cast_scan *scan;
	struct list_head *dst;
	unsigned long w, m;		/* pages in each */
	unsigned long share;		/* pages that W may have, of w + m */
	unsigned long taken;
	unsigned long stale, used;
	unsigned int skips_left;
	bool tails;			/* no candidate can be had: see pick_one() */
	u32 now, le;
};

/* How a folio ranks. */
struct rank {
	s32 key;
	u32 tie, cnt;
};

static struct rank rank_of(const struct pick *p, unsigned long pfn)
{
	u32 word = cast_word_ranked(pfn, p->now, p->le);
	u32 cnt = cast_word_cnt(word);

	return (struct rank) {
		.key = cast_key(word, p->now, p->le),
		.tie = cast_tie(pfn, cnt, 0),
		.cnt = cnt,
	};
}

static enum lru_list list_w(const struct pick *p)
{
	return LRU_BASE + p->scan->file * LRU_FILE;
}

static enum lru_list list_m(const struct pick *p)
{
	return list_w(p) + LRU_ACTIVE;
}

/* --- taking and moving, under lru_lock --- */

static bool may_take(const struct pick *p, struct folio *folio)
{
	return folio_test_lru(folio) &&
	       folio_zonenum(folio) <= p->scan->reclaim_idx &&
	       (p->scan->may_unmap || !folio_mapped(folio));
}

/* Off its list and onto @dst. False if somebody else has it. */
static bool take(struct pick *p, struct folio *folio)
{
	long nr = folio_nr_pages(folio);

	if (unlikely(!folio_try_get(folio)))
		return false;
	if (!folio_test_clear_lru(folio)) {
		/* Not the last reference: whoever isolates it has one. */
		folio_put(folio);
		return false;
	}
	lruvec_del_folio(p->lruvec, folio);
	if (folio_test_active(folio)) {
		/* shrink_folio_list() sets it anew on what is to stay. */
		folio_clear_active(folio);
		p->m -= min_t(unsigned long, nr, p->m);
	} else {
		p->w -= min_t(unsigned long, nr, p->w);
	}
	list_add(&folio->lru, p->dst);
	p->taken += nr;
	p->scan->nr_scanned += nr;
	return true;
}

static void move_to_m(struct pick *p, struct folio *folio)
{
	long nr = folio_nr_pages(folio);

	cast_move_to_m(p->lruvec, folio);
	p->w -= min_t(unsigned long, nr, p->w);
	p->m += nr;
}

/*
 * The list's tail that may be taken, or NULL. What may not goes to the head,
 * as stock isolation has it, or every batch would meet it again.
 */
static struct folio *tail(struct pick *p, enum lru_list lru)
{
	struct list_head *head = &p->lruvec->lists[lru];

	while (!list_empty(head)) {
		struct folio *folio = lru_to_folio(head);

		if (may_take(p, folio))
			return folio;
		if (!p->skips_left)
			return NULL;
		p->skips_left--;
		p->scan->nr_skipped += folio_nr_pages(folio);
		list_move(&folio->lru, head);
	}
	return NULL;
}

/* --- M's lowest --- */

/*
 * The folio of a candidate if it still is one: of M, and not read since it
 * was found. No reference is held. What is on this lruvec's lists stays there
 * while lru_lock is held, and PG_lru with these other marks says it is; frames
 * that are something else by now fail one of them.
 */
static struct folio *candidate_folio(struct pick *p,
				     const struct cast_candidate *candidate,
				     struct rank *rank)
{
	struct folio *folio;
	struct page *page;
	s32 key;

	if (!cast_section_present(candidate->pfn))
		return NULL;
	if (cast_word_tag(cast_word(candidate->pfn)) != p->list->tag)
		return NULL;
	page = pfn_to_page(candidate->pfn);
	if (PageTail(page))
		return NULL;
	folio = page_folio(page);
	if (folio_pfn(folio) != candidate->pfn || !may_take(p, folio) ||
	    !folio_test_active(folio) || folio_test_unevictable(folio) ||
	    folio_is_file_lru(folio) != p->scan->file)
		return NULL;
	if (folio_pgdat(folio) != lruvec_pgdat(p->lruvec) ||
	    folio_memcg_check(folio) != lruvec_memcg(p->lruvec))
		return NULL;

	*rank = rank_of(p, candidate->pfn);
	key = (s32)((u32)(candidate->rank >> 32) ^ 0x80000000U) -
	      cast_key_shift(p->list->swept, p->now, p->le);
	/* One step of rounding is no read. */
	return rank->key <= key + 1 ? folio : NULL;
}

/* M's lowest that is known, left among the candidates; NULL if there is none. */
static struct folio *lowest(struct pick *p, struct rank *rank)
{
	struct cast_list *list = p->list;
	struct folio *folio = NULL;

	if (!cast_candidates_fit(list, p->now, p->le))
		return NULL;
	rcu_read_lock();
	while (list->nr) {
		folio = candidate_folio(p, &list->candidates[list->nr - 1],
					rank);
		if (folio)
			break;
		list->nr--;
		p->stale++;
	}
	rcu_read_unlock();
	return folio;
}

static bool take_lowest(struct pick *p, struct folio *folio)
{
	p->list->nr--;
	if (take(p, folio)) {
		p->used++;
		return true;
	}
	p->stale++;
	return true;	/* the next candidate may do */
}

/* --- one decision --- */

/* Where no order is known: a list's tail, W's before M's. */
static bool pick_tail(struct pick *p)
{
	struct folio *folio = tail(p, list_w(p));

	if (!folio)
		folio = tail(p, list_m(p));
	return folio && take(p, folio);
}

/* Takes one folio, or makes way for one. False if the batch is to end. */
static bool pick_one(struct pick *p)
{
	struct folio *newcomer = NULL, *low;
	struct rank low_rank, rank;

	low = lowest(p, &low_rank);
	if (!low && p->m) {
		/*
		 * The candidates ran out: the next batch sweeps first. If there
		 * were none to begin with, another CPU is sweeping, or what M
		 * has may not be taken now: then the batch is of the tails.
		 */
		if (!p->taken)
			p->tails = true;
		return p->tails && pick_tail(p);
	}
	if (!low || p->w > p->share)
		newcomer = tail(p, list_w(p));
	if (!newcomer)
		return low && take_lowest(p, low);
	if (!low)
		return take(p, newcomer);

	rank = rank_of(p, folio_pfn(newcomer));
	if (cast_newcomer_goes(rank.key, rank.tie, rank.cnt,
			       low_rank.key, low_rank.tie)) {
		if (!take(p, newcomer))
			list_move(&newcomer->lru, &p->lruvec->lists[list_w(p)]);
		return true;
	}
	move_to_m(p, newcomer);
	return take_lowest(p, low);
}

/* --- what vmscan.c calls --- */

/*
 * Whether memory of some zones only is asked for. Of those few candidates are,
 * so that is left to the lists.
 */
static bool is_low_zone(struct pglist_data *pgdat, int reclaim_idx)
{
	int zid;

	for (zid = reclaim_idx + 1; zid < pgdat->nr_zones; zid++)
		if (managed_zone(&pgdat->node_zones[zid]))
			return true;
	return false;
}

/*
 * Before lru_lock is taken for a batch: sees to it that there are candidates.
 * False if CAST does not own this type of the lruvec.
 */
bool cast_prepare(struct lruvec *lruvec, bool file)
{
	struct cast_lruvec *cl = cast_of(lruvec);

	if (!cl || !cl->list[file])
		return false;
	if (!cast_candidates_fit(cl->list[file], cast_clock_now(&cl->clock),
				 cast_le(file)))
		cast_sweep(lruvec, cl, file);
	return true;
}

/*
 * Takes the folios to reclaim off their lists and onto @dst, each with a
 * reference, as isolate_lru_folios() does. Under lru_lock, after
 * cast_prepare(). Returns how many pages they have.
 */
unsigned long cast_isolate(struct lruvec *lruvec, struct cast_scan *scan,
			   struct list_head *dst)
{
	struct cast_lruvec *cl = cast_of(lruvec);
	struct pick p = {
		.lruvec = lruvec,
		.list = cl->list[scan->file],
		.scan = scan,
		.dst = dst,
		.skips_left = SKIP_FOLIOS,
		.now = cast_clock_now(&cl->clock),
		.le = cast_le(scan->file),
	};
	unsigned int rounds = 4 * SWAP_CLUSTER_MAX;
	bool low_zone = is_low_zone(lruvec_pgdat(lruvec), scan->reclaim_idx);

	p.w = cast_list_pages(lruvec, list_w(&p));
	p.m = cast_list_pages(lruvec, list_m(&p));
	p.share = (p.w + p.m) * cast_w_permille(scan->file) / 1000;
	while (p.taken < scan->nr_to_scan && rounds--)
		if (!(low_zone ? pick_tail(&p) : pick_one(&p)))
			break;

	cast_count(CAST_STAT_CANDIDATES, p.used);
	cast_count(CAST_STAT_STALE, p.stale);
	return p.taken;
}

/* What became of the batch. Under lru_lock. */
void cast_evicted(struct lruvec *lruvec, bool file, unsigned long nr)
{
	struct cast_lruvec *cl = cast_of(lruvec);

	if (!cl)
		return;
	cast_clock_settle(&cl->clock);
	cast_clock_evicted(cl->nid, nr);
	cast_count(nr ? CAST_STAT_TOOK_ANON + file : CAST_STAT_TOOK_NONE, 1);
}
