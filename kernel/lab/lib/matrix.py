# SPDX-License-Identifier: GPL-2.0-only
"""matrix NAME | cell NAME=VALUE… | list: runs cells, believes them only when they calibrate."""

import concurrent.futures
import os
import sys
import threading

import cells
import guest
import record
import scenarios


def measure(cell):
    """A cell's record: what it read, beside what policies would nominally have read."""
    path, facts = scenarios.access_list(cell["scenario"], cell["seed"])
    said = guest.run(cell, path)
    result = said["result"]
    if result["bad_pages"]:
        raise guest.GuestError(f"{result['bad_pages']} pages with wrong contents")
    if result["order"] != facts["order"]:
        raise guest.GuestError(f"read in another order: {result['order']}, not {facts['order']}")
    capacity = result["resident_bytes"] / cell["expert"]
    misses = scenarios.nominal(cell["scenario"], cell["seed"], capacity)
    asked = facts["scored_accesses"] * cell["expert"]
    nominal = {name: value if name.endswith("decay") else value * cell["expert"]
               for name, value in misses.items()}
    return {"cell": cell, "asked_bytes": asked, "result": result, "nominal_bytes": nominal,
            "capacity_experts": round(capacity, 1), "guest": {
                key: value for key, value in said.items() if key not in ("result", "failures")},
            "calibration": verdict(cell, result, nominal)}


def verdict(cell, result, nominal):
    """How legacy stands to exact LRU, in every cell of it; whether that is a condition."""
    if cell["policy"] != "legacy" or not nominal["lru"]:
        return None
    ratio = result["device_bytes"] / nominal["lru"]
    return {"ratio": round(ratio, 4), "required": cells.calibrates(cell),
            "holds": abs(ratio - 1) <= record.TOLERANCE}


def ratio(of, to):
    return f"{of / to:5.3f}" if to else "  n/a"


def line(found):
    cell, result, nominal = found["cell"], found["result"], found["nominal_bytes"]
    text = (f"{cell['id']:58} read {result['device_bytes'] / 2**20:7.1f} MiB of "
            f"{found['asked_bytes'] / 2**20:.0f}, held {result['resident_bytes'] / 2**20:.1f}: "
            f"{ratio(result['device_bytes'], nominal['lru'])} of LRU, "
            f"{ratio(result['device_bytes'], nominal['cast:9'])} of CAST simulated")
    check = found["calibration"]
    if check and check["required"]:
        text += f"  [calibration {check['ratio']:.3f}: {'ok' if check['holds'] else 'FAILS'}]"
    elif check:
        text += f"  [legacy/LRU {check['ratio']:.3f}]"
    return text


class Runner:
    """Cells, as many at once as there are CPUs; results in order of their ending."""

    def __init__(self, name):
        # Hours, so what is there already stays.
        self.records = record.Records(name, go_on=name == "full")
        self.failed, self.skipped = [], []
        self.lock = threading.Lock()

    def one(self, cell):
        try:
            found = measure(cell)
        except guest.GuestError as error:
            with self.lock:
                print(f"{cell['id']:58} NO RESULT: {error}", flush=True)
                self.failed.append(cell["id"])
                self.records.add({"cell": cell, "failed": str(error).partition("\n")[0]})
            return
        with self.lock:
            print(line(found), flush=True)
            self.records.add(found)

    def run(self, wanted):
        ready, there = [], {row["cell"]["id"] for row in self.records.rows}
        if there:
            print(f"going on: {len(there)} cells are in {self.records.path} (delete it to start "
                  "again)", flush=True)
        for cell in wanted:
            if cell["id"] in there:
                continue
            if cell["policy"] == "cast" and cell["tree"] != "cast":
                self.skipped.append(cell["id"])
            else:
                ready.append(cell)
        if self.skipped:
            print(f"SKIPPED {len(self.skipped)} cells of CAST: the tree has no patch", flush=True)
        jobs = int(os.environ.get("JOBS", os.cpu_count() or 1))
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self.one, ready))

    def finish(self):
        path = self.records.write_table(self.skipped)
        print(f"written: {self.records.path}, {path}")
        # Seeds of a case together: reclaim is chaotic, a single boot may stray.
        wrong = record.uncalibrated(self.records.rows)
        for case, ratio in wrong.items():
            print(f"NOT CALIBRATED: {record.name_of(case)}: legacy reads {ratio:.3f} of exact LRU "
                  f"(median of its seeds), more than {record.TOLERANCE:.0%} away")
        if self.failed:
            print(f"{len(self.failed)} cells gave no result: {', '.join(self.failed)}")
        bad = len(self.failed) + len(wrong)
        done = len(self.records.rows) - len(self.failed)
        print(f"{done} passed, {bad} failed, {len(self.skipped)} skipped")
        return 1 if bad else 0


def main(argv):
    name = argv[0] if argv else "list"
    if name == "cell":
        wanted = [cells.cell(**dict(pair.split("=", 1) for pair in argv[1:]))]
    elif name in cells.MATRICES:
        wanted = cells.MATRICES[name]()
    else:
        for known, make in cells.MATRICES.items():
            print(f"{known:12} {len(make())} cells")
        return 0 if name == "list" else 2
    runner = Runner(name)
    runner.run(wanted)
    return runner.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
