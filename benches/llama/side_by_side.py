#!/usr/bin/env python3
"""Decodes the same GGUF files with llama.cpp and with `tier`, in turns, and compares.

  memory  the bundled model as F16, all of it in the page cache: bar, ours >= 1.0 of llama.cpp's
          tokens a second
  pool    random weights in the shape of Qwen3-30B-A3B, BF16, a few layers, in a memory control
          group that has room for the dense part and half the experts: bar, >= 2.0

Every turn is a process of its own with the same number of threads; rounds run in balanced order
and ratios lie inside a round. A round that other work disturbed is taken anew. `pool` starts from
experts that a probe found cold, and the prompt, which is not counted, fills the group. Without
llama.cpp it says SKIPPED and ends with 0.

Needs nothing but Python and target/release/tier; llama.cpp comes from build.sh.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LLAMA, OURS, OURS_INT4 = "llama.cpp", "tier, the same file", "tier, bundled int4"
SHAPE, TOP_K, VOCAB = "qwen3-30b-a3b", 8, 8192
RULE_ROUNDS = 5
# CPUs that others may use before a row is flagged.
QUIET_CPUS = 0.1
# For code, caches of attention and buffers, beside the dense part and half the experts.
SLACK_BYTES = 128 << 20
TEXT_PROMPT = [480, 1346, 1663, 274, 267, 1315, 790, 296, 872, 74, 1135]
# Long enough that it asks for nearly every expert: decoding then finds the group full.
POOL_PROMPT = [(17 + 1237 * number) % VOCAB for number in range(64)]


class Skip(Exception):
    """Why something cannot be run here."""


class Group:
    """A memory control group with a limit, below this process's own or, of version 2, beside it."""

    def __init__(self, limit: int) -> None:
        rows = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        own = {row[1]: row[2] for row in rows}
        v1 = next((path for names, path in own.items() if "memory" in names.split(",")), None)
        if v1 is not None:
            parent, file = "/sys/fs/cgroup/memory" + v1, "memory.limit_in_bytes"
            self._peak = "memory.max_usage_in_bytes"
        else:
            # A group of version 2 that has processes can have no groups with limits below it.
            parent, file = f"/sys/fs/cgroup{Path(own.get('', '/')).parent}", "memory.max"
            self._peak = "memory.peak"
        self._dir = Path(parent) / f"llama-{os.getpid()}"
        self.limit = limit
        try:
            self._dir.mkdir()
            (self._dir / file).write_text(str(limit))
        except OSError as error:
            if self._dir.exists():
                self._dir.rmdir()
            raise Skip(f"no memory control group: {error}") from None

    def enter(self) -> None:
        (self._dir / "cgroup.procs").write_text(str(os.getpid()))

    def peak_bytes(self) -> int | None:
        try:
            return int((self._dir / self._peak).read_text())
        except OSError:
            return None

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self._dir.rmdir()


def output(command: list[str | Path], group: Group | None = None) -> dict:
    """The one object that a command prints."""
    enter = group.enter if group else None
    ran = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)  # noqa: PLW1509
    if ran.returncode != 0:
        said = ran.stderr.strip().splitlines() or ["nothing"]
        raise RuntimeError(f"{command[0]} ended with {ran.returncode}: {said[-1]}")
    return json.loads(ran.stdout)


class Sides:
    """How either side is asked."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.tier, self.python, self.threads = args.tier, args.python, args.threads
        if not self.tier.is_file():
            raise Skip(f"{self.tier} is not there: cargo build --release builds it")
        how = "benches/llama/build.sh builds it"
        if not self.python.exists():
            raise Skip(f"llama.cpp: {self.python} is not there; {how}")
        try:
            self.about = output([self.python, HERE / "decode.py", "--check"])
        except RuntimeError as error:
            raise Skip(f"llama.cpp: {error}; {how}") from None

    def llama(self, model: Path, prompt: list[int], tokens: int, group: Group | None) -> dict:
        request = {
            "model": str(model),
            "prompt": prompt,
            "tokens": tokens,
            "threads": self.threads,
        }
        return output([self.python, HERE / "decode.py", json.dumps(request)], group)

    def ours(self, model: Path, prompt: list[int], tokens: int, group: Group | None) -> dict:
        ids = ",".join(str(number) for number in prompt)
        command = [self.tier, "generate", "--model", model, "--ids", ids, "--json", "--greedy"]
        command += ["--ignore-eos", "--max-tokens", str(tokens), "--threads", str(self.threads)]
        said = output(command, group)
        decode = said["decode"]
        return {
            "token_ids": said["token_ids"],
            "prompt_seconds": said["prefill"]["wall_ns"] / 1e9,
            "seconds": decode["wall_ns"] / 1e9,
            "process_bytes": decode["process_read_bytes"],
            "device_bytes": decode["device_bytes"],
        }

    def convert(self, folder: Path, out: Path, kind: str) -> None:
        print(f"writing {out}", file=sys.stderr)
        subprocess.run([self.python, HERE / "convert.py", folder, out, kind], check=True)

    def evict(self, model: Path) -> int:
        """Bytes of the experts that stay in the page cache."""
        left = output([self.tier, "evict", model, "--json"])
        with model.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return left["after"]["resident_bytes"]


def busy_seconds() -> float:
    """CPU time that was used since the boot, by everybody."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq = (int(word) for word in words[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """CPU time of this process and of those that it waited for."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def take(arms: dict, rounds: int, seconds: float) -> dict[str, list[dict]]:
    """Every arm once a round, the odd rounds backwards; and what else ran meanwhile.

    Threads of llama.cpp wait for each other by spinning: a machine that is not idle costs them
    much more than it costs ours. So a round that others disturbed is taken anew while there is
    time, and of all rounds the least disturbed count, whatever came of them."""
    taken: list[dict[str, dict]] = []
    begun, longest = time.monotonic(), 0.0
    while sum(disturbed(kept) <= QUIET_CPUS for kept in taken) < rounds:
        at = time.monotonic()
        if len(taken) >= rounds and at + longest > begun + seconds:
            break
        names = list(arms) if len(taken) % 2 == 0 else list(reversed(arms))
        taken.append({name: timed(name, arms[name]) for name in names})
        longest = max(longest, time.monotonic() - at)
    taken = sorted(taken, key=disturbed)[:rounds]
    return {name: [kept[name] for kept in taken] for name in arms}


def timed(name: str, arm) -> dict:
    before = (time.monotonic(), busy_seconds() - own_seconds())
    sample = arm()
    others = busy_seconds() - own_seconds() - before[1]
    sample["others_cpus"] = max(0.0, others / (time.monotonic() - before[0]))
    shown = {key: value for key, value in sample.items() if key != "token_ids"}
    print(f"{name}: {shown}", file=sys.stderr)
    return sample


def disturbed(taken: dict[str, dict]) -> float:
    """CPUs that others used in the worst turn of a round."""
    return max(sample["others_cpus"] for sample in taken.values())


def rated(sample: dict, asked_bytes: int = 0) -> dict:
    counted = len(sample["token_ids"]) - 1
    return {
        "tokens_per_s": counted / sample["seconds"],
        "prompt_seconds": sample["prompt_seconds"],
        "asked_bytes": asked_bytes * counted,
        "process_bytes": sample["process_bytes"],
        "device_bytes": sample["device_bytes"],
        "token_ids": sample["token_ids"],
    }


def spread(values: list[float]) -> dict:
    middle = statistics.median(values)
    return {"median": middle, "min": min(values), "max": max(values), "n": len(values)}


def alike(ids: list[int], theirs: list[int]) -> str:
    pairs = enumerate(zip(ids, theirs, strict=True))
    same = next((number for number, pair in pairs if pair[0] != pair[1]), len(ids))
    which = "all" if same == len(ids) else f"the first {same} of"
    return f"{which} {len(ids)} greedy tokens are llama.cpp's"


def rows_of(workload: str, taken: dict[str, list[dict]]) -> list[dict]:
    theirs = taken[LLAMA]
    rows = []
    for name, samples in taken.items():
        ids = samples[0]["token_ids"]
        notes = [] if name == LLAMA else [alike(ids, theirs[0]["token_ids"])]
        if any(sample["token_ids"] != ids for sample in samples):
            notes.append("NOT the same tokens in every round")
        flags = []
        if len(samples) < RULE_ROUNDS:
            flags.append(f"only {len(samples)} rounds, {RULE_ROUNDS} are the rule")
        if max(sample["others_cpus"] for sample in samples) > QUIET_CPUS:
            flags.append("other work on the machine, see others_cpus")
        ratios = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(samples, theirs)]
        rows.append(
            {
                "workload": workload,
                "arm": name,
                "unit": "tok/s",
                "result": spread([sample["tokens_per_s"] for sample in samples]),
                "ratio": None if name == LLAMA else spread(ratios),
                **{
                    f"{whose}_bytes_per_asked": share(samples, f"{whose}_bytes")
                    for whose in ("device", "process")
                },
                "prompt_seconds": spread([sample["prompt_seconds"] for sample in samples]),
                "others_cpus": spread([sample["others_cpus"] for sample in samples]),
                "flags": flags,
                "notes": notes,
            }
        )
    return rows


def share(samples: list[dict], key: str) -> dict | None:
    """Bytes read a byte of experts used."""
    known = [s[key] / s["asked_bytes"] for s in samples if s[key] is not None and s["asked_bytes"]]
    return spread(known) if known else None


def skipped(workload: str, why: object) -> list[dict]:
    flags = [f"SKIPPED: {why}"]
    return [{"workload": workload, "arm": arm, "flags": flags} for arm in (LLAMA, OURS)]


def bar(name: str, rows: list[dict], target: float) -> dict:
    ratio = next((row.get("ratio") for row in rows if row["arm"] == OURS), None)
    value = ratio["median"] if ratio else None
    holds = value is not None and value >= target
    return {"name": name, "value": value, "target": target, "better": "higher", "holds": holds}


def memory(sides: Sides, args: argparse.Namespace) -> tuple[list[dict], dict]:
    bundled = ROOT / "crates/engine-example/model"
    model = args.dir / "llama-tiny-moe-f16.gguf"
    if not model.exists():
        sides.convert(bundled, model, "f16")
    tokens = args.tokens or 512
    arms = {
        LLAMA: lambda: rated(sides.llama(model, TEXT_PROMPT, tokens, None)),
        OURS: lambda: rated(sides.ours(model, TEXT_PROMPT, tokens, None)),
        OURS_INT4: lambda: rated(sides.ours(bundled, TEXT_PROMPT, tokens, None)),
    }
    for name, arm in arms.items():
        timed(name, arm)
    taken = take(arms, args.rounds, args.seconds)
    rows = rows_of(f"bundled model, F16, in memory, {tokens} tokens", taken)
    return rows, bar("memory: tokens/s / llama.cpp's", rows, 1.0)


def pool_file(sides: Sides, args: argparse.Namespace) -> Path:
    model = args.dir / f"llama-{SHAPE}-{args.layers}-bf16.gguf"
    if model.exists():
        return model
    folder = args.dir / f"llama-{SHAPE}-{args.layers}"
    sizes = ["--layers", str(args.layers), "--vocab", str(VOCAB), "--dtype", "bf16"]
    command = [sides.tier, "synth", "--shape", SHAPE, *sizes, "--out", folder]
    print(f"writing {folder}", file=sys.stderr)
    subprocess.run(command, check=True, stdout=sys.stderr)
    sides.convert(folder, model, "stored")
    shutil.rmtree(folder)
    return model


def pool(sides: Sides, args: argparse.Namespace) -> tuple[list[dict], dict]:
    name = "pool: tokens/s / llama.cpp's, memory for half the experts"
    model = pool_file(sides, args)
    facts = output([sides.tier, "inspect", model, "--json"])
    pool_bytes, experts = facts["expert_bytes"]["total"], facts["experts"]
    limit = pool_bytes // 2 + facts["spine_bytes"] + SLACK_BYTES
    asked = pool_bytes // experts * TOP_K * args.layers
    tokens = args.tokens or 11
    workload = (
        f"{SHAPE} x {args.layers} layers, BF16, {pool_bytes >> 20} MiB of experts, group of "
        f"{limit >> 20} MiB, prompt of {len(POOL_PROMPT)}, {tokens} tokens"
    )

    def turn(side) -> dict:
        left = sides.evict(model)
        if left:
            raise RuntimeError(f"not cold: {left} bytes of experts stay in the page cache")
        with Group(limit) as group:
            sample = rated(side(model, POOL_PROMPT, tokens, group), asked)
            return {**sample, "peak_bytes": group.peak_bytes()}

    try:
        arms = {LLAMA: lambda: turn(sides.llama), OURS: lambda: turn(sides.ours)}
        rows = rows_of(workload, take(arms, args.rounds, args.seconds))
    except Skip as why:
        rows = skipped(workload, why)
    return rows, bar(name, rows, 2.0)


def first_line(path: str) -> str:
    try:
        return Path(path).read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return "unknown"


def machine(args: argparse.Namespace, sides: Sides) -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    device = os.stat(args.dir).st_dev
    queue = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue")
    if not queue.exists():
        queue = queue.parent.parent / "queue"
    return {
        "kernel": platform.release(),
        "cpu_model": next(models, "unknown"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": first_line("/proc/meminfo"),
        "read_ahead_kb": first_line(str(queue / "read_ahead_kb")),
        "transparent_hugepage": first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "lru_gen": first_line("/sys/kernel/mm/lru_gen/enabled"),
        "load": list(os.getloadavg()),
        "threads": args.threads,
        "llama.cpp": sides.about,
    }


def show(report: dict) -> None:
    for row in report["rows"]:
        print(f"{row['workload']}\n  {row['arm']}")
        for line in [*row["flags"], *row.get("notes", [])]:
            print(f"      {line}")
        if "result" not in row:
            continue
        read = [f"{whose}_bytes_per_asked" for whose in ("device", "process")]
        for key in ("result", "ratio", "others_cpus", *read):
            value = row[key]
            if value:
                middle, low, high = (value[name] for name in ("median", "min", "max"))
                print(f"      {key}: {middle:.3f} ({low:.3f} to {high:.3f}, {value['n']})")
    for line in report["bars"]:
        holds = "holds" if line["holds"] else "FAILS"
        value = "-" if line["value"] is None else f"{line['value']:.3f}"
        print(f"{holds}  {line['name']}: {value} >= {line['target']}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=["memory", "pool"], help="only one of the two")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, help="tokens a turn [512; 11 of the pool]")
    parser.add_argument("--seconds", type=float, default=150, help="for rounds taken anew [150]")
    parser.add_argument("--layers", type=int, default=4, help="of the pool [4]")
    parser.add_argument("--threads", type=int, default=2, help="of either side [2]")
    parser.add_argument("--tier", type=Path, default=ROOT / "target/release/tier")
    parser.add_argument("--python", type=Path, default=ROOT / "target/llama-venv/bin/python")
    parser.add_argument("--dir", type=Path, default=ROOT / "target/bench-pool")
    parser.add_argument("--prepare", action="store_true", help="only make the files")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        sides = Sides(args)
    except Skip as why:
        print(f"SKIPPED: {why}")
        return 0
    args.dir.mkdir(parents=True, exist_ok=True)
    if args.prepare:
        pool_file(sides, args)
        return 0
    parts = {"memory": memory, "pool": pool}
    report = {"bench": "llama", "machine": machine(args, sides), "rows": [], "bars": []}
    for name, part in parts.items():
        if args.part in (None, name):
            rows, line = part(sides, args)
            report["rows"] += rows
            report["bars"].append(line)
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        show(report)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"error[llama]: {error}", file=sys.stderr)
        sys.exit(1)
