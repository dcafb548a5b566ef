use super::*;
use crate::pool::verify::units::PIECE_BYTES;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use tempfile::TempDir;

type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// 4 KiB of F32 a weight.
const SIDE: usize = 32;

fn tensor(name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Tensor {
    (name.to_owned(), dtype, shape.to_vec(), bytes)
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn write(dir: &Path, config: &Value, tensors: &[Tensor]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
    if !config.is_null() {
        fs::write(dir.join("config.json"), config.to_string()).unwrap();
    }
}

fn config() -> Value {
    json!({ "model_type": "qwen3_moe", "num_hidden_layers": 1, "num_experts": 2,
        "num_experts_per_tok": 1, "hidden_size": SIDE, "moe_intermediate_size": SIDE,
        "norm_topk_prob": true, "tie_word_embeddings": true })
}

fn expert(index: usize, projection: &str, suffix: &str) -> String {
    format!("model.layers.0.mlp.experts.{index}.{projection}_proj.{suffix}")
}

/// Two experts and an embedding; `weight` makes the tensors of one projection.
fn model(weight: impl Fn(usize, &str) -> Vec<Tensor>) -> Vec<Tensor> {
    let embedding = vec![1; 4 * 2 * SIDE];
    let mut tensors = vec![tensor("model.embed_tokens.weight", Dtype::BF16, &[4, SIDE], embedding)];
    for index in 0..2 {
        for projection in ["gate", "up", "down"] {
            tensors.extend(weight(index, projection));
        }
    }
    tensors
}

fn plain() -> Vec<Tensor> {
    let bytes = vec![1; 4 * SIDE * SIDE];
    model(|index, projection| {
        vec![tensor(&expert(index, projection, "weight"), Dtype::F32, &[SIDE; 2], bytes.clone())]
    })
}

fn fp8(codes: &[u8], scale: f32) -> Vec<Tensor> {
    model(|index, projection| {
        let (weight, scales) = ("weight", "weight_scale_inv");
        let scale = scale.to_le_bytes().to_vec();
        vec![
            tensor(&expert(index, projection, weight), Dtype::F8_E4M3, &[SIDE; 2], codes.to_vec()),
            tensor(&expert(index, projection, scales), Dtype::F32, &[1, 1], scale),
        ]
    })
}

fn fp8_config() -> Value {
    let mut config = config();
    config["quantization_config"] =
        json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
    config
}

/// `weight_shape` says `[SIDE, cols]`.
fn int4(codes: u8, scale: u16, cols: i64) -> Vec<Tensor> {
    model(|index, projection| {
        let shape = [SIDE as i64, cols].iter().flat_map(|size| size.to_le_bytes()).collect();
        let codes = vec![codes; SIDE * SIDE / 2];
        let scales = scale.to_le_bytes().repeat(SIDE);
        vec![
            tensor(
                &expert(index, projection, "weight_packed"),
                Dtype::I32,
                &[SIDE, SIDE / 8],
                codes,
            ),
            tensor(&expert(index, projection, "weight_scale"), Dtype::BF16, &[SIDE, 1], scales),
            tensor(&expert(index, projection, "weight_shape"), Dtype::I64, &[2], shape),
        ]
    })
}

fn int4_config() -> Value {
    let mut config = config();
    config["quantization_config"] = json!({ "quant_method": "compressed-tensors",
        "format": "pack-quantized", "config_groups": { "group_0": { "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
            "symmetric": true } } } });
    config
}

fn report(config: &Value, tensors: &[Tensor]) -> VerifyReport {
    let dir = folder();
    write(dir.path(), config, tensors);
    verify(&Pool::open(dir.path()).unwrap(), 3, |_, _| ()).unwrap()
}

fn bytes_of<'t>(tensors: &'t mut [Tensor], name: &str) -> &'t mut [u8] {
    &mut tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap().3
}

/// Exactly one problem, of this kind, that holds all words.
fn assert_problem(report: &VerifyReport, kind: &str, words: &[&str]) {
    let [problem] = &report.problems[..] else { panic!("{report:?}") };
    assert_eq!(problem.kind, kind, "{problem:?}");
    for word in words {
        assert!(problem.text.contains(word), "{word}: {problem:?}");
    }
}

fn assert_warning(report: &VerifyReport, words: &[&str]) {
    assert_eq!(report.problems, [], "{report:?}");
    let [warning] = &report.warnings[..] else { panic!("{report:?}") };
    for word in words {
        assert!(warning.contains(word), "{word}: {warning}");
    }
}

#[test]
fn a_sound_pool_is_read_to_the_last_byte() {
    let fp8_codes = [0x7e; SIDE * SIDE];
    for (config, tensors) in [
        (config(), plain()),
        (Value::Null, plain()),
        (fp8_config(), fp8(&fp8_codes, 0.5)),
        (int4_config(), int4(0x19, 0x3f80, SIDE as i64)),
    ] {
        let dir = folder();
        write(dir.path(), &config, &tensors);
        let pool = Pool::open(dir.path()).unwrap();
        let last = Mutex::new((0, 0));
        let report = verify(&pool, 2, |done, total| *last.lock().unwrap() = (done, total)).unwrap();
        let (done, total) = *last.lock().unwrap();
        assert_eq!(done, total);
        let data: usize = tensors.iter().map(|tensor| tensor.3.len()).sum();
        assert_eq!(total, data as u64);
        let wanted = VerifyReport {
            files: 1,
            bytes_read: pool.files()[0].identity.len,
            tensors: tensors.len(),
            experts: 2,
            ..VerifyReport::default()
        };
        assert_eq!(report, wanted);
    }
}

#[test]
fn values_that_are_not_finite_are_counted_and_placed() {
    let mut tensors = plain();
    let name = expert(1, "up", "weight");
    for element in [7, 9] {
        bytes_of(&mut tensors, &name)[4 * element..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    }
    bytes_of(&mut tensors, "model.embed_tokens.weight")[10..12].copy_from_slice(&[0x80, 0xff]);
    let words = ["model.safetensors", "3 values in 2 tensors"];
    assert_problem(&report(&config(), &tensors), "weights-invalid", &words);
    tensors[0].3.fill(1);
    let words = [&name, "2 values in 1 tensor not finite", "F32", "element 7 is NaN"];
    assert_problem(&report(&config(), &tensors), "weights-invalid", &words);
}

#[test]
fn fp8_codes_that_are_no_number_are_found() {
    let mut codes = [0x38; SIDE * SIDE];
    codes[200] = 0xff;
    let words = ["6 values in 6 tensors", "F8E4m3", "element 200 is NaN"];
    assert_problem(&report(&fp8_config(), &fp8(&codes, 0.5)), "weights-invalid", &words);
}

#[test]
fn what_is_not_served_only_warns() {
    let nan = f32::NAN.to_le_bytes().to_vec();
    let mut tensors = plain();
    tensors.push(tensor("visual.patch.weight", Dtype::F32, &[1], nan.clone()));
    assert_warning(&report(&config(), &tensors), &["visual.patch.weight", "not served"]);
    let alone = [tensor("w", Dtype::F32, &[1], nan)];
    assert_warning(&report(&Value::Null, &alone), &["tensor w", "not served"]);
}

#[test]
fn logical_shapes_must_fit_their_packed_weights() {
    let words = ["down_proj.weight_shape says [32, 33]", "32 rows of 4 words", "5 tensors"];
    let wrong = report(&int4_config(), &int4(0x19, 0x3f80, SIDE as i64 + 1));
    assert_problem(&wrong, "config-inconsistent", &words);
    let negative = report(&int4_config(), &int4(0x19, 0x3f80, -1));
    assert_problem(&negative, "config-inconsistent", &["[32, -1]"]);
}

#[test]
fn scales_matter_only_where_weights_are() {
    let minus_two = 0xc000;
    for (codes, scale, warned) in
        [(0x19, minus_two, false), (0x19, 0, true), (0x88, minus_two, false), (0x88, 0, false)]
    {
        let report = report(&int4_config(), &int4(codes, scale, SIDE as i64));
        assert_eq!(report.problems, []);
        let scales: Vec<_> =
            report.warnings.iter().filter(|text| text.contains("zero although")).collect();
        assert_eq!(scales.len(), usize::from(warned), "{report:?}");
    }
    let mut codes = [0; SIDE * SIDE];
    codes[SIDE * SIDE - 1] = 1;
    let words = ["6 scales", "down_proj.weight_scale_inv, element 0", "5 tensors"];
    assert_warning(&report(&fp8_config(), &fp8(&codes, 0.0)), &words);
    let infinite = report(&fp8_config(), &fp8(&codes, f32::INFINITY));
    assert_problem(&infinite, "weights-invalid", &["weight_scale_inv", "is infinite"]);
}

#[test]
fn an_expert_of_zeros_is_odd() {
    let mut tensors = plain();
    // Minus zero is zero.
    bytes_of(&mut tensors, &expert(0, "down", "weight"))
        .copy_from_slice(&(-0_f32).to_le_bytes().repeat(SIDE * SIDE));
    let words = ["experts.0.down_proj.weight", "only zeros"];
    assert_warning(&report(&config(), &tensors), &words);
}

#[test]
fn the_config_must_say_what_router_and_head_need() {
    for (key, value, words) in [
        ("tie_word_embeddings", json!(false), ["lm_head.weight", "tie_word_embeddings is false"]),
        ("num_experts_per_tok", Value::Null, ["num_experts_per_tok", "absent"]),
        ("num_experts_per_tok", json!(3), ["num_experts_per_tok", "is 3, must be 1 to 2"]),
    ] {
        let mut config = config();
        config[key] = value;
        let report = report(&config, &plain());
        assert_problem(&report, "config-inconsistent", &words);
        assert_eq!(report.warnings, [] as [&str; 0], "said once");
    }
    let mut config = config();
    config["norm_topk_prob"] = Value::Null;
    assert_eq!(report(&config, &plain()).problems, [], "the family has a default");
    config["model_type"] = json!("somebody");
    let words = ["norm_topk_prob", "absent", "somebody"];
    assert_problem(&report(&config, &plain()), "config-inconsistent", &words);
}

#[test]
fn holes_are_an_incomplete_download() {
    let dir = folder();
    let zeros = vec![0; 1 << 20];
    write(
        dir.path(),
        &Value::Null,
        &[
            tensor("a", Dtype::U8, &[4096], vec![1; 4096]),
            tensor("b", Dtype::U8, &[zeros.len()], zeros),
        ],
    );
    let path = dir.path().join("model.safetensors");
    let len = fs::metadata(&path).unwrap().len();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(8192).unwrap();
    file.set_len(len).unwrap();
    let pool = Pool::open(&path).unwrap();
    if pool.holes().is_empty() {
        println!("SKIPPED holes_are_an_incomplete_download: this file system tells of no holes");
        return;
    }
    let report = verify(&pool, 1, |_, _| ()).unwrap();
    let words = ["tensor b", &format!(",{len}) were never written")];
    assert_problem(&report, "incomplete-download", &words);
    assert_eq!((report.bytes_read, report.warnings.len()), (len, 0));
}

#[test]
fn a_file_that_is_cut_while_it_is_read_is_told_and_the_rest_is_read() {
    let dir = folder();
    let pieces = 4;
    let len = pieces * PIECE_BYTES as usize;
    write(dir.path(), &Value::Null, &[tensor("a", Dtype::U8, &[len], vec![7; len])]);
    let path = dir.path().join("model.safetensors");
    let pool = Pool::open(&path).unwrap();
    let data_start = fs::metadata(&path).unwrap().len() - len as u64;
    let cut = data_start + PIECE_BYTES + 1000;
    let report = verify(&pool, 1, |done, _| {
        if done == PIECE_BYTES {
            File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
        }
    });
    let report = report.unwrap();
    let end = data_start + len as u64;
    let words = ["model.safetensors", &format!("bytes [{cut},{end}) are gone")];
    assert_problem(&report, "io-changed", &words);
    assert_eq!(report.bytes_read, cut);
}

#[test]
fn a_file_that_changed_since_it_was_opened_is_told_and_the_others_are_read() {
    let dir = folder();
    let shards = ["a", "b"].map(|name| {
        let bytes = vec![5; 64];
        let view = TensorView::new(Dtype::U8, vec![64], &bytes).unwrap();
        let file = format!("{name}.safetensors");
        safetensors::serialize_to_file([(name, view)], None, &dir.path().join(&file)).unwrap();
        (name.to_owned(), Value::from(file))
    });
    let map: serde_json::Map<String, Value> = shards.into_iter().collect();
    let index = dir.path().join("model.safetensors.index.json");
    fs::write(index, json!({ "weight_map": map }).to_string()).unwrap();
    let pool = Pool::open(dir.path()).unwrap();
    let file = File::options().write(true).open(dir.path().join("a.safetensors")).unwrap();
    file.write_all_at(b"more", pool.files()[0].identity.len).unwrap();
    let report = verify(&pool, 2, |_, _| ()).unwrap();
    assert_problem(&report, "io-changed", &["a.safetensors"]);
    assert_eq!(report.bytes_read, pool.files()[1].identity.len);
    fs::remove_file(dir.path().join("b.safetensors")).unwrap();
    let kinds: Vec<_> =
        verify(&pool, 2, |_, _| ()).unwrap().problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, ["io-changed", "io"]);
}

#[test]
fn the_number_of_threads_is_checked() {
    let dir = folder();
    write(dir.path(), &Value::Null, &[]);
    let pool = Pool::open(dir.path()).unwrap();
    for threads in [0, MAX_THREADS + 1] {
        assert_eq!(verify(&pool, threads, |_, _| ()).unwrap_err().kind(), "limit");
    }
    assert_eq!(verify(&pool, MAX_THREADS, |_, _| ()).unwrap().tensors, 0);
}
