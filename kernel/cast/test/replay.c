// SPDX-License-Identifier: GPL-2.0-only
#include "../mm/lru_cast/tune/control.h"
#include "../mm/lru_cast/tune/tune.h"
#include "replay.h"

/* One cache, its own sample of everything. */
struct cache {
	struct cast_pages pages;
	struct cast_sim sim;
};

static void must(int err)
{
	if (err) {
		fprintf(stderr, "no memory\n");
		exit(2);
	}
}

static void cache_init(struct cache *c, u32 capacity, u32 le, u32 w_permille)
{
	must(cast_pages_init(&c->pages));
	must(cast_sim_init(&c->sim, &c->pages));
	cast_sim_set_le(&c->sim, le);
	cast_sim_set_size(&c->sim, capacity, w_permille);
	cast_pages_set_capacity(&c->pages, capacity);
}

static void cache_exit(struct cache *c)
{
	cast_sim_exit(&c->sim);
	cast_pages_exit(&c->pages);
}

static bool cache_access(struct cache *c, u32 key)
{
	u32 p = cast_pages_get(&c->pages, (u64)key + 1, key);
	bool hit = cast_sim_has(&c->sim, p);
	bool recorded = cast_pages_read(&c->pages, p);

	if (!hit) {
		cast_sim_take(&c->sim, p);
		cast_pages_pass(&c->pages, c->sim.parts);
	} else if (recorded) {
		cast_sim_reranked(&c->sim, p);
	}
	return hit;
}

double replay_fixed(const struct trace *trace, u32 capacity, u32 le,
		    u32 w_permille)
{
	size_t from = trace->iteration[trace_scored_from(trace)];
	struct cache cache;
	size_t a, hits = 0;

	cache_init(&cache, capacity, le, w_permille);
	for (a = 0; a < trace->n; a++)
		if (cache_access(&cache, trace->key[a]) && a >= from)
			hits++;
	cache_exit(&cache);
	return (double)hits / (trace->n - from);
}

/* Experts are in the sample or not by their hash, as blocks of pages are. */
static bool in_sample(u32 key, u32 one_in)
{
	return cast_hash32(key ^ 0x9e3779b9U) < U32_MAX / one_in;
}

static bool choose(struct cast_control *control, bool share)
{
	return share ? cast_control_choose(control) :
		       cast_decay_choose(&control->decay);
}

struct replay_tuned replay_tuned(const struct trace *trace, u32 capacity,
				 u32 le, u32 one_in, bool share)
{
	size_t from = trace->iteration[trace_scored_from(trace)];
	struct cast_control *control = calloc(1, sizeof(*control));
	struct replay_tuned result;
	struct cache cache;
	size_t a, hits = 0;

	must(control ? cast_control_init(control) : -1);
	cast_control_set_le(control, le);
	cast_control_set_capacity(control, capacity / one_in, capacity / one_in);
	cache_init(&cache, capacity, le, CAST_W_START);
	for (a = 0; a < trace->n; a++) {
		u32 key = trace->key[a];

		if (cache_access(&cache, key) && a >= from)
			hits++;
		if (!in_sample(key, one_in) ||
		    !cast_control_access(control, (u64)key + 1, key))
			continue;
		if (control->accesses % 64 || !choose(control, share))
			continue;
		cast_sim_set_le(&cache.sim, cast_control_le(control));
		cast_sim_set_size(&cache.sim, capacity,
				  cast_control_w(control));
	}
	result = (struct replay_tuned) {
		.hits = (double)hits / (trace->n - from),
		.le = cast_control_le(control),
		.w_permille = cast_control_w(control),
		.moves = control->decay.moves,
	};
	cache_exit(&cache);
	cast_control_exit(control);
	free(control);
	return result;
}
