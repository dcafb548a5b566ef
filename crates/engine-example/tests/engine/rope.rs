//! Rope dialects of whole configs.

use crate::support::{data_path, read_json};
use engine_example::spine::mla_attention_scale;
use serde_json::{Map, Value};

fn scale(name: &str) -> Result<f64, engine_example::EngineError> {
    let text: Map<String, Value> = read_json(&data_path(&format!("data/rope/{name}.json")));
    mla_attention_scale(&text)
}

#[test]
fn attention_scale_of_each_spelling() {
    for (name, wanted) in [
        ("yarn_old_key", 0.135_233_779),
        ("yarn_new_key", 0.135_233_779),
        ("yarn_all_dim_zero", 0.072_168_784),
        ("rope_null", 0.072_168_784),
    ] {
        let got = scale(name).unwrap();
        assert!((got - wanted).abs() < 1e-7, "{name}: {got}");
    }
}

#[test]
fn refused_spellings() {
    let two = scale("rope_two_keys_disagree").unwrap_err();
    assert_eq!(two.kind(), "config-inconsistent");
    assert!(two.to_string().contains("linear") && two.to_string().contains("yarn"), "{two}");
    let unknown = scale("rope_unknown").unwrap_err();
    assert_eq!(unknown.kind(), "unsupported");
    assert!(unknown.to_string().contains("spiral"), "{unknown}");
}
