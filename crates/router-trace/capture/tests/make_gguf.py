#!/usr/bin/env python3
"""Writes a Qwen3-MoE checkpoint in hub layout as GGUF, every tensor in float32.

For the tests, whose checkpoints have no tokenizer: the file gets one of single bytes, so that
text and token ids can both be given.

usage: make_gguf.py CHECKPOINT_FOLDER OUT.gguf
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

ARCHITECTURE = "qwen3moe"
# Hub name in a layer: GGUF name in a block.
LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
}
TENSORS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def describe(writer: gguf.GGUFWriter, config: dict, name: str) -> None:
    writer.add_name(name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_vocab_size(config["vocab_size"])


def add_byte_tokenizer(writer: gguf.GGUFWriter, config: dict) -> None:
    assert config["vocab_size"] == 256, "one token a byte"
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<0x{byte:02X}>" for byte in range(256)])
    writer.add_token_scores([0.0] * 256)
    writer.add_token_types([gguf.TokenType.BYTE] * 256)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def main() -> None:
    folder, out = Path(sys.argv[1]), sys.argv[2]
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(out, ARCHITECTURE)
    describe(writer, config, folder.name)
    add_byte_tokenizer(writer, config)

    def take(name: str) -> np.ndarray:
        return weights.pop(name).astype(np.float32)

    for hub, ours in TENSORS.items():
        writer.add_tensor(f"{ours}.weight", take(f"{hub}.weight"))
    for layer in range(config["num_hidden_layers"]):
        for hub, ours in LAYER_TENSORS.items():
            writer.add_tensor(
                f"blk.{layer}.{ours}.weight", take(f"model.layers.{layer}.{hub}.weight")
            )
        for part in ("gate", "up", "down"):
            stack = [
                take(f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight")
                for expert in range(config["num_experts"])
            ]
            writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", np.stack(stack))
    assert not weights, f"tensors left over: {sorted(weights)}"
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
