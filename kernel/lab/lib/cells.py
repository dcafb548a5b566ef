# SPDX-License-Identifier: GPL-2.0-only
"""Cells: what is measured together, and the matrices that are made of them."""

import itertools

from guest import kernel_path
from scenarios import SCENARIOS

POLICIES = ("legacy", "mglru", "cast")
WALLS = ("cgroup", "mem", "balloon")
CHANNELS = ("pread", "advised", "mapped")
DECODE = ("olmoe", "kimi", "tiny")
MIXES = ("prefill-mix", "prefill-kimi", "prefill-tiny", "one-off", "batch-4", "domains")
MADE_UP = ("loop-1.33", "loop-2", "scan-half", "scan-most")
SEEDS = (1, 2, 3)
DEFAULTS = {
    "policy": "legacy", "wall": "cgroup", "channel": "pread", "scenario": "olmoe", "seed": 1,
    "percent": 25.0, "accel": "um", "tree": None, "decay": None, "share": None, "cap": None,
    "locked": 75, "cpus": 2, "faultaround": None,
}
NUMBERS = {"seed": int, "percent": float, "cap": int, "locked": int, "cpus": int, "decay": int,
           "share": int, "faultaround": int}


def cell(**given):
    """A cell with what was not said filled in."""
    unknown = set(given) - set(DEFAULTS)
    if unknown:
        raise SystemExit(f"lab: error: no such setting: {', '.join(sorted(unknown))}")
    made = {**DEFAULTS, **given}
    for name, kind in NUMBERS.items():
        if made[name] is not None:
            made[name] = kind(made[name])
    for name, known in (("policy", POLICIES), ("wall", WALLS), ("channel", CHANNELS),
                        ("scenario", tuple(SCENARIOS)), ("accel", ("um", "x86"))):
        if made[name] not in known:
            raise SystemExit(f"lab: error: {name}={made[name]}: must be one of {', '.join(known)}")
    _, expert, experts = SCENARIOS[made["scenario"]]
    made["expert"] = expert
    if made["cap"] is None:
        made["cap"] = round(expert * experts * made["percent"] / 100 / (1 << 20))
    made["percent"] = round(100 * made["cap"] * (1 << 20) / (expert * experts), 2)
    if made["tree"] is None:
        made["tree"] = "cast" if kernel_path("cast", made["accel"]).exists() else "stock"
    made["list"] = f"{made['scenario']}-{made['seed']}"
    hand = f".le{made['decay']}" if made["decay"] else ""
    locked = f"{made['locked']}" if made["wall"] == "balloon" else ""
    cpus = f"-{made['cpus']}" if made["accel"] == "x86" else ""
    made["id"] = (f"{made['accel']}{cpus}-{made['tree']}.{made['scenario']}.{made['percent']:g}."
                  f"{made['wall']}{locked}.{made['channel']}.{made['policy']}{hand}.{made['seed']}")
    return made


def over(policies=POLICIES, seeds=SEEDS, **axes):
    """Every combination, policies of one case side by side so that a table fills row by row."""
    names = list(axes)
    values = [value if isinstance(value, (tuple, list)) else (value,) for value in axes.values()]
    return [cell(policy=policy, seed=seed, **dict(zip(names, choice)))
            for choice in itertools.product(*values)
            for seed in seeds for policy in policies]


def calibration(accel="um", seeds=(1,), tree=None):
    return over(("legacy", "mglru"), seeds, scenario="olmoe", percent=(12.5, 25, 50), accel=accel,
                tree=tree)


def mixed(seeds):
    return over(seeds=seeds, scenario=MIXES) + over(seeds=seeds, scenario=MADE_UP)


def quick():
    one = (1,)
    return (over(seeds=one, scenario="olmoe", percent=(12.5, 25, 50))
            + over(seeds=one, scenario=("kimi", "tiny"))
            + mixed(one)
            + over(seeds=one, wall=("mem", "balloon"))
            + over(seeds=one, channel=("advised", "mapped"), percent=12.5)
            + over(seeds=one, accel="x86", wall=("cgroup", "mem"), channel=("pread", "advised")))


def decode():
    return over(scenario=DECODE, percent=(12.5, 25, 50))


def walls():
    return over(wall=WALLS, channel=CHANNELS, percent=25)


def reclaim():
    """The paper's matrix: three walls, and how much of memory is locked."""
    return (over(wall=("cgroup", "mem"), channel=("pread", "advised"), percent=50)
            + over(wall="balloon", locked=(50, 75, 90), channel=("pread", "advised"), percent=50))


def decays():
    """CAST with its decay set by hand: what its controllers have to find."""
    return [cell(policy="cast", scenario=scenario, decay=decay)
            for scenario in ("olmoe", "prefill-mix", "one-off", "batch-4", *MADE_UP)
            for decay in (1, 3, 5, 7, 9, 11, 14)]


def smp():
    """Four CPUs in QEMU, so that reclaim and the reader run at once."""
    return over(seeds=(1,), scenario=("olmoe", "prefill-mix"), channel=("pread", "advised"),
                accel="x86", cpus=4)


def everything():
    parts = (over(scenario=DECODE, wall=WALLS, channel=CHANNELS, percent=(12.5, 25, 50))
             + over(scenario=(*MIXES, *MADE_UP), wall=WALLS, channel=CHANNELS)
             + reclaim() + decays() + smp())
    # Some are in two parts.
    return list({cell["id"]: cell for cell in parts}.values())


MATRICES = {
    "quick": quick, "full": everything, "calibration": calibration, "decode": decode,
    "mixed": lambda: mixed(SEEDS), "walls": walls, "reclaim": reclaim, "decays": decays,
    "decode-smp": smp,
}


def calibrates(made):
    """
    Whether exact LRU is what this cell's bytes must be near: the stock lists, a decode, and a
    channel that reads what is missing and nothing else.
    """
    return (made["policy"] == "legacy" and made["scenario"] in DECODE
            and made["channel"] in ("pread", "advised"))
