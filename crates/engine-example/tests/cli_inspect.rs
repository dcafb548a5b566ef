//! `tier inspect` and `tier verify` on the public faults of configs: which layers have experts,
//! and the dialects of head, prefix and rope.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Run {
    code: Option<i32>,
    out: String,
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Run {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    /// Exit 0 and no error.
    fn ok(&self) -> &Self {
        assert_eq!((self.code, &self.errors[..]), (Some(0), &[][..]), "{}", self.out);
        self
    }

    /// Exit 1 and one error of this kind that holds all words.
    fn fails(&self, kind: &str, words: &[&str]) {
        assert_eq!(self.code, Some(1), "{}", self.out);
        let [error] = &self.errors[..] else { panic!("one error, not {:?}", self.errors) };
        assert!(error.starts_with(&format!("error[{kind}]: ")), "{kind}: {error}");
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    /// Exit 0 and one warning that holds all words.
    fn warns(&self, words: &[&str]) {
        self.ok();
        let [warning] = &self.warnings[..] else { panic!("one warning, not {:?}", self.warnings) };
        for word in words {
            assert!(warning.contains(word), "{word}: {warning}");
        }
    }
}

fn tier(command: &str, pool: &Path, json: bool) -> Run {
    let mut tier = Command::new(env!("CARGO_BIN_EXE_tier"));
    tier.arg(command).arg(pool).args(json.then_some("--json"));
    let output = tier.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let stderr = text(output.stderr);
    assert!(!stderr.contains("panicked"), "{stderr}");
    let lines = |start: &str| {
        // Where the checkout lies is no fault of the case.
        let ours = |line: &&str| !line.contains("paging by mapping is slow there");
        let lines = stderr.lines().filter(|line| line.starts_with(start));
        lines.filter(ours).map(str::to_owned).collect()
    };
    Run {
        code: output.status.code(),
        out: text(output.stdout),
        errors: lines("error"),
        warnings: lines("warning: "),
    }
}

fn inspect(pool: &Path) -> Run {
    let run = tier("inspect", pool, true);
    let text = tier("inspect", pool, false);
    assert_eq!((text.code, &text.errors, &text.warnings), (run.code, &run.errors, &run.warnings));
    run
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// The inputs of one case and their verdicts, all of which must be met.
fn verdicts(case: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(cases().join(case).join("verdicts.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    let field = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.iter().map(|row| (field(row, "input"), field(row, "verdict"))).collect()
}

/// Every verdict by itself: exit code, one error of its kind, or one warning.
fn check_verdict(run: &Run, verdict: &str) {
    match verdict {
        "ok" => assert_eq!(run.ok().warnings, [] as [&str; 0]),
        "warn" => run.warns(&[]),
        kind => run.fails(kind, &[]),
    }
}

#[test]
fn layers_with_experts_are_those_of_the_config() {
    let case = cases().join("O14");
    for (input, verdict) in verdicts("O14") {
        check_verdict(&inspect(&case.join(&input)), &verdict);
        check_verdict(&tier("verify", &case.join(&input), true), &verdict);
    }
    for (input, layers, extra) in [
        ("deepseek_plain", json!([2, 3, 4, 5]), json!([6])),
        ("deepseek_freq2", json!([2, 4]), json!([])),
        ("depth_three", json!([1, 2]), json!([3])),
        ("qwen_step2_only_layers", json!([1, 5]), json!([])),
        ("qwen_mlp_only_null", json!([0, 1]), json!([])),
        ("beyond_last_no_nextn", json!([0, 1]), json!([])),
    ] {
        let facts = inspect(&case.join(input)).json();
        assert_eq!((&facts["expert_layers"], &facts["extra_layers"]), (&layers, &extra), "{input}");
        let experts = 4 * layers.as_array().unwrap().len();
        assert_eq!(facts["experts"], experts, "{input}: experts of extra layers count apart");
        assert_eq!(facts["experts_per_layer"], 4, "{input}");
    }
    let fails = |input: &str, words: &[&str]| {
        inspect(&case.join(input)).fails("config-inconsistent", words);
    };
    fails("layer_without_experts", &["layer 4", "none"]);
    fails("dense_layer_has_experts", &["layer 1", "dense"]);
    fails("one_expert_missing", &["layer 1", "expert 3 is missing"]);
    fails("too_many_experts", &["expert 3", "3 experts wanted"]);
    inspect(&case.join("beyond_last_no_nextn")).warns(&["layer 2", "num_hidden_layers"]);
}

#[test]
fn dialects_of_configs_mean_the_same() {
    let case = cases().join("O15");
    for (input, verdict) in verdicts("O15") {
        let (inspected, verified) =
            (inspect(&case.join(&input)), tier("verify", &case.join(&input), true));
        // Work on experts needs no head: only reading the whole model fails.
        if input == "untied_no_head" {
            assert_eq!(verdict, "config-inconsistent");
            let words = ["lm_head.weight", "tie_word_embeddings is false"];
            inspected.warns(&words);
            verified.fails(&verdict, &words);
            assert_eq!(verified.warnings, [] as [&str; 0], "said once");
        } else {
            check_verdict(&inspected, &verdict);
            check_verdict(&verified, &verdict);
        }
    }
    let facts = |input: &str| inspect(&case.join(input)).json();
    for (input, scale) in [
        ("yarn_old_key", 0.135_233_779),
        ("yarn_new_key", 0.135_233_779),
        ("yarn_all_dim_zero", 0.072_168_784),
        ("rope_null", 0.072_168_784),
    ] {
        let found = facts(input)["attention_scale"].as_f64().unwrap();
        assert!((found - scale).abs() < 1e-7, "{input}: {found}");
        let text = tier("inspect", &case.join(input), false).out;
        assert!(text.contains(&format!("{scale:.9}")), "{text}");
    }
    assert_eq!(facts("rope_null")["rope"]["scaling"], "none");
    let fails = |input: &str, kind: &str, words: &[&str]| {
        inspect(&case.join(input)).fails(kind, words);
    };
    fails(
        "rope_two_keys_disagree",
        "config-inconsistent",
        &["config.json", "type", "linear", "yarn"],
    );
    fails("rope_unknown", "unsupported", &["config.json", "spiral"]);
    inspect(&case.join("tied_and_head")).warns(&["tie_word_embeddings", "lm_head.weight"]);
    for input in ["nested_prefix", "no_prefix"] {
        assert_eq!((&facts(input)["experts"], &facts(input)["top_k"]), (&json!(2), &json!(1)));
    }
}

#[test]
fn a_tied_head_counts_once() {
    let facts = |input: &str| inspect(&cases().join("O15").join(input)).json();
    let embedding_bytes = 2 * 4 * 4;
    for (input, head, bytes, unused) in [
        ("tied_no_head", json!("tied"), embedding_bytes, 0),
        ("tied_and_head", json!("tied"), embedding_bytes, embedding_bytes),
        ("untied_no_head", json!(null), embedding_bytes, 0),
        ("key_absent", json!("separate"), 2 * embedding_bytes, 0),
    ] {
        let facts = facts(input);
        assert_eq!(facts["head"], head, "{input}");
        assert_eq!(facts["spine_bytes"], bytes, "{input}");
        assert_eq!(facts["unused_head_bytes"], unused, "{input}");
    }
    let absent = json!({ "value": false, "source": "family-default" });
    assert_eq!(facts("key_absent")["tie_word_embeddings"], absent);
}

/// A copy of a sound case whose config is edited.
fn edited(case: &str, edit: impl Fn(&mut Value)) -> tempfile::TempDir {
    let (from, dir) = (cases().join(case), tempfile::tempdir().unwrap());
    fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let text = fs::read_to_string(from.join("config.json")).unwrap();
    let mut config = serde_json::from_str(&text).unwrap();
    edit(&mut config);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}

/// An absent `norm_topk_prob` is the family's default, and said so. Where no default is known,
/// `inspect` goes on with a warning, as no router runs; `verify`, which says whether a pool can
/// be decoded, fails.
#[test]
fn an_absent_norm_topk_prob_is_the_familys_or_an_error() {
    let drop_norm = |config: &mut Value| {
        config.as_object_mut().unwrap().remove("norm_topk_prob");
    };
    for (case, model_type, value) in [
        ("O15/no_prefix", "qwen2_moe", false),
        ("O15/no_prefix", "qwen3_moe", false),
        ("O15/rope_null", "deepseek_v3", true),
    ] {
        let dir = edited(case, |config| {
            drop_norm(config);
            config["model_type"] = model_type.into();
        });
        let facts = inspect(dir.path()).ok().json();
        let wanted = json!({ "value": value, "source": "family-default" });
        assert_eq!(facts["norm_topk_prob"], wanted, "{model_type}");
        let text = tier("inspect", dir.path(), false).out;
        let words = format!("norm_topk_prob {value} (default of {model_type})");
        assert!(text.contains(&words), "{text}");
        tier("verify", dir.path(), false).ok();
    }
    let stands = inspect(&cases().join("O15/no_prefix")).json();
    assert_eq!(stands["norm_topk_prob"], json!({ "value": true, "source": "config" }));
    let dir = edited("O15/no_prefix", |config| {
        drop_norm(config);
        config["model_type"] = "somebody_moe".into();
    });
    let words = ["norm_topk_prob", "absent", "somebody_moe"];
    let run = inspect(dir.path());
    run.warns(&words);
    assert_eq!(run.json()["norm_topk_prob"], Value::Null);
    tier("verify", dir.path(), false).fails("config-inconsistent", &words);
}

#[test]
fn a_report_has_what_scripts_read() {
    let pool = cases().join("O14/deepseek_plain");
    let facts = inspect(&pool).ok().json();
    for key in [
        "format",
        "experts",
        "expert_layers",
        "experts_per_layer",
        "expert_bytes",
        "top_k",
        "spine_bytes",
        "spine_tensors",
        "extra_layers",
        "warnings",
        "norm_topk_prob",
        "attention_scale",
        "files",
    ] {
        assert!(facts.get(key).is_some(), "{key}: {facts}");
    }
    assert_eq!(facts["attention_scale"], Value::Null);
    assert_eq!(facts["expert_bytes"]["median"], 3 * 4 * 4 * 4);
    let bytes = fs::metadata(pool.join("model.safetensors")).unwrap().len();
    assert_eq!(facts["files"][0]["bytes"], bytes);
    let report = tier("verify", &pool, true).ok().json();
    assert_eq!((&report["problems"], &report["bytes_read"]), (&json!([]), &json!(bytes)));
    assert_eq!((&report["experts"], &report["tensors"]), (&json!(16), &json!(68)));
    let warned = inspect(&cases().join("O15/tied_and_head"));
    let in_json = warned.json()["warnings"][0].as_str().unwrap().to_owned();
    assert_eq!(warned.warnings, [format!("warning: {in_json}")]);
}

#[test]
fn a_file_that_is_no_model_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.safetensors");
    // The data begins at 85: four bytes are no multiple of it.
    let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let header = format!("{header}{}", " ".repeat(77 - header.len()));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&[0, 0, 128, 63, 0, 0, 0, 64]);
    fs::write(&path, &bytes).unwrap();
    let run = inspect(&path);
    assert_eq!(run.ok().warnings, [] as [&str; 0]);
    let facts = run.json();
    assert_eq!((&facts["experts"], &facts["spine_tensors"]), (&json!(0), &json!(1)));
    assert_eq!((&facts["expert_bytes"], &facts["spine_bytes"]), (&Value::Null, &json!(8)));
    assert_eq!(facts["unaligned_spine_tensors"], json!(["w"]));
    let text = tier("inspect", &path, false).out;
    assert!(text.contains("1 tensor, 8 B") && text.contains("not zero-copy"), "{text}");
    tier("verify", &path, false).ok();
}

#[test]
fn several_problems_are_one_error_and_all_in_the_report() {
    let dir = edited("O15/untied_no_head", |config| {
        config["norm_topk_prob"] = Value::Null;
        config["num_experts_per_tok"] = 9.into();
    });
    let run = tier("verify", dir.path(), true);
    run.fails("config-inconsistent", &["lm_head.weight", "and 1 more problem"]);
    let problems = run.json()["problems"].as_array().unwrap().clone();
    assert_eq!(problems.len(), 2);
    assert!(problems.iter().all(|problem| problem["kind"] == "config-inconsistent"));
    let text = tier("verify", dir.path(), false).out;
    assert_eq!(text.lines().filter(|line| line.starts_with("problem[")).count(), 2, "{text}");
}
