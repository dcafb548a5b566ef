// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finding M's lowest. The state words are read in the order of frames, from
 * where the last sweep ended, and the lowest keys are kept; the sweep ends
 * when enough of them are of the lowest sixteenth, as the last pass over all
 * of memory had it. So about 2,048 words of M are read for 128 evictions,
 * and no page is touched.
 */
#include <linux/bitmap.h>
#include <linux/list.h>
#include <linux/lru_cast.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmzone.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sort.h>

#include "../core/prefetch.h"
#include "../tune/tune.h"
#include "policy.h"

#define WORDS_PER_LINE	(L1_CACHE_BYTES / sizeof(u32))

/* Frames read in one go, under rcu and without rescheduling. */
#define FRAMES_PER_GO	4096UL

/*
 * Where M is so sparse in its blocks that a sweep would mostly read words of
 * others, its list is walked instead: a small cgroup on a large machine.
 */
#define SPARSE_RATIO	64UL
#define WALK_PAGES	(CAST_CANDIDATES * CAST_QUANTILE)
#define WALK_PER_LOCK	128U

/*
 * A state word must be met before its age wraps: CAST_AGE_STEP ticks pass from
 * where it is made fit to there. Where W's tail loses all the time few sweeps
 * are needed, so a full turn is made for the words' own sake.
 */
#define TURN_TICKS	(CAST_AGE_STEP / 2)

struct sweep {
	struct cast_list *list;
	unsigned int nr;	/* candidates so far: a heap, highest first */
	unsigned int low;	/* words met that are of the lowest part */
	u32 now, le;
	u32 order;		/* of the words met, which tells ties apart */
	s32 quantile;		/* relative to @now */
	bool has_quantile;
	bool full;		/* meet all of M, whatever is found */
	unsigned long frames, words, walked;
};

/* --- the lowest so far --- */

static void heap_sift_down(struct cast_candidate *heap, unsigned int nr)
{
	unsigned int i = 0, child;

	while ((child = 2 * i + 1) < nr) {
		if (child + 1 < nr && heap[child + 1].rank > heap[child].rank)
			child++;
		if (heap[i].rank >= heap[child].rank)
			return;
		swap(heap[i], heap[child]);
		i = child;
	}
}

static void heap_sift_up(struct cast_candidate *heap, unsigned int i)
{
	while (i) {
		unsigned int parent = (i - 1) / 2;

		if (heap[parent].rank >= heap[i].rank)
			return;
		swap(heap[parent], heap[i]);
		i = parent;
	}
}

static void keep_if_low(struct sweep *s, u64 rank, unsigned long pfn)
{
	struct cast_candidate *heap = s->list->candidates;
	struct cast_candidate found = { .rank = rank, .pfn = pfn };

	if (s->nr < CAST_CANDIDATES) {
		heap[s->nr] = found;
		heap_sift_up(heap, s->nr++);
	} else if (rank < heap[0].rank) {
		heap[0] = found;
		heap_sift_down(heap, s->nr);
	}
}

static int highest_first(const void *a, const void *b)
{
	u64 x = ((const struct cast_candidate *)a)->rank;
	u64 y = ((const struct cast_candidate *)b)->rank;

	return x < y ? 1 : x > y ? -1 : 0;
}

/* --- the quantile --- */

/* How far below the highest key of its tick; 16 bins an octave, exact to 16. */
static unsigned int depth_bin(s32 key)
{
	u32 depth = max(127 - key, 0);
	unsigned int octave;

	if (depth < 16)
		return depth;
	octave = fls(depth) - 5;
	return min(16 + octave * 16 + ((depth >> octave) & 15), CAST_BINS - 1);
}

/* The highest key in @bin. */
static s32 bin_key(unsigned int bin)
{
	unsigned int octave;

	if (bin < 16)
		return 127 - (s32)bin;
	octave = (bin - 16) / 16;
	return 127 - (s32)((16 + bin % 16) << octave);
}

static void pass_begin(struct sweep *s)
{
	struct cast_list *list = s->list;

	list->pass_tick = s->now;
	list->pass_le = s->le;
	list->binned = 0;
	memset(list->bins, 0, sizeof(list->bins));
}

static void quantile_load(struct sweep *s)
{
	struct cast_list *list = s->list;

	s->has_quantile = list->has_quantile;
	s->quantile = list->quantile -
		      cast_key_shift(list->quantile_tick, s->now, s->le);
}

/* All of the span has been passed: what its lowest sixteenth was. */
static void pass_end(struct sweep *s)
{
	struct cast_list *list = s->list;
	unsigned long want = list->binned / CAST_QUANTILE, got = 0;
	unsigned int bin = CAST_BINS;

	/* Of so few words all are read anyway. */
	list->has_quantile = want >= CAST_CANDIDATES;
	while (bin && got < want)
		got += list->bins[--bin];
	list->quantile = bin_key(bin);
	list->quantile_tick = list->pass_tick;
	quantile_load(s);
	pass_begin(s);
}

/* --- reading words --- */

/* Ranks @pfn among the lowest. Returns its key. */
static s32 meet(struct sweep *s, unsigned long pfn)
{
	u32 word = cast_word_ranked(pfn, s->now, s->le);
	s32 key = cast_key(word, s->now, s->le);
	u32 tie = cast_tie(pfn, cast_word_cnt(word), s->order++);

	keep_if_low(s, cast_rank(key, tie), pfn);
	return key;
}

static void bin(struct sweep *s, s32 key)
{
	struct cast_list *list = s->list;

	list->bins[depth_bin(key + cast_key_shift(list->pass_tick, s->now,
						  s->le))]++;
	list->binned++;
	if (s->has_quantile && key <= s->quantile)
		s->low++;
}

static bool enough(const struct sweep *s)
{
	return s->low >= CAST_CANDIDATES && !s->full;
}

/* Frames of one memory section. Returns where it stopped. */
static unsigned long read_words(struct sweep *s, unsigned long pfn,
				unsigned long end)
{
	u32 tag = s->list->tag;
	unsigned long start = pfn;

	while (pfn < end && !enough(s)) {
		if (pfn % WORDS_PER_LINE == 0 || pfn == start)
			cast_prefetch_at(&cast_words[pfn]);
		if (cast_word_tag(cast_word(pfn)) == tag) {
			s->words++;
			bin(s, meet(s, pfn));
		}
		pfn++;
	}
	s->frames += pfn - start;
	return pfn;
}

static unsigned long read_frames(struct sweep *s, unsigned long pfn,
				 unsigned long end)
{
	while (pfn < end && !enough(s)) {
		unsigned long stop = min3(end, cast_section_end(pfn),
					  pfn + FRAMES_PER_GO);

		rcu_read_lock();
		if (cast_section_present(pfn))
			pfn = read_words(s, pfn, stop);
		else
			pfn = stop;
		rcu_read_unlock();
		cond_resched();
	}
	return pfn;
}

/*
 * One block from @pfn. Its bit is cleared before its words are read, so that
 * one that is set meanwhile stays: see cast_list_own().
 */
static unsigned long read_block(struct sweep *s, unsigned long block,
				unsigned long pfn, unsigned long end)
{
	struct cast_list *list = s->list;
	unsigned long first = list->span_start + (block << list->block_shift);
	unsigned long last = min(first + (1UL << list->block_shift), end);
	unsigned long words = s->words;
	bool whole;

	pfn = max(pfn, first);
	whole = pfn == first && last - first == 1UL << list->block_shift;
	if (whole) {
		clear_bit(block, list->blocks);
		smp_mb__after_atomic();
	}
	pfn = read_frames(s, pfn, last);
	if (whole && (pfn < last || s->words != words))
		set_bit(block, list->blocks);
	return pfn;
}

/* From the cursor to @end; true if the candidates are found. */
static bool read_span(struct sweep *s, unsigned long end)
{
	struct cast_list *list = s->list;

	while (list->cursor < end) {
		unsigned long at = (list->cursor - list->span_start) >>
				   list->block_shift;
		unsigned long block = find_next_bit(list->blocks, CAST_BLOCKS,
						    at);
		unsigned long first = list->span_start +
				      (block << list->block_shift);

		if (block >= CAST_BLOCKS || first >= end) {
			list->cursor = end;
			break;
		}
		list->cursor = read_block(s, block, list->cursor, end);
		if (enough(s))
			return true;
	}
	return false;
}

static void sweep_words(struct sweep *s)
{
	struct cast_list *list = s->list;
	unsigned long start = list->cursor;

	if (list->pass_le != s->le || !list->pass_tick)
		pass_begin(s);
	if (read_span(s, list->span_end))
		return;
	pass_end(s);
	list->cursor = list->span_start;
	if (!read_span(s, start))
		list->turn_tick = s->now;
}

/*
 * M's folios from its list, that is in no order, the ones looked at going to
 * the other end. As many as a sweep reads words, or all for a full turn.
 */
static void walk_list(struct sweep *s, struct lruvec *lruvec, bool file)
{
	struct list_head *head = &lruvec->lists[file * LRU_FILE + LRU_ACTIVE];
	long left = cast_list_pages(lruvec, file * LRU_FILE + LRU_ACTIVE);

	if (s->full || left <= WALK_PAGES)
		s->list->turn_tick = s->now;
	else
		left = WALK_PAGES;
	while (left > 0) {
		unsigned int i;

		spin_lock_irq(&lruvec->lru_lock);
		for (i = 0; i < WALK_PER_LOCK && left > 0; i++) {
			struct folio *folio;

			if (list_empty(head)) {
				left = 0;
				break;
			}
			folio = lru_to_folio(head);
			list_move(&folio->lru, head);
			left -= folio_nr_pages(folio);
			s->walked++;
			meet(s, folio_pfn(folio));
		}
		spin_unlock_irq(&lruvec->lru_lock);
		cond_resched();
	}
}

static bool is_sparse(struct lruvec *lruvec, struct cast_list *list, bool file)
{
	unsigned long m = cast_list_pages(lruvec, file * LRU_FILE + LRU_ACTIVE);
	unsigned long blocks = bitmap_weight(list->blocks, CAST_BLOCKS);

	/* In a small node a full turn costs less than the list's folios do. */
	return (blocks << list->block_shift) > max(m * SPARSE_RATIO, 1UL << 16);
}

bool cast_candidates_fit(const struct cast_list *list, u32 now, u32 le)
{
	return READ_ONCE(list->nr) && now - READ_ONCE(list->swept) <= 1 &&
	       READ_ONCE(list->le) == le;
}

void cast_sweep(struct lruvec *lruvec, struct cast_lruvec *cl, bool file)
{
	struct cast_list *list = cl->list[file];
	struct sweep s = { .list = list, .le = cast_le(file) };

	if (test_and_set_bit_lock(CAST_SWEEPING, &list->flags))
		return;

	spin_lock_irq(&lruvec->lru_lock);
	list->nr = 0;
	cast_list_span(list, cl->nid);
	s.now = cast_clock_now(&cl->clock);
	spin_unlock_irq(&lruvec->lru_lock);

	s.full = s.now - list->turn_tick >= TURN_TICKS;
	if (list->pass_le != s.le)
		list->has_quantile = false;
	quantile_load(&s);
	if (cast_tag_shared(list) || (!s.full && is_sparse(lruvec, list, file)))
		walk_list(&s, lruvec, file);
	else
		sweep_words(&s);
	sort(list->candidates, s.nr, sizeof(*list->candidates), highest_first,
	     NULL);

	spin_lock_irq(&lruvec->lru_lock);
	WRITE_ONCE(list->swept, s.now);
	WRITE_ONCE(list->le, s.le);
	WRITE_ONCE(list->nr, s.nr);
	spin_unlock_irq(&lruvec->lru_lock);
	clear_bit_unlock(CAST_SWEEPING, &list->flags);

	cast_count(CAST_STAT_FRAMES, s.frames);
	cast_count(CAST_STAT_WORDS, s.words);
	cast_count(CAST_STAT_FALLBACK, s.walked);
}
