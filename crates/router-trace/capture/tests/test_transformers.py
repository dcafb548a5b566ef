"""The transformers tool against checkpoints whose routes are known.

The known routes come from `golden.json` beside each checkpoint: transformers itself, one full
forward pass in float32, read by code that is not the tool's.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

from common import DEEPSEEK, QWEN, Trace, golden_routes, prompt_of, read_trace, scratch, tool

import torch_routers
from trace_writer import CaptureError

TOOL = "capture_transformers.py"
EXACT = ["--dtype", "float32", "--attention", "eager", "--threads", "1"]


def capture(model: Path, *options: str) -> Trace:
    """The trace of one run with the golden prompt."""
    with scratch() as folder:
        out = folder / "trace.jsonl"
        tool(TOOL, model, out, "--prompt-ids", prompt_of(model), "--ignore-end", *options)
        return read_trace(out)


class Golden(unittest.TestCase):
    def check_prefill_and_decode(self, model: Path, expected: dict[tuple[int, int], list[int]]):
        trace = capture(model, *EXACT, "--new-tokens", "31", "--prefill", "--chunk-tokens", "10")
        self.assertEqual(trace.by_position(), expected)
        # Prompt of 24 tokens: three passes of at most 10, then one token a pass.
        phases = [(p.step, p.pos, p.phase, p.tokens) for p in trace.passes()]
        prompt = [(0, 0, "prefill", 10), (1, 10, "prefill", 10), (2, 20, "prefill", 4)]
        decode = [(3 + i, 24 + i, "decode", 1) for i in range(31)]
        self.assertEqual(phases, prompt + decode)

    def test_qwen3_moe_equals_golden(self):
        self.check_prefill_and_decode(QWEN, golden_routes(QWEN))

    def test_deepseek_v3_equals_golden_in_order_of_selection(self):
        # The golden routes are sorted by weight. A route is sorted by the score that selected,
        # which has the bias on it: here weight / scaling + bias, as nothing is normalised.
        config = json.loads((DEEPSEEK / "config.json").read_text())
        self.assertFalse(config["norm_topk_prob"])
        golden = json.loads((DEEPSEEK / "golden.json").read_text())
        weights = load_file(DEEPSEEK / "model.safetensors")
        expected, moved = {}, 0
        for layer, rows in golden["topk"].items():
            bias = weights[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"].float()
            for pos, (ids, shares) in enumerate(zip(rows["ids"], rows["weights"])):
                score = {
                    i: w / config["routed_scaling_factor"] + float(bias[i])
                    for i, w in zip(ids, shares)
                }
                route = sorted(ids, key=lambda i: -score[i])
                moved += route != ids
                expected[int(layer), pos] = route
        self.assertGreater(moved, 0, "the bias changes no order, so the test shows nothing")
        self.check_prefill_and_decode(DEEPSEEK, expected)

    def test_header_and_end(self):
        trace = capture(QWEN, *EXACT, "--new-tokens", "2", "--name", "tiny")
        # gate, up and down of 32 x 64 float32 each.
        shape = {"moe_layers": [0, 1, 2, 3], "n_experts": 16, "top_k": 4}
        self.assertEqual(trace.header["model"], shape | {"name": "tiny", "expert_bytes": 24576})
        self.assertIn(f"transformers {transformers.__version__}", trace.header["created_by"])
        counts = {"records": 8, "tokens": 8, "dropped_records": 0, "dropped_tokens": 0}
        self.assertEqual(trace.end, counts)

    def test_decode_only_is_the_same_without_the_prompt(self):
        every = capture(QWEN, *EXACT, "--new-tokens", "5", "--prefill")
        decode = capture(QWEN, *EXACT, "--new-tokens", "5")
        self.assertEqual(decode.records, [r for r in every.records if r["phase"] == "decode"])
        self.assertEqual(len(decode.records), 5 * 4)

    def test_sampling_follows_the_seed(self):
        def sampled(seed: int) -> list[dict]:
            options = ["--new-tokens", "8", "--temperature", "2", "--seed", str(seed)]
            return capture(QWEN, *EXACT, *options).records

        self.assertEqual(sampled(1), sampled(1))
        self.assertNotEqual(sampled(1), sampled(2))


class Errors(unittest.TestCase):
    def fails(self, model: Path, text: str, *options: str) -> None:
        options = options or ("--prompt-ids", "1,2")
        with scratch() as folder:
            out = folder / "trace.jsonl"
            done = tool(TOOL, model, out, *options, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(text, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
            self.assertFalse(out.exists(), "a run that never began leaves no file")

    def test_a_dense_model_has_nothing_to_trace(self):
        with scratch() as folder:
            config = transformers.Qwen2Config(
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                vocab_size=32,
            )
            transformers.Qwen2ForCausalLM(config).save_pretrained(folder / "dense")
            self.fails(folder / "dense", "no MoE layers in Qwen2ForCausalLM")

    def test_unknown_token(self):
        self.fails(QWEN, "token id 256, the vocabulary has 256", "--prompt-ids", "1,256")

    def test_no_checkpoint(self):
        self.fails(Path("/nonexistent"), "/nonexistent")

    def test_too_many_tokens(self):
        self.fails(QWEN, "512 positions", "--prompt-ids", "1,2", "--new-tokens", "511")

    def test_prompt_without_a_tokenizer(self):
        self.fails(QWEN, "no token", "--prompt", "text")

    def test_existing_file_is_kept(self):
        with scratch() as folder:
            out = folder / "trace.jsonl"
            out.write_text("mine")
            done = tool(TOOL, QWEN, out, "--prompt-ids", "1", check=False)
            self.assertEqual((done.returncode, out.read_text()), (1, "mine"))
            self.assertIn("exists; --overwrite replaces it", done.stderr)


class OtherFamilies(unittest.TestCase):
    """Random weights, and the routes recomputed from what goes into each router."""

    FAMILIES = {
        "OlmoeConfig": {"num_experts": 8, "num_experts_per_tok": 3},
        "MixtralConfig": {"num_local_experts": 8, "num_experts_per_tok": 2},
        "Qwen2MoeConfig": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16},
        "GptOssConfig": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 8},
    }

    def test_routes_are_the_top_k_of_the_router(self):
        for name, shape in self.FAMILIES.items():
            with self.subTest(family=name), scratch() as folder:
                torch.manual_seed(5)
                config = getattr(transformers, name)(
                    hidden_size=32,
                    intermediate_size=16,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    vocab_size=64,
                    pad_token_id=None,
                    **shape,
                )
                model = transformers.AutoModelForCausalLM.from_config(config).eval()
                for parameter in model.parameters():
                    torch.nn.init.normal_(parameter, std=0.3)
                model.save_pretrained(folder / "model")
                out = folder / "trace.jsonl"
                prompt = "3,1,4,1,5,9,2,6"
                options = ["--prompt-ids", prompt, "--prefill", "--new-tokens", "1", *EXACT]
                tool(TOOL, folder / "model", out, *options)
                trace = read_trace(out)
                expected = routes_from_logits(model, prompt, shape["num_experts_per_tok"])
                seen = {key: route for key, route in trace.by_position().items() if key[1] < 8}
                self.assertEqual(seen, expected)


def routes_from_logits(model, prompt: str, top_k: int) -> dict[tuple[int, int], list[int]]:
    """The routes of a full pass, from the inputs of the routers and their matrices."""
    inputs: dict[int, torch.Tensor] = {}
    routers: dict[int, torch.nn.Module] = {}
    for index, layer in enumerate(model.model.layers):
        mlp = getattr(layer, "mlp", None) or layer.block_sparse_moe
        router = getattr(mlp, "gate", None) or mlp.router
        routers[index] = router
        router.register_forward_pre_hook(
            lambda module, args, index=index: inputs.__setitem__(index, args[0].reshape(-1, 32))
        )
    with torch.no_grad():
        model.set_attn_implementation("eager")
        model(input_ids=torch.tensor([[int(i) for i in prompt.split(",")]]))
    expected = {}
    for index, hidden in inputs.items():
        router = routers[index]
        logits = torch.nn.functional.linear(hidden, router.weight, getattr(router, "bias", None))
        for pos, row in enumerate(logits.topk(top_k).indices.tolist()):
            expected[index, pos] = row
    return expected


class Forms(unittest.TestCase):
    """What routers return, without a model around them."""

    @staticmethod
    def router(**parts: torch.Tensor) -> torch_routers.RouterModule:
        module = torch.nn.Linear(2, 4, bias=False)
        for name, value in parts.items():
            module.register_buffer(name, value)
        return torch_routers.RouterModule(0, "layers.0.gate", module, torch.nn.Module(), 4)

    HIDDEN = torch.zeros(1, 2)
    LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]])

    def routes(self, family: str, output: object, **parts: torch.Tensor) -> list[list[int]]:
        return torch_routers.routes(self.router(**parts), family, 2, self.HIDDEN, output)

    def test_logits_alone_are_read_of_known_families_only(self):
        self.assertEqual(self.routes("qwen3_moe", self.LOGITS), [[1, 3]])
        with self.assertRaisesRegex(CaptureError, r"model_type new\) returned .*float32\[1, 4\]"):
            self.routes("new", self.LOGITS)

    def test_ids_are_sorted_by_weight_or_by_a_score_for_every_expert(self):
        ids = torch.tensor([[2, 1]])
        self.assertEqual(self.routes("new", (ids, torch.tensor([[0.3, 0.7]]))), [[1, 2]])
        self.assertEqual(self.routes("new", (ids, self.LOGITS)), [[1, 2]])
        self.assertEqual(self.routes("new", ids), [[2, 1]])

    def test_a_bias_of_selection_orders_and_its_scores_must_be_known(self):
        ids, bias = torch.tensor([[1, 3]]), torch.tensor([0.0, 0.0, 0.0, 1.0])
        for score in (torch.sigmoid, lambda logits: logits.softmax(-1)):
            weights = score(self.LOGITS).gather(1, ids) * 2.5
            output = (self.LOGITS, weights, ids)
            self.assertEqual(self.routes("new", output), [[1, 3]])
            self.assertEqual(self.routes("new", output, e_score_correction_bias=bias), [[3, 1]])
        strange = (self.LOGITS, torch.tensor([[0.9, 0.1]]), ids)
        with self.assertRaisesRegex(CaptureError, "scores of an unknown kind"):
            self.routes("new", strange, e_score_correction_bias=bias)

    def test_experts_in_two_parts_of_a_model_need_a_choice(self):
        def part() -> torch.nn.Module:
            block = torch.nn.Module()
            block.gate, block.experts = torch.nn.Linear(2, 4), torch.nn.ModuleList()
            layer = torch.nn.Module()
            layer.mlp = block
            tower = torch.nn.Module()
            tower.layers = torch.nn.ModuleList([layer])
            return tower

        model = torch.nn.ModuleDict({"text": part(), "vision": part()})
        with self.assertRaisesRegex(CaptureError, "text.*vision.*--stem"):
            torch_routers.find_routers(model, None)
        names = [router.name for router in torch_routers.find_routers(model, None, "text")]
        self.assertEqual(names, ["text.layers.0.mlp.gate"])


class Interrupted(unittest.TestCase):
    def test_leaves_whole_records_and_no_end(self):
        with scratch() as folder:
            out = folder / "trace.jsonl"
            # With more positions than can be used up before the interrupt comes, however late.
            model = shutil.copytree(QWEN, folder / "model")
            config = json.loads((model / "config.json").read_text())
            config["max_position_embeddings"] = 1 << 20
            (model / "config.json").write_text(json.dumps(config))
            command = [sys.executable, str(Path(__file__).parents[1] / TOOL), str(model)]
            command += ["--prompt-ids", "1,2,3", "--new-tokens", "1000000", "--ignore-end"]
            process = subprocess.Popen(
                [*command, "--out", str(out)],
                stderr=subprocess.PIPE,
                text=True,
                # Whoever started us in the background may have had the signal ignored.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            while process.poll() is None:
                if out.exists() and out.read_bytes().count(b"\n") > 8:
                    break
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            try:
                _, stderr = process.communicate(timeout=120)
            finally:
                process.kill()
            self.assertEqual(process.returncode, 130, stderr)
            lines = out.read_text().splitlines()
            records = [json.loads(line) for line in lines[1:]]
            self.assertTrue(records and all("experts" in record for record in records))
            self.assertIn(f"is torn: {len(records)} whole records", stderr)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    unittest.main()
