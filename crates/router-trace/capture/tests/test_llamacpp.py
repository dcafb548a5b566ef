"""The llama.cpp tool against a checkpoint whose routes are known.

The known routes are transformers' (see `test_transformers.py`); the same float32 weights are
written as GGUF. With exact attention llama.cpp's router logits differ from transformers' by
1e-5 at most, less than any two scores of one token here.
"""

import ctypes
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

from common import HERE, QWEN, Trace, golden_routes, prompt_of, read_trace, scratch, tool

from llama_library import Library
from llama_routes import RouteTap

TOOL = "capture_llamacpp.py"
LAYERS = 4


class WithGguf(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = Path(folder.name, "tiny.gguf")
        command = [sys.executable, str(HERE / "make_gguf.py"), str(QWEN), str(cls.model)]
        subprocess.run(command, check=True)

    def capture(self, *options: str) -> Trace:
        with scratch() as folder:
            out = folder / "trace.jsonl"
            prompt = ["--prompt-ids", prompt_of(QWEN), "--ignore-end", "--threads", "1"]
            tool(TOOL, self.model, out, *prompt, *options)
            return read_trace(out)


class Golden(WithGguf):
    def test_prompt_and_decode_equal_golden(self):
        options = ["--exact-attention", "--prefill", "--chunk-tokens", "10", "--new-tokens", "31"]
        trace = self.capture(*options)
        self.assertEqual(trace.by_position(), golden_routes(QWEN))
        phases = [(p.step, p.pos, p.phase, p.tokens) for p in trace.passes()]
        prompt = [(0, 0, "prefill", 10), (1, 10, "prefill", 10), (2, 20, "prefill", 4)]
        decode = [(3 + i, 24 + i, "decode", 1) for i in range(31)]
        self.assertEqual(phases, prompt + decode)

    def test_decode_only_equals_golden(self):
        trace = self.capture("--exact-attention", "--new-tokens", "31")
        known = {key: route for key, route in golden_routes(QWEN).items() if key[1] >= 24}
        self.assertEqual(trace.by_position(), known)
        self.assertEqual({record["phase"] for record in trace.records}, {"decode"})

    def test_header_and_end(self):
        trace = self.capture("--new-tokens", "2")
        shape = {"name": "qwen3moe-f32", "moe_layers": [0, 1, 2, 3], "n_experts": 16, "top_k": 4}
        # gate, up and down of 32 x 64 float32 each.
        self.assertEqual(trace.header["model"], shape | {"expert_bytes": 24576})
        package = f"llama-cpp-python {llama_cpp.__version__}"
        self.assertEqual(trace.header["created_by"], f"capture_llamacpp.py ({package})")
        counts = {"records": 8, "tokens": 8, "dropped_records": 0, "dropped_tokens": 0}
        self.assertEqual(trace.end, counts)

    def test_warm_up_is_dropped_and_counted(self):
        warm = self.capture("--exact-attention", "--new-tokens", "3", "--warm-up")
        cold = self.capture("--exact-attention", "--new-tokens", "3")
        self.assertEqual(warm.records, cold.records)
        # One token through all experts of each layer.
        dropped = {"dropped_records": LAYERS, "dropped_tokens": LAYERS}
        self.assertEqual(warm.end, cold.end | dropped)

    def test_sampling_follows_the_seed(self):
        def sampled(seed: int) -> list[dict]:
            options = ["--new-tokens", "8", "--temperature", "2", "--seed", str(seed)]
            return self.capture(*options).records

        self.assertEqual(sampled(1), sampled(1))
        self.assertNotEqual(sampled(1), sampled(2))

    def test_text_is_tokenized(self):
        # One token a byte, so the text of the bytes is the prompt of the ids.
        text = "route"
        ids = ",".join(str(byte) for byte in text.encode())
        by_ids = self.capture("--prompt-ids", ids, "--new-tokens", "3", "--prefill")
        with scratch() as folder:
            out, file = folder / "trace.jsonl", folder / "prompt.txt"
            file.write_text(text)
            options = ["--new-tokens", "3", "--prefill", "--threads", "1", "--ignore-end"]
            tool(TOOL, self.model, out, "--prompt-file", str(file), *options)
            self.assertEqual(read_trace(out).records, by_ids.records)


class Tap(WithGguf):
    """The callback alone, driven by llama.cpp through the package."""

    def test_rows_outside_a_pass_of_ours_are_dropped(self):
        library = Library()
        # Kept to the end of the process, for llama.cpp keeps the address.
        type(self).quiet = library.llama_log_callback(lambda level, text, data: None)
        library.llama_log_set(self.quiet, None)
        model = library.llama_model_load_from_file(
            str(self.model).encode(), library.llama_model_default_params()
        )
        tap = RouteTap(library, top_k=4, n_experts=16)
        params = library.llama_context_default_params()
        params.n_ctx = 64
        params.cb_eval = tap.callback
        context = library.llama_init_from_model(model, params)
        # Nobody asked the tap for this pass of 5 tokens: a dry run, to it. The last layer only
        # computes the token whose logits are wanted.
        ids = (ctypes.c_int32 * 5)(5, 4, 3, 2, 1)
        batch = llama_cpp.llama_batch_get_one(ids, 5)
        self.assertEqual(library.llama_decode(context, batch), 0)
        tap.check()
        self.assertEqual((tap.dropped_records, tap.dropped_tokens), (LAYERS, 3 * 5 + 1))
        taken = tap.during(lambda: library.llama_decode(context, batch))
        self.assertEqual(
            {layer: len(routes) for layer, routes in taken.items()}, {0: 5, 1: 5, 2: 5, 3: 1}
        )
        self.assertEqual(tap.dropped_records, LAYERS)


class Errors(WithGguf):
    def fails(self, model: Path, text: str, *options: str) -> None:
        options = options or ("--prompt-ids", "1,2")
        with scratch() as folder:
            out = folder / "trace.jsonl"
            done = tool(TOOL, model, out, *options, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(text, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
            self.assertFalse(out.exists(), "a run that never began leaves no file")

    def test_no_file(self):
        self.fails(Path("/nonexistent.gguf"), "/nonexistent.gguf: no such file")

    def test_no_gguf(self):
        self.fails(QWEN / "config.json", "not loaded")

    def test_unknown_token(self):
        self.fails(self.model, "token id 256, the vocabulary has 256", "--prompt-ids", "1,256")

    def test_too_many_tokens(self):
        self.fails(self.model, "512 positions", "--prompt-ids", "1,2", "--new-tokens", "511")

    def test_a_dense_model_has_nothing_to_trace(self):
        with scratch() as folder:
            path = folder / "dense.gguf"
            write_dense(path)
            self.fails(path, "no MoE layers: architecture llama with expert_count 0")


def write_dense(path: Path) -> None:
    """A llama of one layer and 256 single-byte tokens, all zeros."""
    writer = gguf.GGUFWriter(str(path), "llama")
    width = 32
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(256)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<0x{byte:02X}>" for byte in range(256)])
    writer.add_token_scores([0.0] * 256)
    writer.add_token_types([gguf.TokenType.BYTE] * 256)
    square = np.zeros((width, width), np.float32)
    row = np.ones(width, np.float32)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", row)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", np.zeros((256, width), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    unittest.main()
