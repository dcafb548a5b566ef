// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the rest of mm/ tells CAST, behind the static key: see lru_cast.h.
 */
#include <linux/lru_cast.h>
#include <linux/lru_cast_read.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmzone.h>
#include <linux/page_idle.h>
#include <linux/rcupdate.h>

#include "compat/kernel.h"
#include "policy/policy.h"
#include "tune/tune.h"

/*
 * The tick that a read of @folio is of; false if it is no page of a lruvec's.
 * A read may come while the folio is moved to another cgroup: then the tick is
 * of the one or the other. No lock and no list are touched.
 */
static __always_inline bool now_of(const struct folio *folio, u32 *now)
{
	struct mem_cgroup *memcg;
	bool known;

	rcu_read_lock();
	/* What is mapped may also be no page of a cgroup's: the VDSO's. */
	memcg = folio_memcg_check((struct folio *)folio);
	known = memcg || mem_cgroup_disabled();
	if (known)
		*now = cast_now(mem_cgroup_lruvec(memcg, folio_pgdat(folio)));
	rcu_read_unlock();
	return known;
}

static noinline void record(struct folio *folio, u32 now, bool arrived)
{
	if (cast_word_note_read(folio_pfn(folio), now, arrived))
		cast_tune_event(folio, CAST_EV_READ);
}

/*
 * The read that brings a page in comes right behind its arrival, which has
 * counted it. PG_referenced means nothing else in the pages that CAST owns: it
 * says that this read has been.
 */
static void read_at(struct folio *folio, u32 now)
{
	if (!folio_test_referenced(folio)) {
		folio_set_referenced(folio);
		record(folio, now, true);
	} else if (!cast_word_is_told(cast_word(folio_pfn(folio)), now)) {
		record(folio, now, false);
	}
}

void __cast_read(struct folio *folio)
{
	u32 now;

	/* Device memory has no state words, and is not reclaimed. */
	if (!folio_is_zone_device(folio) && now_of(folio, &now))
		read_at(folio, now);
}

static_assert(CAST_TOLD_FIELDS == (CAST_TICK_FIELD | CAST_G1_FIELD));
static_assert(CAST_TOLD_COUNT == CAST_CNT_MAX - 1);

/*
 * What is not as the folio before, or has something to tell. Folios like this
 * one have it in common that the lruvec's time is this, that their words are
 * there and that they were referenced before.
 */
bool __cast_read_next(struct folio *folio, struct cast_reader *reader)
{
	u32 now;

	if (folio_test_swapbacked(folio))
		return false;
	if (folio_test_idle(folio))
		folio_clear_idle(folio);
	if (folio_is_zone_device(folio) || !now_of(folio, &now))
		return true;
	read_at(folio, now);
#ifndef NODE_NOT_IN_PAGE_FLAGS
	reader->words = cast_words;
	reader->owner = cast_read_owner(folio);
	reader->flags = (cast_read_flags(folio) & ~CAST_READ_IDLE) |
			BIT(PG_referenced);
	reader->told = now << CAST_TICK_SHIFT & CAST_TICK_FIELD;
#endif
	return true;
}

bool cast_young(struct folio *folio, bool again)
{
	u32 now;

	/*
	 * A page is mapped young by the fault that reads it in, and so are
	 * its neighbours that the fault maps around it. That mark is the
	 * arrival's; whether the page is read again the next look tells.
	 */
	if (!again && cast_word_cnt(cast_word(folio_pfn(folio))) <= 1) {
		folio_set_referenced(folio);
		return false;
	}
	if (!folio_is_zone_device(folio) && now_of(folio, &now))
		record(folio, now, false);
	return true;
}

/* Locked and charged, and on no list yet: its lruvec is known. */
void __cast_new(struct folio *folio)
{
	if (folio_is_zone_device(folio))
		return;
	cast_word_fresh(folio_pfn(folio), cast_now(folio_lruvec(folio)));
	cast_tune_event(folio, CAST_EV_ADD);
}

void __cast_cold(struct folio *folio)
{
	cast_word_cold(folio_pfn(folio), cast_now(folio_lruvec(folio)));
}

/*
 * @src is isolated, so it is in no M. On another node time is another
 * lruvec's; the page is as old there as it was here.
 */
void __cast_copy(struct folio *dst, struct folio *src)
{
	struct mem_cgroup *memcg = folio_memcg(src);
	u32 word, from, to;

	if (folio_is_zone_device(src) || folio_is_zone_device(dst))
		return;
	word = cast_word(folio_pfn(src));
	from = cast_now(mem_cgroup_lruvec(memcg, folio_pgdat(src)));
	to = cast_now(mem_cgroup_lruvec(memcg, folio_pgdat(dst)));
	if (from != to)
		word = cast_word_make(cast_word_cnt(word), cast_word_g1(word),
				      cast_word_g2(word),
				      to - cast_word_age(word, from), 0);
	cast_word_set_history(folio_pfn(dst), word);
}

/* Under lru_lock, with the folio frozen and still whole. */
void __cast_split(struct folio *folio, unsigned int new_order)
{
	struct cast_lruvec *cl = cast_of(folio_lruvec(folio));
	unsigned long pfn = folio_pfn(folio);
	unsigned long end = pfn + folio_nr_pages(folio);
	u32 word = cast_word(pfn);

	for (pfn += 1UL << new_order; pfn < end; pfn += 1UL << new_order) {
		cast_word_set_history(pfn, word);
		/* The parts are linked behind the head, in the same list. */
		if (cast_word_tag(word) && cl && cl->list[WORKINGSET_FILE])
			cast_list_own(cl->list[WORKINGSET_FILE], pfn);
	}
}

void __cast_added(struct lruvec *lruvec, struct folio *folio)
{
	struct cast_lruvec *cl = cast_of(lruvec);
	unsigned long pfn = folio_pfn(folio);

	if (!folio_test_active(folio)) {
		/*
		 * Deleting took the tag, unless a reclaim that began before
		 * CAST was switched on moved the folio on by itself.
		 */
		if (unlikely(cast_word_tag(cast_word(pfn))))
			cast_word_set_owner(pfn, 0);
		return;
	}
	if (cl && cl->list[WORKINGSET_FILE])
		cast_list_own(cl->list[WORKINGSET_FILE], pfn);
}

void __cast_deleted(struct lruvec *lruvec, struct folio *folio)
{
	cast_word_set_owner(folio_pfn(folio), 0);
}

void __cast_taken_in(struct lruvec *lruvec, struct folio *folio)
{
	struct cast_lruvec *cl = cast_of(lruvec);

	if (!cl || folio_test_unevictable(folio))
		return;
	cast_fill(lruvec, cl, folio_nr_pages(folio));
	if (cast_clock_in(&cl->clock, folio_nr_pages(folio)))
		cast_clock_tick(&cl->clock, cl->nid, cast_lruvec_pages(lruvec));
	else if (unlikely(cl->clock.in >= cl->clock.step))
		/* Owners free as much: no time passes, but the count does. */
		cast_clock_flush(&cl->clock, cl->nid);
}

void __cast_owner_freed(struct lruvec *lruvec, struct folio *folio)
{
	struct cast_lruvec *cl = cast_of(lruvec);

	if (cl && !folio_test_unevictable(folio))
		cast_clock_free(&cl->clock, folio_nr_pages(folio));
}
