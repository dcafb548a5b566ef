// SPDX-License-Identifier: GPL-2.0-only
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "sim.h"

#define W_RING		CAST_SAMPLE_RESIDENT
#define TIE_BITS	24
#define TIE_MASK	((1U << TIE_BITS) - 1)
#define TIE_TOP		(1U << (TIE_BITS - 1))

int cast_sim_init(struct cast_sim *sim, struct cast_pages *pages)
{
	memset(sim, 0, sizeof(*sim));
	sim->pages = pages;
	sim->le = CAST_LE_START;
	sim->where = kvcalloc(CAST_SAMPLE_PAGES, sizeof(u16), GFP_KERNEL);
	sim->w = kvcalloc(W_RING, sizeof(u16), GFP_KERNEL);
	sim->rank = kvcalloc(CAST_SAMPLE_RESIDENT, sizeof(u64), GFP_KERNEL);
	sim->heap = kvcalloc(CAST_SAMPLE_RESIDENT, sizeof(u16), GFP_KERNEL);
	if (!sim->where || !sim->w || !sim->rank || !sim->heap) {
		cast_sim_exit(sim);
		return -ENOMEM;
	}
	cast_sim_clear(sim);
	return 0;
}

void cast_sim_exit(struct cast_sim *sim)
{
	kvfree(sim->where);
	kvfree(sim->w);
	kvfree(sim->rank);
	kvfree(sim->heap);
	memset(sim, 0, sizeof(*sim));
}

void cast_sim_clear(struct cast_sim *sim)
{
	memset(sim->where, 0xff, CAST_SAMPLE_PAGES * sizeof(u16));
	sim->order = 0;
	sim->nr_w = 0;
	sim->w_first = 0;
	sim->nr_m = 0;
	sim->misses = 0;
	cast_sim_set_size(sim, 2, 0);
}

void cast_sim_set_size(struct cast_sim *sim, u32 capacity, u32 w_permille)
{
	sim->capacity = clamp_t(u32, capacity, 2, CAST_SAMPLE_RESIDENT - 1);
	sim->w_capacity = max(1U, sim->capacity * w_permille / 1000);
}

/* --- ranks --- */

/*
 * Key and tie as one number. The key's time is absolute, so that ranks hold
 * as time passes. @order tells once-read pages apart; it may wrap, which
 * misorders a few of them once.
 */
static u64 rank_of(const struct cast_sim *sim, u32 p, u32 order)
{
	const struct cast_page *page = &sim->pages->page[p];
	u64 key = cast_time16(page->tick, sim->le) +
		  cast_lut_log_score(page->g1, page->g2, page->cnt, sim->le);
	u32 tie;

	if (page->cnt <= 1)
		tie = order & (TIE_TOP - 1);
	else
		tie = TIE_TOP | cast_hash32(page->block) >> (33 - TIE_BITS);
	return key << TIE_BITS | tie;
}

static void place(struct cast_sim *sim, u32 i, u64 rank, u32 p)
{
	sim->rank[i] = rank;
	sim->heap[i] = p;
	sim->where[p] = i;
}

static void sift_up(struct cast_sim *sim, u32 i, u64 rank, u32 p)
{
	while (i) {
		u32 parent = (i - 1) / 2;

		if (sim->rank[parent] <= rank)
			break;
		place(sim, i, sim->rank[parent], sim->heap[parent]);
		i = parent;
	}
	place(sim, i, rank, p);
}

static void sift_down(struct cast_sim *sim, u32 i, u64 rank, u32 p)
{
	u32 child;

	while ((child = 2 * i + 1) < sim->nr_m) {
		if (child + 1 < sim->nr_m &&
		    sim->rank[child + 1] < sim->rank[child])
			child++;
		if (rank <= sim->rank[child])
			break;
		place(sim, i, sim->rank[child], sim->heap[child]);
		i = child;
	}
	place(sim, i, rank, p);
}

static void m_insert(struct cast_sim *sim, u32 p)
{
	sift_up(sim, sim->nr_m++, rank_of(sim, p, sim->order++), p);
}

static void m_remove(struct cast_sim *sim, u32 i)
{
	u32 last = --sim->nr_m;
	u64 rank = sim->rank[last];
	u32 p = sim->heap[last];

	sim->where[sim->heap[i]] = CAST_SIM_NOWHERE;
	if (i == last)
		return;
	if (i && sim->rank[(i - 1) / 2] > rank)
		sift_up(sim, i, rank, p);
	else
		sift_down(sim, i, rank, p);
}

/*
 * The lowest of M. Reads that raise a page's rank leave the heap alone, most
 * of them are of pages that never come to be the lowest: its first entry is
 * put right here, until it is.
 */
static u32 m_lowest(struct cast_sim *sim)
{
	for (;;) {
		u32 p = sim->heap[0];
		u64 rank = rank_of(sim, p, sim->rank[0] & TIE_MASK);

		if (rank <= sim->rank[0])
			return p;
		sift_down(sim, 0, rank, p);
	}
}

/* One long gap after many short ones lowers what old reads are taken for. */
void cast_sim_reranked(struct cast_sim *sim, u32 p)
{
	u32 i = sim->where[p];
	u64 rank;

	if (i >= CAST_SIM_IN_W)
		return;
	rank = rank_of(sim, p, sim->rank[i] & TIE_MASK);
	if (rank < sim->rank[i])
		sift_up(sim, i, rank, p);
}

void cast_sim_set_le(struct cast_sim *sim, u32 le)
{
	u32 i;

	sim->le = le;
	for (i = 0; i < sim->nr_m; i++)
		sim->rank[i] = rank_of(sim, sim->heap[i],
				       sim->rank[i] & TIE_MASK);
	for (i = sim->nr_m / 2; i--; )
		sift_down(sim, i, sim->rank[i], sim->heap[i]);
}

/* --- W --- */

static u32 w_oldest(const struct cast_sim *sim)
{
	return sim->w[sim->w_first];
}

static u32 w_pop(struct cast_sim *sim)
{
	u32 p = w_oldest(sim);

	sim->w_first = (sim->w_first + 1) & (W_RING - 1);
	sim->nr_w--;
	sim->where[p] = CAST_SIM_NOWHERE;
	return p;
}

static void w_push(struct cast_sim *sim, u32 p)
{
	sim->w[(sim->w_first + sim->nr_w++) & (W_RING - 1)] = p;
	sim->where[p] = CAST_SIM_IN_W;
}

/* --- eviction --- */

static void left(struct cast_sim *sim, u32 p)
{
	struct cast_page *page = &sim->pages->page[p];

	page->homes--;
	page->left = sim->pages->now;
	sim->parts = page->cnt <= 1 ? CAST_PARTS_ONCE : CAST_PARTS;
}

/* W's oldest against M's lowest: as cast_newcomer_goes(). */
static bool newcomer_goes(struct cast_sim *sim, u32 newcomer, u32 lowest)
{
	u64 a = rank_of(sim, newcomer, 0), b = sim->rank[sim->where[lowest]];

	if (a >> TIE_BITS != b >> TIE_BITS)
		return a < b;
	return sim->pages->page[newcomer].cnt > 1 && a < b;
}

static void evict(struct cast_sim *sim)
{
	u32 newcomer, lowest;

	/* W's share shrank: what is too many of it is M's. */
	if (sim->nr_w > sim->w_capacity)
		m_insert(sim, w_pop(sim));

	if (!sim->nr_m) {
		left(sim, w_pop(sim));
		return;
	}
	lowest = m_lowest(sim);
	if (sim->nr_w >= sim->w_capacity) {
		newcomer = w_pop(sim);
		if (newcomer_goes(sim, newcomer, lowest)) {
			left(sim, newcomer);
			return;
		}
		m_remove(sim, sim->where[lowest]);
		m_insert(sim, newcomer);
	} else {
		m_remove(sim, sim->where[lowest]);
	}
	left(sim, lowest);
}

void cast_sim_take(struct cast_sim *sim, u32 p)
{
	sim->misses++;
	sim->parts = CAST_PARTS_ROOM;
	if (sim->nr_w + sim->nr_m < sim->capacity) {
		/* While memory fills, what W has no share for is M's. */
		if (sim->nr_w >= sim->w_capacity)
			m_insert(sim, w_pop(sim));
	} else {
		do {
			evict(sim);
		} while (sim->nr_w + sim->nr_m >= sim->capacity);
	}
	w_push(sim, p);
	sim->pages->page[p].homes++;
}

static void w_drop(struct cast_sim *sim, u32 p)
{
	u32 n;

	/* Once around, so that the order is kept. */
	for (n = sim->nr_w; n; n--) {
		u32 q = w_pop(sim);

		if (q != p)
			w_push(sim, q);
	}
}

void cast_sim_drop(struct cast_sim *sim, u32 p)
{
	u32 i = sim->where[p];

	if (i == CAST_SIM_NOWHERE)
		return;
	if (i == CAST_SIM_IN_W)
		w_drop(sim, p);
	else
		m_remove(sim, i);
	left(sim, p);
}

/* --- copying --- */

void cast_sim_copy(struct cast_sim *sim, const struct cast_sim *from)
{
	u32 p, was, is;

	for (p = 0; p < CAST_SAMPLE_PAGES; p++) {
		was = cast_sim_has(sim, p);
		is = cast_sim_has(from, p);
		sim->pages->page[p].homes += is - was;
	}
	memcpy(sim->where, from->where, CAST_SAMPLE_PAGES * sizeof(u16));
	memcpy(sim->w, from->w, W_RING * sizeof(u16));
	memcpy(sim->rank, from->rank, from->nr_m * sizeof(u64));
	memcpy(sim->heap, from->heap, from->nr_m * sizeof(u16));
	sim->order = from->order;
	sim->nr_w = from->nr_w;
	sim->w_first = from->w_first;
	sim->nr_m = from->nr_m;
	cast_sim_set_le(sim, sim->le);
}
