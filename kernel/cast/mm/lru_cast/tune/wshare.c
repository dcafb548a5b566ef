// SPDX-License-Identifier: GPL-2.0-only
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/string.h>

#include "tune.h"
#include "wshare.h"

/* How far the two caches are from the present share, and how far it moves. */
#define ASIDE_PERMILLE	100
#define STEP_PERMILLE	25
#define STEP_TICKS	16U
/* A test of fewer disagreements says nothing. */
#define FEWEST		32U

int cast_wshare_init(struct cast_wshare *w, struct cast_pages *pages)
{
	int err = cast_sim_init(&w->smaller, pages);

	if (err)
		return err;
	err = cast_sim_init(&w->larger, pages);
	if (err) {
		cast_sim_exit(&w->smaller);
		return err;
	}
	cast_wshare_clear(w);
	return 0;
}

void cast_wshare_exit(struct cast_wshare *w)
{
	cast_sim_exit(&w->smaller);
	cast_sim_exit(&w->larger);
}

static u32 within(s32 w_permille)
{
	return clamp_t(s32, w_permille, CAST_W_AUTO_MIN, CAST_W_AUTO_MAX);
}

void cast_wshare_set_size(struct cast_wshare *w, u32 capacity)
{
	w->capacity = capacity;
	cast_sim_set_size(&w->smaller, capacity,
			  within((s32)w->w_permille - ASIDE_PERMILLE));
	cast_sim_set_size(&w->larger, capacity,
			  within((s32)w->w_permille + ASIDE_PERMILLE));
}

static void forget_counts(struct cast_wshare *w)
{
	w->for_larger = 0;
	w->for_smaller = 0;
	w->since = w->smaller.pages->now;
	w->tick = w->since;
	w->in_tick = 0;
	w->squares = 0;
}

void cast_wshare_set(struct cast_wshare *w, u32 w_permille)
{
	w->w_permille = w_permille;
	forget_counts(w);
	w->smaller.misses = 0;
	w->larger.misses = 0;
	cast_wshare_set_size(w, w->capacity);
}

void cast_wshare_clear(struct cast_wshare *w)
{
	cast_sim_clear(&w->smaller);
	cast_sim_clear(&w->larger);
	memset(w->seen, 0, sizeof(w->seen));
	w->capacity = 0;
	w->moves = 0;
	cast_wshare_set(w, CAST_W_START);
	cast_wshare_set_le(w, CAST_LE_START);
}

void cast_wshare_set_le(struct cast_wshare *w, u32 le)
{
	cast_sim_set_le(&w->smaller, le);
	cast_sim_set_le(&w->larger, le);
	/* What was seen at another decay is no evidence at this one. */
	forget_counts(w);
}

static bool access(struct cast_sim *sim, u32 p, bool recorded)
{
	if (!cast_sim_has(sim, p)) {
		cast_sim_take(sim, p);
		return false;
	}
	if (recorded)
		cast_sim_reranked(sim, p);
	return true;
}

void cast_wshare_access(struct cast_wshare *w, u32 p, bool recorded)
{
	const struct cast_pages *pages = w->smaller.pages;
	bool small = access(&w->smaller, p, recorded);
	bool large = access(&w->larger, p, recorded);

	if (small == large ||
	    !cast_first_in_round(w->seen, pages->page[p].block, pages->round))
		return;
	if (w->tick != pages->now) {
		w->squares += w->in_tick * w->in_tick;
		w->in_tick = 0;
		w->tick = pages->now;
	}
	if (large)
		w->for_larger++;
	else
		w->for_smaller++;
	w->in_tick += large ? 1 : -1;
}

bool cast_is_evidence(s64 d, u32 n)
{
	/* d / sqrt(n) >= 2 */
	return n >= FEWEST && d * d >= 4 * (s64)n;
}

static bool is_evidence(const struct cast_wshare *w, s64 d)
{
	u32 n = w->for_larger + w->for_smaller;
	u64 variance = max_t(u64, n, w->squares + w->in_tick * w->in_tick);

	return w->smaller.pages->now - w->since >= STEP_TICKS &&
	       cast_is_evidence(d, n) && d * d >= 4 * variance;
}

bool cast_wshare_choose(struct cast_wshare *w)
{
	s64 d = (s64)w->for_larger - w->for_smaller;
	u32 to;

	if (!is_evidence(w, d))
		return false;
	to = within((s32)w->w_permille +
		    (d > 0 ? STEP_PERMILLE : -STEP_PERMILLE));
	if (to == w->w_permille) {
		/* At a bound: no more of the same is needed. */
		cast_wshare_set(w, to);
		return false;
	}
	cast_wshare_set(w, to);
	w->moves++;
	return true;
}

void cast_wshare_drop(struct cast_wshare *w, u32 p)
{
	cast_sim_drop(&w->smaller, p);
	cast_sim_drop(&w->larger, p);
}
