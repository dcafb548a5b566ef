"""Writes a router trace, version 1 of the format described in ../FORMAT.md.

Each forward pass reaches the file in one write, so a run that is interrupted leaves a trace
that is torn after a whole pass and readable up to there. Nothing is kept in memory but the
pass at hand.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FORMAT = "expert-tier-trace"
VERSION = 1
MAX_LAYERS = 65_536
MAX_EXPERTS = 65_535
MAX_TOP_K = 32
MAX_TOKENS = 8_192
MAX_TEXT_BYTES = 1_024

Routes = Sequence[Sequence[int]]
"""The routes of one layer in one pass: [tokens][top_k] expert ids, best score first."""


class CaptureError(Exception):
    """Something that the caller of a capture tool can act on; says what and with which numbers."""


@dataclass(frozen=True)
class Model:
    """What the header says about the model."""

    name: str
    moe_layers: tuple[int, ...]
    n_experts: int
    top_k: int
    expert_bytes: int | None = None

    def check(self) -> None:
        """Raises CaptureError where the format's limits do not admit this model."""
        if not self.moe_layers:
            raise CaptureError(f"{self.name}: no MoE layers, there is nothing to trace")
        if len(self.moe_layers) > MAX_LAYERS:
            raise CaptureError(f"{len(self.moe_layers)} MoE layers, the format allows {MAX_LAYERS}")
        if list(self.moe_layers) != sorted(set(self.moe_layers)):
            raise CaptureError(f"MoE layers do not ascend: {self.moe_layers}")
        if not 1 <= self.n_experts <= MAX_EXPERTS:
            raise CaptureError(f"{self.n_experts} experts, the format allows 1 to {MAX_EXPERTS}")
        if not 1 <= self.top_k <= min(MAX_TOP_K, self.n_experts):
            raise CaptureError(
                f"top_k is {self.top_k}, the format allows 1 to {min(MAX_TOP_K, self.n_experts)}"
            )


class TraceWriter:
    """Header, passes, end record; in this order, or CaptureError."""

    def __init__(self, path: str, created_by: str, overwrite: bool = False) -> None:
        self.path = path
        self.created_by = created_by
        self.model: Model | None = None
        self.records = 0
        self.tokens = 0
        self._last_step = -1
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if overwrite else os.O_EXCL)
        try:
            self._file = os.open(path, flags, 0o644)
        except FileExistsError:
            raise CaptureError(f"{path} exists; --overwrite replaces it") from None
        except OSError as error:
            raise CaptureError(f"{path}: {error.strerror}") from None

    def begin(self, model: Model) -> None:
        """Writes the header."""
        assert self.model is None, "one header a trace"
        model.check()
        shape: dict[str, object] = {
            "name": clipped(model.name),
            "moe_layers": list(model.moe_layers),
            "n_experts": model.n_experts,
            "top_k": model.top_k,
        }
        if model.expert_bytes is not None:
            shape["expert_bytes"] = model.expert_bytes
        header = {
            "format": FORMAT,
            "version": VERSION,
            "model": shape,
            "created_by": clipped(self.created_by),
        }
        self._write([header])
        self.model = model

    def write_pass(self, step: int, pos: int, phase: str, layers: Mapping[int, Routes]) -> None:
        """Writes one record a layer, after checking every route against the header."""
        assert self.model is not None, "the header comes first"
        assert step > self._last_step, f"step {step} after {self._last_step}"
        lines = []
        for layer in sorted(layers):
            routes = layers[layer]
            self._check(step, layer, routes)
            lines.append(
                {
                    "step": step,
                    "pos": pos,
                    "layer": layer,
                    "phase": phase,
                    "pass": "normal",
                    "experts": [list(route) for route in routes],
                }
            )
        self._write(lines)
        self._last_step = step
        self.records += len(lines)
        self.tokens += sum(len(routes) for routes in layers.values())

    def finish(self, dropped_records: int = 0, dropped_tokens: int = 0) -> None:
        """Writes the end record and closes the file."""
        assert self.model is not None, "the header comes first"
        end = {
            "records": self.records,
            "tokens": self.tokens,
            "dropped_records": dropped_records,
            "dropped_tokens": dropped_tokens,
        }
        self._write([{"end": end}])
        self.close()

    def close(self) -> None:
        """Closes the file without an end record: what was written stays, as a torn trace."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _check(self, step: int, layer: int, routes: Routes) -> None:
        model = self.model
        assert model is not None
        where = f"step {step} layer {layer}"
        if layer not in model.moe_layers:
            raise CaptureError(f"{where}: not one of the {len(model.moe_layers)} MoE layers")
        if not 1 <= len(routes) <= MAX_TOKENS:
            raise CaptureError(f"{where}: {len(routes)} tokens, must be 1 to {MAX_TOKENS}")
        for token, route in enumerate(routes):
            if len(route) != model.top_k:
                raise CaptureError(f"{where} token {token}: {len(route)} ids, not {model.top_k}")
            if len(set(route)) != len(route):
                raise CaptureError(f"{where} token {token}: an expert twice in {list(route)}")
            if min(route) < 0 or max(route) >= model.n_experts:
                raise CaptureError(
                    f"{where} token {token}: ids {list(route)}, the model has {model.n_experts}"
                )

    def _write(self, lines: Sequence[object]) -> None:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        left = memoryview(text.encode())
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            raise CaptureError(
                f"{self.path}: {error.strerror} after {self.records} records"
            ) from None


def clipped(text: str) -> str:
    """`text` in at most MAX_TEXT_BYTES bytes of UTF-8, never ending inside a character."""
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
