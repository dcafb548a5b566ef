"""Reads the routes out of llama.cpp while it evaluates a graph.

llama.cpp asks the callback about each tensor of the graph, computes up to the ones it is told
to, and calls again when they are there. The ids chosen at a layer are the tensor
`ffn_moe_topk-<layer>`, best score (with the bias of selection, where a model has one) first.
"""

import ctypes
from collections.abc import Callable

from llama_library import GgufParams, Library, TensorHead
from trace_writer import CaptureError, Routes

PREFIX = b"ffn_moe_topk-"
TYPE_I32 = 26
MAX_READ_BYTES = 64 << 20


class RouteTap:
    """The callback and what it has seen.

    A row belongs to a token of ours only if it is computed in a pass that we asked for and is
    `top_k` wide. Others come from dry runs: the warm-up of llama.cpp routes every token to all
    experts so that their weights are read, and a scheduler may evaluate a graph of its own.
    They are dropped and counted.
    """

    def __init__(self, library: Library, top_k: int, n_experts: int) -> None:
        self._library = library
        self._top_k = top_k
        self._n_experts = n_experts
        self._armed = False
        self._layers: dict[int, Routes] = {}
        self._error: BaseException | None = None
        self.dropped_records = 0
        self.dropped_tokens = 0
        # llama.cpp keeps the address, so the object must live as long as the context.
        self.callback = library.ggml_backend_sched_eval_callback(self._on_tensor)

    def during(self, forward: Callable[[], None]) -> dict[int, Routes]:
        """Runs one pass and returns its routes by layer."""
        self._layers = {}
        self._armed = True
        try:
            forward()
        finally:
            self._armed = False
        self.check()
        return self._layers

    def check(self) -> None:
        """Raises what went wrong inside the callback, from where nothing can be raised."""
        if self._error is not None:
            raise self._error

    def _on_tensor(self, tensor: int, ask: bool, _: object) -> bool:
        try:
            name = self._library.ggml_get_name(tensor) or b""
            if not name.startswith(PREFIX):
                return not ask
            if not ask:
                self._take(int(name[len(PREFIX) :]), self._read(tensor, name.decode()))
            return True
        except BaseException as error:  # noqa: BLE001 - an exception cannot cross the C frames
            self._error = self._error or error
            # False after a tensor was computed stops the rest of the graph.
            return False

    def _take(self, layer: int, rows: list[list[int]]) -> None:
        warm_up = len(rows[0]) == self._n_experts != self._top_k
        if not self._armed or warm_up:
            self.dropped_records += 1
            self.dropped_tokens += len(rows)
        elif layer in self._layers:
            raise CaptureError(f"layer {layer} was computed twice in one pass")
        else:
            self._layers[layer] = rows

    def _read(self, tensor: int, name: str) -> list[list[int]]:
        """[tokens][width] ids. The tensor is a view of the sorted ids of all experts, so its
        rows lie as far apart as a row of those is long."""
        head = ctypes.cast(tensor, ctypes.POINTER(TensorHead)).contents
        width, tokens, *rest = head.ne
        step, stride = head.nb[0], head.nb[1]
        size = self._library.ggml_nbytes(tensor)
        layout = f"{name}: type {head.type}, ne {list(head.ne)}, nb {list(head.nb)}"
        if head.type != TYPE_I32 or step != 4 or rest != [1, 1] or width < 1 or tokens < 1:
            raise CaptureError(f"{layout}: not a matrix of 32-bit ids")
        if self._library.ggml_nelements(tensor) != width * tokens:
            raise CaptureError(f"{layout}: not the layout of a tensor that this tool knows")
        if size != (tokens - 1) * stride + width * step or size > MAX_READ_BYTES:
            raise CaptureError(f"{layout}: {size} bytes")
        data = (ctypes.c_char * size)()
        self._library.ggml_backend_tensor_get(tensor, data, 0, size)
        words = memoryview(data).cast("B").cast("i")
        starts = range(0, tokens * stride // 4, stride // 4)
        return [words[start : start + width].tolist() for start in starts]


def expert_bytes(library: Library, path: str, n_experts: int, layers: set[int]) -> int | None:
    """Bytes of one expert in the file; none where layers differ, as in many quantised files,
    or where the file does not hold all of `layers` (a model in several files)."""
    file = library.gguf_init_from_file(path.encode(), GgufParams(no_alloc=True, ctx=None))
    if not file:
        return None
    sizes: dict[int, int] = {}
    try:
        for index in range(library.gguf_get_n_tensors(file)):
            parts = library.gguf_get_tensor_name(file, index).decode().split(".")
            # blk.3.ffn_gate_exps.weight
            if len(parts) > 2 and parts[0] == "blk" and parts[2].endswith("_exps"):
                layer = int(parts[1])
                sizes[layer] = sizes.get(layer, 0) + library.gguf_get_tensor_size(file, index)
    finally:
        library.gguf_free(file)
    totals = {sizes.get(layer) for layer in layers}
    if len(totals) != 1:
        return None
    total = totals.pop()
    return total // n_experts if total and total % n_experts == 0 else None
