/* SPDX-License-Identifier: GPL-2.0-only */
/* A router trace as a list of accesses to experts, and mixes made of it. */
#ifndef _CAST_TEST_TRACE_H
#define _CAST_TEST_TRACE_H

#include "include/shim.h"

struct trace {
	u32 *key;		/* layer * n_experts + expert */
	size_t n, room;
	size_t *iteration;	/* where each begins; one more at the end */
	size_t n_iterations, iterations_room;
	u32 n_keys, n_layers, n_experts;
};

/*
 * Reads lines of {"tok": n, "layers": [[expert, ...], ...]}; exits with a
 * message naming the line if one is something else.
 */
struct trace trace_read(const char *path, u32 n_experts);
/* A prompt before every @every iterations, each expert in it with @share. */
struct trace trace_with_prefills(const struct trace *from, size_t every,
				 double share, u64 seed);
/* @share of all accesses go to keys that never come again. */
struct trace trace_with_one_offs(const struct trace *from, double share);
/* One after the other; keys keep their names. */
struct trace trace_joined(const struct trace *a, const struct trace *b);
void trace_free(struct trace *trace);

/* The iteration that scoring begins at: 60 % of them warm the cache. */
size_t trace_scored_from(const struct trace *trace);

#endif /* _CAST_TEST_TRACE_H */
