/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The state word of a page frame: what is known of the reads of its page.
 *
 *   bits  0-7   cnt   reads, saturating at 255; 0: nothing is known
 *   bits  8-11  g1    class of the gap between the last two reads (cnt >= 2);
 *                     0: both in one tick
 *   bits 12-15  g2    class of the gap before that (cnt >= 3)
 *   bits 16-24  tick  of the last read, modulo 512
 *   bits 25-31  tag   of the lruvec in whose M the page is; 0: in none
 *
 * Pure functions of words: no memory is read here, so the same code is
 * checked in user space (kernel/cast/test) and by KUnit.
 */
#ifndef _LRU_CAST_WORD_H
#define _LRU_CAST_WORD_H

#include <linux/bitops.h>
#include <linux/build_bug.h>
#include <linux/minmax.h>
#include <linux/types.h>

#define CAST_TICK_BITS		9
#define CAST_TAG_BITS		7
#define CAST_TICK_MASK		((1U << CAST_TICK_BITS) - 1)
#define CAST_TAG_MASK		((1U << CAST_TAG_BITS) - 1)
#define CAST_CNT_MAX		255U

#define CAST_G1_SHIFT		8
#define CAST_G2_SHIFT		12
#define CAST_TICK_SHIFT		16
#define CAST_TAG_SHIFT		(CAST_TICK_SHIFT + CAST_TICK_BITS)
#define CAST_TAG_FIELD		(CAST_TAG_MASK << CAST_TAG_SHIFT)
#define CAST_TICK_FIELD		(CAST_TICK_MASK << CAST_TICK_SHIFT)
#define CAST_G1_FIELD		(15U << CAST_G1_SHIFT)

static_assert(CAST_TICK_BITS + CAST_TAG_BITS == 16);

/*
 * The class of a gap is its number of binary digits, so class c holds the
 * gaps in [2^(c-1), 2^c). No gap is longer than a tick field can tell, hence
 * no class above its width is ever written, although its field holds 15.
 */
#define CAST_GAP_MAX		CAST_TICK_MASK
#define CAST_CLASS_MAX		CAST_TICK_BITS

/*
 * A word not touched for 512 ticks would look young again. What meets a word
 * this old rewrites it (cast_word_normalise()); CAST_AGE_STEP ticks pass
 * before it is this old again.
 */
#define CAST_AGE_OLD		384U
#define CAST_AGE_STEP		128U

/* A lruvec's clock starts here, so that no age reaches before tick 0. */
#define CAST_TICK_FIRST		(CAST_TICK_MASK + 1)

/*
 * What a page that is taken in adds to the time, in parts of a page: all of it
 * where a page makes room that had been read again, little where one does that
 * nobody asked for twice, and a quarter where there was room.
 */
#define CAST_PARTS		16U
#define CAST_PARTS_ROOM		4U
#define CAST_PARTS_ONCE		1U

/* What was evicted longer ago comes back without history: 8 turnovers. */
#define CAST_HISTORY_TICKS	32U

static inline u32 cast_word_cnt(u32 word)
{
	return word & CAST_CNT_MAX;
}

static inline u32 cast_word_g1(u32 word)
{
	return (word >> CAST_G1_SHIFT) & 15;
}

static inline u32 cast_word_g2(u32 word)
{
	return (word >> CAST_G2_SHIFT) & 15;
}

static inline u32 cast_word_tick(u32 word)
{
	return (word >> CAST_TICK_SHIFT) & CAST_TICK_MASK;
}

static inline u32 cast_word_tag(u32 word)
{
	return word >> CAST_TAG_SHIFT;
}

static inline u32 cast_word_make(u32 cnt, u32 g1, u32 g2, u32 tick, u32 tag)
{
	return (cnt & CAST_CNT_MAX) | (g1 & 15) << CAST_G1_SHIFT |
	       (g2 & 15) << CAST_G2_SHIFT |
	       (tick & CAST_TICK_MASK) << CAST_TICK_SHIFT |
	       (tag & CAST_TAG_MASK) << CAST_TAG_SHIFT;
}

/* Ticks since the last read, at the tick @now of the page's lruvec. */
static inline u32 cast_word_age(u32 word, u32 now)
{
	return (now - cast_word_tick(word)) & CAST_TICK_MASK;
}

static inline u32 cast_gap_class(u32 ticks)
{
	return fls(min(ticks, CAST_GAP_MAX));
}

static inline u32 cast_word_with_tag(u32 word, u32 tag)
{
	return (word & ~CAST_TAG_FIELD) | tag << CAST_TAG_SHIFT;
}

/* The history of @from with the tag of @word: tags belong to frames. */
static inline u32 cast_word_with_history(u32 word, u32 from)
{
	return (from & ~CAST_TAG_FIELD) | (word & CAST_TAG_FIELD);
}

/*
 * Two reads of a tick count: what fits into memory is read again while no time
 * passes, and must not look as if it had been read once. More add nothing,
 * which class 0 of the last gap tells: how often a page is read while the
 * clock stands says little of what comes. True if @word has its two of @now.
 */
static inline bool cast_word_is_told(u32 word, u32 now)
{
	return (word & (CAST_CNT_MAX - 1)) &&
	       !((word ^ now << CAST_TICK_SHIFT) &
		 (CAST_TICK_FIELD | CAST_G1_FIELD));
}

/* The word after a read at @now. */
static inline u32 cast_word_after_read(u32 word, u32 now)
{
	u32 cnt = cast_word_cnt(word);
	u32 age = cast_word_age(word, now);

	if (!cnt)
		return cast_word_make(1, 0, 0, now, cast_word_tag(word));
	if (cast_word_is_told(word, now))
		return word;
	return cast_word_make(min(cnt + 1, CAST_CNT_MAX), cast_gap_class(age),
			      cnt >= 2 ? cast_word_g1(word) : 0, now,
			      cast_word_tag(word));
}

/* As it was read when it came in, which has been counted if that was now. */
static inline u32 cast_word_after_arrival(u32 word, u32 now)
{
	if (cast_word_cnt(word) && !cast_word_age(word, now))
		return word;
	return cast_word_after_read(word, now);
}

/* Read once, now: a page without history. */
static inline u32 cast_word_as_fresh(u32 word, u32 now)
{
	return cast_word_make(1, 0, 0, now, cast_word_tag(word));
}

/* Read once, as long ago as a word can tell: its owner gave the page up. */
static inline u32 cast_word_as_cold(u32 word, u32 now)
{
	return cast_word_make(1, 0, 0, now - (CAST_AGE_OLD - 1),
			      cast_word_tag(word));
}

/*
 * The fields that other memory may hold (a shadow of an evicted page, written
 * under any policy) made legal: no class that is never written.
 */
static inline u32 cast_word_sane(u32 word)
{
	u32 cnt = cast_word_cnt(word);
	u32 g1 = min_t(u32, cast_word_g1(word), CAST_CLASS_MAX);
	u32 g2 = min_t(u32, cast_word_g2(word), CAST_CLASS_MAX);

	return cast_word_make(cnt, cnt >= 2 ? g1 : 0, cnt >= 3 ? g2 : 0,
			      cast_word_tick(word), cast_word_tag(word));
}

#endif /* _LRU_CAST_WORD_H */
