// SPDX-License-Identifier: GPL-2.0-only
#include <ctype.h>

#include "trace.h"

static void *more(void *p, size_t *room, size_t size)
{
	*room = *room ? 2 * *room : 4096;
	p = realloc(p, *room * size);
	if (!p) {
		fprintf(stderr, "no memory for %zu accesses\n", *room);
		exit(2);
	}
	return p;
}

static void push(struct trace *t, u32 key)
{
	if (t->n == t->room)
		t->key = more(t->key, &t->room, sizeof(*t->key));
	t->key[t->n++] = key;
	t->n_keys = max(t->n_keys, key + 1);
}

static void begin(struct trace *t)
{
	if (t->n_iterations + 1 >= t->iterations_room)
		t->iteration = more(t->iteration, &t->iterations_room,
				    sizeof(*t->iteration));
	t->iteration[t->n_iterations++] = t->n;
	t->iteration[t->n_iterations] = t->n;
}

static void end(struct trace *t)
{
	t->iteration[t->n_iterations] = t->n;
}

static void bad_line(const char *path, size_t number)
{
	fprintf(stderr, "%s:%zu: not {\"tok\": n, \"layers\": [[...], ...]}\n",
		path, number);
	exit(2);
}

/* The experts of one line, a list a layer. */
static bool read_layers(struct trace *t, const char *s, u32 *n_layers)
{
	u32 layer = 0, depth = 1;

	s = strstr(s, "\"layers\":");
	if (!s)
		return false;
	s = strchr(s, '[');
	while (s && *++s && depth) {
		if (*s == '[') {
			depth++;
		} else if (*s == ']') {
			layer += depth-- == 2;
		} else if (isdigit(*s)) {
			char *rest;
			u32 e = strtoul(s, &rest, 10);

			if (depth != 2 || e >= t->n_experts)
				return false;
			push(t, layer * t->n_experts + e);
			s = rest - 1;
		}
	}
	*n_layers = layer;
	return s && !depth && layer;
}

struct trace trace_read(const char *path, u32 n_experts)
{
	struct trace t = { .n_experts = n_experts };
	FILE *f = fopen(path, "r");
	size_t number = 0, size = 0;
	char *line = NULL;
	u32 n_layers;

	if (!f) {
		perror(path);
		exit(2);
	}
	while (getline(&line, &size, f) > 0) {
		number++;
		begin(&t);
		if (!read_layers(&t, line, &n_layers) ||
		    (t.n_layers && t.n_layers != n_layers))
			bad_line(path, number);
		t.n_layers = n_layers;
		end(&t);
	}
	if (!number)
		bad_line(path, 1);
	t.n_keys = t.n_layers * n_experts;
	free(line);
	fclose(f);
	return t;
}

static void push_iteration(struct trace *t, const struct trace *from, size_t i)
{
	size_t a;

	begin(t);
	for (a = from->iteration[i]; a < from->iteration[i + 1]; a++)
		push(t, from->key[a]);
	end(t);
}

static struct trace like(const struct trace *from)
{
	return (struct trace) {
		.n_keys = from->n_keys,
		.n_layers = from->n_layers,
		.n_experts = from->n_experts,
	};
}

struct trace trace_with_prefills(const struct trace *from, size_t every,
				 double share, u64 seed)
{
	struct trace t = like(from);
	size_t i;
	u32 key;

	for (i = 0; i < from->n_iterations; i++) {
		if (i % every == 0) {
			begin(&t);
			for (key = 0; key < from->n_layers * from->n_experts;
			     key++) {
				seed = seed * 6364136223846793005ULL +
				       1442695040888963407ULL;
				if ((seed >> 11) * 0x1p-53 < share)
					push(&t, key);
			}
			end(&t);
		}
		push_iteration(&t, from, i);
	}
	return t;
}

struct trace trace_with_one_offs(const struct trace *from, double share)
{
	struct trace t = like(from);
	size_t i, due, added = 0, per_layer;
	size_t a;

	for (i = 0; i < from->n_iterations; i++) {
		per_layer = (from->iteration[i + 1] - from->iteration[i]) /
			    from->n_layers;
		begin(&t);
		for (a = from->iteration[i]; a < from->iteration[i + 1]; a++) {
			push(&t, from->key[a]);
			/* What is due comes behind each layer. */
			if ((a + 1 - from->iteration[i]) % per_layer)
				continue;
			due = (a + 1) * (share / (1 - share));
			for (; added < due; added++)
				push(&t, t.n_keys);
		}
		end(&t);
	}
	return t;
}

struct trace trace_joined(const struct trace *a, const struct trace *b)
{
	struct trace t = like(a);
	size_t i;

	for (i = 0; i < a->n_iterations; i++)
		push_iteration(&t, a, i);
	for (i = 0; i < b->n_iterations; i++)
		push_iteration(&t, b, i);
	return t;
}

void trace_free(struct trace *trace)
{
	free(trace->key);
	free(trace->iteration);
}

size_t trace_scored_from(const struct trace *trace)
{
	return trace->n_iterations * 60 / 100;
}
