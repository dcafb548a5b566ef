#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Writes expected.txt: hits that the project's simulator counts on its traces.

    kernel/cast/test/expected.py path/to/tier > kernel/cast/test/expected.txt

The simulator is other code, in another language, that ranks whole experts by
the same score. Scenarios are those without chance, so that the lists of
accesses are the same here and there.
"""
import json
import pathlib
import subprocess
import sys

TRACES = pathlib.Path(__file__).resolve().parents[3] / "crates/router-trace/traces"
SCENARIOS = {
    "decode": [],
    "prefill": ["--prefill-every", "60", "--prefill-share", "1.0"],
    "one-off": ["--one-off", "0.2"],
}
POLICIES = [f"cast:{le}/100" for le in (1, 4, 7, 9, 11, 14)] + [
    "cast:9/10",
    "cast:9/300",
    "cast:4/500",
    "lru",
]

print("# trace scenario capacity decay w_permille accesses hits; decay 0 is LRU")
for trace in ("olmoe_299", "kimi_linear_300"):
    for name, options in SCENARIOS.items():
        report = json.loads(
            subprocess.run(
                [sys.argv[1], "simulate", "--json", "--budgets", "12.5%,25%,50%"]
                + ["--policies", ",".join(POLICIES), *options]
                + ["--trace", str(TRACES / f"{trace}.jsonl.gz")],
                check=True,
                stdout=subprocess.PIPE,
            ).stdout
        )
        rows = report["runs"][0]["rows"]
        for row in rows:
            policy = row["policy"]
            if policy == "lru":
                le, share = "0", "0"
            else:
                le, _, share = policy.removeprefix("cast:").partition("/")
            print(trace, name, row["budget_experts"], le, share or "100",
                  row["accesses"], row["hits"])
