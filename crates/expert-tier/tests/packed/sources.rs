//! Small checkpoints in every supported layout, with bytes that are all different.

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

pub(crate) const LAYERS: usize = 2;
pub(crate) const EXPERTS: usize = 4;
pub(crate) const HIDDEN: usize = 256;
pub(crate) const INNER: usize = 128;

type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

fn size(dtype: Dtype) -> usize {
    match dtype {
        Dtype::I64 => 8,
        Dtype::F32 | Dtype::I32 => 4,
        Dtype::BF16 => 2,
        Dtype::F8_E4M3 => 1,
        _ => panic!("{dtype:?}"),
    }
}

fn tensor(name: impl Into<String>, dtype: Dtype, shape: &[usize]) -> Tensor {
    let name = name.into();
    let len = shape.iter().product::<usize>() * size(dtype);
    // A counter-based generator, seeded by the name.
    let mut state = name.bytes().fold(7_u64, |hash, b| hash.wrapping_mul(31) + u64::from(b));
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as u8
    });
    (name, dtype, shape.to_vec(), bytes.take(len).collect())
}

fn spine() -> Vec<Tensor> {
    let mut tensors = vec![
        tensor("model.embed_tokens.weight", Dtype::BF16, &[50, HIDDEN]),
        tensor("model.norm.weight", Dtype::BF16, &[HIDDEN]),
        tensor("lm_head.weight", Dtype::BF16, &[50, HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let name = format!("model.layers.{layer}.mlp.gate.weight");
        tensors.push(tensor(name, Dtype::F32, &[EXPERTS, HIDDEN]));
    }
    tensors
}

fn projections() -> [(&'static str, usize, usize); 3] {
    [("gate_proj", INNER, HIDDEN), ("up_proj", INNER, HIDDEN), ("down_proj", HIDDEN, INNER)]
}

fn per_expert(make: impl Fn(&str, usize, usize) -> Vec<Tensor>) -> Vec<Tensor> {
    let mut tensors = spine();
    for layer in 0..LAYERS {
        for expert in 0..EXPERTS {
            for (projection, rows, cols) in projections() {
                let name = format!("model.layers.{layer}.mlp.experts.{expert}.{projection}");
                tensors.extend(make(&name, rows, cols));
            }
        }
    }
    tensors
}

fn config() -> Value {
    json!({
        "model_type": "qwen3_moe", "num_hidden_layers": LAYERS, "hidden_size": HIDDEN,
        "moe_intermediate_size": INNER, "num_experts": EXPERTS, "num_experts_per_tok": 2,
        "tie_word_embeddings": false, "norm_topk_prob": true,
    })
}

fn write(path: &Path, tensors: &[Tensor]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn write_config(dir: &Path, config: &Value) {
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("tokenizer.json"), "{\"a\":1}").unwrap();
    fs::write(dir.join("chat_template.jinja"), "{{ x }}").unwrap();
    fs::write(dir.join("README.md"), "stays behind").unwrap();
}

fn bf16() -> Vec<Tensor> {
    per_expert(|name, rows, cols| {
        vec![tensor(format!("{name}.weight"), Dtype::BF16, &[rows, cols])]
    })
}

pub(crate) fn write_bf16(dir: &Path) {
    write(&dir.join("model.safetensors"), &bf16());
    write_config(dir, &config());
}

pub(crate) fn write_shards(dir: &Path) {
    let mut map = serde_json::Map::new();
    let names: Vec<String> =
        (1..=3).map(|n| format!("model-0000{n}-of-00003.safetensors")).collect();
    let mut shards: [Vec<Tensor>; 3] = Default::default();
    // Neighbouring tensors lie in different files.
    for (number, tensor) in bf16().into_iter().enumerate() {
        map.insert(tensor.0.clone(), json!(names[number % 3]));
        shards[number % 3].push(tensor);
    }
    for (name, tensors) in names.iter().zip(&shards) {
        write(&dir.join(name), tensors);
    }
    let index = json!({ "metadata": {}, "weight_map": map });
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    write_config(dir, &config());
}

pub(crate) fn write_stacks(dir: &Path) {
    let mut tensors = spine();
    for layer in 0..LAYERS {
        let name = |what: &str| format!("model.layers.{layer}.mlp.experts.{what}");
        tensors.push(tensor(name("gate_up_proj"), Dtype::BF16, &[EXPERTS, 2 * INNER, HIDDEN]));
        tensors.push(tensor(name("down_proj"), Dtype::BF16, &[EXPERTS, HIDDEN, INNER]));
    }
    write(&dir.join("model.safetensors"), &tensors);
    write_config(dir, &config());
}

/// The writer sorts by element type: weights, scales and shapes of an expert lie far apart.
pub(crate) fn write_int4(dir: &Path) {
    let tensors = per_expert(|name, rows, cols| {
        vec![
            tensor(format!("{name}.weight_packed"), Dtype::I32, &[rows, cols / 8]),
            tensor(format!("{name}.weight_scale"), Dtype::BF16, &[rows, cols / 32]),
            tensor(format!("{name}.weight_shape"), Dtype::I64, &[2]),
        ]
    });
    write(&dir.join("model.safetensors"), &tensors);
    let mut config = config();
    config["quantization_config"] = json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": { "group_0": { "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": true,
        } } },
    });
    write_config(dir, &config);
}

/// Scales of three values: the parts behind them need padding.
pub(crate) fn write_fp8(dir: &Path) {
    let tensors = per_expert(|name, rows, cols| {
        vec![
            tensor(format!("{name}.weight"), Dtype::F8_E4M3, &[rows, cols]),
            tensor(
                format!("{name}.weight_scale_inv"),
                Dtype::F32,
                &[rows.div_ceil(48), cols.div_ceil(256)],
            ),
        ]
    });
    write(&dir.join("model.safetensors"), &tensors);
    let mut config = config();
    config["quantization_config"] =
        json!({ "quant_method": "fp8", "weight_block_size": [48, 256] });
    write_config(dir, &config);
}
