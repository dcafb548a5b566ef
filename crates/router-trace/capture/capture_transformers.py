#!/usr/bin/env python3
"""Records which experts a Hugging Face transformers model uses, as a router trace.

Hooks the router of every MoE layer, decodes one prompt, and writes the format described in
../FORMAT.md: one record a layer and forward pass, the passes over the prompt only with
--prefill. Reads a local checkpoint; downloads nothing unless --download is given.

  capture_transformers.py ./Qwen3-30B-A3B --prompt-file code.txt --new-tokens 1000 --out a.jsonl
"""

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

from capture_run import Dropped, parser, run
from trace_writer import CaptureError, Model, Routes

OLDEST = (4, 51)


class TransformersEngine:
    """A causal language model with a key-value cache and hooks on its routers."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch, transformers = packages()
        import torch_routers

        self._torch = torch
        self._routers_of = torch_routers
        self._args = args
        self.created_by = (
            f"capture_transformers.py (transformers {transformers.__version__}, "
            f"torch {torch.__version__})"
        )
        self._options = {
            "local_files_only": not args.download,
            "trust_remote_code": args.trust_remote_code,
        }
        self._model = load(torch, transformers, args, self._options)
        config = self._model.config.get_text_config()
        self._family = str(config.model_type)
        self._top_k = getattr(config, "num_experts_per_tok", None)
        self._routers = torch_routers.find_routers(self._model, config, args.stem)
        for router in self._routers:
            router.module.register_forward_hook(self._hook(router), with_kwargs=True)
        self._end = end_tokens(self._model)
        self._cache: object = None
        self._next_logits: object = None
        self._layers: dict[int, Routes] = {}
        self._dropped_records = 0
        self._dropped_tokens = 0
        self._tracing = False
        self._random = torch.Generator(device="cpu").manual_seed(args.seed)
        known = inspect.signature(self._model.forward).parameters
        self._cache_key = "cache" if "cache" in known else "past_key_values"
        # Without it a pass over 512 tokens computes 512 times the vocabulary for nothing.
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in known else {}

    def encode(self, text: str) -> list[int]:
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self._args.model, **self._options)
        # Missing and broken files come out of there as errors of every type.
        except Exception as error:  # noqa: BLE001
            raise CaptureError(f"{self._args.model}: no tokenizer: {first_line(error)}") from None
        return list(tokenizer(text)["input_ids"])

    def open(self, total_tokens: int, chunk_tokens: int, prefill: bool) -> None:
        config = self._model.config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None)
        if limit is not None and total_tokens > limit:
            raise CaptureError(
                f"prompt and new tokens are {total_tokens}, the model has {limit} positions"
            )
        self._vocabulary = config.vocab_size

    def forward(self, ids: Sequence[int], pos: int) -> dict[int, Routes]:
        torch = self._torch
        if max(ids) >= self._vocabulary:
            raise CaptureError(f"token id {max(ids)}, the vocabulary has {self._vocabulary}")
        self._layers = {}
        self._tracing = True
        with torch.inference_mode():
            output = self._model(
                input_ids=torch.tensor([list(ids)], device=self._model.device),
                use_cache=True,
                **{self._cache_key: self._cache},
                **self._last_only,
            )
        self._tracing = False
        self._cache = getattr(output, self._cache_key, None)
        if self._cache is None:
            raise CaptureError(f"{self._family} returned no cache, so it cannot decode by token")
        self._next_logits = output.logits[0, -1].float().cpu()
        return self._layers

    def sample(self) -> int:
        torch = self._torch
        if self._args.temperature == 0:
            return int(self._next_logits.argmax())
        shares = (self._next_logits / self._args.temperature).softmax(-1)
        return int(torch.multinomial(shares, 1, generator=self._random))

    def is_end(self, token: int) -> bool:
        return token in self._end

    def model(self, layers: Sequence[int], top_k: int) -> Model:
        silent = sorted({router.layer for router in self._routers} - set(layers))
        if silent:
            raise CaptureError(f"the routers of layers {silent} were not called in the first pass")
        return Model(
            name=self._args.name or Path(self._args.model).name or self._family,
            moe_layers=tuple(layers),
            n_experts=self._routers[0].n_experts,
            top_k=top_k,
            expert_bytes=self._routers_of.expert_bytes(self._routers),
        )

    def dropped(self) -> Dropped:
        return Dropped(self._dropped_records, self._dropped_tokens)

    def _hook(self, router):
        def record(module, args, kwargs, output):
            hidden = args[0] if args else next(iter(kwargs.values()))
            found = self._routers_of.routes(router, self._family, self._top_k, hidden, output)
            # A pass of the library's own (warm-up, tracing) routes no token of ours.
            if not self._tracing:
                self._dropped_records += 1
                self._dropped_tokens += len(found)
            elif router.layer in self._layers:
                raise CaptureError(f"{router.name} was called twice in one pass")
            else:
                self._layers[router.layer] = found

        return record


def packages():
    """torch and transformers, or an error that names what is missing or too old."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise CaptureError(
            f"{error}: install the packages of requirements-transformers.txt"
        ) from None
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if version < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise CaptureError(f"transformers {transformers.__version__}, this tool needs {wanted}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return torch, transformers


def load(torch, transformers, args: argparse.Namespace, options: dict[str, bool]):
    """The model in evaluation mode on its device."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    # The old name of the option is ignored by new versions, and the other way round.
    key = "dtype" if version >= (4, 56) else "torch_dtype"
    dtype = args.dtype if args.dtype == "auto" else getattr(torch, args.dtype)
    if args.attention is not None:
        options = options | {"attn_implementation": args.attention}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            args.model, **{key: dtype}, **options
        )
        return model.to(args.device).eval()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise CaptureError(f"{args.model}: {first_line(error)}") from None


def end_tokens(model) -> frozenset[int]:
    """The tokens that end an answer."""
    end = getattr(model.generation_config, "eos_token_id", None)
    if end is None:
        end = []
    return frozenset([end] if isinstance(end, int) else end)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def main() -> int:
    options = parser(__doc__ or "", "folder of the checkpoint, as transformers loads it")
    options.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="type of the weights; auto is the checkpoint's own (default)",
    )
    options.add_argument("--device", default="cpu", help="torch device (default cpu)")
    options.add_argument("--threads", type=int, help="threads of torch on the CPU")
    options.add_argument("--attention", metavar="NAME", help="attention of transformers: eager, ..")
    options.add_argument(
        "--stem", metavar="NAME", help="start of the module names, if several parts have experts"
    )
    options.add_argument("--download", action="store_true", help="allow the hub, not only files")
    options.add_argument(
        "--trust-remote-code", action="store_true", help="run the checkpoint's own Python code"
    )
    args = options.parse_args()
    return run(lambda: TransformersEngine(args), args)


if __name__ == "__main__":
    sys.exit(main())
