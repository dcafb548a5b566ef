/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The key that pages are ranked by: E/H + log2(score), in 1/16 half-lives,
 * with E the time of the last read, H the half-life and the score LRFU's sum
 * over the reads of 2^(-age/H) at the moment of the last one (Lee et al.,
 * IEEE Transactions on Computers 50(12), 2001). All scores decay alike, so a
 * key changes only when its page is read.
 *
 * The decay le is 1 to 14: the half-life is 2^(8-le) times what memory holds,
 * in pages taken in; a tick is a quarter of it, so 2^(10-le) ticks.
 */
#ifndef _LRU_CAST_KEY_H
#define _LRU_CAST_KEY_H

#include <linux/minmax.h>
#include <linux/types.h>

#include "word.h"

#define CAST_LE_MIN		1
#define CAST_LE_MAX		14
/* What a cache of file pages starts with. */
#define CAST_LE_START		9

/* Counts are exact to 8, then four classes an octave. */
#define CAST_CNT_CLASSES	28
#define CAST_LUT_GAPS		(CAST_CLASS_MAX + 1)
#define CAST_LUT_PER_LE		(CAST_LUT_GAPS * CAST_LUT_GAPS * \
				 CAST_CNT_CLASSES)
#define CAST_LUT_SIZE		((CAST_LE_MAX + 1 - CAST_LE_MIN) * \
				 CAST_LUT_PER_LE)

/*
 * Pages of one key that were read more than once go by a hash of the frame,
 * of runs of frames: what is left of a loop larger than memory then stays in
 * runs, and is read back with fewer requests.
 */
#define CAST_TIE_SHIFT		5

/* [le][g1][g2][count class], NULL until cast_key_init(). */
extern u8 *cast_lut;

/* Builds the table; may sleep. 0 or -ENOMEM. */
int cast_key_init(void);
void cast_key_exit(void);

/*
 * 16 * log2(score) by the formula: what the table is built from. @g1 and @g2
 * are classes of 1 to 10, of which those above CAST_CLASS_MAX never occur.
 */
u32 cast_log_score(u32 g1, u32 g2, u32 cnt, u32 le);
/* 2^-(d/4096) in 1/65536; 0 from 17 halvings on. */
u32 cast_decay_q16(u64 d);

static inline u32 cast_cnt_class(u32 cnt)
{
	u32 n;

	if (cnt <= 8)
		return cnt;
	n = fls(cnt) - 1;
	return 8 + (n - 3) * 4 + ((cnt >> (n - 2)) & 3);
}

static inline u32 cast_lut_log_score(u32 g1, u32 g2, u32 cnt, u32 le)
{
	u32 row = ((le - CAST_LE_MIN) * CAST_LUT_GAPS +
		   min_t(u32, g1, CAST_CLASS_MAX)) * CAST_LUT_GAPS +
		  min_t(u32, g2, CAST_CLASS_MAX);

	return cast_lut[row * CAST_CNT_CLASSES + cast_cnt_class(cnt)];
}

/*
 * A time of @tick, in 1/16 half-lives. The absolute time is shifted, never an
 * age: rounding then cannot change the order of two pages as time passes.
 */
static inline u64 cast_time16(u32 tick, u32 le)
{
	return ((u64)tick << 4 << le) >> 10;
}

/*
 * The key of @word, relative to @now: at most 127, lower goes first. Keys of
 * one @now compare; those of two differ by cast_key_shift().
 */
static inline s32 cast_key(u32 word, u32 now, u32 le)
{
	u32 log_score = cast_lut_log_score(cast_word_g1(word),
					   cast_word_g2(word),
					   cast_word_cnt(word), le);
	u64 read = cast_time16(now - cast_word_age(word, now), le);

	return (s32)(read - cast_time16(now, le)) + (s32)log_score;
}

/* What a key taken at @then is to be lowered by to compare at @now. */
static inline s32 cast_key_shift(u32 then, u32 now, u32 le)
{
	return (s32)(cast_time16(now, le) - cast_time16(then, le));
}

/* Mixes all bits (the last steps of MurmurHash3, public domain). */
static inline u32 cast_hash32(u32 x)
{
	x = (x ^ (x >> 16)) * 0x85ebca6bU;
	x = (x ^ (x >> 13)) * 0xc2b2ae35U;
	return x ^ (x >> 16);
}

/*
 * What tells pages of one key apart; lower goes first. Read once: @order, the
 * one in which the sweep met them. Read more often: always the same first, by
 * a hash, so that a loop keeps a part of itself. A once-read page goes before
 * others of its key.
 */
static inline u32 cast_tie(unsigned long pfn, u32 cnt, u32 order)
{
	if (cnt <= 1)
		return order & 0x7fffffffU;
	return cast_hash32(pfn >> CAST_TIE_SHIFT) | 0x80000000U;
}

/* Key and tie as one number that orders pages: lower goes first. */
static inline u64 cast_rank(s32 key, u32 tie)
{
	return (u64)((u32)key ^ 0x80000000U) << 32 | tie;
}

/*
 * The decision between W's tail and M's lowest: whether the newcomer goes.
 * At equal keys a newcomer read once stays, being the one read last.
 */
static inline bool cast_newcomer_goes(s32 key, u32 tie, u32 cnt,
				      s32 lowest_key, u32 lowest_tie)
{
	if (key != lowest_key)
		return key < lowest_key;
	return cnt > 1 && tie < lowest_tie;
}

/*
 * The word as it is kept when it grows so old that its tick would wrap: read
 * CAST_AGE_STEP ticks later, and so many times less that it ranks the same,
 * as far as a count of one read or more allows. Others are returned as they
 * are.
 */
u32 cast_word_aged(u32 word, u32 now, u32 le);

#endif /* _LRU_CAST_KEY_H */
