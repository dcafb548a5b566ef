"""Finds the router of every MoE layer in a transformers model and reads what it chose.

Routers differ by family and by version of transformers. Three forms of output are understood:

- ids with weights and logits (transformers 5, DeepSeek-V3 and its kin before that);
- ids with a score for every expert (gpt-oss);
- logits alone, where the layer around the router takes the top k of their softmax
  (transformers 4). That is known of the families in SOFTMAX_TOP_K only; for any other family
  logits alone are an error, because a guess would write a wrong trace.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trace_writer import MAX_TOP_K, CaptureError, Routes

LAYER = re.compile(
    r"^(?P<stem>.*?)\b(?:layers|blocks|h)\.(?P<layer>\d+)\.(?:.+\.)?(?:gate|router)$"
)
ROUTER_CLASS = re.compile(r"Router|TopK|MoE\w*Gate")

# Families whose MoE layer computes topk(softmax(logits)) itself, read in transformers 4.57.
SOFTMAX_TOP_K = frozenset(
    """flex_olmo hunyuan_v1_moe jamba minimax mixtral olmoe qwen2_moe qwen3_moe qwen3_next
    qwen3_omni_moe_text qwen3_omni_moe_thinker qwen3_vl_moe qwen3_vl_moe_text""".split()
)

# How a router turns logits into scores: the one that gives the weights that the model computed
# is the one it used.
SCORES: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.sigmoid,
    lambda logits: logits.softmax(-1),
)
BIASES = ("e_score_correction_bias", "expert_bias")


@dataclass(frozen=True)
class RouterModule:
    """The router of one layer."""

    layer: int
    name: str
    module: nn.Module
    block: nn.Module
    """The module that holds the router, its experts and, in some families, its bias."""
    n_experts: int


def find_routers(model: nn.Module, config: object, stem: str | None = None) -> list[RouterModule]:
    """The routers by ascending layer.

    A router is a module `gate` or `router` inside a numbered layer which stands beside
    `experts`, or whose class says that it routes. With `stem`, only those whose name starts so.
    """
    modules = dict(model.named_modules())
    found: dict[str, list[RouterModule]] = {}
    for name, module in modules.items():
        match = LAYER.match(name)
        if match is None or not (stem is None or name.startswith(stem)):
            continue
        block = modules[name.rpartition(".")[0]]
        if not hasattr(block, "experts") and not ROUTER_CLASS.search(type(module).__name__):
            continue
        layer = int(match["layer"])
        router = RouterModule(layer, name, module, block, count_experts(name, module, config))
        found.setdefault(match["stem"], []).append(router)
    if not found:
        raise CaptureError(
            f"no MoE layers in {type(model).__name__}: no `gate` or `router` beside `experts`"
        )
    if len(found) > 1:
        raise CaptureError(f"MoE layers under {sorted(found)}: choose one with --stem")
    routers = sorted(next(iter(found.values())), key=lambda router: router.layer)
    for one, other in itertools.pairwise(routers):
        if one.layer == other.layer:
            raise CaptureError(f"two routers in one layer: {one.name} and {other.name}")
        if one.n_experts != other.n_experts:
            raise CaptureError(
                f"{one.name} has {one.n_experts} experts, {other.name} {other.n_experts}: "
                "the format has one number for all layers"
            )
    return routers


def count_experts(name: str, router: nn.Module, config: object) -> int:
    """Rows of the router's matrix, or what the configuration says where it has none."""
    weight = getattr(router, "weight", None)
    if isinstance(weight, Tensor) and weight.dim() == 2:
        return weight.shape[0]
    for key in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    raise CaptureError(f"{name}: neither its weight nor the configuration counts experts")


def expert_bytes(routers: Iterable[RouterModule]) -> int | None:
    """Bytes of one expert as loaded; none where layers differ or experts are not to be told."""
    sizes = set()
    for router in routers:
        experts = getattr(router.block, "experts", None)
        if not isinstance(experts, nn.Module):
            return None
        total = sum(p.numel() * p.element_size() for p in experts.parameters())
        if total == 0 or total % router.n_experts:
            return None
        sizes.add(total // router.n_experts)
    return sizes.pop() if len(sizes) == 1 else None


def routes(
    router: RouterModule, family: str, top_k: int | None, hidden: Tensor, output: object
) -> Routes:
    """What `router` chose for each token of one pass, best score first.

    `hidden` is the router's input of any shape [.., hidden size], `output` what it returned,
    `top_k` the configuration's, needed where the router returns no ids.
    """
    tokens = hidden.numel() // hidden.shape[-1]
    tensors = [tensor.detach() for tensor in flat(output)]
    floats = [t.reshape(tokens, -1) for t in tensors if t.is_floating_point() and rows(t) == tokens]
    # Two-dimensional at least: some routers also return the tokens by expert as one list.
    ids = [
        t.reshape(tokens, -1)
        for t in tensors
        if not (t.is_floating_point() or t.dtype == torch.bool)
        and t.dim() > 1
        and rows(t) == tokens
    ]
    ids = [t for t in ids if t.shape[1] <= MAX_TOP_K]
    logits = [t for t in floats if t.shape[1] == router.n_experts]
    if len(ids) == 1:
        return best_first(router, hidden, ids[0].long(), floats)
    if not ids and len(floats) == len(logits) == 1 and family in SOFTMAX_TOP_K:
        if top_k is None:
            raise CaptureError(f"{router.name}: the configuration has no num_experts_per_tok")
        return logits[0].float().softmax(-1).topk(top_k, -1).indices.tolist()
    shapes = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors]
    raise CaptureError(
        f"{router.name} ({type(router.module).__name__}, model_type {family}) returned {shapes} "
        f"for {tokens} tokens of {router.n_experts} experts: no form that this tool knows"
    )


def best_first(router: RouterModule, hidden: Tensor, ids: Tensor, floats: list[Tensor]) -> Routes:
    """`ids` [tokens][top_k] by descending score of selection, equal ones in the model's order.

    Models leave the order open (DeepSeek-V3 asks for it unsorted). A bias that only selects is
    part of the score of selection, though not of the weight.
    """
    dense = [t for t in floats if t.shape[1] == router.n_experts]
    narrow = [t for t in floats if t.shape == ids.shape]
    # Where top_k is n_experts both are of one shape; the weights come after the logits.
    weights = narrow[-1].float() if narrow else dense[0].float().gather(1, ids) if dense else None
    if weights is None:
        return ids.tolist()
    score = weights
    bias = correction_bias(router)
    if bias is not None:
        unbiased = scores_of(router, hidden, ids, weights, dense)
        score = unbiased + bias.float().reshape(-1)[ids]
    order = score.argsort(dim=-1, descending=True, stable=True)
    return ids.gather(1, order).tolist()


def correction_bias(router: RouterModule) -> Tensor | None:
    """The bias of selection, wherever the family keeps it."""
    homes = [router.module, router.block, getattr(router.module, "moe_statics", None)]
    for home in homes:
        for name in BIASES:
            bias = getattr(home, name, None)
            if isinstance(bias, Tensor) and bias.numel() == router.n_experts:
                return bias.detach()
    return None


def scores_of(
    router: RouterModule, hidden: Tensor, ids: Tensor, weights: Tensor, dense: list[Tensor]
) -> Tensor:
    """The scores before bias, normalisation and scaling, of `ids` [tokens][top_k].

    Recomputed from the logits by the function that reproduces the model's own weights.
    """
    if dense:
        logits = dense[0].float()
    else:
        vectors = hidden.detach().reshape(-1, hidden.shape[-1]).float()
        matrix = router.module.get_parameter("weight").detach().float()
        logits = nn.functional.linear(vectors, matrix)
    share = weights / weights.sum(-1, keepdim=True)
    for function in SCORES:
        chosen = function(logits).gather(1, ids)
        if torch.allclose(chosen / chosen.sum(-1, keepdim=True), share, rtol=1e-2, atol=1e-4):
            return chosen
    raise CaptureError(f"{router.name}: has a bias of selection, but scores of an unknown kind")


def rows(tensor: Tensor) -> int:
    """Rows of a tensor whose last dimension is a row."""
    return tensor.numel() // tensor.shape[-1] if tensor.dim() and tensor.shape[-1] else 0


def flat(output: object) -> Iterator[Tensor]:
    """Every tensor in nested tuples and lists."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from flat(part)
