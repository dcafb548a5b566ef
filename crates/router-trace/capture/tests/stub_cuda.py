#!/usr/bin/env python3
"""Lets the one Linux x86-64 build of PyTorch on PyPI be imported without its GPU libraries.

That build is linked against cuBLAS, cuDNN, NCCL and others: 1.8 GB of downloads that a run on
the CPU never calls but the loader wants. For every such library that is not installed this
writes a stand-in with the symbols PyTorch asks for; each of them ends the process when called,
so a test can never pass by means of one. The small CUDA runtime itself is installed for real
and says "no driver", as on any machine without a GPU.

For tests only. Needs `cc`, `nm` and `readelf`.

usage: stub_cuda.py SITE_PACKAGES
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Libraries we know to be unused on the CPU, by the prefix of their symbols. Anything else that
# is missing is an error of its own, which importing torch then reports.
PREFIXES = {
    "cublasLt": "libcublasLt",
    "cublas": "libcublas",
    "cudnn": "libcudnn",
    "cufft": "libcufft",
    "cusparseLt": "libcusparseLt",
    "cusparse": "libcusparse",
    "nccl": "libnccl",
    "nvrtc": "libnvrtc",
    "nvshmem": "libnvshmem_host",
}


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(libraries: list[Path]) -> set[str]:
    """The names that the loader will look for."""
    text = output("readelf", "-d", *map(str, libraries))
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))


def wanted_symbols(libraries: list[Path]) -> dict[str, set[tuple[str, str]]]:
    """Undefined (symbol, version) pairs of each stem in PREFIXES; the version may be empty."""
    symbols = defaultdict(set)
    for line in output("nm", "-D", "--undefined-only", *map(str, libraries)).splitlines():
        match = re.match(r"\s+[Uvw] (\w+)(?:@+(\S+))?$", line)
        if not match:
            continue
        name, version = match.group(1), match.group(2) or ""
        # Longest prefix first: cublasLtCreate is not a symbol of cublas.
        for prefix in sorted(PREFIXES, key=len, reverse=True):
            if name.startswith(prefix):
                symbols[PREFIXES[prefix]].add((name, version))
                break
    return symbols


def build(soname: str, symbols: set[tuple[str, str]], folder: Path) -> None:
    """Compiles one stand-in with the versions that the loader checks."""
    by_version = defaultdict(list)
    for name, version in sorted(symbols):
        by_version[version].append(name)
    script = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in names)} }};\n"
        for version, names in by_version.items()
        if version
    )
    source = "void abort(void);\n" + "".join(
        f"void {name}(void) {{ abort(); }}\n" for name in sorted({name for name, _ in symbols})
    )
    with tempfile.TemporaryDirectory() as scratch:
        code, versions = Path(scratch, "stub.c"), Path(scratch, "versions.map")
        code.write_text(source)
        versions.write_text(script)
        command = ["cc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{soname}"]
        if script:
            command.append(f"-Wl,--version-script={versions}")
        subprocess.run([*command, str(code), "-o", str(folder / soname)], check=True)


def main() -> None:
    site = Path(sys.argv[1])
    libraries = sorted((site / "torch/lib").glob("lib*.so*"))
    if not libraries:
        sys.exit(f"stub_cuda: no torch libraries under {site}")
    symbols = wanted_symbols(libraries)
    # One of the folders in the run path of torch's libraries.
    folder = site / "nvidia/cu13/lib"
    if not folder.is_dir():
        sys.exit(f"stub_cuda: {folder} is missing: install the CUDA runtime of this torch first")
    installed = {path.name for path in site.glob("nvidia/*/lib/*.so*")}
    for soname in sorted(needed(libraries) - installed):
        stem = soname.split(".so")[0]
        if stem in PREFIXES.values():
            build(soname, symbols[stem], folder)
            print(f"stand-in {soname}: {len(symbols[stem])} symbols")


if __name__ == "__main__":
    main()
