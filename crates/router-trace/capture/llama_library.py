"""llama.cpp's C interface as the package `llama-cpp-python` brings it.

The package declares llama.cpp's own functions and structures; those of ggml, the tensor library
below, which the package links but does not declare, are declared here.
"""

import ctypes
import importlib
from ctypes import Structure, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

from trace_writer import CaptureError

TESTED = "0.3.36"


class GgufParams(Structure):
    """`struct gguf_init_params`."""

    _fields_ = [("no_alloc", c_bool), ("ctx", c_void_p)]


class TensorHead(Structure):
    """The first fields of `struct ggml_tensor`: type, place, elements and strides in bytes."""

    _fields_ = [
        ("type", c_int),
        ("buffer", c_void_p),
        ("ne", c_int64 * 4),
        ("nb", c_size_t * 4),
    ]


# Name: (result, arguments).
GGML: dict[str, tuple[Any, list[Any]]] = {
    "ggml_get_name": (c_char_p, [c_void_p]),
    "ggml_nelements": (c_int64, [c_void_p]),
    "ggml_nbytes": (c_size_t, [c_void_p]),
    "ggml_backend_tensor_get": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "gguf_init_from_file": (c_void_p, [c_char_p, GgufParams]),
    "gguf_get_n_tensors": (c_int64, [c_void_p]),
    "gguf_get_tensor_name": (c_char_p, [c_void_p, c_int64]),
    "gguf_get_tensor_size": (c_size_t, [c_void_p, c_int64]),
    "gguf_free": (None, [c_void_p]),
}

LLAMA = """ggml_backend_sched_eval_callback llama_backend_init llama_batch_init
llama_context_default_params llama_decode llama_get_memory llama_init_from_model
llama_log_callback llama_log_set llama_memory_clear llama_model_default_params
llama_model_get_vocab llama_model_load_from_file llama_model_meta_val_str llama_model_n_ctx_train
llama_sampler_chain_add llama_sampler_chain_default_params llama_sampler_chain_init
llama_sampler_init_dist llama_sampler_init_greedy llama_sampler_init_temp llama_sampler_sample
llama_set_warmup llama_tokenize llama_vocab_is_eog llama_vocab_n_tokens""".split()


class Library:
    """The functions of LLAMA and GGML as attributes."""

    def __init__(self) -> None:
        try:
            package = importlib.import_module("llama_cpp")
            low_level = importlib.import_module("llama_cpp.llama_cpp")
        except (ImportError, OSError, RuntimeError) as error:
            raise CaptureError(f"llama-cpp-python {TESTED} is needed: {error}") from None
        self.package = f"llama-cpp-python {package.__version__}"
        missing = [name for name in LLAMA if not hasattr(low_level, name)]
        for name in LLAMA:
            setattr(self, name, getattr(low_level, name, None))
        # Looking up a name in this library also searches the ones that it is linked to, ggml's.
        # A handle of our own leaves the package's declarations alone.
        handle = ctypes.CDLL(low_level._lib._name)
        for name, (result, arguments) in GGML.items():
            try:
                function = handle[name]
            except AttributeError:
                missing.append(name)
                continue
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        if missing:
            raise CaptureError(
                f"{self.package} lacks {', '.join(missing)}; this tool is tested with {TESTED}"
            )
