"""What the capture tools share: the command line, the decode loop, and how a run ends.

A tool gives an `Engine`; `run` feeds it the prompt in chunks, decodes, and writes each pass.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trace_writer import MAX_TOKENS, CaptureError, Model, Routes, TraceWriter

MAX_PROMPT_BYTES = 16 << 20
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Dropped:
    """Rows that were seen and not written, because no decoded token stands behind them."""

    records: int = 0
    tokens: int = 0


class Engine(Protocol):
    """A model that runs, and tells afterwards which experts each token used."""

    created_by: str

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`."""

    def open(self, total_tokens: int, chunk_tokens: int, prefill: bool) -> None:
        """Gets ready for `total_tokens`, at most `chunk_tokens` a pass. With `prefill` the
        routes of a pass over the prompt are complete, without it they may lack tokens."""

    def forward(self, ids: Sequence[int], pos: int) -> dict[int, Routes]:
        """One forward pass over `ids`, the first of which is at `pos`: the routes by layer."""

    def sample(self) -> int:
        """The token that follows the last pass."""

    def is_end(self, token: int) -> bool:
        """Whether the model ends its answer with this token."""

    def model(self, layers: Sequence[int], top_k: int) -> Model:
        """The header, given what the first pass showed."""

    def dropped(self) -> Dropped:
        """What was seen outside the passes that were asked for."""


def parser(description: str, model_help: str) -> argparse.ArgumentParser:
    """The options that both tools have."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("model", help=model_help)
    result.add_argument("--out", required=True, metavar="FILE", help="trace to write")
    result.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    prompt = result.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="prompt")
    prompt.add_argument("--prompt-file", metavar="FILE", help="file with the prompt, UTF-8")
    prompt.add_argument(
        "--prompt-ids", metavar="IDS", help="prompt as token ids with commas, needs no tokenizer"
    )
    result.add_argument(
        "--new-tokens",
        type=int,
        default=256,
        metavar="N",
        help="tokens to decode, each in its own pass (default 256)",
    )
    result.add_argument(
        "--prefill", action="store_true", help="also write the passes over the prompt"
    )
    result.add_argument(
        "--chunk-tokens",
        type=int,
        default=512,
        metavar="N",
        help=f"most prompt tokens a pass, 1 to {MAX_TOKENS} (default 512)",
    )
    result.add_argument(
        "--temperature", type=float, default=0.0, help="0 decodes greedily (default), else sample"
    )
    result.add_argument("--seed", type=int, default=0, help="seed of the sampling (default 0)")
    result.add_argument(
        "--ignore-end", action="store_true", help="go on after the token that ends an answer"
    )
    result.add_argument("--name", help="name of the model in the header (default: its own)")
    return result


def check(args: argparse.Namespace) -> None:
    """Raises CaptureError for a number outside its range."""
    if args.new_tokens < 1:
        raise CaptureError(f"--new-tokens is {args.new_tokens}, must be at least 1")
    if not 1 <= args.chunk_tokens <= MAX_TOKENS:
        raise CaptureError(f"--chunk-tokens is {args.chunk_tokens}, must be 1 to {MAX_TOKENS}")
    if not 0 <= args.temperature < float("inf"):
        raise CaptureError(f"--temperature is {args.temperature}, must be 0 or more")
    if not 0 <= args.seed < 1 << 32:
        raise CaptureError(f"--seed is {args.seed}, must be 0 to {(1 << 32) - 1}")


def prompt_ids(args: argparse.Namespace, encode: Callable[[str], list[int]]) -> list[int]:
    """The prompt's tokens, from whichever option gave it."""
    if args.prompt_ids is not None:
        try:
            ids = [int(part) for part in args.prompt_ids.split(",")]
        except ValueError:
            raise CaptureError(f"--prompt-ids: {args.prompt_ids!r} is no list of ids") from None
        if min(ids) < 0:
            raise CaptureError(f"--prompt-ids: {min(ids)} is no token id")
        return ids
    text = args.prompt if args.prompt is not None else read_prompt(args.prompt_file)
    ids = encode(text)
    if not ids:
        raise CaptureError("the prompt has no tokens (is there a tokenizer with the model?)")
    return ids


def read_prompt(path: str) -> str:
    """The text of a prompt file, of bounded size."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_PROMPT_BYTES + 1)
        if len(data) > MAX_PROMPT_BYTES:
            raise CaptureError(f"{path}: more than {MAX_PROMPT_BYTES} bytes")
        return data.decode()
    except OSError as error:
        raise CaptureError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CaptureError(f"{path}: no UTF-8 at byte {error.start}") from None


def capture(
    engine: Engine, prompt: Sequence[int], args: argparse.Namespace, out: TraceWriter
) -> int:
    """Runs prompt and decode and writes the trace; returns how many tokens were decoded.

    Every forward pass has a step, whether it is written or not, so a trace with and one
    without the prompt number the same pass alike.
    """
    engine.open(len(prompt) + args.new_tokens, args.chunk_tokens, args.prefill)
    step = 0
    for start in range(0, len(prompt), args.chunk_tokens):
        chunk = prompt[start : start + args.chunk_tokens]
        layers = engine.forward(chunk, start)
        if start == 0:
            out.begin(engine.model(sorted(layers), width(layers)))
        if args.prefill:
            check_pass(layers, len(chunk), step)
            out.write_pass(step, start, "prefill", layers)
        step += 1
    for decoded in range(args.new_tokens):
        token = engine.sample()
        if engine.is_end(token) and not args.ignore_end:
            return decoded
        pos = len(prompt) + decoded
        layers = engine.forward([token], pos)
        check_pass(layers, 1, step)
        out.write_pass(step, pos, "decode", layers)
        step += 1
    return args.new_tokens


def width(layers: dict[int, Routes]) -> int:
    """Experts a token of the first pass; the writer holds every other route to it."""
    if not layers:
        raise CaptureError("no MoE layers: the first pass routed nothing")
    return len(next(iter(layers.values()))[0])


def check_pass(layers: dict[int, Routes], tokens: int, step: int) -> None:
    """A pass that is written has every token in every layer it has at all."""
    if not layers:
        raise CaptureError(f"step {step}: no layer routed anything")
    for layer, routes in layers.items():
        if len(routes) != tokens:
            raise CaptureError(f"step {step} layer {layer}: {len(routes)} routes, {tokens} tokens")


def run(make: Callable[[], Engine], args: argparse.Namespace) -> int:
    """The whole of a tool after its command line; returns the exit status."""
    out = None
    try:
        check(args)
        engine = make()
        ids = prompt_ids(args, engine.encode)
        out = TraceWriter(args.out, engine.created_by, args.overwrite)
        decoded = capture(engine, ids, args, out)
        dropped = engine.dropped()
        out.finish(dropped.records, dropped.tokens)
    except CaptureError as error:
        print(f"error: {error}", file=sys.stderr)
        report_torn(out)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        report_torn(out)
        return EXIT_INTERRUPTED
    finally:
        if out is not None:
            out.close()
    print(
        f"{args.out}: {len(ids)} prompt tokens, {decoded} decoded, {out.records} records, "
        f"dropped {dropped.records} records ({dropped.tokens} tokens) of dry runs"
    )
    return 0


def report_torn(out: TraceWriter | None) -> None:
    """Says what an unfinished run left behind; a file without a header is no trace and goes."""
    if out is None:
        return
    if out.model is None:
        os.unlink(out.path)
    else:
        print(f"{out.path} is torn: {out.records} whole records", file=sys.stderr)
