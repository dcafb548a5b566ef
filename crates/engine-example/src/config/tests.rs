use super::*;

fn config_with(key: &str, value: Value) -> Result<ModelConfig, EngineError> {
    let text = include_str!("../../model/config.json");
    let mut map: Map<String, Value> = serde_json::from_str(text).unwrap();
    map.insert(key.to_owned(), value);
    ModelConfig::of_family(Family::Qwen3Moe, &map)
}

fn head_dim(config: &ModelConfig) -> usize {
    match &config.attention {
        AttentionConfig::Grouped { shape, .. } => shape.head_dim,
        _ => panic!("not this family"),
    }
}

#[test]
fn the_bundled_config_resolves() {
    let config = config_with("norm_topk_prob", true.into()).unwrap();
    assert_eq!((config.hidden_size, head_dim(&config), config.moe.num_experts), (256, 64, 64));
    assert!((0..6).all(|layer| config.is_moe_layer(layer)));
}

#[test]
fn absent_settings_become_the_family_defaults() {
    for null_key in ["norm_topk_prob", "tie_word_embeddings"] {
        let config = config_with(null_key, Value::Null).unwrap();
        assert!(!config.tie_word_embeddings);
        assert_eq!(config.moe.norm_topk_prob, null_key != "norm_topk_prob");
    }
    let config = config_with("mlp_only_layers", Value::Null).unwrap();
    assert!((0..6).all(|layer| config.is_moe_layer(layer)));
    assert_eq!(head_dim(&config_with("head_dim", Value::Null).unwrap()), 64);
}

#[test]
fn errors_name_key_and_value() {
    let cases = [
        ("use_sliding_window", Value::from(true), "unsupported"),
        ("hidden_act", "gelu".into(), "unsupported"),
        ("num_experts_per_tok", 65.into(), "config-inconsistent"),
        ("num_key_value_heads", 3.into(), "config-inconsistent"),
        ("head_dim", 63.into(), "config-inconsistent"),
        ("hidden_size", (-1).into(), "config-inconsistent"),
        ("vocab_size", 1e18.into(), "config-inconsistent"),
        ("mlp_only_layers", vec![6].into(), "config-inconsistent"),
        ("tie_word_embeddings", "yes".into(), "config-inconsistent"),
        ("decoder_sparse_step", 0.into(), "config-inconsistent"),
        ("layer_types", vec!["sliding_attention"].into(), "unsupported"),
    ];
    for (key, value, kind) in cases {
        let error = config_with(key, value.clone()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(key), "{error}");
        assert!(error.to_string().contains(&value.to_string()), "{error}");
    }
}
