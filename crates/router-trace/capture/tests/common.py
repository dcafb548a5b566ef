"""What the tests of both tools share: the checkpoints, running a tool, reading a trace."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TOOLS = HERE.parent
QWEN = TOOLS.parents[1] / "engine-example/tests/fixtures/qwen3moe-f32"
DEEPSEEK = HERE / "fixtures/deepseek-v3-noqlora-f16"

# The tools are files, not a package: a test finds their modules as they find each other.
sys.path.insert(0, str(TOOLS))

Key = tuple[int, int]
"""(layer, position)"""


@dataclass(frozen=True)
class Pass:
    step: int
    pos: int
    phase: str
    tokens: int


@dataclass(frozen=True)
class Trace:
    header: dict
    records: list[dict]
    end: dict

    def by_position(self) -> dict[Key, list[int]]:
        """Each token's route; a token that is there twice is an error."""
        found: dict[Key, list[int]] = {}
        for record in self.records:
            for offset, route in enumerate(record["experts"]):
                key = record["layer"], record["pos"] + offset
                assert key not in found, f"{key} twice"
                found[key] = route
        return found

    def passes(self) -> list[Pass]:
        """The passes in order, one for all layers; layers that disagree show as more."""
        seen = [Pass(r["step"], r["pos"], r["phase"], len(r["experts"])) for r in self.records]
        return list(dict.fromkeys(seen))


def read_trace(path: Path) -> Trace:
    """A finished trace. The Rust reader checks the rest, on the traces in tests/data."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    header, *records, last = lines
    assert header["format"] == "expert-tier-trace" and header["version"] == 1, header
    assert last["end"]["records"] == len(records), last
    return Trace(header, records, last["end"])


def golden(model: Path) -> dict:
    return json.loads((model / "golden.json").read_text())


def golden_routes(model: Path) -> dict[Key, list[int]]:
    """The known route of each token of prompt and answer but the last."""
    layers = golden(model)["topk"].items()
    return {(int(layer), pos): ids for layer, rows in layers for pos, ids in enumerate(rows["ids"])}


def prompt_of(model: Path) -> str:
    return ",".join(map(str, golden(model)["input_ids"]))


def tool(name: str, model: Path, out: Path, *options: str, check: bool = True):
    """Runs a tool as a person would. Later options win, so a test can replace a default."""
    command = [sys.executable, str(TOOLS / name), str(model), "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if check and done.returncode != 0:
        raise AssertionError(f"{command} gave {done.returncode}: {done.stderr}")
    return done


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
