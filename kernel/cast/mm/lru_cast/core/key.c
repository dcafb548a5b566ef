// SPDX-License-Identifier: GPL-2.0-only
/*
 * The table of log-scores, built from integers alone: the kernel has no
 * floating point, and the same numbers must come out everywhere.
 */
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/slab.h>

#include "key.h"

u8 *cast_lut __read_mostly;

/*
 * What a gap of each class stands for, in 1/16 tick: the geometric mean of
 * its bounds; class 1 is one tick exactly. Class 10, of more ticks than a
 * word can tell, is part of the formula but of no word.
 */
static const u32 gap16[] = {
	0, 16, 39, 85, 175, 356, 718, 1442, 2891, 5787, 12288,
};

/* round(65536 * 2^(-i/16)), (-i/256), (-i/4096) */
static const u32 exp_coarse[16] = {
	65536, 62757, 60097, 57549, 55109, 52773, 50535, 48393,
	46341, 44376, 42495, 40693, 38968, 37316, 35734, 34219,
};

static const u32 exp_middle[16] = {
	65536, 65359, 65182, 65006, 64830, 64655, 64480, 64306,
	64132, 63958, 63785, 63613, 63441, 63269, 63098, 62928,
};

static const u32 exp_fine[16] = {
	65536, 65525, 65514, 65503, 65492, 65481, 65469, 65458,
	65447, 65436, 65425, 65414, 65403, 65392, 65381, 65370,
};

/* ceil(65536 * 2^((i + 1/2)/16)): where 16 * log2 rounds up to i + 1 */
static const u32 log_step[16] = {
	66972, 69937, 73033, 76266, 79643, 83169, 86851, 90696,
	94712, 98905, 103284, 107857, 112632, 117619, 122826, 128264,
};

u32 cast_decay_q16(u64 d)
{
	u64 halvings = d >> 12;
	u32 product;

	if (halvings >= 17)
		return 0;
	product = ((u64)exp_coarse[(d >> 8) & 15] * exp_middle[(d >> 4) & 15] +
		   32768) >> 16;
	product = ((u64)product * exp_fine[d & 15] + 32768) >> 16;
	return product >> halvings;
}

/* A gap of class @g, in 1/4096 half-lives. */
static u64 gap_exponent(u32 g, u32 le)
{
	u64 scaled = (u64)gap16[min_t(u32, g, ARRAY_SIZE(gap16) - 1)] << 8;

	if (le < 10)
		return (scaled + ((1U << (10 - le)) >> 1)) >> (10 - le);
	return scaled << (le - 10);
}

/* 16 * log2(sum / 65536), rounded; @sum is 65536 at least. */
static u32 log16(u64 sum)
{
	u32 octaves = fls64(sum) - 17;
	u32 mantissa = sum >> octaves;
	u32 step = 0;

	while (step < ARRAY_SIZE(log_step) && log_step[step] <= mantissa)
		step++;
	return min(127U, 16 * octaves + step);
}

/*
 * Reads older than the three whose times are known are taken to be spaced
 * like the mean of the two known gaps.
 */
u32 cast_log_score(u32 g1, u32 g2, u32 cnt, u32 le)
{
	u64 first = gap_exponent(g1, le);
	u64 age = first + gap_exponent(g2, le);
	u64 mean = (age + 1) >> 1;
	u64 sum = 65536;
	u32 read, term;

	if (cnt >= 2)
		sum += cast_decay_q16(first);
	for (read = 3; read <= cnt; read++, age += mean) {
		term = cast_decay_q16(age);
		if (!term)
			break;
		sum += term;
	}
	return log16(sum);
}

/* A count in the middle of its class; the last class is of saturated ones. */
static u32 class_cnt(u32 class)
{
	u32 first = 0, last;

	if (class == CAST_CNT_CLASSES - 1)
		return CAST_CNT_MAX;
	while (cast_cnt_class(first) < class)
		first++;
	for (last = first; cast_cnt_class(last + 1) == class; last++)
		;
	return (first + last) / 2;
}

static void build_row(u8 *row, u32 g1, u32 g2, u32 le)
{
	u32 class;

	for (class = 0; class < CAST_CNT_CLASSES; class++)
		row[class] = cast_log_score(g1, g2, class_cnt(class), le);
}

int cast_key_init(void)
{
	u32 le, g1, g2;
	u8 *lut, *row;

	if (cast_lut)
		return 0;
	lut = kmalloc(CAST_LUT_SIZE, GFP_KERNEL);
	if (!lut)
		return -ENOMEM;
	row = lut;
	for (le = CAST_LE_MIN; le <= CAST_LE_MAX; le++) {
		for (g1 = 0; g1 < CAST_LUT_GAPS; g1++) {
			for (g2 = 0; g2 < CAST_LUT_GAPS; g2++) {
				build_row(row, g1, g2, le);
				row += CAST_CNT_CLASSES;
			}
		}
	}
	cast_lut = lut;
	return 0;
}

void cast_key_exit(void)
{
	kfree(cast_lut);
	cast_lut = NULL;
}

/* The count whose log-score comes nearest to @target, of those below @cnt. */
static u32 cnt_of_score(u32 g1, u32 g2, u32 cnt, s32 target, u32 le)
{
	u32 class = cast_cnt_class(cnt);
	s32 above = cast_lut_log_score(g1, g2, cnt, le), score;

	while (class > 1) {
		cnt = class_cnt(--class);
		score = cast_lut_log_score(g1, g2, cnt, le);
		if (score <= target)
			return target - score <= above - target ?
			       cnt : class_cnt(class + 1);
		above = score;
	}
	return 1;
}

/* CAST_AGE_STEP ticks are 2^(le-3) half-lives, 2^(le+1) steps of a key. */
u32 cast_word_aged(u32 word, u32 now, u32 le)
{
	u32 g1 = cast_word_g1(word), g2 = cast_word_g2(word);
	u32 cnt = cast_word_cnt(word);
	s32 target;

	if (!cnt || cast_word_age(word, now) < CAST_AGE_OLD)
		return word;
	target = (s32)cast_lut_log_score(g1, g2, cnt, le) - (2 << le);
	return cast_word_make(cnt_of_score(g1, g2, cnt, target, le), g1, g2,
			      cast_word_tick(word) + CAST_AGE_STEP,
			      cast_word_tag(word));
}
