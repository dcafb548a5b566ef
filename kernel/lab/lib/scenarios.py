# SPDX-License-Identifier: GPL-2.0-only
"""Scenarios: which accesses, how large an expert is, and what they would nominally miss."""

import json
import subprocess
import threading
from pathlib import Path

from guest import LAB, ROOT

TRACES = ROOT / "crates" / "router-trace" / "traces"
KIB = 1 << 10
DOMAINS = ["tiny-moe-code.rtc", "tiny-moe-fiction.rtc", "tiny-moe-math.rtc", "tiny-moe-systems.rtc"]


def traces(*names):
    return [part for name in names for part in ("--trace", str(TRACES / name))]


OLMOE = traces("olmoe_299.jsonl.gz")
KIMI = traces("kimi_linear_300.jsonl.gz")
CODE = traces(DOMAINS[0])
# A prompt every 60 tokens that reads 90 % of the pool.
PROMPTS = ["--prefill-every", "60", "--prefill-share", "0.9"]
# Real models' experts are larger; what is kept is pages an expert (16 and more) and experts
# a memory (hundreds and more), so that a cell takes seconds.
# name: (arguments, bytes of an expert, experts of the pool). A capacity in per cent is of
# these experts; made-up scenarios are sized for a capacity of 256 experts.
SCENARIOS = {
    "olmoe": (OLMOE, 128 * KIB, 1024),
    "kimi": (KIMI, 64 * KIB, 6656),
    "tiny": (CODE, 256 * KIB, 384),
    "prefill-mix": (OLMOE + PROMPTS, 128 * KIB, 1024),
    "prefill-kimi": (KIMI + PROMPTS, 64 * KIB, 6656),
    "prefill-tiny": (CODE + PROMPTS, 256 * KIB, 384),
    "one-off": (OLMOE + ["--one-off", "0.2"], 128 * KIB, 1024),
    "batch-4": (traces(*DOMAINS) + ["--union"], 256 * KIB, 384),
    "domains": (traces(*DOMAINS) + ["--turns", "250"], 256 * KIB, 384),
    "loop-1.33": (["--loop", "341/16"], 128 * KIB, 1024),
    "loop-2": (["--loop", "512/16"], 128 * KIB, 1024),
    "scan-half": (["--scan", "128/8/1024"], 128 * KIB, 1024),
    "scan-most": (["--scan", "192/8/1024"], 128 * KIB, 1024),
}
# The decays that hindsight may choose from, beside the one that CAST starts with.
FIXED_DECAYS = (1, 3, 5, 7, 9, 11)
POLICIES = ["lru", "two-list", "belady", "lrfu"] + [f"cast:{le}/100" for le in FIXED_DECAYS]


def program(scenario, seed, *more):
    arguments, _, _ = SCENARIOS[scenario]
    argv = [LAB / "bin" / "expert-accesses", *arguments, "--seed", str(seed), *more]
    argv = [str(part) for part in argv]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"lab: error: {' '.join(argv)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


LISTS, LISTS_LOCK = {}, threading.Lock()


def access_list(scenario, seed):
    """The list's path, and what its maker says of it; made once a run, as cells share it."""
    path = LAB / "lists" / f"{scenario}-{seed}"
    with LISTS_LOCK:
        if path not in LISTS:
            path.parent.mkdir(parents=True, exist_ok=True)
            LISTS[path] = program(scenario, seed, "--out", path)
        return path, LISTS[path]


def nominal(scenario, seed, capacity):
    """Misses of each policy with room for so many experts; CAST* is the best fixed decay."""
    capacity = max(1.0, capacity)
    rows = program(scenario, seed, "--capacities", f"{capacity:.3f}", "--policies", ",".join(POLICIES))
    # In the order asked for: a policy's name in the report need not be spelled as ours.
    found = dict(zip(POLICIES, (row["misses"] for row in rows["rows"]), strict=True))
    fixed = {le: found.pop(f"cast:{le}/100") for le in FIXED_DECAYS}
    best = min(fixed, key=fixed.get)
    return {**found, "cast:9": fixed[9], "cast*": fixed[best], "cast* decay": best}
