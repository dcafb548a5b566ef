"""What both tools share, with an engine made for the test: needs nothing but Python."""

import argparse
import contextlib
import io
import json
import unittest
from collections.abc import Sequence
from pathlib import Path

from common import read_trace, scratch

from capture_run import Dropped, parser, run
from trace_writer import CaptureError, Model, TraceWriter, clipped

MODEL = Model("tiny", (1, 3), n_experts=8, top_k=2, expert_bytes=10)


class Echo:
    """Routes token t at layer l to the experts t + l and t + l + 1, and goes on with t + 1."""

    created_by = "a test"

    def __init__(self, end: int = -1, interrupt_at: int = -1) -> None:
        self._end, self._interrupt_at = end, interrupt_at
        self.passes: list[tuple[list[int], int]] = []

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def open(self, total_tokens: int, chunk_tokens: int, prefill: bool) -> None:
        self.opened = (total_tokens, chunk_tokens, prefill)

    def forward(self, ids: Sequence[int], pos: int) -> dict[int, list[list[int]]]:
        if pos == self._interrupt_at:
            raise KeyboardInterrupt
        self.passes.append((list(ids), pos))
        return {layer: [[(i + layer) % 8, (i + layer + 1) % 8] for i in ids] for layer in (1, 3)}

    def sample(self) -> int:
        return self.passes[-1][0][-1] + 1

    def is_end(self, token: int) -> bool:
        return token == self._end

    def model(self, layers: Sequence[int], top_k: int) -> Model:
        return Model("tiny", tuple(layers), 8, top_k)

    def dropped(self) -> Dropped:
        return Dropped(2, 6)


def go(engine: Echo, out: Path, *options: str) -> tuple[int, str]:
    """Exit status and what was said."""
    args: argparse.Namespace = parser("a test", "").parse_args(["m", "--out", str(out), *options])
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = run(lambda: engine, args)
    return status, said.getvalue()


class Run(unittest.TestCase):
    def test_prompt_in_chunks_then_token_by_token(self):
        with scratch() as folder:
            out = folder / "trace.jsonl"
            engine = Echo()
            options = ["--prompt-ids", "1,2,3", "--chunk-tokens", "2", "--new-tokens", "2"]
            status, said = go(engine, out, *options, "--prefill")
            self.assertEqual(status, 0, said)
            self.assertIn(
                "3 prompt tokens, 2 decoded, 8 records, dropped 2 records (6 tokens)", said
            )
            self.assertEqual(engine.opened, (5, 2, True))
            self.assertEqual(engine.passes, [([1, 2], 0), ([3], 2), ([4], 3), ([5], 4)])
            trace = read_trace(out)
            first = {"step": 0, "pos": 0, "layer": 1, "phase": "prefill", "pass": "normal"}
            self.assertEqual(trace.records[0], first | {"experts": [[2, 3], [3, 4]]})
            last = {"step": 3, "pos": 4, "layer": 3, "phase": "decode", "pass": "normal"}
            self.assertEqual(trace.records[-1], last | {"experts": [[0, 1]]})
            end = {"records": 8, "tokens": 10, "dropped_records": 2, "dropped_tokens": 6}
            self.assertEqual(trace.end, end)
            # Without the prompt the same passes have the same steps.
            go(Echo(), out, *options, "--overwrite")
            self.assertEqual(read_trace(out).records, trace.records[4:])

    def test_an_answer_ends_where_the_model_ends_it(self):
        with scratch() as folder:
            out = folder / "trace.jsonl"
            go(Echo(end=5), out, "--prompt", "four", "--new-tokens", "9")
            self.assertEqual(len(read_trace(out).records), 0)
            options = ["--prompt", "four", "--new-tokens", "3", "--ignore-end", "--overwrite"]
            go(Echo(end=5), out, *options)
            self.assertEqual(len(read_trace(out).records), 3 * 2)

    def test_an_interrupted_run_keeps_its_whole_passes(self):
        with scratch() as folder:
            out = folder / "trace.jsonl"
            engine = Echo(interrupt_at=4)
            status, said = go(engine, out, "--prompt-ids", "1,2", "--new-tokens", "9")
            self.assertEqual(status, 130)
            self.assertIn("torn: 4 whole records", said)
            lines = [json.loads(line) for line in out.read_text().splitlines()]
            self.assertEqual([line.get("pos") for line in lines], [None, 2, 2, 3, 3])

    def test_numbers_outside_their_range(self):
        for options, text in (
            (["--new-tokens", "0"], "--new-tokens is 0"),
            (["--chunk-tokens", "8193"], "--chunk-tokens is 8193, must be 1 to 8192"),
            (["--temperature", "-1"], "--temperature is -1.0"),
            (["--temperature", "nan"], "--temperature is nan"),
            (["--seed", "-1"], "--seed is -1"),
            (["--prompt-ids", "1,x"], "'1,x' is no list of ids"),
            (["--prompt-ids", "-1"], "-1 is no token id"),
        ):
            with self.subTest(options=options), scratch() as folder:
                out = folder / "trace.jsonl"
                prompt = [] if "--prompt-ids" in options else ["--prompt-ids", "1"]
                # argparse takes a leading minus for an option, unless it is glued to its name.
                glued = [f"{options[0]}={options[1]}"]
                self.assertEqual(go(Echo(), out, *prompt, *glued)[0], 1)
                self.assertIn(text, go(Echo(), out, *prompt, *glued)[1])
                self.assertFalse(out.exists())

    def test_prompt_files(self):
        with scratch() as folder:
            out, file = folder / "trace.jsonl", folder / "prompt"
            for data, text in ((b"a\xff", "no UTF-8 at byte 1"), (b"", "no tokens")):
                file.write_bytes(data)
                self.assertIn(text, go(Echo(), out, "--prompt-file", str(file))[1])
            self.assertIn("No such file", go(Echo(), out, "--prompt-file", str(folder / "x"))[1])


class Writer(unittest.TestCase):
    def refuses(self, text: str, layers: dict) -> None:
        with scratch() as folder:
            writer = TraceWriter(str(folder / "trace.jsonl"), "a test")
            writer.begin(MODEL)
            with self.assertRaisesRegex(CaptureError, text):
                writer.write_pass(0, 0, "decode", layers)
            writer.close()
            self.assertEqual((folder / "trace.jsonl").read_text().count("\n"), 1)

    def test_routes_that_the_format_does_not_admit(self):
        self.refuses("layer 2: not one of the 2 MoE layers", {2: [[0, 1]]})
        self.refuses("layer 1: 0 tokens, must be 1 to 8192", {1: []})
        self.refuses("layer 1: 8193 tokens", {1: [[0, 1]] * 8193})
        self.refuses("token 1: 1 ids, not 2", {1: [[0, 1], [0]]})
        self.refuses("token 0: an expert twice", {1: [[3, 3]]})
        self.refuses("the model has 8", {1: [[0, 8]]})
        self.refuses("the model has 8", {1: [[-1, 0]]})
        # One bad layer, and nothing of the pass is written.
        self.refuses("layer 3", {1: [[0, 1]], 3: [[9, 0]]})

    def test_models_that_the_format_does_not_admit(self):
        for model, text in (
            (Model("m", (), 8, 2), "no MoE layers"),
            (Model("m", (2, 1), 8, 2), "do not ascend"),
            (Model("m", (1, 1), 8, 2), "do not ascend"),
            (Model("m", (1,), 65_536, 2), "65536 experts"),
            (Model("m", (1,), 64, 33), "top_k is 33, the format allows 1 to 32"),
            (Model("m", (1,), 4, 5), "top_k is 5, the format allows 1 to 4"),
        ):
            with self.subTest(model=model), self.assertRaisesRegex(CaptureError, text):
                model.check()

    def test_long_names_end_at_a_character(self):
        self.assertEqual(clipped("a" + "é" * 600), "a" + "é" * 511)


if __name__ == "__main__":
    unittest.main()
