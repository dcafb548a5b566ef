#!/usr/bin/env python3
"""Decodes greedily with llama.cpp, as the package llama-cpp-python brings it: the other side of
side_by_side.py.

  decode.py REQUEST   one object: model, prompt (token ids), tokens, threads; answers with one
  decode.py --check   only says what is installed

Time is what is spent inside llama.cpp, in decoding and in drawing the token; the loop around it
is not counted. The first token comes out of the prompt's pass and does not count.
"""

import ctypes
import importlib
import importlib.metadata
import json
import os
import sys
import time

LOG_WARN = 3


def check() -> dict:
    lib = importlib.import_module("llama_cpp.llama_cpp")
    return {
        "llama_cpp": importlib.metadata.version("llama-cpp-python"),
        "gguf": importlib.metadata.version("gguf"),
        "system": lib.llama_print_system_info().decode().strip(),
    }


def process_read_bytes() -> int | None:
    """Bytes that this process made the block layer read."""
    try:
        with open("/proc/self/io") as text:
            rows = dict(line.split(": ") for line in text)
        return int(rows["read_bytes"])
    except (OSError, KeyError):
        return None


def device_read_bytes(path: str) -> int | None:
    """Bytes that the device below `path` read, for whomever."""
    device = os.stat(path).st_dev
    try:
        with open(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat") as text:
            return int(text.read().split()[2]) * 512
    except OSError:
        return None


def since(now: int | None, then: int | None) -> int | None:
    return None if now is None or then is None else now - then


class Decoder:
    """A model in one context with one sequence, all settings llama.cpp's own."""

    def __init__(self, request: dict) -> None:
        self._lib = lib = importlib.import_module("llama_cpp.llama_cpp")
        self._request = request
        self._problem = ""
        self._log = lib.llama_log_callback(self._on_log)
        lib.llama_log_set(self._log, None)
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        model = lib.llama_model_load_from_file(request["model"].encode(), params)
        if not model:
            raise RuntimeError(f"{request['model']}: not loaded: {self._problem}")
        params = lib.llama_context_default_params()
        params.n_ctx = len(request["prompt"]) + request["tokens"]
        params.n_threads = params.n_threads_batch = request["threads"]
        params.no_perf = True
        self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"{request['model']}: no context: {self._problem}")
        self._sampler = lib.llama_sampler_init_greedy()

    def run(self) -> dict:
        path = self._request["model"]
        token, prompt_seconds = self._step(self._request["prompt"])
        tokens, seconds = [token], 0.0
        before = (process_read_bytes(), device_read_bytes(path))
        for _ in range(1, self._request["tokens"]):
            token, spent = self._step([token])
            tokens.append(token)
            seconds += spent
        return {
            "token_ids": tokens,
            "prompt_seconds": prompt_seconds,
            "seconds": seconds,
            "process_bytes": since(process_read_bytes(), before[0]),
            "device_bytes": since(device_read_bytes(path), before[1]),
        }

    def _step(self, ids: list[int]) -> tuple[int, float]:
        lib = self._lib
        array = (ctypes.c_int32 * len(ids))(*ids)
        started = time.perf_counter()
        status = lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(ids)))
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}: {self._problem}")
        token = lib.llama_sampler_sample(self._sampler, self._context, -1)
        return token, time.perf_counter() - started

    def _on_log(self, level: int, text: bytes | None, _: object) -> None:
        if level >= LOG_WARN and text:
            self._problem = text.decode(errors="replace").strip()


def main() -> int:
    answer = check() if sys.argv[1] == "--check" else Decoder(json.loads(sys.argv[1])).run()
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ImportError, OSError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
