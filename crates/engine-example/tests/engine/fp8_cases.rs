//! Public inputs for FP8 block scales: verdicts, and exact values as the kernels decode them.

use engine_example::kernels::{Isa, Matrix, MatrixData, ScaleType};
use engine_example::weights::{SharedBytes, SpineWeights, StoredTensor, WeightFormat};
use expert_tier::{Pool, Spine, SpinePlacement};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../expert-tier/tests/cases/O16").join(name)
}

/// The decoded rows of `w.weight`, through the pool, the spine and the kernels' matrix; or the
/// kinds of the errors of pool and engine.
fn decoded(name: &str) -> Result<Vec<Vec<f32>>, (&'static str, &'static str)> {
    let pool = Pool::open(case(name)).unwrap();
    let spine = Spine::load(&pool, SpinePlacement::Anonymous, |_, _| ()).unwrap();
    let mut tensors = BTreeMap::new();
    for name in spine.names() {
        let view = spine.get(name).unwrap();
        let shape = view.shape.iter().map(|&dim| dim as usize).collect();
        let bytes = SharedBytes::new(spine.bytes_of(name).unwrap());
        tensors.insert(name.to_owned(), StoredTensor { dtype: view.dtype, shape, bytes });
    }
    let config = pool.config().map(WeightFormat::from_config);
    let format = config.map_or_else(WeightFormat::default, Result::unwrap);
    let shape = tensors["w.weight"].shape.clone();
    let weights = SpineWeights::new(tensors, format, Isa::detect());
    match (pool.check_spine_scales(), weights.matrix("w", shape[0], shape[1])) {
        (Ok(()), Ok(stored)) => {
            let matrix = stored.view();
            let row = |row| {
                let mut values = vec![0.0; matrix.cols()];
                matrix.row_to_f32(row, &mut values);
                values
            };
            Ok((0..matrix.rows()).map(row).collect())
        }
        (Err(pool), Err(engine)) => Err((pool.kind(), engine.kind())),
        (pool, engine) => panic!("{name}: pool {pool:?}, engine {engine:?}"),
    }
}

#[test]
fn listed_values_are_exact() {
    let at = |name: &str, wanted: &[(usize, usize, f32)]| {
        let rows = decoded(name).unwrap();
        for &(row, col, value) in wanted {
            assert_eq!(rows[row][col], value, "{name} [{row},{col}]");
        }
    };
    let partial: [(usize, usize, f32); 6] = [
        (0, 0, 1.0),
        (127, 127, 1.0),
        (127, 128, 2.0),
        (128, 127, 4.0),
        (129, 199, 8.0),
        (65, 0, 1.0),
    ];
    at("partial_both", &partial);
    at("bf16_scales", &[(0, 0, 0.5), (129, 129, 4.0)]);
    let by_row = |name: &str, wanted: &[(usize, f32)]| {
        let rows = decoded(name).unwrap();
        for &(row, value) in wanted {
            assert!(rows[row].iter().all(|&found| found == value), "{name} row {row}");
        }
    };
    by_row("rows_1000", &[(127, 1.0), (128, 2.0), (895, 64.0), (896, 128.0), (999, 128.0)]);
    by_row("rows_587", &[(511, 4.0), (512, 5.0), (586, 5.0)]);
    by_row("block_64", &[(63, 1.0), (64, 2.0), (129, 3.0)]);
    for name in ["one_scale_scalar", "one_scale_1x1"] {
        let rows = decoded(name).unwrap();
        assert!(rows.iter().flatten().all(|&found| found == 2.0), "{name}");
    }
}

#[test]
fn wrong_grids_are_refused_by_pool_and_engine() {
    for name in ["grid_too_small", "grid_transposed", "no_block_size"] {
        let wanted = ("config-inconsistent", "config-inconsistent");
        assert_eq!(decoded(name).unwrap_err(), wanted, "{name}");
    }
}

#[test]
fn all_codes_have_their_value() {
    let text = std::fs::read_to_string(case("codes.json")).unwrap();
    let wanted: Vec<Option<f64>> = serde_json::from_str(&text).unwrap();
    assert_eq!(wanted.len(), 256);
    let pool = Pool::open(case("codes.safetensors")).unwrap();
    let spine = Spine::load(&pool, SpinePlacement::Anonymous, |_, _| ()).unwrap();
    let scales = 1.0_f32.to_le_bytes();
    let data = MatrixData::Fp8 {
        codes: spine.get("codes").unwrap().bytes,
        scales: &scales,
        scale_type: ScaleType::F32,
        block: [1, 256],
    };
    let mut found = vec![0.0; 256];
    Matrix::new(1, 256, data).unwrap().row_to_f32(0, &mut found);
    for (code, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        match wanted {
            None => assert!(found.is_nan(), "{code:#x} is {found}"),
            // The list writes -0 as -0.0: signs are compared by bits.
            Some(wanted) => {
                assert_eq!(found.to_bits(), (*wanted as f32).to_bits(), "{code:#x}: {found}");
            }
        }
    }
}
