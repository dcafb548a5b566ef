// SPDX-License-Identifier: GPL-2.0-only
/* The state word: fields, gap classes, reads, and the wrap of its tick. */
#include <kunit/test.h>

#include "../core/key.h"
#include "../core/word.h"

static void word_fields(struct kunit *test)
{
	u32 word = cast_word_make(200, 7, 9, 511, 127);

	KUNIT_EXPECT_EQ(test, cast_word_cnt(word), 200U);
	KUNIT_EXPECT_EQ(test, cast_word_g1(word), 7U);
	KUNIT_EXPECT_EQ(test, cast_word_g2(word), 9U);
	KUNIT_EXPECT_EQ(test, cast_word_tick(word), 511U);
	KUNIT_EXPECT_EQ(test, cast_word_tag(word), 127U);
	KUNIT_EXPECT_EQ(test, cast_word_with_tag(word, 0),
			cast_word_make(200, 7, 9, 511, 0));
	KUNIT_EXPECT_EQ(test, cast_word_with_history(word, 0x00010003),
			cast_word_make(3, 0, 0, 1, 127));
}

static void word_gap_classes(struct kunit *test)
{
	static const u32 class_of[][2] = {
		{ 1, 1 }, { 2, 2 }, { 3, 2 }, { 4, 3 }, { 255, 8 },
		{ 256, 9 }, { 511, 9 }, { 512, 9 }, { 1U << 20, 9 },
	};
	u32 i, c;

	for (i = 0; i < ARRAY_SIZE(class_of); i++)
		KUNIT_EXPECT_EQ(test, cast_gap_class(class_of[i][0]),
				class_of[i][1]);
	/* Class c is [2^(c-1), 2^c), for each that a word can hold. */
	for (c = 1; c <= CAST_CLASS_MAX; c++) {
		KUNIT_EXPECT_EQ(test, cast_gap_class(1U << (c - 1)), c);
		KUNIT_EXPECT_EQ(test, cast_gap_class((1U << c) - 1), c);
	}
}

static void word_reads(struct kunit *test)
{
	u32 word = cast_word_after_read(cast_word_make(0, 0, 0, 0, 5), 1000);

	KUNIT_EXPECT_EQ(test, word, cast_word_make(1, 0, 0, 1000, 5));
	/* The read that brought it in is its arrival. */
	KUNIT_EXPECT_EQ(test, cast_word_after_arrival(word, 1000), word);
	KUNIT_EXPECT_EQ(test, cast_word_after_arrival(word, 1003),
			cast_word_make(2, 2, 0, 1003, 5));
	word = cast_word_after_read(word, 1003);
	KUNIT_EXPECT_EQ(test, word, cast_word_make(2, 2, 0, 1003, 5));
	word = cast_word_after_read(word, 1103);
	KUNIT_EXPECT_EQ(test, word, cast_word_make(3, 7, 2, 1103, 5));
	word = cast_word_after_read(word, 1104);
	KUNIT_EXPECT_EQ(test, word, cast_word_make(4, 1, 7, 1104, 5));
}

/* Two reads of a tick count, be it the page's first or a later one. */
static void word_reads_in_a_tick(struct kunit *test)
{
	u32 word = cast_word_as_fresh(cast_word_make(0, 0, 0, 0, 5), 1000);

	word = cast_word_after_read(word, 1000);
	KUNIT_EXPECT_EQ(test, word, cast_word_make(2, 0, 0, 1000, 5));
	KUNIT_EXPECT_EQ(test, cast_word_after_read(word, 1000), word);
	word = cast_word_after_read(word, 1004);
	KUNIT_EXPECT_EQ(test, word, cast_word_make(3, 3, 0, 1004, 5));
	word = cast_word_after_read(word, 1004);
	KUNIT_EXPECT_EQ(test, word, cast_word_make(4, 0, 3, 1004, 5));
	KUNIT_EXPECT_EQ(test, cast_word_after_read(word, 1004), word);
}

static void word_count_saturates(struct kunit *test)
{
	u32 word = cast_word_make(254, 1, 1, 10, 3);

	word = cast_word_after_read(word, 11);
	KUNIT_EXPECT_EQ(test, cast_word_cnt(word), 255U);
	word = cast_word_after_read(word, 12);
	KUNIT_EXPECT_EQ(test, cast_word_cnt(word), 255U);
	KUNIT_EXPECT_EQ(test, cast_word_tag(word), 3U);
}

static void word_tick_wraps(struct kunit *test)
{
	u32 word = cast_word_as_fresh(0, 1022);	/* tick 510 in the word */

	KUNIT_EXPECT_EQ(test, cast_word_tick(word), 510U);
	KUNIT_EXPECT_EQ(test, cast_word_age(word, 1022), 0U);
	KUNIT_EXPECT_EQ(test, cast_word_age(word, 1030), 8U);
	KUNIT_EXPECT_EQ(test, cast_word_age(word, 1022 + 511), 511U);
	word = cast_word_after_read(word, 1030);
	KUNIT_EXPECT_EQ(test, cast_word_g1(word), 4U);
	KUNIT_EXPECT_EQ(test, cast_word_tick(word), 1030U & 511);
}

/* Only what keeps its history is of use: the tag is the frame's. */
static void word_fresh_and_cold(struct kunit *test)
{
	u32 word = cast_word_make(9, 2, 3, 77, 44);
	u32 fresh = cast_word_as_fresh(word, 600);
	u32 cold = cast_word_as_cold(word, 600);

	KUNIT_EXPECT_EQ(test, fresh, cast_word_make(1, 0, 0, 600, 44));
	KUNIT_EXPECT_EQ(test, cast_word_cnt(cold), 1U);
	KUNIT_EXPECT_EQ(test, cast_word_age(cold, 600), CAST_AGE_OLD - 1);
	KUNIT_EXPECT_EQ(test, cast_word_tag(cold), 44U);
}

static void word_sane(struct kunit *test)
{
	u32 word = cast_word_sane(cast_word_make(2, 15, 15, 3, 1));

	KUNIT_EXPECT_EQ(test, word, cast_word_make(2, 9, 0, 3, 1));
	word = cast_word_sane(cast_word_make(7, 0, 12, 3, 0));
	KUNIT_EXPECT_EQ(test, word, cast_word_make(7, 0, 9, 3, 0));
	word = cast_word_sane(cast_word_make(7, 3, 4, 3, 0));
	KUNIT_EXPECT_EQ(test, word, cast_word_make(7, 3, 4, 3, 0));
}

static struct kunit_case word_cases[] = {
	KUNIT_CASE(word_fields),
	KUNIT_CASE(word_gap_classes),
	KUNIT_CASE(word_reads),
	KUNIT_CASE(word_reads_in_a_tick),
	KUNIT_CASE(word_count_saturates),
	KUNIT_CASE(word_tick_wraps),
	KUNIT_CASE(word_fresh_and_cold),
	KUNIT_CASE(word_sane),
	{}
};

static struct kunit_suite word_suite = {
	.name = "lru_cast_word",
	.test_cases = word_cases,
};

kunit_test_suite(word_suite);
