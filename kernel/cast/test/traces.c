// SPDX-License-Identifier: GPL-2.0-only
/*
 * The project's router traces through the simulated caches.
 *
 *   traces DIR expected.txt
 *
 * First each setting by itself against the project's own simulator, then the
 * controllers against the best setting in hindsight, from three starts.
 */
#include <math.h>

#include "../mm/lru_cast/core/key.h"
#include "replay.h"

/* Of all accesses: what tables of counts by class may make of it. */
#define APART_MOST	0.010
#define APART_MEAN	0.002
/*
 * Of LRU's: the fastest decay still is a score, W still a queue of its own,
 * what is read within a tick, a quarter of memory, is told apart by a hash, and
 * the tick is longer where pages leave that were read once.
 */
#define LRU_APART_MOST	0.05
/*
 * Of the best fixed decay's: how near the controllers must come in three runs
 * of four, in the mean, and in each. Phases of a mix each speak for another
 * decay while they last, so that some runs pay for moving to and fro, and
 * others gain by it.
 */
#define TUNED_APART	0.01
#define TUNED_APART_MEAN 0.002
#define TUNED_APART_MOST 0.025
/*
 * A single conversation whose second half is of another nature than its first:
 * so many times the misses of the best fixed decay in hindsight, at most.
 */
#define CHANGED_MOST	1.25
#define STARTS		{ 9, 1, 14 }
/* A conversation is longer than what the traces hold of it. */
#define REPEATED	8

static const struct {
	const char *name;
	u32 n_experts;
} files[] = { { "olmoe_299", 64 }, { "kimi_linear_300", 256 } };

static struct trace load(const char *dir, u32 file)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s.jsonl", dir, files[file].name);
	return trace_read(path, files[file].n_experts);
}

/* --- against the simulator --- */

static struct trace mixed(const struct trace *decode, const char *scenario)
{
	static const struct trace none;

	if (!strcmp(scenario, "prefill"))
		return trace_with_prefills(decode, 60, 1, 1);
	if (!strcmp(scenario, "one-off"))
		return trace_with_one_offs(decode, 0.2);
	return trace_joined(decode, &none);
}

struct apart {
	double most, sum;
	u32 n;
};

static bool check_row(const char *dir, const char *line, struct apart *cast,
		      struct apart *lru)
{
	u32 file, capacity, le, w, accesses, hits;
	char name[64], scenario[64];
	struct trace decode, trace;
	double found, apart;
	struct apart *to;

	if (sscanf(line, "%63s %63s %u %u %u %u %u", name, scenario, &capacity,
		   &le, &w, &accesses, &hits) != 7)
		return false;
	for (file = 0; strcmp(files[file].name, name); file++)
		if (file + 1 == ARRAY_SIZE(files))
			return false;
	decode = load(dir, file);
	trace = mixed(&decode, scenario);
	if (trace.n - trace.iteration[trace_scored_from(&trace)] != accesses) {
		printf("not ok the list of accesses is another's: %s", line);
		return false;
	}
	/* Decay 0 stands for LRU, which the fastest decay comes close to. */
	found = replay_fixed(&trace, capacity, le ? le : CAST_LE_MAX,
			     le ? w : 100);
	apart = fabs(found - (double)hits / accesses);
	to = le ? cast : lru;
	to->most = fmax(to->most, apart);
	to->sum += apart;
	to->n++;
	trace_free(&trace);
	trace_free(&decode);
	return true;
}

static bool check_fixed(const char *dir, const char *path)
{
	struct apart cast = { 0 }, lru = { 0 };
	FILE *f = fopen(path, "r");
	char line[256];
	bool ok;

	if (!f) {
		perror(path);
		return false;
	}
	while (fgets(line, sizeof(line), f)) {
		if (*line != '#' && !check_row(dir, line, &cast, &lru)) {
			printf("not ok %s: %s", path, line);
			return false;
		}
	}
	fclose(f);
	ok = cast.n && cast.most <= APART_MOST &&
	     cast.sum / cast.n <= APART_MEAN;
	printf("%s %u settings: %.2f pp from the simulator's hits at most, %.3f in the mean\n",
	       ok ? "ok" : "not ok", cast.n, 100 * cast.most,
	       100 * cast.sum / cast.n);
	if (!lru.n || lru.most > LRU_APART_MOST) {
		printf("not ok");
		ok = false;
	} else {
		printf("ok");
	}
	printf(" decay 14 against LRU: %.2f pp at most\n", 100 * lru.most);
	return ok;
}

/* --- the controllers --- */

static double best_fixed(const struct trace *trace, u32 capacity, u32 *best_le)
{
	double best = 0, hits;
	u32 le;

	for (le = CAST_LE_MIN; le <= CAST_LE_MAX; le++) {
		hits = replay_fixed(trace, capacity, le, 100);
		if (hits > best) {
			best = hits;
			*best_le = le;
		}
	}
	return best;
}

static struct {
	u32 runs, near;
	double sum;
} tuned_runs;

static bool check_tuned(const char *name, const struct trace *trace,
			u32 capacity, u32 one_in)
{
	static const u32 starts[] = STARTS;
	u32 i, best_le = 0;
	double best = best_fixed(trace, capacity, &best_le);
	bool ok = true;

	printf("# %s, room for %u of %u: best %.3f at decay %u; from",
	       name, capacity, trace->n_layers * trace->n_experts, best,
	       best_le);
	for (i = 0; i < ARRAY_SIZE(starts); i++) {
		struct replay_tuned tuned = replay_tuned(trace, capacity,
							 starts[i], one_in,
							 true);

		ok = ok && tuned.hits >= best - TUNED_APART_MOST;
		tuned_runs.runs++;
		tuned_runs.near += tuned.hits >= best - TUNED_APART;
		tuned_runs.sum += tuned.hits - best;
		printf(" %u: %+.1f pp (%u, W %u)%s", starts[i],
		       100 * (tuned.hits - best), tuned.le, tuned.w_permille,
		       i + 1 < ARRAY_SIZE(starts) ? "," : "\n");
	}
	printf("%s controllers on %s at %u\n", ok ? "ok" : "not ok", name,
	       capacity);
	return ok;
}

/* What is scored is a while after the change, warmed by the other kind. */
static bool check_changes(const char *name, const struct trace *decode,
			  const struct trace *prefill, u32 capacity)
{
	struct trace to_prefill = trace_joined(decode, prefill);
	struct trace to_decode = trace_joined(prefill, decode);
	char what[96];
	bool ok;

	snprintf(what, sizeof(what), "%s decode, then prefill mix", name);
	ok = check_tuned(what, &to_prefill, capacity, 1);
	snprintf(what, sizeof(what), "%s prefill mix, then decode", name);
	ok &= check_tuned(what, &to_decode, capacity, 1);
	trace_free(&to_prefill);
	trace_free(&to_decode);
	return ok;
}

/*
 * In OLMoE's trace decay 1 misses least at first, and later 1.8 times as much
 * as decay 10, by which time it has long been chosen.
 */
static bool check_change_within(const char *dir, u32 file, u32 one_in)
{
	struct trace once = load(dir, file);
	u32 best_le = 0, capacity = once.n_keys / 2;
	double best = best_fixed(&once, capacity, &best_le);
	struct replay_tuned tuned = replay_tuned(&once, capacity, CAST_LE_START,
						 one_in, true);
	double ratio = (1 - tuned.hits) / (1 - best);
	bool ok = ratio <= CHANGED_MOST;

	printf("%s controllers on one pass of %s, 1 in %u sampled: %.3f of the misses at decay %u, after %u moves\n",
	       ok ? "ok" : "not ok", files[file].name, one_in, ratio, best_le,
	       tuned.moves);
	trace_free(&once);
	return ok;
}

static bool check_scenarios(const char *dir, u32 file)
{
	struct trace once = load(dir, file), decode = { 0 }, longer, prefill;
	char name[96];
	bool ok = true;
	u32 i, part;

	decode = trace_joined(&once, &decode);
	for (i = 1; i < REPEATED; i++) {
		longer = trace_joined(&decode, &once);
		trace_free(&decode);
		decode = longer;
	}
	prefill = trace_with_prefills(&decode, 60, 0.9, 1);
	ok &= check_changes(files[file].name, &decode, &prefill,
			    once.n_keys / 4);
	snprintf(name, sizeof(name), "%s decode, 1 in 4 sampled",
		 files[file].name);
	ok &= check_tuned(name, &decode, once.n_keys / 4, 4);
	for (part = 8; part >= 2; part /= 2) {
		snprintf(name, sizeof(name), "%s decode", files[file].name);
		ok &= check_tuned(name, &decode, once.n_keys / part, 1);
		snprintf(name, sizeof(name), "%s prefill mix",
			 files[file].name);
		ok &= check_tuned(name, &prefill, once.n_keys / part, 1);
	}
	trace_free(&once);
	trace_free(&decode);
	trace_free(&prefill);
	return ok;
}

static bool check_all_tuned(void)
{
	bool ok = tuned_runs.near * 4 >= tuned_runs.runs * 3 &&
		  tuned_runs.sum >= -TUNED_APART_MEAN * tuned_runs.runs;

	printf("%s controllers: %u of %u runs within %.0f pp of the best fixed decay, %+.2f pp in the mean\n",
	       ok ? "ok" : "not ok", tuned_runs.near, tuned_runs.runs,
	       100 * TUNED_APART, 100 * tuned_runs.sum / tuned_runs.runs);
	return ok;
}

int main(int argc, char **argv)
{
	bool ok;
	u32 file;

	if (argc != 3) {
		fprintf(stderr, "usage: %s DIR expected.txt\n", argv[0]);
		return 2;
	}
	if (cast_key_init())
		return 2;
	ok = check_fixed(argv[1], argv[2]);
	for (file = 0; file < ARRAY_SIZE(files); file++)
		ok &= check_scenarios(argv[1], file);
	ok &= check_change_within(argv[1], 0, 1);
	ok &= check_change_within(argv[1], 0, 4);
	return !(check_all_tuned() && ok);
}
