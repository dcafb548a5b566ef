// SPDX-License-Identifier: GPL-2.0-only
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common.h"

#define TAIL 0x9e3779b97f4a7c15ULL

uint64_t checked, bad;
static uint64_t random_state;

void fail(const char *format, ...)
{
	int error = errno;
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf(": %s\n", strerror(error));
	exit(1);
}

void draw_seed(uint64_t seed)
{
	random_state = seed * 2 + 1;
}

/* xorshift64* (Vigna, 2014) */
uint64_t draw(uint64_t below)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return (random_state * 0x2545f4914f6cdd1dULL >> 16) % below;
}

double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

void stamp(uint64_t *words, uint64_t page, uint32_t generation)
{
	words[0] = generation ? page << 32 | generation : 0;
	words[PAGE / 8 - 1] = generation ? words[0] ^ TAIL : 0;
}

void check_page(const volatile uint64_t *words, uint64_t page, uint32_t generation)
{
	uint64_t head = generation ? page << 32 | generation : 0;
	uint64_t tail = generation ? head ^ TAIL : 0;

	checked++;
	if (words[0] == head && words[PAGE / 8 - 1] == tail)
		return;
	if (!bad++)
		printf("FAIL page %" PRIu64 " is %#" PRIx64 " %#" PRIx64 ", not %#" PRIx64 "\n",
		       page, words[0], words[PAGE / 8 - 1], head);
}
