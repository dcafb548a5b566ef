// SPDX-License-Identifier: GPL-2.0-only
/* The sampled pages and the controllers over them. */
#include <kunit/test.h>
#include <linux/slab.h>

#include "../tune/control.h"
#include "../tune/tune.h"

static struct cast_control *new_control(struct kunit *test)
{
	struct cast_control *control = kvzalloc(sizeof(*control), GFP_KERNEL);

	if (!control)
		return NULL;
	if (cast_key_init() || cast_control_init(control)) {
		kvfree(control);
		return NULL;
	}
	return control;
}

static void free_control(struct cast_control *control)
{
	cast_control_exit(control);
	kvfree(control);
}

static void control_knows_pages(struct kunit *test)
{
	struct cast_control *control = new_control(test);
	struct cast_pages *pages;
	u32 i, bad = 0;

	KUNIT_ASSERT_NOT_NULL(test, control);
	pages = &control->pages;
	for (i = 1; i <= CAST_SAMPLE_PAGES; i++)
		bad += cast_pages_get(pages, i, i) == CAST_NO_PAGE;
	for (i = 1; i <= CAST_SAMPLE_PAGES; i++)
		bad += pages->page[cast_pages_get(pages, i, i)].id != i;
	KUNIT_EXPECT_EQ(test, pages->used, CAST_SAMPLE_PAGES);
	/* Ghosts make room, pages in a cache do not. */
	for (i = 1; i <= CAST_SAMPLE_PAGES; i++)
		pages->page[cast_pages_get(pages, i, i)].homes = i > 100;
	for (i = 1; i <= 100; i++)
		bad += cast_pages_get(pages, 1000000 + i, 0) == CAST_NO_PAGE;
	for (i = 1; i <= 100; i++)
		pages->page[cast_pages_get(pages, 1000000 + i, 0)].homes = 1;
	KUNIT_EXPECT_EQ(test, cast_pages_get(pages, 2000000, 0),
			CAST_NO_PAGE);
	KUNIT_EXPECT_EQ(test, bad, 0U);
	free_control(control);
}

/* Every page's count of homes is the number of caches that have it. */
static u32 wrong_homes(const struct cast_control *control)
{
	u32 p, i, homes, wrong = 0;

	for (p = 0; p < CAST_SAMPLE_PAGES; p++) {
		homes = cast_sim_has(&control->wshare.smaller, p) +
			cast_sim_has(&control->wshare.larger, p);
		for (i = 0; i < CAST_DECAYS; i++)
			homes += cast_sim_has(&control->decay.sim[i], p);
		wrong += homes != control->pages.page[p].homes;
	}
	return wrong;
}

/* What keeps the caches' books: moves, sizes, pages that leave the sample. */
static bool odd_pages(u64 id, u64 arg)
{
	return id % arg;
}

static void control_books_balance(struct kunit *test)
{
	struct cast_control *control = new_control(test);
	u32 i, seed = 3, bad = 0;

	KUNIT_ASSERT_NOT_NULL(test, control);
	cast_control_set_capacity(control, 400, 25);
	for (i = 0; i < 10000; i++) {
		seed = seed * 1664525U + 1013904223U;
		cast_control_access(control, 1 + cast_hash32(seed) % 3000,
				    cast_hash32(seed) % 3000 / 8);
		if (i % 64 == 63)
			cast_control_choose(control);
		if (i % 2000 == 1999) {
			cast_control_set_le(control, 1 + i / 1000);
			cast_control_set_capacity(control, 200 + i / 20, 25);
			bad += wrong_homes(control);
		}
	}
	cast_control_drop(control, odd_pages, 2);
	bad += wrong_homes(control);
	for (i = 0; i < CAST_SAMPLE_PAGES; i++)
		bad += control->pages.page[i].id & 1;
	KUNIT_EXPECT_EQ(test, bad, 0U);
	free_control(control);
}

/* One tenth of the accesses go to a set that fits, the rest pass through. */
static u32 streamed(struct cast_control *control, u32 le, u32 n)
{
	u32 i, seed = 11, passing = 1000;

	cast_control_set_le(control, le);
	cast_control_set_capacity(control, 200, 25);
	for (i = 0; i < n; i++) {
		seed = seed * 1664525U + 1013904223U;
		if (i % 10)
			passing++;
		cast_control_access(control, i % 10 ? passing :
				    1 + cast_hash32(seed) % 150, passing);
		if (i % 64 == 63)
			cast_control_choose(control);
	}
	return cast_control_le(control);
}

static void control_learns_frequency(struct kunit *test)
{
	struct cast_control *control = new_control(test);

	KUNIT_ASSERT_NOT_NULL(test, control);
	KUNIT_EXPECT_LE(test, streamed(control, CAST_LE_MAX, 30000), 7U);
	KUNIT_EXPECT_GE(test, control->decay.moves, 1U);
	free_control(control);
}

/* A set that moves on: what was read often before is of no use. */
static void moved_on(struct cast_control *control, u32 n)
{
	u32 i, seed = 5, base;

	for (i = 0; i < n; i++) {
		seed = seed * 1664525U + 1013904223U;
		/* Read ten times or so each, then never again. */
		base = 100000 + i / 12;
		cast_control_access(control, base + cast_hash32(seed) % 165,
				    base + cast_hash32(seed) % 165);
		if (i % 64 == 63)
			cast_control_choose(control);
	}
}

static void control_learns_recency(struct kunit *test)
{
	struct cast_control *control = new_control(test);

	KUNIT_ASSERT_NOT_NULL(test, control);
	cast_control_set_le(control, CAST_LE_MIN);
	cast_control_set_capacity(control, 200, 25);
	moved_on(control, 30000);
	KUNIT_EXPECT_GE(test, cast_control_le(control), 7U);
	free_control(control);
}

/* However long requests were of one nature, a few turnovers of another do. */
static void control_follows_a_change(struct kunit *test)
{
	struct cast_control *control = new_control(test);

	KUNIT_ASSERT_NOT_NULL(test, control);
	KUNIT_EXPECT_LE(test, streamed(control, CAST_LE_START, 60000), 7U);
	moved_on(control, 12000);
	KUNIT_EXPECT_GE(test, cast_control_le(control), 7U);
	free_control(control);
}

/* Two standard deviations of 32 events at least; a block's are one a round. */
static void control_evidence(struct kunit *test)
{
	u32 *seen = kcalloc(CAST_SEEN, sizeof(*seen), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, seen);
	KUNIT_EXPECT_FALSE(test, cast_is_evidence(31, 31));
	KUNIT_EXPECT_TRUE(test, cast_is_evidence(32, 32));
	KUNIT_EXPECT_TRUE(test, cast_is_evidence(20, 100));
	KUNIT_EXPECT_FALSE(test, cast_is_evidence(19, 100));
	KUNIT_EXPECT_TRUE(test, cast_is_evidence(-20, 100));

	KUNIT_EXPECT_TRUE(test, cast_first_in_round(seen, 7, 600));
	KUNIT_EXPECT_FALSE(test, cast_first_in_round(seen, 7, 600));
	KUNIT_EXPECT_TRUE(test, cast_first_in_round(seen, 8, 600));
	KUNIT_EXPECT_TRUE(test, cast_first_in_round(seen, 7, 601));
	kfree(seen);
}

/* A restart forgets the pages, not what was learned from them. */
static void control_restarts(struct kunit *test)
{
	struct cast_control *control = new_control(test);
	u32 i;

	KUNIT_ASSERT_NOT_NULL(test, control);
	cast_control_set_capacity(control, 100, 25);
	for (i = 0; i < 1000; i++)
		cast_control_access(control, 1 + i % 150, i % 150);
	cast_control_set_le(control, 4);
	cast_control_set_w(control, 325);
	cast_control_restart(control);
	KUNIT_EXPECT_EQ(test, control->pages.used, 0U);
	KUNIT_EXPECT_EQ(test, control->accesses, 0ULL);
	KUNIT_EXPECT_EQ(test, cast_control_le(control), 4U);
	KUNIT_EXPECT_EQ(test, cast_control_w(control), 325U);
	KUNIT_EXPECT_EQ(test, control->capacity, 100U);
	free_control(control);
}

static struct kunit_case control_cases[] = {
	KUNIT_CASE(control_knows_pages),
	KUNIT_CASE(control_books_balance),
	KUNIT_CASE_SLOW(control_learns_frequency),
	KUNIT_CASE_SLOW(control_learns_recency),
	KUNIT_CASE_SLOW(control_follows_a_change),
	KUNIT_CASE(control_evidence),
	KUNIT_CASE(control_restarts),
	{}
};

static struct kunit_suite control_suite = {
	.name = "lru_cast_control",
	.test_cases = control_cases,
};

kunit_test_suite(control_suite);
