/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is kept of an evicted page in its slot of the page cache. The value,
 * from bit 0:
 *
 *   workingset 1 | CAST 1 | node | memcg id 16 | word 25 | tick of eviction 8
 *
 * The first bits are where mm/workingset.c has them; CAST's own bit is 0 in
 * every shadow that other policies write, so a shadow of one is no history to
 * the other. The functions here are pure.
 */
#ifndef _LRU_CAST_SHADOW_H
#define _LRU_CAST_SHADOW_H

#include <linux/types.h>

#include "../core/word.h"

#define CAST_SHADOW_WORKINGSET	1UL
#define CAST_SHADOW_OURS	2UL
#define CAST_SHADOW_FLAG_BITS	2

#define CAST_SHADOW_WORD_BITS	CAST_TAG_SHIFT
#define CAST_SHADOW_WORD_MASK	((1U << CAST_SHADOW_WORD_BITS) - 1)
#define CAST_SHADOW_TICK_BITS	8
#define CAST_SHADOW_TICK_MASK	((1U << CAST_SHADOW_TICK_BITS) - 1)
#define CAST_SHADOW_BITS	(CAST_SHADOW_WORD_BITS + CAST_SHADOW_TICK_BITS)

/* An eviction longer ago than this is told from a recent one by nothing. */
static_assert(CAST_HISTORY_TICKS <= CAST_SHADOW_TICK_MASK / 4);

/* The payload for a page of @word that is evicted at @now. */
static inline u64 cast_shadow_payload(u32 word, u32 now)
{
	return (u64)(now & CAST_SHADOW_TICK_MASK) << CAST_SHADOW_WORD_BITS |
	       (word & CAST_SHADOW_WORD_MASK);
}

/* Ticks since the eviction, at the tick @now of the evicting lruvec. */
static inline u32 cast_shadow_ago(u64 payload, u32 now)
{
	return (now - (u32)(payload >> CAST_SHADOW_WORD_BITS)) &
	       CAST_SHADOW_TICK_MASK;
}

/*
 * The history to go on from, or 0 if there is none: evicted too long ago, or
 * a payload that no eviction writes. Its age is as of @evictor_now, the tick
 * of the lruvec that evicted; it is told in the time of the lruvec that takes
 * the page in, which is @now there.
 */
static inline u32 cast_shadow_history(u64 payload, u32 evictor_now, u32 now)
{
	u32 word = cast_word_sane(payload & CAST_SHADOW_WORD_MASK);
	u32 ago = cast_shadow_ago(payload, evictor_now);
	u32 age = cast_word_age(word, evictor_now);

	/* Nothing is read after its eviction. */
	if (!cast_word_cnt(word) || ago > CAST_HISTORY_TICKS || age < ago)
		return 0;
	return cast_word_make(cast_word_cnt(word), cast_word_g1(word),
			      cast_word_g2(word), now - age, 0);
}

#endif /* _LRU_CAST_SHADOW_H */
