# SPDX-License-Identifier: GPL-2.0-only
"""
Instructions a warm page. QEMU counts instructions and lets a nanosecond of the guest's time
pass for each (-icount shift=0), so a duration that the guest measures is a number of
instructions: no timer, no neighbour and no cache of the host is in it.
"""

import statistics
import sys

import cells
import guest
import record
import scenarios

TIMES = 8
ROUNDS = 3
CAP_MIB = 64


def instructions(policy, tree, channel, seed):
    """A page's instructions, user and kernel together, from a pool that is in memory."""
    cell = cells.cell(policy=policy, tree=tree, channel=channel, seed=seed, accel="x86",
                      scenario="loop-1.33", cap=CAP_MIB, wall="cgroup", cpus=1)
    cell.update(warm=TIMES, icount=True, tcg="tcg", id=f"cost-{cell['id']}")
    path, facts = scenarios.access_list(cell["scenario"], seed)
    said = guest.run(cell, path)
    if said["result"]["device_bytes"]:
        raise guest.GuestError(f"read {said['result']['device_bytes']} bytes from the device")
    pages = TIMES * facts["keys"] * cell["expert"] // 4096
    return said["result"]["seconds"] * 1e9 / pages


def main():
    kinds = [(policy, "cast") for policy in cells.POLICIES] + [("legacy", "stock")]
    kinds = [kind for kind in kinds if guest.kernel_path(kind[1], "x86").exists()]
    records = record.Records("cost")
    records.head["command"] = "kernel/lab/run cost"
    lines = [f"# {records.head['command']}", "",
             f"{records.head['date']}; our kernel sources: `{records.head['patch']}`.", "",
             f"Instructions for each 4 KiB page that is in memory, user and kernel: median (range) "
             f"of {ROUNDS} boots, each {TIMES} passes over {341 * 128 // 1024} MiB after three that do "
             "not count (a page's second read activates it on the stock lists, its second and "
             "third are recorded by CAST). `pread`: 128 KiB "
             "a call. `mapped`: mapped anew each pass, so a page is a share of a minor fault and "
             "of unmapping.", "", "| kernel, policy | pread | mapped |", "| --- | ---: | ---: |"]
    for policy, tree in kinds:
        cells_of = []
        for channel in ("pread", "mapped"):
            found = [instructions(policy, tree, channel, seed) for seed in range(1, ROUNDS + 1)]
            records.add({"tree": tree, "policy": policy, "channel": channel,
                         "instructions_per_page": found})
            print(f"{tree:6} {policy:7} {channel:7} {statistics.median(found):8.1f}", flush=True)
            cells_of.append(record.spread(found))
        lines.append(f"| {'patched' if tree == 'cast' else 'stock'}, {policy} | " + " | ".join(cells_of) + " |")
    path = records.path.with_suffix(".md")
    path.write_text("\n".join(lines) + "\n")
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except guest.GuestError as error:
        sys.exit(f"lab: error: {error}")
