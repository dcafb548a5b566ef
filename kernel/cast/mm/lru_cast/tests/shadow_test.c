// SPDX-License-Identifier: GPL-2.0-only
/* Shadows: what comes back of a word, and when nothing does. */
#include <kunit/test.h>

#include "../core/word.h"
#include "../policy/shadow.h"

static void shadow_round_trip(struct kunit *test)
{
	u32 word = cast_word_make(77, 4, 6, 1290, 99);
	u64 payload = cast_shadow_payload(word, 1300);

	KUNIT_EXPECT_EQ(test, payload >> CAST_SHADOW_BITS, 0ULL);
	KUNIT_EXPECT_EQ(test, cast_shadow_ago(payload, 1300), 0U);
	KUNIT_EXPECT_EQ(test, cast_shadow_ago(payload, 1332), 32U);
	/* All of it but the tag. */
	KUNIT_EXPECT_EQ(test, cast_shadow_history(payload, 1332, 1332),
			cast_word_make(77, 4, 6, 1290, 0));
}

static void shadow_is_forgotten(struct kunit *test)
{
	u32 word = cast_word_make(7, 1, 1, 1290, 0);
	u64 payload = cast_shadow_payload(word, 1300);

	KUNIT_EXPECT_NE(test, cast_shadow_history(payload, 1332, 1332), 0U);
	KUNIT_EXPECT_EQ(test, cast_shadow_history(payload, 1333, 1333), 0U);
	/* Nothing was known of the page. */
	payload = cast_shadow_payload(0, 1300);
	KUNIT_EXPECT_EQ(test, cast_shadow_history(payload, 1300, 1300), 0U);
	/* Read after its eviction: no shadow of ours. */
	payload = cast_shadow_payload(cast_word_make(7, 1, 1, 1310, 0), 1300);
	KUNIT_EXPECT_EQ(test, cast_shadow_history(payload, 1320, 1320), 0U);
}

/* Evicted from one lruvec, taken in by another: ages, not ticks, carry over. */
static void shadow_other_clock(struct kunit *test)
{
	u32 word = cast_word_make(3, 2, 2, 1290, 0);
	u64 payload = cast_shadow_payload(word, 1300);
	u32 history = cast_shadow_history(payload, 1310, 52000);

	KUNIT_EXPECT_EQ(test, cast_word_age(history, 52000), 20U);
	KUNIT_EXPECT_EQ(test, cast_word_cnt(history), 3U);
}

static void shadow_tick_wraps(struct kunit *test)
{
	u32 word = cast_word_make(3, 2, 2, 1023, 0);
	u64 payload = cast_shadow_payload(word, 1023);

	KUNIT_EXPECT_EQ(test, cast_shadow_ago(payload, 1025), 2U);
	KUNIT_EXPECT_EQ(test, cast_word_age(cast_shadow_history(payload, 1025,
								1025), 1025),
			2U);
}

/* Whatever bits come, a history is a word that CAST itself could write. */
static void shadow_of_anything(struct kunit *test)
{
	u64 payload, seed = 99;
	u32 i, word, bad = 0, some = 0;

	for (i = 0; i < 20000; i++) {
		seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
		payload = seed >> (64 - CAST_SHADOW_BITS);
		word = cast_shadow_history(payload, 3000 + i, 90000);
		if (!word)
			continue;
		some++;
		bad += word != cast_word_sane(word);
		bad += cast_word_tag(word) != 0;
	}
	KUNIT_EXPECT_EQ(test, bad, 0U);
	KUNIT_EXPECT_GT(test, some, 0U);
}

static struct kunit_case shadow_cases[] = {
	KUNIT_CASE(shadow_round_trip),
	KUNIT_CASE(shadow_is_forgotten),
	KUNIT_CASE(shadow_other_clock),
	KUNIT_CASE(shadow_tick_wraps),
	KUNIT_CASE(shadow_of_anything),
	{}
};

static struct kunit_suite shadow_suite = {
	.name = "lru_cast_shadow",
	.test_cases = shadow_cases,
};

kunit_test_suite(shadow_suite);
