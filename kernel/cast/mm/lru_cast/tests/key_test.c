// SPDX-License-Identifier: GPL-2.0-only
/* The key: published values, order as time passes, ties, ageing of words. */
#include <kunit/test.h>

#include "../core/key.h"

static int key_suite_init(struct kunit_suite *suite)
{
	return cast_key_init();
}

static void key_published(struct kunit *test)
{
	/* g1, g2, cnt, le -> 16 * log2(score) */
	static const u32 vectors[][5] = {
		{ 1, 1, 1, 8, 0 },	{ 1, 1, 2, 8, 14 },
		{ 2, 3, 3, 8, 15 },	{ 3, 4, 10, 9, 3 },
		{ 5, 5, 255, 1, 81 },	{ 1, 1, 255, 1, 124 },
		{ 10, 10, 255, 1, 10 },	{ 1, 1, 3, 10, 13 },
		{ 1, 2, 6, 10, 11 },	{ 1, 1, 20, 9, 28 },
	};
	u32 i;

	for (i = 0; i < ARRAY_SIZE(vectors); i++) {
		const u32 *v = vectors[i];

		KUNIT_EXPECT_EQ(test, cast_log_score(v[0], v[1], v[2], v[3]),
				v[4]);
		if (v[0] <= CAST_CLASS_MAX)
			KUNIT_EXPECT_EQ(test, cast_lut_log_score(v[0], v[1],
								 v[2], v[3]),
					v[4]);
	}
}

/* Exact to 8 reads; within a quarter octave of the formula above. */
static void key_table_follows_formula(struct kunit *test)
{
	u32 le, g1, g2, cnt, exact, stored, apart, worst = 0, bad = 0;

	for (le = CAST_LE_MIN; le <= CAST_LE_MAX; le++)
	for (g1 = 1; g1 <= CAST_CLASS_MAX; g1++)
	for (g2 = 1; g2 <= CAST_CLASS_MAX; g2++)
	for (cnt = 1; cnt <= CAST_CNT_MAX; cnt += cnt < 32 ? 1 : 13) {
		exact = cast_log_score(g1, g2, cnt, le);
		stored = cast_lut_log_score(g1, g2, cnt, le);
		apart = exact > stored ? exact - stored : stored - exact;
		worst = max(worst, apart);
		bad += cnt <= 8 && apart;
	}
	KUNIT_EXPECT_EQ(test, bad, 0U);
	KUNIT_EXPECT_LE(test, worst, 3U);
}

static void key_count_classes(struct kunit *test)
{
	u32 cnt, class, last = 0;

	for (cnt = 0; cnt <= CAST_CNT_MAX; cnt++) {
		class = cast_cnt_class(cnt);
		if (cnt <= 8)
			KUNIT_EXPECT_EQ(test, class, cnt);
		KUNIT_EXPECT_LE(test, last, class);
		KUNIT_EXPECT_LE(test, class, last + 1);
		last = class;
	}
	KUNIT_EXPECT_EQ(test, last, CAST_CNT_CLASSES - 1U);
}

static u32 next_random(u32 *seed)
{
	*seed = *seed * 1664525U + 1013904223U;
	return cast_hash32(*seed);
}

static u32 random_word(u32 *seed, u32 now, u32 oldest)
{
	u32 r = next_random(seed);
	u32 cnt = r & 1 ? 1 + (r >> 1) % 255 : 1 + (r >> 1) % 4;
	u32 word = cast_word_make(cnt, 1 + (r >> 10) % 9, 1 + (r >> 14) % 9,
				  now - (r >> 18) % oldest, 0);

	return cast_word_sane(word);
}

/* What LRFU is used for: no order changes while nothing is read. */
static void key_order_is_kept(struct kunit *test)
{
	u32 seed = 1, i, le, bad = 0, a, b, now, later;
	s32 before, after, shift;

	for (i = 0; i < 20000; i++) {
		now = 512 + next_random(&seed) % 100000;
		later = now + 1 + next_random(&seed) % 100;
		le = CAST_LE_MIN + next_random(&seed) % CAST_LE_MAX;
		a = random_word(&seed, now, 400);
		b = random_word(&seed, now, 400);
		before = cast_key(a, now, le) - cast_key(b, now, le);
		after = cast_key(a, later, le) - cast_key(b, later, le);
		bad += before != after;
		shift = cast_key_shift(now, later, le);
		bad += cast_key(a, now, le) - shift != cast_key(a, later, le);
	}
	KUNIT_EXPECT_EQ(test, bad, 0U);
}

/* A read never lowers a key, and each later one of equals ranks higher. */
static void key_grows_by_reads(struct kunit *test)
{
	u32 seed = 7, i, le, now, word, bad = 0;

	for (i = 0; i < 20000; i++) {
		now = 512 + next_random(&seed) % 100000;
		le = CAST_LE_MIN + next_random(&seed) % CAST_LE_MAX;
		word = random_word(&seed, now, 300);
		/*
		 * The two gaps a word keeps stand for all, so at slow decays
		 * one long gap may take back what old reads were taken for:
		 * a count of 3 knows all its reads.
		 */
		if (cast_word_cnt(word) > 2)
			continue;
		bad += cast_key(cast_word_after_read(word, now), now, le) <
		       cast_key(word, now, le);
	}
	KUNIT_EXPECT_EQ(test, bad, 0U);
}

static void key_time_is_absolute(struct kunit *test)
{
	/* A half-life is 4 ticks at le 8, 32 ticks make a sixteenth at 1. */
	KUNIT_EXPECT_EQ(test, cast_time16(3, 8), 12ULL);
	KUNIT_EXPECT_EQ(test, cast_time16(3, 13), 384ULL);
	KUNIT_EXPECT_EQ(test, cast_time16(63, 1), 1ULL);
	KUNIT_EXPECT_EQ(test, cast_time16(64, 1), 2ULL);
	KUNIT_EXPECT_EQ(test, cast_time16(U32_MAX, 14),
			(u64)U32_MAX << 8);
}

/* Given up by its owner: below everything that is not older than a word. */
static void key_cold_goes_first(struct kunit *test)
{
	u32 le, age, now = 5000, bad = 0;

	for (le = CAST_LE_MIN; le <= CAST_LE_MAX; le++)
		for (age = 0; age < CAST_AGE_OLD; age++)
			bad += cast_key(cast_word_as_cold(0, now), now, le) >
			       cast_key(cast_word_as_fresh(0, now - age), now,
					le);
	KUNIT_EXPECT_EQ(test, bad, 0U);
}

/*
 * A word that would wrap ranks the same after it was rewritten, to half of
 * the step between counts; a count of one, at last, is all that is left.
 */
static void key_survives_ageing(struct kunit *test)
{
	u32 le, cnt, age, g, now = 4000, word, aged, bad = 0, kept = 0;
	s32 apart;

	for (le = CAST_LE_MIN; le <= CAST_LE_MAX; le++)
	for (g = 1; g <= CAST_CLASS_MAX; g++)
	for (cnt = 1; cnt <= CAST_CNT_MAX; cnt += 1 + cnt / 8)
	for (age = CAST_AGE_OLD; age < 512; age += 9) {
		word = cast_word_sane(cast_word_make(cnt, g, g, now - age, 9));
		aged = cast_word_aged(word, now, le);
		bad += cast_word_age(aged, now) != age - CAST_AGE_STEP;
		bad += cast_word_tag(aged) != 9 || cast_word_cnt(aged) > cnt;
		if (cast_word_cnt(aged) == 1)
			continue;
		apart = cast_key(aged, now, le) - cast_key(word, now, le);
		bad += apart < -8 || apart > 8;
		kept++;
	}
	KUNIT_EXPECT_EQ(test, bad, 0U);
	KUNIT_EXPECT_GT(test, kept, 1000U);

	word = cast_word_make(200, 1, 1, now - CAST_AGE_OLD + 1, 0);
	KUNIT_EXPECT_EQ(test, cast_word_aged(word, now, 5), word);
	/* A half-life is half of the reads, where the score is the count. */
	word = cast_word_make(8, 1, 1, now - CAST_AGE_OLD, 0);
	KUNIT_EXPECT_EQ(test, cast_word_cnt(cast_word_aged(word, now, 3)), 4U);
	KUNIT_EXPECT_EQ(test, cast_word_cnt(cast_word_aged(word, now, 14)),
			1U);
}

static void key_ties(struct kunit *test)
{
	/* Read once: as met, and before what was read more often. */
	KUNIT_EXPECT_LT(test, cast_tie(900, 1, 3), cast_tie(1, 1, 4));
	KUNIT_EXPECT_LT(test, cast_tie(900, 1, U32_MAX), cast_tie(900, 2, 0));
	/* More often: by the frame alone, in runs of frames. */
	KUNIT_EXPECT_EQ(test, cast_tie(64, 2, 1), cast_tie(95, 9, 8));
	KUNIT_EXPECT_NE(test, cast_tie(64, 2, 1), cast_tie(96, 2, 1));

	KUNIT_EXPECT_LT(test, cast_rank(-5, 9), cast_rank(-4, 0));
	KUNIT_EXPECT_LT(test, cast_rank(-1, 9), cast_rank(0, 0));
	KUNIT_EXPECT_LT(test, cast_rank(3, 1), cast_rank(3, 2));

	/* A newcomer of an equal key: read once it stays, or by the hash. */
	KUNIT_EXPECT_FALSE(test, cast_newcomer_goes(4, 1, 1, 4, 2));
	KUNIT_EXPECT_TRUE(test, cast_newcomer_goes(4, 1, 2, 4, 2));
	KUNIT_EXPECT_FALSE(test, cast_newcomer_goes(4, 2, 2, 4, 2));
	KUNIT_EXPECT_TRUE(test, cast_newcomer_goes(-9, 7, 1, 4, 2));
	KUNIT_EXPECT_FALSE(test, cast_newcomer_goes(5, 1, 2, 4, 2));
}

static struct kunit_case key_cases[] = {
	KUNIT_CASE(key_published),
	KUNIT_CASE(key_table_follows_formula),
	KUNIT_CASE(key_count_classes),
	KUNIT_CASE(key_order_is_kept),
	KUNIT_CASE(key_grows_by_reads),
	KUNIT_CASE(key_time_is_absolute),
	KUNIT_CASE(key_cold_goes_first),
	KUNIT_CASE(key_survives_ageing),
	KUNIT_CASE(key_ties),
	{}
};

static struct kunit_suite key_suite = {
	.name = "lru_cast_key",
	.suite_init = key_suite_init,
	.test_cases = key_cases,
};

kunit_test_suite(key_suite);
