//! Every public-fault input of the cases that concern opening a checkpoint, against its verdict.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{tensor, write, write_sparse};
use expert_tier::pool::HeadKind;
use expert_tier::{Pool, TierError};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

struct Case {
    name: String,
    path: PathBuf,
    verdict: String,
}

fn read_cases(case: &str) -> Vec<Case> {
    let dir = cases().join(case);
    let text = fs::read(dir.join("verdicts.json")).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
    let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.iter()
        .map(|row| Case {
            path: dir.join(text(row, "input")),
            name: format!("{case}/{}", text(row, "input")),
            verdict: text(row, "verdict"),
        })
        .filter(|case| {
            !matches!(case.name.as_str(), "O08/hole.safetensors" | "O08/side.safetensors")
        })
        .collect()
}

fn warnings(pool: &Pool) -> Vec<&str> {
    let warnings = pool.notices().iter().filter(|notice| notice.warning);
    warnings.map(|notice| notice.text.as_str()).collect()
}

/// What the message must name beside the file: the offending thing and both numbers.
fn needles(name: &str) -> &'static [&'static str] {
    match name {
        "O01/a_prefix_all_ones.safetensors" => &["18446744073709551615", "100000000"],
        "O01/b_prefix_bit63.safetensors" => &["9223372036854775808", "100000000"],
        "O01/c_prefix_over_cap.safetensors" => &["100000001", "100000000"],
        "O01/d_prefix_past_eof.safetensors" => &["508", "48"],
        "O01/e_prefix_wraps_plus8.safetensors" => &["18446744073709551612"],
        "O01/f_prefix_zero.safetensors" => &["empty"],
        "O01/g_seven_bytes.safetensors" => &["8 bytes", "has 7"],
        "O01/h_empty.safetensors" => &["8 bytes", "has 0"],
        "O08/empty.gguf" => &["4 bytes", "has 0"],
        "O02/a_overlap.safetensors" => &["tensor b", "[8,24)", " a,", "16"],
        "O02/b_hole.safetensors" => &["tensor b", "[16,24)"],
        "O02/c_trailing.safetensors" => &["tensor a", "16", "24"],
        "O02/d_reversed.safetensors" => &["tensor a", "16", "end 0"],
        "O02/e_not_from_zero.safetensors" => &["tensor a", "[0,8)"],
        "O02/f_size_mismatch.safetensors" => &["tensor a", "16", "12"],
        "O02/g_two_names_one_range.safetensors" => &["[0,16)"],
        "O02/h_one_offset.safetensors" => &["a: ", "1 numbers", "2 are needed"],
        "O02/i_three_offsets.safetensors" => &["a: ", "3 numbers", "2 are needed"],
        "O02/j_negative.safetensors" => &["a: ", "-4"],
        "O02/k_float.safetensors" => &["a: ", "0.0"],
        "O02/l_2_pow_64.safetensors" => &["a: ", "18446744073709551616 does not fit"],
        "O02/m_shape_overflow.safetensors" => &["tensor a", "4294967296"],
        "O02/n_missing_dtype.safetensors" => &["a: ", "dtype"],
        "O02/o_unknown_dtype.safetensors" => &["tensor a", "F99"],
        "O03/e_says_one_has_none.safetensors" => &["tensor a", "4 bytes", "has 0"],
        "O03/f_zero_but_outside.safetensors" => &["tensor e", "9999", "16"],
        "O03/i_meta_number.safetensors" | "O03/j_meta_is_tensor.safetensors" => &["__metadata__"],
        "O05/cut_1_byte.safetensors" => {
            &["model.layers.0.mlp.experts.2.down_proj.weight", "1616", "1615"]
        }
        "O05/cut_half.safetensors" => &["1616", "1312"],
        "O05/cut_at_data.safetensors" => &["1616", "1008"],
        "O05/cut_in_header.safetensors" => &["1008", "988"],
        "O06/up" => &["model.layers.0.mlp.experts.1.", "../outside/secret.safetensors"],
        "O06/absolute" => &["model.layers.0.mlp.experts.1.", "/srv/outside/secret.safetensors"],
        "O06/sneaky" => &["sub/../../outside/secret.safetensors"],
        "O06/etc" => &["/etc/passwd"],
        "O06/empty" | "O06/dot" | "O06/nul" | "O06/number" => &["model.layers.0.mlp.experts.1."],
        "O06/backslash" => &["..\\outside\\secret.safetensors", "1 of 2"],
        "O07/tail_missing" => {
            &["model-00004-of-00004.safetensors", "3 of 4", "7 of 25", "unfinished download"]
        }
        "O07/middle_missing" => &["model-00002-of-00004.safetensors", "3 of 4", "6 of 25"],
        "O07/two_missing" => &["model-00002-of-00004", "model-00004-of-00004", "2 of 4"],
        "O07/index_names_absent_tensor" => {
            &["model.layers.9.mlp.experts.0.gate_proj.weight", "model-00001-of-00004"]
        }
        "O07/index_wrong_shard" => {
            &["model.norm.weight", "model-00001-of-00004", "model-00004-of-00004"]
        }
        "O07/tensor_not_in_index" => &["model.norm.weight"],
        "O07/stale_extra_file" => &["zzz-old.safetensors"],
        "O07/total_size_wrong" => &["999", "392"],
        "O08/lfs.safetensors" | "O08/lfs.gguf" => &["4976698672", "not fetched"],
        "O08/page.gguf" | "O08/page.safetensors" => &["web page"],
        "O08/zeros.gguf" | "O08/zeros.safetensors" => &["zeros"],
        "O08/xet.safetensors" => &["ZIP"],
        "O05/cut.gguf" => &["b.weight", "1728", "1028"],
        "O09/a_product_wraps_to_zero.gguf" => &["tensor w", "4611686018427387904"],
        "O09/e_zero_dim.gguf" => &["tensor w", "dimension 1", "is 0"],
        "O09/g_nine_dims.gguf" => &["tensor w", "9 dimensions", "at most 4"],
        "O09/h_n_dims_max.gguf" => &["tensor w", "4294967295"],
        "O09/i_row_not_whole_blocks.gguf" => &["tensor w", "100", "Q4_K", "256"],
        "O09/j_offset_not_aligned.gguf" => &["w", "1,", "multiple of 32"],
        "O09/l_past_end.gguf" => &["tensor w"],
        "O09/m_unknown_type.gguf" => &["tensor w", "9999"],
        "O09/n_removed_type.gguf" => &["tensor w", "type 4 was removed"],
        "O10/a_n_kv_huge.gguf" | "O10/b_n_tensors_huge.gguf" => &["needs"],
        "O10/i_value_type_99.gguf" => &["a: ", "99"],
        "O10/j_bool_7.gguf" => &["x.flag", "7"],
        "O10/l_same_key_twice.gguf" => &["x.n"],
        "O10/m_version_0.gguf" => &["version 0"],
        "O10/n_version_1.gguf" => &["32-bit counts"],
        "O10/o_version_99.gguf" => &["version 99"],
        "O10/p_big_endian.gguf" => &["big-endian"],
        "O10/q_magic_ggjt.gguf" => &["GGJT"],
        "O10/r_key_65536.gguf" => &["65536", "65535"],
        "O11/middle_missing" => &["m-00002-of-00003.gguf", "2 of 3"],
        "O11/first_missing" => &["m-00001-of-00003.gguf", "2 of 3"],
        "O11/no_repeated" => &["m-00003-of-00003.gguf", "split.no is 1"],
        "O11/count_differs" => &["m-00003-of-00003.gguf", "split.count is 4", "says 3"],
        "O11/total_differs" => &["is 7", "6 tensors"],
        "O11/tensor_twice" => &["token_embd.weight", "m-00002-of-00003", "m-00003-of-00003"],
        "O11/renamed/model.gguf" => &["one of 3 files"],
        "O11/two_sets" => &["q4-00001-of-00003", "q8-00001-of-00003"],
        "O12/one_layer_two_types.gguf" => &["blk.0.ffn_down.0.weight", "expert 0"],
        "O14/layer_without_experts" => &["layer 4", "4 experts"],
        "O14/dense_layer_has_experts" => &["layer 1", "dense"],
        "O14/one_expert_missing" => &["layer 1", "expert 3", "4 experts wanted, 3 found"],
        "O14/too_many_experts" => &["layer 0", "expert 3", "3 experts wanted, 4 found"],
        "O14/beyond_last_no_nextn" => &["layer 2", "(2)"],
        "O15/untied_no_head" => &["lm_head.weight", "tie_word_embeddings is false"],
        "O15/tied_and_head" => &["lm_head.weight", "tie_word_embeddings is true"],
        "O16/grid_too_small" => &["2x2", "130x200", "128x128", "1x2"],
        "O16/grid_transposed" => &["3x1", "1x3"],
        "O16/no_block_size" => &["weight_block_size", "2x2"],
        _ => &[],
    }
}

/// Opens and does what a program that needs the whole model would check.
fn judge(case: &str, path: &Path) -> Result<Pool, TierError> {
    let pool = Pool::open(path)?;
    match case {
        "O15" => drop(pool.check_head()?),
        "O16" => pool.check_spine_scales()?,
        _ => {}
    }
    Ok(pool)
}

const SETS: [&str; 15] = [
    "O01", "O02", "O03", "O04", "O05", "O06", "O07", "O08", "O09", "O10", "O11", "O12", "O14",
    "O15", "O16",
];

#[test]
fn every_input_gets_its_verdict() {
    let mut failures = Vec::new();
    let mut count = 0;
    for set in SETS {
        for Case { name, path, verdict } in read_cases(set) {
            count += 1;
            let accepted: &[&str] = match name.as_str() {
                // Experts that are tensors of their own have left the format.
                "O12/one_layer_two_types.gguf" => &["unsupported"],
                // Values of the attention's position encoding belong to the engine.
                "O15/rope_two_keys_disagree" | "O15/rope_unknown" => &["ok"],
                "O02/g_two_names_one_range.safetensors" => &["bad-offsets", "duplicate-name"],
                _ => &[verdict.as_str()],
            };
            let (found, text) = match judge(set, &path) {
                Ok(pool) => match warnings(&pool)[..] {
                    [] => ("ok", String::new()),
                    [one] => ("warn", one.to_owned()),
                    ref many => ("several warnings", format!("{many:?}")),
                },
                Err(error) => (error.kind(), error.to_string()),
            };
            let file = path.file_name().unwrap().to_str().unwrap();
            let named = found == "ok" || text.contains(file);
            if !accepted.contains(&found) || !named || text.contains("panicked") {
                failures.push(format!("{name}: wanted {accepted:?}, got {found}: {text}"));
            }
            for needle in needles(&name).iter().filter(|needle| !text.contains(**needle)) {
                failures.push(format!("{name}: {needle:?} is not in {text:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count >= 140, "only {count} inputs");
}

#[test]
fn layer_sets_are_exactly_as_listed() {
    for (name, layers, extra) in [
        ("O14/deepseek_plain", &[2, 3, 4, 5][..], &[(6, 4)][..]),
        ("O14/deepseek_freq2", &[2, 4], &[]),
        ("O14/depth_three", &[1, 2], &[(3, 4)]),
        ("O14/qwen_step2_only_layers", &[1, 5], &[]),
        ("O14/qwen_mlp_only_null", &[0, 1], &[]),
        ("O14/beyond_last_no_nextn", &[0, 1], &[]),
        ("O15/nested_prefix", &[0], &[]),
        ("O15/no_prefix", &[0], &[]),
    ] {
        let pool = Pool::open(cases().join(name)).unwrap();
        assert_eq!(pool.layout().moe_layers().collect::<Vec<_>>(), layers, "{name}");
        assert_eq!(pool.layout().extra_layers().collect::<Vec<_>>(), extra, "{name}");
    }
    let pool = Pool::open(cases().join("O06/ok_subfolder")).unwrap();
    assert_eq!((pool.layout().total_experts(), pool.files().len()), (2, 2));
    let pool = Pool::open(cases().join("O07/complete")).unwrap();
    let shapes = (pool.files().len(), pool.layout().total_experts(), pool.spine().len());
    assert_eq!(shapes, (4, 8, 1));
}

#[test]
fn zero_size_tensors_and_scalars_are_kept() {
    let open = |name: &str| Pool::open(cases().join("O03").join(name)).unwrap();
    assert_eq!(open("a_zero_first.safetensors").spine()["scaled_fp8"].extent.len, 0);
    assert_eq!(open("b_zero_between.safetensors").spine().len(), 3);
    assert_eq!(open("d_scalar.safetensors").spine()["s"].shape, [0_u64; 0]);
    let empty = open("h_meta_only.safetensors");
    assert!(empty.spine().is_empty() && empty.layout().total_experts() == 0);
    assert!(empty.notices().iter().any(|notice| notice.text.contains("no routed experts")));
}

#[test]
fn extents_are_absolute_for_every_padding() {
    for pad in 0..8 {
        let path = cases().join(format!("O04/hlen_mod8_{pad}.safetensors"));
        let bytes = fs::read(&path).unwrap();
        let pool = Pool::open(&path).unwrap();
        let of = |name: &str| {
            let extent = pool.spine()[name].extent;
            &bytes[extent.offset as usize..extent.end() as usize]
        };
        assert_eq!(of("odd"), [1, 2, 3]);
        assert_eq!(of("i"), (-7_i64).to_le_bytes());
        assert_eq!(of("f")[..4], 1.5_f32.to_le_bytes());
    }
}

#[test]
fn the_head_follows_the_setting() {
    let head = |name: &str| Pool::open(cases().join("O15").join(name)).unwrap().check_head();
    assert_eq!(head("tied_no_head").unwrap(), HeadKind::Tied);
    assert_eq!(head("tied_and_head").unwrap(), HeadKind::Tied);
    assert_eq!(head("key_absent").unwrap(), HeadKind::Separate);
    // Work on experts needs no head: the pool opens, with one warning.
    let pool = Pool::open(cases().join("O15/untied_no_head")).unwrap();
    assert_eq!(pool.layout().total_experts(), 2);
    assert!(matches!(warnings(&pool)[..], [one] if one.contains("lm_head.weight")));
}

#[test]
fn a_tensor_that_was_never_written_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hole.safetensors");
    let sizes = [tensor("a", "U8", &[1 << 20]), tensor("b", "U8", &[1 << 20])];
    write_sparse(&path, &sizes);
    let start = fs::metadata(&path).unwrap().len() - (2 << 20);
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(start)).unwrap();
    file.write_all(&vec![7; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    let pool = Pool::open(&path).unwrap();
    let Some(hole) = pool.holes().first() else {
        println!("SKIPPED: this file system does not report holes");
        return;
    };
    assert!(matches!(warnings(&pool)[..], [one] if one.contains("hole.safetensors")
        && one.contains("tensor b") && one.contains("never written")));
    assert_eq!((hole.tensor.as_str(), hole.extent.end()), ("b", start + (2 << 20)));
}

#[test]
fn a_downloaders_side_file_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("side.safetensors");
    write(&path, &[tensor("a", "U8", &[64])]);
    assert!(warnings(&Pool::open(&path).unwrap()).is_empty());
    fs::write(dir.path().join("side.safetensors.aria2"), [0; 16]).unwrap();
    let pool = Pool::open(&path).unwrap();
    assert!(matches!(warnings(&pool)[..], [one] if one.contains("side.safetensors.aria2")));
    assert_eq!(warnings(&Pool::open(dir.path()).unwrap()).len(), 1);
}

#[test]
fn folders_that_mean_nothing_or_two_things_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let kind = || Pool::open(dir.path()).unwrap_err().kind();
    assert_eq!(kind(), "not-a-model");
    fs::write(dir.path().join("model.safetensors.part"), b"").unwrap();
    assert_eq!(kind(), "incomplete-download");
    fs::remove_file(dir.path().join("model.safetensors.part")).unwrap();
    for name in ["a.safetensors", "b.safetensors"] {
        write(&dir.path().join(name), &[tensor("w", "F32", &[2])]);
    }
    assert_eq!(kind(), "ambiguous");
    write(&dir.path().join("model.safetensors"), &[tensor("w", "F32", &[2])]);
    let pool = Pool::open(dir.path()).unwrap();
    assert!(pool.files()[0].path.ends_with("model.safetensors"));
    let index = dir.path().join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map":{"w":"model.safetensors"}}"#).unwrap();
    assert_eq!(warnings(&Pool::open(dir.path()).unwrap()).len(), 1, "a and b are stale");
    fs::write(&index, r#"{"weight_map":{"w":"a.safetensors"}}"#).unwrap();
    assert_eq!(kind(), "ambiguous");
    fs::write(&index, r#"{"weight_map":{"w":"gone.safetensors"}}"#).unwrap();
    assert!(warnings(&Pool::open(dir.path()).unwrap())[0].contains("is used"));
    assert_eq!(Pool::open(dir.path().join("none")).unwrap_err().kind(), "io");
}

#[test]
fn a_shard_stands_for_its_set() {
    let complete = cases().join("O07/complete");
    let whole = Pool::open(&complete).unwrap();
    for name in ["model-00003-of-00004.safetensors", "model.safetensors.index.json"] {
        let pool = Pool::open(complete.join(name)).unwrap();
        assert_eq!(pool.layout(), whole.layout());
    }
}

#[test]
fn a_tensor_in_two_shards_is_named() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.safetensors"), &[tensor("v", "F32", &[2]), tensor("w", "F32", &[2])]);
    write(&dir.path().join("b.safetensors"), &[tensor("w", "F32", &[2]), tensor("x", "F32", &[2])]);
    let map = r#"{"weight_map":{"v":"a.safetensors","w":"a.safetensors","x":"b.safetensors"}}"#;
    fs::write(dir.path().join("model.safetensors.index.json"), map).unwrap();
    let error = Pool::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), "duplicate-name");
    let text = error.to_string();
    assert!(text.contains("a.safetensors") && text.contains("b.safetensors"), "{text}");
}

#[test]
fn a_tensor_twice_in_one_header_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    write(&path, &[tensor("w", "F32", &[2]), tensor("w", "F32", &[2])]);
    let error = Pool::open(&path).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().contains("w is there twice")),
        ("duplicate-name", true)
    );
}

#[test]
fn a_pool_is_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    let pool = Pool::open(cases().join("O07/complete")).unwrap();
    shared(&pool);
    let identity = pool.files()[3].identity;
    let metadata = fs::metadata(&pool.files()[3].path).unwrap();
    assert_eq!(identity.len, metadata.len());
    let since = metadata.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(identity.mtime_ns, since.as_nanos() as i128);
}

#[test]
fn what_cannot_be_mapped_is_refused_without_blocking() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("model.safetensors")).unwrap();
    let error = Pool::open(dir.path()).unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("a folder")), ("not-a-model", true));
    let error = Pool::open("/dev/zero").unwrap_err();
    assert_eq!(error.kind(), "not-a-model");
}

#[test]
fn files_in_sub_folders_are_one_model_if_the_config_lies_above_them() {
    let source = cases().join("O05/whole.safetensors");
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("layer0");
    fs::create_dir(&below).unwrap();
    fs::copy(source, below.join("experts.safetensors")).unwrap();
    assert_eq!(Pool::open(dir.path()).unwrap_err().kind(), "not-a-model", "no config");
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    assert!(Pool::open(dir.path()).unwrap().layout().total_experts() > 0);
    fs::write(below.join("config.json"), "{}").unwrap();
    assert_eq!(Pool::open(dir.path()).unwrap_err().kind(), "not-a-model", "a model of its own");
}

#[test]
fn the_dense_part_opens_alone() {
    let path = cases().join("O14/layer_without_experts");
    assert_eq!(Pool::open(&path).unwrap_err().kind(), "config-inconsistent");
    let spine = Pool::open_spine(&path).unwrap();
    assert_eq!(spine.layout().total_experts(), 0);
    let whole = cases().join("O05/whole.safetensors");
    assert_eq!(
        Pool::open_spine(&whole).unwrap().spine(),
        Pool::open(&whole).unwrap().spine(),
        "the same dense part"
    );
}
