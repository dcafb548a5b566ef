# SPDX-License-Identifier: GPL-2.0-only
"""Results: a JSON line a cell, and one Markdown table; where they go and what they say of
the machine."""

import hashlib
import json
import os
import platform
import statistics
import time
from pathlib import Path

from guest import LAB, ROOT, kernel_path

# A run leaves its results here; what is kept is copied to kernel/results by hand.
RESULTS = Path(os.environ.get("RESULTS", ROOT / "kernel" / "results"))
MIB = 1 << 20
# Legacy against simulated LRU at equal residency: beyond this nothing is believed.
TOLERANCE = 0.10


def file_hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else None


def sources_hash(*folders):
    """Of what lies below these folders of kernel/, in the order of names; tests do not count."""
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / "kernel" / folder).rglob("*")):
            if path.is_file() and not {"test", "__pycache__"} & set(path.parts):
                total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def kernels():
    found = {}
    for tree in ("stock", "cast"):
        for accel in ("um", "x86"):
            path = kernel_path(tree, accel)
            if path.exists():
                found[f"{tree}-{accel}"] = {
                    "sha256": file_hash(path),
                    "config": file_hash(LAB / "build" / f"{tree}-{accel}" / ".config")}
    return found


class Records:
    """The records of one run; with `go_on` those of an earlier one of the same kernels first."""

    def __init__(self, name, go_on=False):
        RESULTS.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.path = RESULTS / f"{name}.jsonl"
        self.rows = []
        self.head = {"command": f"kernel/lab/run {name if name in ('quick', 'full', 'cell') else 'matrix ' + name}",
                     "date": time.strftime("%Y-%m-%d", time.gmtime()),
                     "host": f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs, {cpu_model()}",
                     "patch": sources_hash("cast", "patches"),
                     "lab": sources_hash("lab/guest", "lab/lib"), "kernels": kernels()}
        if go_on:
            self.rows = self.earlier()
        self.path.write_text("".join(json.dumps(row) + "\n" for row in [{"run": self.head}, *self.rows]))

    def earlier(self):
        """Results that a run of the same command, kernels and lab left; failures are not kept."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                # Interrupted while it was written.
                continue
        first, *rows = found or [{}]
        same = ("command", "patch", "lab", "kernels")
        if any(first.get("run", {}).get(name) != self.head[name] for name in same):
            return []
        return [row for row in rows if "failed" not in row]

    def add(self, row):
        self.rows.append(row)
        with open(self.path, "a") as out:
            out.write(json.dumps(row) + "\n")

    def write_table(self, skipped):
        path = self.path.with_suffix(".md")
        path.write_text("\n".join(table(self.head, self.rows, skipped)) + "\n")
        return path


CASE = ("accel", "cpus", "scenario", "percent", "wall", "locked", "channel", "decay")
COLUMNS = ("legacy", "mglru", "cast")


def case_of(cell):
    """What cells that differ only in policy and seed have in common."""
    values = {name: cell[name] for name in CASE}
    if cell["accel"] == "um":
        values["cpus"] = 1
    if cell["wall"] != "balloon":
        values["locked"] = None
    return tuple(values.values())


def name_of(case):
    accel, cpus, scenario, percent, wall, locked, channel, _ = case
    return (f"{scenario}, {percent:g} %, {wall}{f' {locked} %' if locked else ''}, {channel}, "
            f"{accel}{f', {cpus} CPUs' if cpus > 1 else ''}")


def uncalibrated(rows):
    """
    Cases whose legacy is not near exact LRU, with how it stands: the median over seeds of the
    cells that must be.
    """
    ratios = {}
    for row in rows:
        check = row.get("calibration")
        if check and check["required"]:
            ratios.setdefault(case_of(row["cell"]), []).append(check["ratio"])
    medians = {case: statistics.median(values) for case, values in ratios.items()}
    return {case: ratio for case, ratio in medians.items() if abs(ratio - 1) > TOLERANCE}


def spread(values, form="{:.1f}"):
    """The median, and the range where there are several."""
    middle = form.format(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({form.format(min(values))} to {form.format(max(values))})"


def table(head, rows, skipped):
    cases = {}
    for row in rows:
        if "failed" not in row:
            cases.setdefault(case_of(row["cell"]), {}).setdefault(row["cell"]["policy"], []).append(row)
    out = [f"# {head['command']}", "", f"{head['date']}; host: {head['host']}.",
           f"Our kernel sources: `{head['patch']}`. Kernels (sha256, config): "
           + "; ".join(f"{name} `{found['sha256']}`, `{found['config']}`"
                       for name, found in head["kernels"].items()) + ".", "",
           "MiB read from the device in the scored part; median (range) over seeds. LRU, CAST and "
           "Belady are simulated at the residency that the cell of that policy had (LRU's: at "
           "legacy's); CAST* has the best of six fixed decays in hindsight. `÷ legacy` compares at "
           "the same wall, `÷ LRU` at equal residency.", "",
           "| scenario | % of pool | wall | channel | legacy | ÷ LRU | MGLRU | ÷ legacy | CAST "
           "| ÷ legacy | ÷ LRU | ÷ CAST sim. | CAST* sim. (le) | Belady sim. |",
           "| --- |" + " ---: |" * 1 + " --- | --- |" + " ---: |" * 10]
    wrong = uncalibrated(rows)
    out += [case_line(case, found, case in wrong) for case, found in cases.items()]
    if wrong:
        out.append(f"\n† not calibrated: the stock lists are more than {TOLERANCE:.0%} from exact "
                   "LRU here, so nothing of this row is proof.")
    for row in rows:
        if "failed" in row:
            out.append(f"\nNo result: `{row['cell']['id']}`: {row['failed']}")
    if skipped:
        out.append(f"\nSkipped, the tree has no patch: {len(skipped)} cells of CAST.")
    return out


def by_seed(rows):
    return {row["cell"]["seed"]: row for row in rows}


def case_line(case, found, doubtful):
    accel, cpus, scenario, percent, wall, locked, channel, decay = case
    cells = [f"{scenario}{', le ' + str(decay) if decay else ''}"
             f"{f', {accel}, {cpus} CPUs' if accel == 'x86' else ''}"
             f"{' †' if doubtful else ''}",
             f"{percent:g}", f"{wall}{f' {locked} %' if locked else ''}", channel]
    read = lambda row: row["result"]["device_bytes"] / MIB
    to = lambda row, name: row["result"]["device_bytes"] / row["nominal_bytes"][name]
    legacy = by_seed(found.get("legacy", []))

    def against_legacy(rows):
        pairs = [read(row) / read(legacy[seed]) for seed, row in by_seed(rows).items()
                 if seed in legacy and read(legacy[seed])]
        return spread(pairs, "{:.3f}") if pairs else ""

    def against(rows, name):
        rows = [row for row in rows if row["nominal_bytes"][name]]
        return spread([to(row, name) for row in rows], "{:.3f}") if rows else ""

    for policy in COLUMNS:
        rows = found.get(policy, [])
        cells.append(spread([read(row) for row in rows]) if rows else "")
        if policy == "legacy":
            cells.append(against(rows, "lru"))
        else:
            cells.append(against_legacy(rows))
        if policy == "cast":
            cells += [against(rows, "lru"), against(rows, "cast:9")]
    simulated = found.get("cast") or found.get("legacy") or next(iter(found.values()))
    best = [row["nominal_bytes"]["cast*"] / MIB for row in simulated]
    decays = sorted({row["nominal_bytes"]["cast* decay"] for row in simulated})
    cells.append(f"{statistics.median(best):.1f} ({', '.join(map(str, decays))})")
    cells.append(f"{statistics.median(row['nominal_bytes']['belady'] / MIB for row in simulated):.1f}")
    return "| " + " | ".join(cells) + " |"
