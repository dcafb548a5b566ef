//! Layouts of real checkpoints in miniature: names, prefixes, quantisations, stacks.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Tensor, tensor, write};
use expert_tier::pool::{Dtype, Family, Part, PartRole, Quantization, ScaleGrid};
use expert_tier::{Pool, TierError};
use router_trace::ExpertId;
use serde_json::{Value, json};
use std::fs;

const HIDDEN: u64 = 48;
const INNER: u64 = 40;

fn open(config: &Value, tensors: &[Tensor]) -> Result<Pool, TierError> {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("model.safetensors"), tensors);
    if !config.is_null() {
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    }
    Pool::open(dir.path())
}

fn config(model_type: &str, more: &Value) -> Value {
    let mut config = json!({ "model_type": model_type, "num_hidden_layers": 2, "hidden_size": HIDDEN,
        "moe_intermediate_size": INNER, "num_experts": 3, "num_experts_per_tok": 2,
        "tie_word_embeddings": false });
    if matches!(model_type, "deepseek_v3" | "kimi_k2" | "kimi_linear") {
        config["first_k_dense_replace"] = json!(0);
    }
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config
}

/// Both layers with three experts each; `make` writes the tensors of one projection.
fn experts(
    block: &str,
    names: [&str; 3],
    make: impl Fn(&str, u64, u64) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    for layer in 0..2 {
        for expert in 0..3 {
            for (name, [rows, cols]) in
                names.into_iter().zip([[INNER, HIDDEN], [INNER, HIDDEN], [HIDDEN, INNER]])
            {
                let base = block.replace("{}", &layer.to_string());
                tensors.extend(make(&format!("{base}.{expert}.{name}"), rows, cols));
            }
        }
    }
    tensors
}

const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

fn plain(name: &str, rows: u64, cols: u64) -> Vec<Tensor> {
    vec![tensor(format!("{name}.weight"), "BF16", &[rows, cols])]
}

fn shape(part: &Part) -> (Dtype, u32, u32) {
    (part.dtype, part.rows, part.cols)
}

#[test]
fn every_prefix_and_block_name_gives_the_same_layout() {
    let qwen = config("qwen3_moe", &Value::Null);
    let reference =
        open(&qwen, &experts("model.layers.{}.mlp.experts", PROJECTIONS, plain)).unwrap();
    assert_eq!(reference.layout().total_experts(), 6);
    assert_eq!(reference.layout().total_bytes(), 6 * 3 * 2 * HIDDEN * INNER);
    for (block, names) in [
        ("model.language_model.layers.{}.mlp.experts", PROJECTIONS),
        ("language_model.model.layers.{}.mlp.experts", PROJECTIONS),
        ("layers.{}.mlp.experts", PROJECTIONS),
        ("model.layers.{}.block_sparse_moe.experts", ["w1", "w3", "w2"]),
    ] {
        let pool = open(&qwen, &experts(block, names, plain)).unwrap();
        for (id, expert) in pool.layout().iter() {
            let wanted = reference.layout().expert(id).unwrap();
            for (part, wanted) in expert.parts.iter().zip(&wanted.parts) {
                assert_eq!((part.role, shape(part)), (wanted.role, shape(wanted)), "{block}");
            }
        }
    }
}

#[test]
fn foreign_tensors_are_kept_apart() {
    let nested =
        json!({ "model_type": "kimi_k25", "text_config": config("kimi_k2", &Value::Null) });
    let mut tensors = experts("language_model.model.layers.{}.mlp.experts", PROJECTIONS, plain);
    tensors.push(tensor("language_model.lm_head.weight", "BF16", &[7, HIDDEN]));
    tensors.push(tensor("language_model.model.embed_tokens.weight", "BF16", &[7, HIDDEN]));
    tensors.push(tensor("vision_tower.patch_embed.proj.weight", "BF16", &[8, 3, 2, 2]));
    tensors.push(tensor("mm_projector.pre_norm.weight", "BF16", &[8]));
    let pool = open(&nested, &tensors).unwrap();
    assert_eq!(pool.spine().keys().collect::<Vec<_>>(), ["embed_tokens.weight", "lm_head.weight"]);
    assert_eq!((pool.foreign().tensors, pool.foreign().bytes), (2, 208));
    assert_eq!(pool.config().unwrap().family, Family::KimiK2);
    assert!(pool.notices().iter().all(|notice| !notice.warning), "{:?}", pool.notices());
}

#[test]
fn prediction_layers_are_counted_and_left_out() {
    let config =
        config("deepseek_v3", &json!({ "num_hidden_layers": 1, "num_nextn_predict_layers": 1 }));
    let mut tensors = experts("model.layers.{}.mlp.experts", PROJECTIONS, plain);
    tensors.push(tensor("model.layers.1.eh_proj.weight", "BF16", &[2, 2]));
    let pool = open(&config, &tensors).unwrap();
    assert_eq!(pool.layout().moe_layers().collect::<Vec<_>>(), [0]);
    assert_eq!(pool.layout().extra_layers().collect::<Vec<_>>(), [(1, 3)]);
    assert_eq!(pool.beyond_last_layer().tensors, 10);
    assert!(pool.spine().is_empty());
}

fn int4(name: &str, rows: u64, cols: u64) -> Vec<Tensor> {
    vec![
        tensor(format!("{name}.weight_packed"), "I32", &[rows, cols.div_ceil(8)]),
        tensor(format!("{name}.weight_scale"), "BF16", &[rows, cols.div_ceil(32)]),
        tensor(format!("{name}.weight_shape"), "I64", &[2]),
    ]
}

fn int4_config() -> Value {
    json!({ "quantization_config": { "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": { "group_0": { "weights": { "num_bits": 4, "type": "int",
            "strategy": "group", "group_size": 32, "symmetric": true, "actorder": null } } } } })
}

#[test]
fn packed_experts_keep_their_shapes_aside() {
    let config = config("kimi_k2", &int4_config());
    let tensors = experts("model.layers.{}.mlp.experts", PROJECTIONS, int4);
    let pool = open(&config, &tensors).unwrap();
    let expert = pool.layout().expert(ExpertId::new(1, 2)).unwrap();
    assert_eq!(expert.parts.len(), 6);
    assert_eq!(shape(expert.part(PartRole::Gate).unwrap()), (Dtype::I32, 40, 6));
    assert_eq!(shape(expert.part(PartRole::DownScale).unwrap()), (Dtype::Bf16, 48, 2));
    assert_eq!(expert.extents.len(), 1, "shapes between the parts are read over");
    assert_eq!(pool.weight_shapes().len(), 18);
    let last = pool.weight_shapes().last().unwrap();
    assert_eq!((last.id, last.role, last.dtype), (ExpertId::new(1, 2), PartRole::Down, Dtype::I64));

    let wrong = experts("model.layers.{}.mlp.experts", PROJECTIONS, |name, rows, cols| {
        let mut tensors = int4(name, rows, cols);
        tensors[1].shape[1] = 7;
        tensors
    });
    let error = open(&config, &wrong).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
    let text = error.to_string();
    assert!(text.contains("model.layers.0.mlp.experts.0.gate_proj.weight_scale"), "{text}");
    assert!(text.contains("40x2") && text.contains("40x7"), "{text}");
}

#[test]
fn kimi_k3_experts_have_a_width_of_their_own() {
    let text = json!({ "model_type": "kimi_linear", "num_hidden_layers": 2, "hidden_size": 96,
        "routed_expert_hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 3,
        "num_experts_per_token": 2, "first_k_dense_replace": 0, "moe_renormalize": true,
        "quantization_config": { "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized", "config_groups": { "group_0": { "weights": {
                "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32 } } } } });
    let config = json!({ "model_type": "kimi_k3", "text_config": text });
    let make = |down_rows: u64| {
        let block = "language_model.model.layers.{}.block_sparse_moe.experts";
        experts(block, ["w1", "w3", "w2"], |name, _, _| {
            let (rows, cols) = if name.ends_with("w2") { (down_rows, 32) } else { (32, 64) };
            vec![
                tensor(format!("{name}.weight_packed"), "U8", &[rows, cols / 2]),
                tensor(format!("{name}.weight_scale"), "U8", &[rows, cols / 32]),
            ]
        })
    };
    let pool = open(&config, &make(64)).unwrap();
    let found = pool.config().unwrap();
    assert_eq!(
        (found.family, found.expert_width(), found.top_k),
        (Family::KimiK3, Some(64), Some(2))
    );
    assert_eq!(found.quantization, Quantization::Mxfp4 { group: 32 });
    assert_eq!(pool.layout().expert(ExpertId::new(1, 2)).unwrap().parts.len(), 6);
    let error = open(&config, &make(96)).unwrap_err();
    assert!(error.to_string().contains("w2.weight_packed: needs [64, 16]"), "{error}");
}

fn fp8(name: &str, rows: u64, cols: u64) -> Vec<Tensor> {
    vec![
        tensor(format!("{name}.weight"), "F8_E4M3", &[rows, cols]),
        tensor(format!("{name}.weight_scale_inv"), "F32", &[rows.div_ceil(32), cols.div_ceil(32)]),
    ]
}

#[test]
fn fp8_scales_follow_the_configs_block() {
    let tensors = experts("model.layers.{}.mlp.experts", PROJECTIONS, fp8);
    let block = |size: u64| json!({ "quantization_config": { "quant_method": "fp8", "weight_block_size": [size, size] } });
    let pool = open(&config("deepseek_v3", &block(32)), &tensors).unwrap();
    assert_eq!(pool.config().unwrap().quantization, Quantization::Fp8 { block: Some([32, 32]) });
    for (config, needed) in [
        (config("deepseek_v3", &block(16)), "3x3"),
        (config("deepseek_v3", &Value::Null), "no weight_block_size"),
        (Value::Null, "no weight_block_size"),
    ] {
        let error = open(&config, &tensors).unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == "config-inconsistent" && text.contains(needed), "{text}");
        assert!(text.contains("weight_scale_inv") && text.contains("is 2x2"), "{text}");
    }
    let without: Vec<Tensor> = tensors.into_iter().filter(|t| t.dtype != "F32").collect();
    let error = open(&config("deepseek_v3", &block(32)), &without).unwrap_err();
    assert!(error.to_string().contains("needs scales"), "{error}");
}

#[test]
fn spine_weights_find_their_scales() {
    let quant =
        json!({ "quantization_config": { "quant_method": "fp8", "weight_block_size": [32, 32] } });
    let mut tensors = experts("model.layers.{}.mlp.experts", PROJECTIONS, plain);
    tensors.extend(fp8("model.layers.0.self_attn.q_proj", 40, 48));
    let pool = open(&config("qwen3_moe", &quant), &tensors).unwrap();
    let (scale, grid) = pool.spine_scale("layers.0.self_attn.q_proj.weight").unwrap().unwrap();
    assert_eq!(scale.shape, [2, 2]);
    assert_eq!(grid, ScaleGrid::Blocks { block_rows: 32, block_cols: 32 });
    pool.check_spine_scales().unwrap();
    assert!(pool.spine_scale("norm.weight").unwrap().is_none());
}

#[test]
fn shapes_must_be_the_configs() {
    let tensors = experts("model.layers.{}.mlp.experts", PROJECTIONS, |name, rows, cols| {
        plain(name, if name.ends_with("2.down_proj") { rows + 1 } else { rows }, cols)
    });
    let error = open(&config("qwen3_moe", &Value::Null), &tensors).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), "config-inconsistent");
    assert!(text.contains("layers.0.mlp.experts.2.down_proj.weight"), "{text}");
    assert!(text.contains("[48, 40]") && text.contains("[49, 40]"), "{text}");
    // Without a config, or in a family whose keys may mean something else, names are enough.
    assert!(open(&Value::Null, &tensors).is_ok());
    assert!(open(&config("somebody", &Value::Null), &tensors).is_ok());
}

#[test]
fn an_expert_without_a_projection_is_named() {
    let tensors: Vec<Tensor> = experts("model.layers.{}.mlp.experts", PROJECTIONS, plain)
        .into_iter()
        .filter(|tensor| tensor.name != "model.layers.1.mlp.experts.1.up_proj.weight")
        .collect();
    let error = open(&Value::Null, &tensors).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
    assert!(error.to_string().contains("layer 1: expert 1 has no Up tensor"), "{error}");
}

fn stacks(block: &str, hidden: u64, inner: u64, transposed: bool) -> Vec<Tensor> {
    let of = |rows: u64, cols: u64| if transposed { [3, cols, rows] } else { [3, rows, cols] };
    let mut tensors = Vec::new();
    for layer in 0..2 {
        let base = block.replace("{}", &layer.to_string());
        tensors.push(tensor(format!("{base}.gate_up_proj"), "BF16", &of(2 * inner, hidden)));
        tensors.push(tensor(format!("{base}.down_proj"), "BF16", &of(hidden, inner)));
    }
    tensors
}

#[test]
fn stacks_are_cut_into_experts() {
    let tensors = stacks("model.layers.{}.mlp.experts", HIDDEN, INNER, false);
    for config in [config("qwen3_moe", &Value::Null), Value::Null] {
        let pool = open(&config, &tensors).unwrap();
        assert_eq!(pool.layout().total_experts(), 6);
        let matrix = 2 * HIDDEN * INNER;
        let first = pool.layout().expert(ExpertId::new(0, 0)).unwrap();
        let start = first.part(PartRole::Gate).unwrap().extent.offset;
        for (index, expert) in (0_u64..).zip(pool.layout().layer(0)) {
            let at = |role| {
                let part = expert.part(role).unwrap();
                assert_eq!(part.extent.len, matrix);
                part.extent.offset - start
            };
            assert_eq!(at(PartRole::Gate), 2 * index * matrix);
            assert_eq!(at(PartRole::Up), (2 * index + 1) * matrix);
            assert_eq!(at(PartRole::Down), (6 + index) * matrix);
            let rows = expert.part(PartRole::Up).unwrap();
            assert_eq!((rows.rows, rows.cols), (INNER as u32, HIDDEN as u32));
        }
    }
    let sizes = [
        ("gate_proj", [3, INNER, HIDDEN]),
        ("up_proj", [3, INNER, HIDDEN]),
        ("down_proj", [3, HIDDEN, INNER]),
    ];
    for block in ["model.layers.0.mlp.switch_mlp", "model.layers.0.mlp.experts"] {
        let tensors =
            sizes.map(|(name, shape)| tensor(format!("{block}.{name}.weight"), "BF16", &shape));
        let config = config("qwen3_moe", &json!({ "num_hidden_layers": 1 }));
        assert_eq!(open(&config, &tensors).unwrap().layout().total_experts(), 3, "{block}");
    }
}

#[test]
fn transposed_stacks_are_refused_by_name() {
    let tensors = stacks("model.language_model.layers.{}.mlp.experts", HIDDEN, INNER, true);
    for config in [config("qwen3_moe", &Value::Null), config("somebody", &Value::Null), Value::Null]
    {
        let error = open(&config, &tensors).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), "unsupported", "{text}");
        assert!(text.contains("layers.0.mlp.experts.gate_up_proj"), "{text}");
        assert!(text.contains("[3, 48, 80]") && text.contains("[3, 80, 48]"), "{text}");
    }
}

#[test]
fn square_stacks_are_told_by_their_neighbours_or_the_family() {
    // 2 * inner = hidden: gate-up is square, down is not.
    let sizes = json!({ "hidden_size": 80 });
    for (transposed, kind) in [(false, "ok"), (true, "unsupported")] {
        let tensors = stacks("model.layers.{}.mlp.experts", 80, 40, transposed);
        let found = open(&config("somebody", &sizes), &tensors);
        assert_eq!(found.as_ref().map_or_else(TierError::kind, |_| "ok"), kind);
    }
    // All three are square: only the family can tell.
    let square = PROJECTIONS
        .map(|name| tensor(format!("model.layers.0.mlp.experts.{name}"), "BF16", &[3, 40, 40]));
    let sizes = json!({ "hidden_size": 40, "num_hidden_layers": 1 });
    for (family, kind) in
        [("qwen3_moe", "ok"), ("qwen3_vl_moe_text", "unsupported"), ("somebody", "ambiguous")]
    {
        let found = open(&config(family, &sizes), &square);
        assert_eq!(found.as_ref().map_or_else(TierError::kind, |_| "ok"), kind, "{family}");
    }
    let neither = stacks("model.layers.{}.mlp.experts", HIDDEN + 2, INNER, false);
    let error = open(&config("qwen3_moe", &Value::Null), &neither).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
}

#[test]
fn one_expert_under_two_names_is_ambiguous() {
    let mut tensors = experts("model.layers.{}.mlp.experts", PROJECTIONS, plain);
    tensors.extend(plain("layers.1.mlp.experts.0.up_proj", INNER, HIDDEN));
    let error = open(&Value::Null, &tensors).unwrap_err();
    assert_eq!(error.kind(), "ambiguous");
    assert!(error.to_string().contains("layer 1 expert 0"), "{error}");
    let spine = [tensor("model.norm.weight", "F32", &[2]), tensor("norm.weight", "F32", &[2])];
    assert_eq!(open(&Value::Null, &spine).unwrap_err().kind(), "ambiguous");
}

#[test]
fn unknown_expert_tensors_are_a_warning() {
    let mut tensors = experts("model.layers.{}.mlp.experts", PROJECTIONS, plain);
    tensors.push(tensor("model.layers.0.mlp.experts.0.up_proj.weight_zero_point", "I32", &[2]));
    let pool = open(&Value::Null, &tensors).unwrap();
    assert_eq!(pool.unknown_expert_tensors().tensors, 1);
    assert!(pool.notices().iter().any(|n| n.warning && n.text.contains("weight_zero_point")));
}

#[test]
fn mutated_checkpoints_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = experts("model.layers.{}.mlp.experts", PROJECTIONS, int4);
    write(&dir.path().join("model.safetensors"), &tensors);
    let config = config("kimi_k2", &int4_config()).to_string();
    let names: serde_json::Map<String, Value> =
        tensors.iter().map(|t| (t.name.clone(), json!("model.safetensors"))).collect();
    let index = json!({ "metadata": { "total_size": 1.0 }, "weight_map": names }).to_string();
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let mut broken = 0;
    for round in 0..600 {
        let mut texts = [config.clone().into_bytes(), index.clone().into_bytes()];
        let text = &mut texts[round % 2];
        for _ in 0..3 {
            let at = next(text.len());
            match next(3) {
                0 => text[at] = b"0159-.\"{}[]ne:,\\"[next(16)],
                1 => drop(text.drain(at..(at + next(30)).min(text.len()))),
                _ => text.insert(at, b"0159-.\"{}[]ne:,\\"[next(16)]),
            }
        }
        fs::write(dir.path().join("config.json"), &texts[0]).unwrap();
        fs::write(dir.path().join("model.safetensors.index.json"), &texts[1]).unwrap();
        broken += usize::from(Pool::open(dir.path()).is_err());
    }
    assert!(broken > 200, "{broken}");
}
