#!/usr/bin/env python3
"""Writes tests/data/gguf and gguf-blocks.safetensors: GGUF files made by the `gguf` package from the fixtures, and what the
package makes of every block format's bytes.

    python3 -m venv venv && venv/bin/pip install gguf safetensors numpy
    venv/bin/python make_gguf.py

The files were made with gguf 0.19.0.
"""
import json
import os

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors import safe_open
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.path.join(HERE, "..", "fixtures")
MODEL = os.path.join(HERE, "..", "..", "model")
OUT = os.path.join(HERE, "..", "data", "gguf")
BLOCKS = {"q8_0": T.Q8_0, "q4_0": T.Q4_0, "q4_k": T.Q4_K, "q5_k": T.Q5_K, "q6_k": T.Q6_K, "mxfp4": T.MXFP4}
# Where the 16-bit scales of a block lie.
HALVES = {"q8_0": [0], "q4_0": [0], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208], "mxfp4": []}


def blocks():
    """Random codes with scales of a weight's size, and the package's numbers for them."""
    rng = np.random.default_rng(7)
    out = {}
    for name, kind in BLOCKS.items():
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        count = 2048 // elements
        raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
        for at in HALVES[name]:
            scale = rng.uniform(-0.02, 0.02, count).astype(np.float16)
            raw[:, at : at + 2] = scale.view(np.uint8).reshape(count, 2)
        if name == "mxfp4":
            raw[:, 0] = rng.integers(100, 140, count)
            raw[:3, 0] = [0, 1, 2]
        out[f"{name}.bytes"] = raw
        out[f"{name}.values"] = gguf.quants.dequantize(raw, kind).astype(np.float32).reshape(-1)
    save_file(out, f"{OUT}-blocks.safetensors")


def load(fixture):
    """All tensors by name: (array, stored type); BF16 as the upper halves of F32."""
    folder, tensors = os.path.join(FIXTURES, fixture), {}
    for file in sorted(os.listdir(folder)):
        if not (file.startswith("model") and file.endswith(".safetensors")):
            continue
        path = f"{folder}/{file}"
        with open(path, "rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
        data = np.memmap(path, np.uint8, "r", offset=8 + size)
        for name, row in header.items():
            if name == "__metadata__":
                continue
            raw = data[row["data_offsets"][0] : row["data_offsets"][1]]
            kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I32": np.int32, "I64": np.int64}[row["dtype"]]
            tensors[name] = (np.frombuffer(raw, kind).reshape(row["shape"]), row["dtype"])
    return json.load(open(f"{folder}/config.json")), unpacked(tensors)


def unpacked(tensors):
    """compressed-tensors' `pack-quantized` int4 (eight a word, the lowest first, 8 stands for 0) as F32; others as they are."""
    out = {}
    for name, tensor in tensors.items():
        stem, ending = name.rsplit(".", 1)
        if ending in ("weight_scale", "weight_shape"):
            continue
        if ending != "weight_packed":
            out[name] = tensor
            continue
        scales = single(*tensors[f"{stem}.weight_scale"])
        rows, columns = (int(size) for size in tensors[f"{stem}.weight_shape"][0])
        codes = tensor[0].view(np.uint32)[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
        codes = codes.reshape(rows, -1)[:, :columns].astype(np.float32) - 8
        out[f"{stem}.weight"] = (codes * np.repeat(scales, columns // scales.shape[1], axis=1), "F32")
    return out


def single(array, dtype):
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


RENAMED = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


# The names that only deepseek2 has.
RENAMED |= {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}


def common(writer, config, own, norm_unsaid):
    """Keys that every architecture has; `own` adds the others. llama.cpp's converters leave out
    whether weights are normalised where that is `norm_unsaid`."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(config.get("num_experts", config.get("n_routed_experts")))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_head_count(config["num_attention_heads"])
    own(writer, config)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if config["norm_topk_prob"] != norm_unsaid:
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    scaling = config.get("rope_scaling")
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def qwen3moe(writer, config):
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])


def deepseek2(writer, config, split):
    """The keys of llama.cpp's converter; `split`: of files with an absorbed attention."""
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    whole, value = config["qk_nope_head_dim"] + rope, config["v_head_dim"]
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_vocab_size(config["vocab_size"])
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_head_count_kv(1 if split else config["num_attention_heads"])
    writer.add_key_length(rank + rope if split else whole)
    writer.add_value_length(rank if split else value)
    if split:
        writer.add_key_length_mla(whole)
        writer.add_value_length_mla(value)
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    writer.add_rope_dimension_count(rope)
    scaling = config.get("rope_scaling")
    if scaling:
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def key_values(config, stem, array):
    """The joint up-projection of keys and values, by head and apart; keys transposed."""
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    by_head = array.reshape(config["num_attention_heads"], nope + value, array.shape[-1])
    return {f"{stem}.attn_k_b.weight": by_head[:, :nope].transpose(0, 2, 1), f"{stem}.attn_v_b.weight": by_head[:, nope:]}


def model(fixture, target, choose, split_max_tensors=0, describe=None, split=True):
    """A GGUF file of a fixture or of another folder; `choose(name)` is the type of a matrix, `None` keeps the stored one,
    `describe(writer, config)` adds metadata, `split`: whether a latent attention's `kv_b` is stored as `k_b` and `v_b`."""
    config, tensors = load(fixture)
    config = config.get("text_config", config)
    latent = "kv_lora_rank" in config
    arch = "deepseek2" if latent else "qwen3moe"
    out = os.path.join(OUT, f"{target}.gguf")
    writer = gguf.GGUFWriter(out, arch, split_max_tensors=split_max_tensors)
    writer.add_name(os.path.basename(fixture))
    if describe:
        describe(writer, config)
    own = (lambda writer, config: deepseek2(writer, config, split)) if latent else qwen3moe
    common(writer, config, own, norm_unsaid=not latent)

    def add(name, arrays):
        stored = arrays[0][1]
        array = np.stack([a for a, _ in arrays]) if name.endswith("_exps.weight") else arrays[0][0]
        kind = choose(name) if array.ndim > 1 and "ffn_gate_inp" not in name else T.F32
        # A row that is no whole number of blocks stays a float, as llama.cpp's tools have it.
        if kind not in (None, T.F32) and array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = T.F16
        if kind is None and stored != "F32":
            if stored == "F16":
                writer.add_tensor(name, np.ascontiguousarray(array))
            else:
                raw = np.ascontiguousarray(array).view(np.uint8)
                writer.add_tensor(name, raw, raw_dtype=T.BF16)
            return
        values = np.ascontiguousarray(single(array, stored))
        if kind in (None, T.F32):
            writer.add_tensor(name, values)
        elif kind == T.F16:
            writer.add_tensor(name, values.astype(np.float16))
        else:
            raw = gguf.quants.quantize(values, kind)
            writer.add_tensor(name, raw, raw_dtype=kind)

    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}
    stacks = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("language_model.")
        if name in top:
            if name == "lm_head.weight" and config.get("tie_word_embeddings"):
                continue
            add(top[name], [tensor])
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        if int(layer) >= config["num_hidden_layers"]:
            continue
        if rest.startswith("mlp.experts."):
            expert, projection, _ = rest.removeprefix("mlp.experts.").split(".")
            key = f"blk.{layer}.ffn_{projection.removesuffix('_proj')}_exps.weight"
            stacks.setdefault(key, {})[int(expert)] = tensor
        elif rest == "mlp.gate.e_score_correction_bias":
            add(f"blk.{layer}.exp_probs_b.bias", [tensor])
        elif rest == "self_attn.kv_b_proj.weight" and split:
            for part, array in key_values(config, f"blk.{layer}", tensor[0]).items():
                add(part, [(array, tensor[1])])
        else:
            stem, ending = rest.rsplit(".", 1)
            add(f"blk.{layer}.{RENAMED[stem]}.{ending}", [tensor])
    for name, experts in stacks.items():
        add(name, [experts[index] for index in sorted(experts)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokenizer():
    """The bundled tokenizer as metadata, as llama.cpp's converter writes one of Qwen's."""
    source = json.load(open(f"{MODEL}/tokenizer.json"))
    added = {token["id"]: token for token in source["added_tokens"]}
    vocab = {number: text for text, number in source["model"]["vocab"].items()}
    tokens, types = [], []
    for number in range(max(list(vocab) + list(added)) + 1):
        special = added.get(number)
        tokens.append(special["content"] if special else vocab[number])
        kind = gguf.TokenType.NORMAL
        if special:
            kind = gguf.TokenType.CONTROL if special["special"] else gguf.TokenType.USER_DEFINED
        types.append(kind)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in source["model"]["merges"]]
    writer = gguf.GGUFWriter(f"{OUT}/tokenizer.gguf", "qwen3moe")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(next(n for n, t in added.items() if t["content"] == "<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def mixed(name):
    """Experts in Q8_0, Q4_0 and MXFP4 by layer and projection, the dense part in Q8_0."""
    if "_exps" not in name:
        return T.Q8_0
    return {"gate": T.Q4_0, "up": T.MXFP4, "down": T.Q8_0}[name.split("ffn_")[1].split("_")[0]]


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    blocks()
    model("qwen3moe-bf16", "qwen3moe-bf16", lambda name: None)
    model("qwen3moe-edge-f16-sharded", "qwen3moe-edge-f16", lambda name: None, split_max_tensors=12)
    model("qwen3moe-f32", "qwen3moe-q8_0", lambda name: T.Q8_0)
    model("qwen3moe-f32", "qwen3moe-mixed", mixed)
    model("deepseek-v3-f32", "deepseek-v3-f32", lambda name: None)
    model("deepseek-v3-noqlora-f16", "deepseek-v3-noqlora-f16", lambda name: None)
    model("deepseek-v3-noqlora-f16", "deepseek-v3-noqlora-joint-f16", lambda name: None, split=False)
    model("deepseek-v3-bf16-mtp", "deepseek-v3-bf16", lambda name: None)
    model("kimi-k2-bf16", "kimi-k2-bf16", lambda name: None)
    model("kimi-k2-bf16", "kimi-k2-q8_0", lambda name: T.Q8_0)
    tokenizer()
