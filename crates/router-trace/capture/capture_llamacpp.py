#!/usr/bin/env python3
"""Records which experts a model uses in llama.cpp, as a router trace.

Watches the evaluation of the graph through llama.cpp's own callback (no patched build),
decodes one prompt, and writes the format described in ../FORMAT.md: one record a layer and
forward pass, the passes over the prompt only with --prefill.

  capture_llamacpp.py Qwen3-30B-A3B-Q4_K_M.gguf --prompt-file code.txt --new-tokens 1000 \\
    --out a.jsonl
"""

import argparse
import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

from capture_run import Dropped, parser, run
from llama_library import Library
from llama_routes import RouteTap, expert_bytes
from trace_writer import CaptureError, Model, Routes

META_BYTES = 1_024
LOG_ERROR = 4
TYPE_F32 = 0
FLASH_ATTENTION_OFF = 0


class LlamaEngine:
    """A GGUF model in one context with one sequence."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._lib = Library()
        self.created_by = f"capture_llamacpp.py ({self._lib.package})"
        self._last_error = ""
        self._log = self._lib.llama_log_callback(self._on_log)
        self._lib.llama_log_set(self._log, None)
        self._lib.llama_backend_init()
        self._model = self._load()
        architecture = self._meta("general.architecture") or "unknown"
        self._n_experts = self._count(f"{architecture}.expert_count")
        self._top_k = self._count(f"{architecture}.expert_used_count")
        if self._n_experts == 0 or self._top_k == 0:
            raise CaptureError(
                f"{args.model}: no MoE layers: architecture {architecture} with expert_count "
                f"{self._n_experts}, expert_used_count {self._top_k}"
            )
        self._vocabulary = self._lib.llama_model_get_vocab(self._model)
        self._tap = RouteTap(self._lib, self._top_k, self._n_experts)
        self._sampler = self._make_sampler()

    def encode(self, text: str) -> list[int]:
        data = text.encode()
        capacity = len(data) + 16
        ids = (ctypes.c_int32 * capacity)()
        count = self._lib.llama_tokenize(
            self._vocabulary, data, len(data), ids, capacity, True, True
        )
        if count < 0:
            raise CaptureError(
                f"{self._args.model}: no tokenizer, or it failed: {self._last_error}"
            )
        return list(ids[:count])

    def open(self, total_tokens: int, chunk_tokens: int, prefill: bool) -> None:
        trained = self._lib.llama_model_n_ctx_train(self._model)
        if total_tokens > trained > 0:
            raise CaptureError(
                f"prompt and new tokens are {total_tokens}, the model has {trained} positions"
            )
        chunk = min(chunk_tokens, total_tokens)
        params = self._lib.llama_context_default_params()
        params.n_ctx = total_tokens
        # A pass is one batch and one micro-batch, or its layers would be computed in pieces.
        params.n_batch = params.n_ubatch = chunk
        if self._args.threads is not None:
            params.n_threads = params.n_threads_batch = self._args.threads
        if self._args.exact_attention:
            params.type_k = params.type_v = TYPE_F32
            params.flash_attn_type = FLASH_ATTENTION_OFF
        params.cb_eval = self._tap.callback
        self._context = self._lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise CaptureError(f"no context of {total_tokens} tokens: {self._last_error}")
        self._tap.check()
        self._batch = self._lib.llama_batch_init(chunk, 0, 1)
        # The last layer only computes tokens whose logits somebody wants.
        self._all_logits = prefill
        if self._args.warm_up:
            self._warm_up()

    def forward(self, ids: Sequence[int], pos: int) -> dict[int, Routes]:
        limit = self._lib.llama_vocab_n_tokens(self._vocabulary)
        if max(ids) >= limit:
            raise CaptureError(f"token id {max(ids)}, the vocabulary has {limit}")
        return self._tap.during(lambda: self._decode(ids, pos))

    def sample(self) -> int:
        return self._lib.llama_sampler_sample(self._sampler, self._context, -1)

    def is_end(self, token: int) -> bool:
        return self._lib.llama_vocab_is_eog(self._vocabulary, token)

    def model(self, layers: Sequence[int], top_k: int) -> Model:
        if top_k != self._top_k:
            raise CaptureError(f"routes of {top_k} experts, the model says {self._top_k}")
        return Model(
            name=self._args.name or self._meta("general.name") or Path(self._args.model).stem,
            moe_layers=tuple(layers),
            n_experts=self._n_experts,
            top_k=top_k,
            expert_bytes=expert_bytes(self._lib, self._args.model, self._n_experts, set(layers)),
        )

    def dropped(self) -> Dropped:
        return Dropped(self._tap.dropped_records, self._tap.dropped_tokens)

    def _decode(self, ids: Sequence[int], pos: int) -> None:
        batch = self._batch
        batch.n_tokens = len(ids)
        for index, token in enumerate(ids):
            batch.token[index] = token
            batch.pos[index] = pos + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = self._all_logits or index + 1 == len(ids)
        status = self._lib.llama_decode(self._context, batch)
        self._tap.check()
        if status != 0:
            raise CaptureError(f"position {pos}: llama_decode gave {status}: {self._last_error}")

    def _warm_up(self) -> None:
        """What llama.cpp's own programs do first: one pass through all experts of a layer, so
        that their weights are read."""
        self._lib.llama_set_warmup(self._context, True)
        self._decode([0], 0)
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        self._lib.llama_set_warmup(self._context, False)

    def _load(self) -> int:
        path = self._args.model
        if not Path(path).is_file():
            raise CaptureError(f"{path}: no such file")
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers = self._args.gpu_layers
        model = self._lib.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise CaptureError(f"{path}: not loaded: {self._last_error}")
        return model

    def _make_sampler(self) -> int:
        lib = self._lib
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        if self._args.temperature == 0:
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
        else:
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(self._args.temperature))
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(self._args.seed))
        return chain

    def _meta(self, key: str) -> str | None:
        value = ctypes.create_string_buffer(META_BYTES)
        size = self._lib.llama_model_meta_val_str(self._model, key.encode(), value, META_BYTES)
        return value.value.decode(errors="replace") if size >= 0 else None

    def _count(self, key: str) -> int:
        value = self._meta(key)
        if value is None:
            return 0
        if not value.isdecimal():
            raise CaptureError(f"{self._args.model}: {key} is {value}, not one number")
        return int(value)

    def _on_log(self, level: int, text: bytes | None, _: object) -> None:
        if level == LOG_ERROR and text:
            self._last_error = text.decode(errors="replace").strip()


def main() -> int:
    options = parser(__doc__ or "", "GGUF file (the first one, if there are several)")
    options.add_argument("--threads", type=int, help="threads of llama.cpp")
    options.add_argument(
        "--gpu-layers", type=int, default=0, metavar="N", help="layers on the GPU (default 0)"
    )
    options.add_argument(
        "--exact-attention",
        action="store_true",
        help="keys and values in f32 and no flash attention, to compare with another engine",
    )
    options.add_argument(
        "--warm-up",
        action="store_true",
        help="read all experts first in a pass of llama.cpp's own, which is not traced",
    )
    args = options.parse_args()
    return run(lambda: LlamaEngine(args), args)


if __name__ == "__main__":
    sys.exit(main())
