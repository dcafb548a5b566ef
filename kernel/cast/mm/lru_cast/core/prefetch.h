/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Two-stage prefetch for walks whose addresses are known ahead: a line is
 * pulled toward L3 while it is far and toward L1 when it is near. One stage
 * is not enough: L1's miss buffers are few, and memory is further away than
 * they can cover.
 */
#ifndef _LRU_CAST_PREFETCH_H
#define _LRU_CAST_PREFETCH_H

#include <linux/cache.h>
#include <linux/types.h>

#define CAST_PREFETCH_MAX	64U

/* How many steps ahead, sysfs `prefetch`; 0: not at all. */
extern unsigned int cast_prefetch_far;
extern unsigned int cast_prefetch_near;

/* By the CPU that runs: once, at boot. */
void cast_prefetch_init(void);

static inline void cast_prefetch_l3(const void *p)
{
	__builtin_prefetch(p, 0, 1);
}

static inline void cast_prefetch_l1(const void *p)
{
	__builtin_prefetch(p, 0, 3);
}

/*
 * A walk over memory in order: to be called once for each cache line, with
 * the line's address. A prefetch of an address that is not mapped does
 * nothing, so the walk's end needs no care.
 */
static inline void cast_prefetch_at(const void *line)
{
	unsigned int far = READ_ONCE(cast_prefetch_far);
	unsigned int near = READ_ONCE(cast_prefetch_near);

	if (far)
		cast_prefetch_l3(line + far * L1_CACHE_BYTES);
	if (near)
		cast_prefetch_l1(line + near * L1_CACHE_BYTES);
}

/*
 * A walk over an array of things that lie anywhere: step @i of @n, whose
 * address @at gives (a macro or a function of the step).
 */
#define cast_prefetch_step(i, n, at)					\
do {									\
	unsigned int __far = READ_ONCE(cast_prefetch_far);		\
	unsigned int __near = READ_ONCE(cast_prefetch_near);		\
									\
	if (__far && (i) + __far < (n))					\
		cast_prefetch_l3(at((i) + __far));			\
	if (__near && (i) + __near < (n))				\
		cast_prefetch_l1(at((i) + __near));			\
} while (0)

#endif /* _LRU_CAST_PREFETCH_H */
