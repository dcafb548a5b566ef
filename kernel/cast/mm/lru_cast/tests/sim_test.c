// SPDX-License-Identifier: GPL-2.0-only
/* Simulated caches: against a cache that looks at every page each time. */
#include <kunit/test.h>
#include <linux/slab.h>

#include "../tune/sim.h"

#define KEYS	256U

/* The same policy, slowly: no heap, no ring, nothing kept up to date. */
struct naive {
	u32 le, capacity, w_capacity;
	u32 entered;		/* into M so far */
	u32 order[KEYS];	/* of the entry into M */
	u32 w[KEYS], nr_w;	/* the oldest is first */
	bool in_m[KEYS];
	u32 nr_m;
};

struct naive_rank {
	u64 key;
	u32 tie;
	bool once;
};

static struct naive_rank naive_rank(const struct naive *n,
				    const struct cast_page *page, u32 order)
{
	return (struct naive_rank) {
		.key = cast_time16(page->tick, n->le) +
		       cast_lut_log_score(page->g1, page->g2, page->cnt,
					  n->le),
		.once = page->cnt == 1,
		.tie = page->cnt == 1 ? order :
					cast_hash32(page->block) >> 9,
	};
}

static bool naive_lower(struct naive_rank a, struct naive_rank b)
{
	if (a.key != b.key)
		return a.key < b.key;
	if (a.once != b.once)
		return a.once;
	return a.tie < b.tie;
}

static u32 naive_lowest(const struct naive *n, const struct cast_page *page)
{
	u32 p, best = CAST_NO_PAGE;

	for (p = 0; p < KEYS; p++)
		if (n->in_m[p] &&
		    (best == CAST_NO_PAGE ||
		     naive_lower(naive_rank(n, &page[p], n->order[p]),
				 naive_rank(n, &page[best], n->order[best]))))
			best = p;
	return best;
}

static u32 naive_pop(struct naive *n)
{
	u32 i, p = n->w[0];

	for (i = 1; i < n->nr_w; i++)
		n->w[i - 1] = n->w[i];
	n->nr_w--;
	return p;
}

static void naive_to_m(struct naive *n, u32 p)
{
	n->in_m[p] = true;
	n->order[p] = n->entered++;
	n->nr_m++;
}

static bool naive_has(const struct naive *n, u32 p)
{
	u32 i;

	for (i = 0; i < n->nr_w; i++)
		if (n->w[i] == p)
			return true;
	return n->in_m[p];
}

/* Returns who left. */
static u32 naive_evict(struct naive *n, const struct cast_page *page)
{
	struct naive_rank a, b;
	u32 p, lowest;

	if (n->nr_w > n->w_capacity)
		naive_to_m(n, naive_pop(n));
	lowest = naive_lowest(n, page);
	if (lowest == CAST_NO_PAGE) {
		return naive_pop(n);
	}
	if (n->nr_w >= n->w_capacity) {
		p = naive_pop(n);
		a = naive_rank(n, &page[p], 0);
		b = naive_rank(n, &page[lowest], n->order[lowest]);
		/* Read once and of an equal key: the newcomer stays. */
		if (a.key < b.key ||
		    (a.key == b.key && !a.once && naive_lower(a, b)))
			return p;
		naive_to_m(n, p);
	}
	n->in_m[lowest] = false;
	n->nr_m--;
	return lowest;
}

/* Returns what it adds to the time. */
static u32 naive_take(struct naive *n, const struct cast_page *page, u32 p)
{
	u32 parts = CAST_PARTS_ROOM;

	if (n->nr_w + n->nr_m < n->capacity) {
		if (n->nr_w >= n->w_capacity)
			naive_to_m(n, naive_pop(n));
	} else {
		do {
			parts = page[naive_evict(n, page)].cnt == 1 ?
				CAST_PARTS_ONCE : CAST_PARTS;
		} while (n->nr_w + n->nr_m >= n->capacity);
	}
	n->w[n->nr_w++] = p;
	return parts;
}

/* --- the rig --- */

struct rig {
	struct cast_pages pages;
	struct cast_sim sim;
	struct naive naive;
	u32 seed;
};

static u32 next_random(struct rig *rig)
{
	rig->seed = rig->seed * 1664525U + 1013904223U;
	return cast_hash32(rig->seed);
}

static struct rig *new_rig(struct kunit *test)
{
	struct rig *rig = kzalloc(sizeof(*rig), GFP_KERNEL);

	if (!rig)
		return NULL;
	if (cast_key_init() || cast_pages_init(&rig->pages)) {
		kfree(rig);
		return NULL;
	}
	if (cast_sim_init(&rig->sim, &rig->pages)) {
		cast_pages_exit(&rig->pages);
		kfree(rig);
		return NULL;
	}
	return rig;
}

static void free_rig(struct rig *rig)
{
	cast_sim_exit(&rig->sim);
	cast_pages_exit(&rig->pages);
	kfree(rig);
}

static void set_up(struct rig *rig, u32 le, u32 capacity, u32 w_permille)
{
	cast_sim_set_le(&rig->sim, le);
	cast_sim_set_size(&rig->sim, capacity, w_permille);
	cast_pages_set_capacity(&rig->pages, capacity);
	rig->naive.le = le;
	rig->naive.capacity = capacity;
	rig->naive.w_capacity = max(1U, capacity * w_permille / 1000);
}

/*
 * Entry p is page p: they are taken in order while there are none. Each is a
 * block of its own, or ties within one could go either way.
 */
static void name_pages(struct rig *rig)
{
	u32 p;

	for (p = 0; p < KEYS; p++)
		cast_pages_get(&rig->pages, p + 1, p);
}

/* One access in both. True if they agree on everything that can be seen. */
static bool both(struct rig *rig, u32 p)
{
	bool had = cast_sim_has(&rig->sim, p);
	bool agree = had == naive_has(&rig->naive, p);
	bool recorded = cast_pages_read(&rig->pages, p);
	u32 parts;

	if (!had) {
		cast_sim_take(&rig->sim, p);
		parts = naive_take(&rig->naive, rig->pages.page, p);
		agree &= parts == rig->sim.parts;
		cast_pages_pass(&rig->pages, parts);
	} else if (recorded) {
		cast_sim_reranked(&rig->sim, p);
	}
	return agree && rig->sim.nr_w == rig->naive.nr_w &&
	       rig->sim.nr_m == rig->naive.nr_m;
}

/* A hot set, a loop and a stream, in turns of random length. */
static u32 next_key(struct rig *rig, u32 i)
{
	switch (i / 300 % 3) {
	case 0:
		return next_random(rig) % 24;
	case 1:
		return 24 + i % 96;
	default:
		return 120 + i % (KEYS - 120);
	}
}

static void sim_is_the_policy(struct kunit *test)
{
	static const u32 les[] = { 1, 4, 7, 9, 12, 14 };
	u32 l, i, apart = 0;

	for (l = 0; l < ARRAY_SIZE(les); l++) {
		struct rig *rig = new_rig(test);

		KUNIT_ASSERT_NOT_NULL(test, rig);
		name_pages(rig);
		set_up(rig, les[l], 48, 100);
		for (i = 0; i < 4000; i++)
			apart += !both(rig, next_random(rig) % 4 ?
					    next_key(rig, i) :
					    next_random(rig) % KEYS);
		free_rig(rig);
	}
	KUNIT_EXPECT_EQ(test, apart, 0U);
}

/* Settings move while the cache runs. */
static void sim_follows_settings(struct kunit *test)
{
	struct rig *rig = new_rig(test);
	u32 i, apart = 0;

	KUNIT_ASSERT_NOT_NULL(test, rig);
	name_pages(rig);
	set_up(rig, 9, 48, 100);
	for (i = 0; i < 12000; i++) {
		if (i % 500 == 499)
			set_up(rig, 1 + next_random(rig) % 14,
			       24 + next_random(rig) % 60,
			       10 + next_random(rig) % 700);
		apart += !both(rig, next_key(rig, i));
	}
	KUNIT_EXPECT_EQ(test, apart, 0U);
	free_rig(rig);
}

/* What W holds too much of after its share shrank is not there for ever. */
static void sim_w_shrinks(struct kunit *test)
{
	struct rig *rig = new_rig(test);
	u32 i;

	KUNIT_ASSERT_NOT_NULL(test, rig);
	name_pages(rig);
	set_up(rig, 9, 100, 600);
	for (i = 0; i < 500; i++)
		both(rig, i % 200);
	KUNIT_EXPECT_EQ(test, rig->sim.nr_w, 60U);
	set_up(rig, 9, 100, 50);
	for (i = 0; i < 500; i++)
		both(rig, i % 200);
	KUNIT_EXPECT_EQ(test, rig->sim.nr_w, 5U);
	KUNIT_EXPECT_EQ(test, rig->sim.nr_m, 95U);
	free_rig(rig);
}

/* A part of a loop larger than memory stays, where LRU would keep none. */
static void sim_keeps_part_of_a_loop(struct kunit *test)
{
	struct rig *rig = new_rig(test);
	u32 i, hits = 0;

	KUNIT_ASSERT_NOT_NULL(test, rig);
	name_pages(rig);
	set_up(rig, 1, 120, 100);
	for (i = 0; i < 160 * 30; i++) {
		hits += i >= 160 * 15 && cast_sim_has(&rig->sim, i % 160);
		both(rig, i % 160);
	}
	/* 40 % of the second half; 75 % could be had, LRU has none. */
	KUNIT_EXPECT_GE(test, hits, 160U * 15 * 4 / 10);
	free_rig(rig);
}

static void sim_drops_and_copies(struct kunit *test)
{
	struct rig *rig = new_rig(test);
	struct cast_sim other;
	u32 i, p, bad = 0;

	KUNIT_ASSERT_NOT_NULL(test, rig);
	if (cast_sim_init(&other, &rig->pages)) {
		free_rig(rig);
		KUNIT_ASSERT_NOT_NULL(test, NULL);
	}
	name_pages(rig);
	set_up(rig, 7, 60, 200);
	cast_sim_set_size(&other, 40, 100);
	for (i = 0; i < 3000; i++) {
		p = next_key(rig, i);
		if (i % 7 == 6)
			cast_sim_drop(&rig->sim, p);
		else if (!cast_sim_has(&rig->sim, p))
			cast_sim_take(&rig->sim, p);
		if (i % 5 == 0 && !cast_sim_has(&other, p))
			cast_sim_take(&other, p);
		if (i % 1000 == 999)
			cast_sim_copy(&other, &rig->sim);
	}
	cast_sim_copy(&other, &rig->sim);
	for (p = 0; p < KEYS; p++) {
		bad += cast_sim_has(&other, p) != cast_sim_has(&rig->sim, p);
		bad += rig->pages.page[p].homes !=
		       2 * cast_sim_has(&rig->sim, p);
	}
	KUNIT_EXPECT_EQ(test, bad, 0U);
	KUNIT_EXPECT_EQ(test, other.nr_w + other.nr_m,
			rig->sim.nr_w + rig->sim.nr_m);
	cast_sim_exit(&other);
	free_rig(rig);
}

static struct kunit_case sim_cases[] = {
	KUNIT_CASE(sim_is_the_policy),
	KUNIT_CASE(sim_follows_settings),
	KUNIT_CASE(sim_w_shrinks),
	KUNIT_CASE(sim_keeps_part_of_a_loop),
	KUNIT_CASE(sim_drops_and_copies),
	{}
};

static struct kunit_suite sim_suite = {
	.name = "lru_cast_sim",
	.test_cases = sim_cases,
};

kunit_test_suite(sim_suite);
