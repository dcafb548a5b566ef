// SPDX-License-Identifier: GPL-2.0-only
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/string.h>

#include "decay.h"

/* A test of fewer disagreements says nothing, one of more is old news. */
#define FEWEST		32U
#define MOST		4096U

static const s32 offset[CAST_DECAYS] = { 0, -1, 1, -2, 2, -4, 4, -8, 8 };

int cast_decay_init(struct cast_decay *decay, struct cast_pages *pages)
{
	u32 i;
	int err;

	for (i = 0; i < CAST_DECAYS; i++) {
		err = cast_sim_init(&decay->sim[i], pages);
		if (err) {
			while (i--)
				cast_sim_exit(&decay->sim[i]);
			return err;
		}
	}
	cast_decay_clear(decay);
	return 0;
}

void cast_decay_exit(struct cast_decay *decay)
{
	u32 i;

	for (i = 0; i < CAST_DECAYS; i++)
		cast_sim_exit(&decay->sim[i]);
}

static void forget_counts(struct cast_decay *decay)
{
	u32 i;

	memset(decay->better, 0, sizeof(decay->better));
	memset(decay->worse, 0, sizeof(decay->worse));
	for (i = 0; i < CAST_DECAYS; i++)
		decay->sim[i].misses = 0;
}

void cast_decay_set_le(struct cast_decay *decay, u32 le)
{
	u32 i;

	for (i = 0; i < CAST_DECAYS; i++)
		cast_sim_set_le(&decay->sim[i],
				clamp_t(s32, (s32)le + offset[i],
					CAST_LE_MIN, CAST_LE_MAX));
	forget_counts(decay);
}

void cast_decay_clear(struct cast_decay *decay)
{
	u32 i;

	for (i = 0; i < CAST_DECAYS; i++)
		cast_sim_clear(&decay->sim[i]);
	memset(decay->seen, 0, sizeof(decay->seen));
	decay->moves = 0;
	cast_decay_set_le(decay, CAST_LE_START);
}

void cast_decay_set_size(struct cast_decay *decay, u32 capacity,
			 u32 w_permille)
{
	u32 i;

	for (i = 0; i < CAST_DECAYS; i++)
		cast_sim_set_size(&decay->sim[i], capacity, w_permille);
}

bool cast_first_in_tick(u32 seen[CAST_SEEN], u32 block, u32 now)
{
	u32 *last = &seen[cast_hash32(block) & (CAST_SEEN - 1)];
	u32 this = cast_hash32(block) ^ now;

	if (*last == this)
		return false;
	*last = this;
	return true;
}

bool cast_is_evidence(s64 d, u32 n)
{
	/* d / sqrt(n) >= 2 */
	return n >= FEWEST && d * d >= 4 * (s64)n;
}

static void count(struct cast_decay *decay, u32 i, u32 p, bool hit)
{
	const struct cast_pages *pages = decay->sim[0].pages;

	if (!cast_first_in_tick(decay->seen[i], pages->page[p].block,
				pages->now))
		return;
	if (hit)
		decay->better[i]++;
	else
		decay->worse[i]++;
	if (decay->better[i] + decay->worse[i] > MOST) {
		decay->better[i] /= 2;
		decay->worse[i] /= 2;
	}
}

bool cast_decay_access(struct cast_decay *decay, u32 p, bool recorded)
{
	bool hit = cast_sim_has(&decay->sim[0], p);
	u32 i;

	for (i = 0; i < CAST_DECAYS; i++) {
		struct cast_sim *sim = &decay->sim[i];
		bool has = cast_sim_has(sim, p);

		/* At a bound, several are the centre's twins. */
		if (has != hit && sim->le != decay->sim[0].le)
			count(decay, i, p, has);
		if (!has)
			cast_sim_take(sim, p);
		else if (recorded)
			cast_sim_reranked(sim, p);
	}
	return hit;
}

bool cast_decay_choose(struct cast_decay *decay)
{
	u64 best_d2 = 0, best_n = 1;
	u32 i, best = 0;

	for (i = 1; i < CAST_DECAYS; i++) {
		s64 d = (s64)decay->better[i] - decay->worse[i];
		u32 n = decay->better[i] + decay->worse[i];

		if (d <= 0 || !cast_is_evidence(d, n))
			continue;
		/* The largest d^2 / n. */
		if (d * d * best_n > best_d2 * n) {
			best_d2 = d * d;
			best_n = n;
			best = i;
		}
	}
	if (!best)
		return false;
	cast_sim_copy(&decay->sim[0], &decay->sim[best]);
	cast_decay_set_le(decay, decay->sim[best].le);
	decay->moves++;
	return true;
}

void cast_decay_drop(struct cast_decay *decay, u32 p)
{
	u32 i;

	for (i = 0; i < CAST_DECAYS; i++)
		cast_sim_drop(&decay->sim[i], p);
}
