// SPDX-License-Identifier: GPL-2.0-only
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/string.h>

#include "decay.h"

/*
 * What a sum must come to. Of caches that are equally good one gets there by
 * chance after about the square of it, in disagreements. But blocks do not
 * come and go by themselves, a request asks for many that are alike: so it is
 * also a part of all blocks that memory holds, half of what a tick takes in.
 */
#define ENOUGH_LEAST	16U
#define ENOUGH_SHARE	8U

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
	memset(decay->sum, 0, sizeof(decay->sum));
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

void cast_decay_set_blocks(struct cast_decay *decay, u32 blocks)
{
	decay->enough = max(ENOUGH_LEAST, blocks / ENOUGH_SHARE);
}

void cast_decay_set_size(struct cast_decay *decay, u32 capacity,
			 u32 w_permille)
{
	u32 i;

	for (i = 0; i < CAST_DECAYS; i++)
		cast_sim_set_size(&decay->sim[i], capacity, w_permille);
}

bool cast_first_in_round(u32 seen[CAST_SEEN], u32 block, u32 round)
{
	u32 *last = &seen[cast_hash32(block) & (CAST_SEEN - 1)];
	u32 this = cast_hash32(block) ^ round;

	if (*last == this)
		return false;
	*last = this;
	return true;
}

static void count(struct cast_decay *decay, u32 i, u32 p, bool hit)
{
	const struct cast_pages *pages = decay->sim[0].pages;

	if (!cast_first_in_round(decay->seen[i], pages->page[p].block,
				 pages->round))
		return;
	if (hit) {
		decay->better[i]++;
		decay->sum[i]++;
	} else {
		decay->worse[i]++;
		if (decay->sum[i])
			decay->sum[i]--;
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
	u32 i, best = 0;

	for (i = 1; i < CAST_DECAYS; i++)
		if (decay->sum[i] >= max(decay->enough, decay->sum[best] + 1))
			best = i;
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
