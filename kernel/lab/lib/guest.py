# SPDX-License-Identifier: GPL-2.0-only
"""Boots a guest for one cell and reads what it says."""

import gzip
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LAB = ROOT / "target" / "kernel-lab"

# A guest's memory beside the pool's pages: kernel, initramfs, watermarks. Only walls that
# are made of memory itself depend on it, and what they give is measured, not believed.
OVERHEAD_MIB = {"um": 26, "x86": 44}
SECONDS = 600


class GuestError(Exception):
    """A cell that gave no result; its text says why."""


def kernel_path(tree, accel):
    name = "linux" if accel == "um" else "arch/x86/boot/bzImage"
    return LAB / "build" / f"{tree}-{accel}" / name


def memory_mib(cell):
    """Of the guest: what the wall asks for."""
    cap = cell["cap"]
    if cell["wall"] == "mem":
        return cap + OVERHEAD_MIB[cell["accel"]]
    if cell["wall"] == "balloon":
        # The share that is locked decides; what is left is the pool's.
        return round((cap + OVERHEAD_MIB[cell["accel"]]) / (1 - cell["locked"] / 100))
    return cap + 160


def cpio_of(files):
    """A "newc" archive; kernels unpack several behind one another."""
    out = bytearray()

    def add(name, mode, data):
        name = name.encode() + b"\0"
        head = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        out.extend(b"070701" + b"".join(b"%08X" % field for field in head) + name)
        out.extend(b"\0" * (-len(out) % 4) + data)
        out.extend(b"\0" * (-len(out) % 4))

    for name, data in files.items():
        add(name, 0o100644, data)
    add("TRAILER!!!", 0, b"")
    return bytes(out)


def command(cell, initrd, scratch):
    kernel = kernel_path(cell["tree"], cell["accel"])
    if not kernel.exists():
        raise GuestError(f"{kernel} is not built")
    names = "policy wall cap channel list expert decay share warm faultaround"
    pairs = ",".join(f"{name}={cell[name]}" for name in names.split() if cell.get(name) is not None)
    boot = "quiet panic=-1 lab=" + pairs
    if cell["tree"] == "cast" and cell["policy"] != "cast":
        boot += " lru_cast=0"
    memory, image = memory_mib(cell), LAB / "pool.img"
    if cell["accel"] == "um":
        return [kernel, f"mem={memory}M", f"initrd={initrd}", f"ubd0r={image}", "con0=fd:0,fd:1",
                "con=null", *boot.split(), f"uml_dir={scratch}", "umid=lab"]
    accel = ["-accel", cell.get("tcg", "tcg,thread=multi"), "-cpu", "max,-erms"]
    if cell.get("icount"):
        accel += ["-icount", "shift=0,sleep=off"]
    # UML locks all of a disk that it reads: QEMU's own locks would find theirs taken beside it.
    return ["qemu-system-x86_64", *accel, "-machine",
            "microvm,acpi=off,rtc=on,isa-serial=on,pit=on,pic=on,auto-kernel-cmdline=on",
            "-device", "virtio-blk-device,drive=d0", "-smp", str(cell.get("cpus", 2)),
            "-m", str(memory), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", kernel, "-initrd", initrd, "-append",
            f"console=ttyS0 reboot=t nokaslr mitigations=off {boot}", "-serial", "stdio",
            "-monitor", "none", "-drive",
            f"file={image},format=raw,if=none,id=d0,readonly=on,cache=writeback,"
            "file.locking=off"]


def boot(cell, list_path):
    """Runs the cell to its end; returns what it said, line by line."""
    # UML's memory is a file: on a tmpfs it is memory again.
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    scratch = Path(tempfile.mkdtemp(prefix="kernel-lab.", dir=base))
    try:
        initrd = scratch / "initrd"
        archive = cpio_of({f"lists/{cell['list']}": list_path.read_bytes()})
        initrd.write_bytes((LAB / "initrd.gz").read_bytes() + gzip.compress(archive, 1))
        started = time.monotonic()
        log = LAB / "logs" / f"{cell['id']}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        argv = [str(part) for part in command(cell, initrd, scratch)]
        with open(log, "wb") as out:
            out.write((" ".join(argv) + "\n").encode())
            out.flush()
            try:
                done = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                    timeout=cell.get("seconds", SECONDS), check=False,
                    env={**os.environ, "TMPDIR": str(scratch)})
            except subprocess.TimeoutExpired:
                raise GuestError(f"not done after {cell.get('seconds', SECONDS)} s (log: {log})") from None
            if done.returncode:
                out.write(f"\n{argv[0]}: exit status {done.returncode}\n".encode())
        return log, time.monotonic() - started
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_log(log):
    """What the guest printed: its environment, its result, what went wrong."""
    said = {"result": None, "failures": [], "dmesg": [], "cast": []}
    # Results are kept: where this checkout lies is nobody's business.
    text = log.read_text(errors="replace").replace(f"{ROOT}/", "")
    for line in text.splitlines()[1:]:
        line = line.strip("\r")
        if line.startswith("RESULT "):
            said["result"] = json.loads(line[7:])
        elif line.startswith(("ENV ", "BALLOON ")):
            said.update(re.findall(r"(\w+)=(\S+)", line))
        elif line.startswith("FAIL "):
            said["failures"].append(line[5:])
        elif line.startswith("DMESG "):
            said["dmesg"].append(line[6:])
        elif line.startswith("CAST "):
            said["cast"].append(line[5:])
        elif "Kernel panic" in line or "Out of memory" in line or "oom-kill" in line:
            said["failures"].append(line)
    return said


def last_words(log, lines=12):
    """The end of a log, for a machine where nobody can look at it later."""
    said = log.read_text(errors="replace").splitlines()[1:]
    return "\n".join(f"    | {line[:200]}" for line in said[-lines:]) or "    | (it said nothing)"


def run(cell, list_path):
    """The result of a cell; GuestError where there is none."""
    log, seconds = boot(cell, list_path)
    said = read_log(log)
    if said["result"] is None or said["failures"]:
        why = "; ".join(said["failures"]) or "it stopped without a result"
        raise GuestError(f"{why} after {seconds:.1f} s (log: {log}):\n{last_words(log)}")
    said["host_seconds"] = round(seconds, 2)
    said["guest_mib"] = memory_mib(cell)
    return said
