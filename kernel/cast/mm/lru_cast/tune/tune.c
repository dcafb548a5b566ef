// SPDX-License-Identifier: GPL-2.0-only
/* The settings that reclaim reads: by hand, or as the controllers choose. */
#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/sysfs.h>

#include "sample.h"
#include "tune.h"

static u32 le_now[CAST_TYPES] __read_mostly = {
	CAST_LE_START, CAST_LE_START,
};
static u32 w_now[CAST_TYPES] __read_mostly = { CAST_W_START, CAST_W_START };
static bool auto_now __read_mostly = true;

#define FILE_TYPE	1

u32 cast_le(bool file)
{
	return READ_ONCE(le_now[file]);
}

u32 cast_w_permille(bool file)
{
	return READ_ONCE(w_now[file]);
}

bool cast_tune_auto(void)
{
	return READ_ONCE(auto_now);
}

void cast_tune_set_auto(bool on)
{
	WRITE_ONCE(auto_now, on);
}

void cast_sample_chose(struct cast_control *control)
{
	if (!cast_tune_auto() || !cast_control_choose(control))
		return;
	WRITE_ONCE(le_now[FILE_TYPE], cast_control_le(control));
	WRITE_ONCE(w_now[FILE_TYPE], cast_control_w(control));
}

static bool all_within(const u32 value[CAST_TYPES], u32 low, u32 high)
{
	int type;

	for (type = 0; type < CAST_TYPES; type++)
		if (value[type] < low || value[type] > high)
			return false;
	return true;
}

int cast_tune_set_le(const u32 le[CAST_TYPES])
{
	int type;

	if (!all_within(le, CAST_LE_MIN, CAST_LE_MAX))
		return -EINVAL;
	mutex_lock(&cast_sample_lock);
	cast_tune_set_auto(false);
	for (type = 0; type < CAST_TYPES; type++)
		WRITE_ONCE(le_now[type], le[type]);
	if (cast_sample_file)
		cast_control_set_le(cast_sample_file, le[FILE_TYPE]);
	mutex_unlock(&cast_sample_lock);
	return 0;
}

int cast_tune_set_w(const u32 w_permille[CAST_TYPES])
{
	int type;

	if (!all_within(w_permille, CAST_W_MIN, CAST_W_MAX))
		return -EINVAL;
	mutex_lock(&cast_sample_lock);
	cast_tune_set_auto(false);
	for (type = 0; type < CAST_TYPES; type++)
		WRITE_ONCE(w_now[type], w_permille[type]);
	if (cast_sample_file)
		cast_control_set_w(cast_sample_file, w_permille[FILE_TYPE]);
	mutex_unlock(&cast_sample_lock);
	return 0;
}

/* --- sysfs `tune` --- */

static int show_sample(char *buf, int at, const struct cast_control *control)
{
	struct cast_sample_counts counts = cast_sample_counts();

	at += sysfs_emit_at(buf, at,
			    "file sample 1/%llu pages %u capacity %u tick %u events %llu added %llu lost %llu ghosts-lost %llu cpu %llu ns\n",
			    (1ULL << 32) / max(1U, counts.threshold),
			    control->pages.used, control->capacity,
			    control->pages.now - CAST_TICK_FIRST,
			    counts.events, counts.added, counts.lost,
			    control->pages.forgotten, counts.cpu_ns);
	return sysfs_emit_at(buf, at,
			     "file moves decay %u w %u accesses %llu misses %llu\n",
			     control->decay.moves, control->wshare.moves,
			     control->accesses, control->misses) + at;
}

static int show_decay(char *buf, int at, const struct cast_decay *decay)
{
	u32 le, i;

	/* In order of decay; at a bound, several caches are of one. */
	for (le = CAST_LE_MIN; le <= CAST_LE_MAX; le++) {
		for (i = 0; i < CAST_DECAYS && decay->sim[i].le != le; i++)
			;
		if (i == CAST_DECAYS)
			continue;
		at += sysfs_emit_at(buf, at,
				    "file decay %u misses %llu better %u worse %u sum %u%s\n",
				    le, decay->sim[i].misses,
				    decay->better[i], decay->worse[i],
				    decay->sum[i], i ? "" : " now");
	}
	return at;
}

static int show_wshare(char *buf, int at, const struct cast_wshare *w)
{
	at += sysfs_emit_at(buf, at, "file w-smaller misses %llu better %u\n",
			    w->smaller.misses, w->for_smaller);
	return sysfs_emit_at(buf, at, "file w-larger misses %llu better %u\n",
			     w->larger.misses, w->for_larger) + at;
}

ssize_t cast_tune_show(char *buf)
{
	int at = 0, type;

	mutex_lock(&cast_sample_lock);
	for (type = 0; type < CAST_TYPES; type++)
		at += sysfs_emit_at(buf, at, "%s decay %u w %u\n",
				    type == FILE_TYPE ? "file" : "anon",
				    le_now[type], w_now[type]);
	if (cast_sample_file) {
		at = show_sample(buf, at, cast_sample_file);
		at = show_decay(buf, at, &cast_sample_file->decay);
		at = show_wshare(buf, at, &cast_sample_file->wshare);
	}
	mutex_unlock(&cast_sample_lock);
	return at;
}
