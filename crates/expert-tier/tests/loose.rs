//! Models in many files without an index: one file an expert.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Tensor, header, tensor};
use expert_tier::pack::{PackOptions, pack, verify};
use expert_tier::pool::PartRole;
use expert_tier::{Pool, Tier, TierConfig, TierError};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs;
use std::path::Path;
use std::process::Command;

const HIDDEN: u64 = 8;
const WIDTH: u64 = 4;
const ROLES: [PartRole; 3] = [PartRole::Gate, PartRole::Up, PartRole::Down];

/// How a checkpoint calls its tensors.
#[derive(Clone, Copy)]
struct Dialect {
    /// Before `layers.`, and before `lm_head`.
    prefixes: [&'static str; 2],
    block: &'static str,
    projections: [&'static str; 3],
}

const PLAIN: Dialect = Dialect {
    prefixes: ["model.", ""],
    block: "mlp.experts",
    projections: ["gate_proj", "up_proj", "down_proj"],
};
const NESTED: Dialect = Dialect {
    prefixes: ["language_model.model.", "language_model."],
    block: "block_sparse_moe.experts",
    projections: ["w1", "w3", "w2"],
};

fn config(layers: u64, experts: u64) -> String {
    format!(
        r#"{{"model_type":"qwen3_moe","architectures":["Qwen3MoeForCausalLM"],"hidden_size":{HIDDEN},
        "num_hidden_layers":{layers},"num_experts":{experts},"num_experts_per_tok":2,
        "moe_intermediate_size":{WIDTH},"intermediate_size":16,"num_attention_heads":2,
        "num_key_value_heads":1,"head_dim":4,"vocab_size":32,"norm_topk_prob":true,
        "decoder_sparse_step":1,"mlp_only_layers":[],"rms_norm_eps":1e-6,"rope_theta":10000.0,
        "max_position_embeddings":64,"tie_word_embeddings":false,"hidden_act":"silu"}}"#
    )
}

fn dense(layers: u64, dialect: Dialect) -> Vec<Tensor> {
    let [body, head] = dialect.prefixes;
    let mut tensors = vec![
        tensor(format!("{body}embed_tokens.weight"), "BF16", &[32, HIDDEN]),
        tensor(format!("{body}norm.weight"), "BF16", &[HIDDEN]),
        tensor(format!("{head}lm_head.weight"), "BF16", &[32, HIDDEN]),
    ];
    for layer in 0..layers {
        let name = format!("{body}layers.{layer}.input_layernorm.weight");
        tensors.push(tensor(name, "BF16", &[HIDDEN]));
    }
    tensors
}

fn shape(role: PartRole) -> [u64; 2] {
    if role == PartRole::Down { [HIDDEN, WIDTH] } else { [WIDTH, HIDDEN] }
}

/// Bytes that no other part of the model has.
fn bytes(layer: u64, index: u64, role: PartRole) -> Vec<u8> {
    let seed = (layer * 1000 + index) * 3 + role as u64;
    (0..2 * HIDDEN * WIDTH).map(|at| (seed >> (8 * (at % 3))) as u8 ^ (at * 7) as u8).collect()
}

/// Writes a file of these tensors with this data.
fn write(path: &Path, tensors: &[Tensor], data: &[u8]) {
    let (mut file, len) = header(tensors);
    assert_eq!(data.len() as u64, len);
    file.extend(data);
    fs::write(path, file).unwrap();
}

fn write_dense(path: &Path, tensors: &[Tensor]) {
    write(path, tensors, &vec![1; tensors.iter().map(Tensor::len).sum::<u64>() as usize]);
}

fn write_expert(path: &Path, layer: u64, index: u64, dialect: Dialect) {
    let name =
        |part| format!("{}layers.{layer}.{}.{index}.{part}", dialect.prefixes[0], dialect.block);
    let parts = ROLES.into_iter().zip(dialect.projections);
    let tensors: Vec<Tensor> = parts
        .map(|(role, part)| tensor(name(format!("{part}.weight")), "BF16", &shape(role)))
        .collect();
    write(path, &tensors, &ROLES.map(|role| bytes(layer, index, role)).concat());
}

fn expert_file(layer: u64, index: u64) -> String {
    format!("layer-{layer}-expert-{index}.safetensors")
}

/// A folder with one file an expert and one of the rest.
fn write_model(dir: &Path, layers: u64, experts: u64, dialect: Dialect) {
    fs::write(dir.join("config.json"), config(layers, experts)).unwrap();
    write_dense(&dir.join("dense.safetensors"), &dense(layers, dialect));
    for layer in 0..layers {
        for index in 0..experts {
            write_expert(&dir.join(expert_file(layer, index)), layer, index, dialect);
        }
    }
}

/// The same model in one file, the experts of a layer in three tensors.
fn write_stacked(dir: &Path, layers: u64, experts: u64) {
    fs::write(dir.join("config.json"), config(layers, experts)).unwrap();
    let mut tensors = dense(layers, PLAIN);
    let mut data = vec![1; tensors.iter().map(Tensor::len).sum::<u64>() as usize];
    for layer in 0..layers {
        for (role, part) in ROLES.into_iter().zip(PLAIN.projections) {
            let name = format!("model.layers.{layer}.mlp.switch_mlp.{part}.weight");
            let [rows, columns] = shape(role);
            tensors.push(tensor(name, "BF16", &[experts, rows, columns]));
            data.extend((0..experts).flat_map(|index| bytes(layer, index, role)));
        }
    }
    write(&dir.join("model.safetensors"), &tensors, &data);
}

/// Every expert's bytes as a tier serves them, by layer, expert and role.
fn served(pool: &Pool, layers: u64, experts: u64) -> Vec<Vec<u8>> {
    let tier = Tier::open(pool.clone(), TierConfig::default()).unwrap();
    let all: Vec<u16> = (0..experts as u16).collect();
    let mut found = Vec::new();
    for layer in 0..layers {
        let adopted = tier.adopt_batch(layer as u16, &all).unwrap();
        for expert in adopted.experts() {
            let part = |role| expert.part(role).unwrap().bytes.host().unwrap().to_vec();
            found.extend(ROLES.map(part));
        }
        adopted.check().unwrap();
    }
    found
}

fn written(layers: u64, experts: u64) -> Vec<Vec<u8>> {
    let all = (0..layers).flat_map(|layer| (0..experts).map(move |index| (layer, index)));
    all.flat_map(|(layer, index)| ROLES.map(|role| bytes(layer, index, role))).collect()
}

fn refusal(dir: &Path) -> String {
    match Pool::open(dir) {
        Err(error @ TierError::Ambiguous { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_file_an_expert_serves_the_bytes_of_a_stack() {
    let (loose, nested, stacked) = (folder(), folder(), folder());
    write_model(loose.path(), 2, 5, PLAIN);
    write_model(nested.path(), 2, 5, NESTED);
    write_stacked(stacked.path(), 2, 5);
    let stacked = Pool::open(stacked.path()).unwrap();
    assert_eq!(stacked.files().len(), 1);
    let wanted = served(&stacked, 2, 5);
    assert_eq!(wanted, written(2, 5));
    for dir in [&loose, &nested] {
        let pool = Pool::open(dir.path()).unwrap();
        assert_eq!(pool.files().len(), 11);
        assert!(served(&pool, 2, 5) == wanted, "{}", dir.path().display());
        let names = |pool: &Pool| pool.spine().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&pool), names(&stacked));
        let said: Vec<_> = pool.notices().iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|text| text.contains("11 files")), "{said:?}");
    }
}

#[test]
fn it_is_packed_into_one_file() {
    let (dir, home) = (folder(), folder());
    write_model(dir.path(), 2, 3, NESTED);
    let out = home.path().join("packed");
    pack(&Pool::open(dir.path()).unwrap(), &out, &PackOptions::default(), |_| ()).unwrap();
    let packed = Pool::open(&out).unwrap();
    assert!(verify(&packed, |_, _| ()).unwrap().mismatches.is_empty());
    assert_eq!(served(&packed, 2, 3), written(2, 3));
}

/// What `thousands_of_files_are_served_under_few_descriptors` runs in a process of its own, as the
/// limit holds for a whole process.
#[test]
#[ignore = "run by its parent"]
fn child_under_128_descriptors() {
    let dir = std::env::var_os("LOOSE_MODEL").unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 128, hard.min(128)).unwrap();
    let pool = Pool::open(&dir).unwrap();
    assert_eq!((pool.layout().total_experts(), pool.files().len()), (3_000, 3_001));
    assert!(served(&pool, 4, 750) == written(4, 750));
}

#[test]
fn thousands_of_files_are_served_under_few_descriptors() {
    let dir = folder();
    write_model(dir.path(), 4, 750, PLAIN);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child_under_128_descriptors"])
        .env("LOOSE_MODEL", dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn the_experts_may_lie_below_the_dense_part() {
    let dir = folder();
    write_model(dir.path(), 2, 3, PLAIN);
    let below = dir.path().join("experts");
    fs::create_dir(&below).unwrap();
    for layer in 0..2 {
        for index in 0..3 {
            let file = expert_file(layer, index);
            fs::rename(dir.path().join(&file), below.join(&file)).unwrap();
        }
    }
    let pool = Pool::open(dir.path()).unwrap();
    assert_eq!(served(&pool, 2, 3), written(2, 3));

    // A tensor in both is told with both files, not taken for a reason to look at one alone.
    let again = below.join("again.safetensors");
    write_dense(&again, &[tensor("model.norm.weight", "BF16", &[HIDDEN])]);
    let text = refusal(dir.path());
    for word in ["model.norm.weight", "dense.safetensors", "experts/again.safetensors"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // So is one of the same meaning and another name.
    write_dense(&again, &[tensor("norm.weight", "BF16", &[HIDDEN])]);
    let text = refusal(dir.path());
    for word in ["norm.weight and model.norm.weight", "dense.safetensors", "again.safetensors"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // What has nothing to do with the file of the folder leaves that alone.
    fs::remove_dir_all(&below).unwrap();
    fs::create_dir(&below).unwrap();
    write_dense(&below.join("adapter.safetensors"), &[tensor("lora_A.weight", "BF16", &[2])]);
    fs::write(dir.path().join("config.json"), config(2, 0)).unwrap();
    assert_eq!(Pool::open(dir.path()).unwrap().files().len(), 1);
}

#[test]
fn what_may_be_two_models_is_refused_and_told() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    write_model(dir.path(), 2, 2, PLAIN);
    assert!(Pool::open(dir.path()).is_ok());

    // The same expert again, as another quantisation of the model would have it.
    let again = at("other.safetensors");
    write_expert(&again, 1, 1, PLAIN);
    let text = refusal(dir.path());
    for word in ["experts.1.gate_proj", "other.safetensors", "layer-1-expert-1.safetensors"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // And in another spelling.
    write_expert(&again, 1, 1, NESTED);
    let text = refusal(dir.path());
    assert!(text.contains("layer 1 expert 1") && text.contains("other.safetensors"), "{text}");
    fs::remove_file(&again).unwrap();

    // An adapter beside the model.
    write_dense(&again, &[tensor("base_model.model.layers.0.lora_A.weight", "BF16", &[2])]);
    assert!(refusal(dir.path()).contains("no text model's"));
    fs::remove_file(&again).unwrap();

    // A numbered set of which a file is missing, though nothing that is looked at is.
    write_dense(&at("dense-00001-of-00002.safetensors"), &[tensor("norm.bias", "BF16", &[1])]);
    assert!(refusal(dir.path()).contains("dense-00002-of-00002.safetensors"));
    fs::remove_file(at("dense-00001-of-00002.safetensors")).unwrap();
    assert!(Pool::open(dir.path()).is_ok());

    fs::rename(at("dense.safetensors"), at("dense.away")).unwrap();
    assert!(refusal(dir.path()).contains("embed_tokens"));
    fs::rename(at("dense.away"), at("dense.safetensors")).unwrap();

    fs::rename(at("config.json"), at("config.away")).unwrap();
    assert!(refusal(dir.path()).contains("config.json"));
}

#[test]
fn two_models_side_by_side_are_ambiguous() {
    let dir = folder();
    fs::write(dir.path().join("config.json"), config(1, 2)).unwrap();
    let mut names = dense(1, PLAIN);
    for index in 0..2 {
        for (role, part) in ROLES.into_iter().zip(PLAIN.projections) {
            let name = format!("model.layers.0.mlp.experts.{index}.{part}.weight");
            names.push(tensor(name, "BF16", &shape(role)));
        }
    }
    write_dense(&dir.path().join("bf16.safetensors"), &names);
    assert!(Pool::open(dir.path()).is_ok(), "one alone");
    write_dense(&dir.path().join("other.safetensors"), &names);
    let text = refusal(dir.path());
    assert!(text.contains("bf16.safetensors") && text.contains("other.safetensors"), "{text}");
}

#[test]
fn an_absent_expert_is_named_with_its_layer() {
    let dir = folder();
    write_model(dir.path(), 2, 3, PLAIN);
    fs::remove_file(dir.path().join(expert_file(1, 1))).unwrap();
    let error = Pool::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent", "{error}");
    let text = error.to_string();
    assert!(text.contains("layer 1: expert 1 is missing (3 experts wanted, 2 found)"), "{text}");
}
