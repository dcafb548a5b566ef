/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the pure parts of CAST use of the kernel, for a user-space compiler.
 * The headers below linux/ include this one; sources are taken as they are.
 */
#ifndef _CAST_TEST_SHIM_H
#define _CAST_TEST_SHIM_H

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef int32_t s32;
typedef long long s64;
typedef unsigned long long u64;

#define U32_MAX		(~0U)
#define U64_MAX		(~0ULL)
#define S64_MAX		((s64)(U64_MAX >> 1))

#define READ_ONCE(x)	(*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))
#define likely(x)	__builtin_expect(!!(x), 1)
#define unlikely(x)	__builtin_expect(!!(x), 0)
#define __read_mostly
#define L1_CACHE_BYTES	64

/* Evaluated once, and only of like types, as the kernel's are. */
#define min(a, b) ({ __auto_type _a = (a); __typeof__(_a) _b = (b); \
		     _a < _b ? _a : _b; })
#define max(a, b) ({ __auto_type _a = (a); __typeof__(_a) _b = (b); \
		     _a > _b ? _a : _b; })
#define min_t(t, a, b)		min((t)(a), (t)(b))
#define max_t(t, a, b)		max((t)(a), (t)(b))
#define clamp_t(t, v, lo, hi)	min_t(t, max_t(t, v, lo), hi)
#define clamp(v, lo, hi)	min(max(v, lo), hi)
#define swap(a, b) \
	do { __typeof__(a) _t = (a); (a) = (b); (b) = _t; } while (0)
#define ARRAY_SIZE(a)		(sizeof(a) / sizeof((a)[0]))
#define BIT(n)			(1UL << (n))
#define DIV_ROUND_UP(n, d)	(((n) + (d) - 1) / (d))

static inline int fls(u32 x)
{
	return x ? 32 - __builtin_clz(x) : 0;
}

static inline int fls64(u64 x)
{
	return x ? 64 - __builtin_clzll(x) : 0;
}

static inline u64 mul_u64_u64_div_u64(u64 a, u64 b, u64 c)
{
	return (unsigned __int128)a * b / c;
}

static inline u64 div_u64(u64 a, u32 b)
{
	return a / b;
}

#define GFP_KERNEL	0
#define kmalloc(n, gfp)			malloc(n)
#define kzalloc(n, gfp)			calloc(1, n)
#define kcalloc(n, size, gfp)		calloc(n, size)
#define kvcalloc(n, size, gfp)		calloc(n, size)
#define kvzalloc(n, gfp)		calloc(1, n)
#define kfree(p)			free(p)
#define kvfree(p)			free(p)

#endif /* _CAST_TEST_SHIM_H */
