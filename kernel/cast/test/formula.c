// SPDX-License-Identifier: GPL-2.0-only
/*
 * The integer log-score against LRFU's formula in floating point, over every
 * pair of gap classes, every decay, and counts from 1 to 255.
 */
#include <math.h>

#include "../mm/lru_cast/core/key.h"

static const double gap_ticks[] = {
	0, 1, 39 / 16., 85 / 16., 175 / 16., 356 / 16., 718 / 16., 1442 / 16.,
	2891 / 16., 5787 / 16., 12288 / 16.,
};

static double exact(u32 g1, u32 g2, u32 cnt, u32 le)
{
	double half_life = exp2(10. - le);
	double d1 = gap_ticks[g1] / half_life, d2 = gap_ticks[g2] / half_life;
	double sum = 1;
	u32 read;

	if (cnt >= 2)
		sum += exp2(-d1);
	for (read = 3; read <= cnt; read++)
		sum += exp2(-(d1 + d2) * (read - 1) / 2);
	return fmin(127, 16 * log2(sum));
}

/* The gap of a class is the geometric mean of its bounds, class 1 one tick. */
static int check_gaps(void)
{
	u32 c;

	for (c = 2; c <= 9; c++) {
		double mean = sqrt(exp2(c - 1.) * (exp2(c) - 1));

		if (fabs(mean - gap_ticks[c]) * 16 > 0.5) {
			printf("not ok gap of class %u: %f\n", c, mean);
			return 1;
		}
	}
	return 0;
}

/* The counts that the published error bound was taken over. */
static bool published(u32 cnt)
{
	static const u32 counts[] = {
		1, 2, 3, 4, 5, 6, 8, 12, 20, 50, 100, 200, 255,
	};
	u32 i;

	for (i = 0; i < ARRAY_SIZE(counts); i++)
		if (counts[i] == cnt)
			return true;
	return false;
}

int main(void)
{
	u32 le, g1, g2, cnt, n = 0;
	double apart, worst = 0, worst_published = 0;

	for (le = CAST_LE_MIN; le <= CAST_LE_MAX; le++)
	for (g1 = 1; g1 <= 10; g1++)
	for (g2 = 1; g2 <= 10; g2++)
	for (cnt = 1; cnt <= 255; cnt++, n++) {
		apart = fabs(cast_log_score(g1, g2, cnt, le) -
			     exact(g1, g2, cnt, le));
		worst = fmax(worst, apart);
		if (published(cnt))
			worst_published = fmax(worst_published, apart);
	}
	/* Less than the key's own step, of which rounding alone is a half. */
	printf("%s log-scores: %u combinations, %.2f sixteenths apart at most, %.2f at the published counts\n",
	       worst < 1 && worst_published < 0.62 ? "ok" : "not ok", n,
	       worst, worst_published);
	return worst >= 1 || worst_published >= 0.62 || check_gaps();
}
