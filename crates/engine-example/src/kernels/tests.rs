//! Kernels against the scalar twin, bit for bit, and against double precision.

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

mod stored;

use stored::SCALE_TYPES;
pub(super) use stored::{Stored, Stores};

pub(super) fn activations(rng: &mut ChaCha8Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.random_range(-2.0f32..2.0)).collect()
}

/// The bits of each number, all NaNs alike.
pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
}

fn product(isa: Isa, matrix: &Matrix<'_>, x: &[f32], n: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; n * matrix.rows()];
    matmul(isa, matrix, x, n, &mut out, &mut Scratch::default());
    out
}

/// All formats, with groups and blocks of every kind of fit to `cols`.
fn kinds(cols: usize) -> Vec<Stores> {
    let mut kinds = vec![Stores::F32, Stores::F16, Stores::Bf16];
    for (i, group) in [8, 24, 32, 64, 96, 128, 256, cols].into_iter().enumerate() {
        kinds.push(Stores::Int4 { group, scale_type: SCALE_TYPES[i % 3] });
    }
    let blocks = [[usize::MAX, usize::MAX], [128, 128], [3, 16], [1, 20], [2, 33], [1, 1]];
    for (i, block) in blocks.into_iter().enumerate() {
        kinds.push(Stores::Fp8 { block, scale_type: SCALE_TYPES[i % 3] });
    }
    if cols.is_multiple_of(MXFP4_GROUP) {
        kinds.push(Stores::Mxfp4);
    }
    let whole = BlockType::ALL.into_iter().filter(|kind| cols.is_multiple_of(kind.elements()));
    kinds.extend(whole.map(Stores::Blocks));
    kinds
}

#[test]
fn every_shape_and_format_equals_the_twin() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for cols in 1..=300 {
        // Each number of rows is met with seven or eight numbers of columns.
        let rows = cols % 40 + 1;
        for kind in kinds(cols) {
            let stored = Stored::random(&mut rng, rows, cols, kind);
            let (matrix, x) = (stored.matrix(), activations(&mut rng, cols));
            let expected = bits(&twin::matmul(&matrix, &x, 1));
            for isa in Isa::available() {
                let got = bits(&product(isa, &matrix, &x, 1));
                assert_eq!(got, expected, "{isa}, {rows}x{cols}, {kind:?}");
            }
        }
    }
}

#[test]
fn the_twin_is_near_double_precision() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for cols in [1, 7, 16, 96, 100, 129, 300, 992, 1000] {
        for kind in kinds(cols) {
            let stored = Stored::random(&mut rng, 3, cols, kind);
            let (matrix, x) = (stored.matrix(), activations(&mut rng, cols));
            let mut weights = vec![0.0; cols];
            for row in 0..3 {
                matrix.row_to_f32(row, &mut weights);
                let terms = weights.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let (exact, size) = terms.fold((0.0, 0.0), |(sum, size): (f64, f64), term| {
                    (sum + term, size + term.abs())
                });
                // Each product passes at most cols / 16 + 6 roundings, plus its scale's.
                let bound = size * (cols as f64 / 16.0 + 8.0) * f64::from(f32::EPSILON);
                let error = (f64::from(twin::dot(&matrix, row, &x)) - exact).abs();
                assert!(error <= bound, "{cols} columns, {kind:?}: {error} > {bound}");
            }
        }
    }
}

#[test]
fn every_block_format_equals_the_twin() {
    let mut rng = ChaCha8Rng::seed_from_u64(10);
    for (rows, cols) in [(9, 256), (5, 768), (2, 1024)] {
        for kind in BlockType::ALL {
            let stored = Stored::random(&mut rng, rows, cols, Stores::Blocks(kind));
            let matrix = stored.matrix();
            for n in (1..=9).chain([33]) {
                let x = activations(&mut rng, n * cols);
                let expected = bits(&twin::matmul(&matrix, &x, n));
                for isa in Isa::available() {
                    let got = bits(&product(isa, &matrix, &x, n));
                    assert_eq!(got, expected, "{isa}, {n} tokens, {rows}x{cols}, {kind:?}");
                }
            }
            // One token that picks a column: the number itself, in every place of a block.
            let mut row = vec![0.0; cols];
            matrix.row_to_f32(1, &mut row);
            for column in 0..cols {
                let mut one = vec![0.0; cols];
                one[column] = 1.0;
                let own = twin::dot(&matrix, 1, &one);
                assert_eq!(own, row[column], "{kind:?}, column {column}");
            }
        }
    }
}

#[test]
fn rows_of_broken_blocks_are_refused() {
    for kind in BlockType::ALL {
        let bytes = vec![0; 2 * kind.size_bytes()];
        let data = MatrixData::Blocks { kind, bytes: &bytes };
        assert!(Matrix::new(2, kind.elements(), data).is_ok());
        let error = Matrix::new(2, kind.elements() - 1, data).unwrap_err();
        assert!(matches!(error, MatrixError::Grouping { what: "columns", .. }), "{error}");
        assert!(matches!(
            Matrix::new(3, kind.elements(), data),
            Err(MatrixError::Length { what: "blocks", .. })
        ));
    }
}

#[test]
fn a_batch_equals_its_tokens_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for (rows, cols) in [(6, 40), (9, 200), (5, 224)] {
        for kind in kinds(cols) {
            let stored = Stored::random(&mut rng, rows, cols, kind);
            let matrix = stored.matrix();
            for n in (1..=9).chain([33, 70]) {
                let x = activations(&mut rng, n * cols);
                let expected = bits(&twin::matmul(&matrix, &x, n));
                for isa in Isa::available() {
                    let got = bits(&product(isa, &matrix, &x, n));
                    assert_eq!(got, expected, "{isa}, {n} tokens, {rows}x{cols}, {kind:?}");
                }
            }
        }
    }
}

#[test]
fn every_fp8_code_is_decoded() {
    let codes: Vec<u8> = (0..=255).collect();
    let scales = 1f32.to_le_bytes();
    let data = MatrixData::Fp8 {
        codes: &codes,
        scales: &scales,
        scale_type: ScaleType::F32,
        block: [256, 256],
    };
    let matrix = Matrix::new(256, 1, data).unwrap();
    let expected: Vec<f32> = (0..=255).map(|code| 0.0 + twin::fp8(code)).collect();
    assert_eq!(expected.iter().filter(|value| value.is_nan()).count(), 2);
    let row = Matrix::new(1, 256, data).unwrap();
    let mut written = vec![0.0; 256];
    row.row_to_f32(0, &mut written);
    assert_eq!(bits(&written), bits(&(0..=255).map(twin::fp8).collect::<Vec<_>>()));
    for isa in Isa::available() {
        assert_eq!(bits(&product(isa, &matrix, &[1.0], 1)), bits(&expected), "{isa}");
        // The other codes of the same step are at work here.
        for code in (0..256).filter(|code| code % 128 != 127) {
            let mut finite = codes.clone();
            (finite[127], finite[255]) = (0, 0);
            let data = MatrixData::Fp8 {
                codes: &finite,
                scales: &scales,
                scale_type: ScaleType::F32,
                block: [256, 256],
            };
            let mut one = [0.0; 256];
            one[code] = 1.0;
            let row = Matrix::new(1, 256, data).unwrap();
            assert_eq!(product(isa, &row, &one, 1), [expected[code]], "{isa}, code {code}");
        }
    }
}

#[test]
fn special_numbers_come_through() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for (cols, kind) in [150, 160]
        .into_iter()
        .flat_map(|cols| kinds(cols).into_iter().map(move |kind| (cols, kind)))
    {
        let mut stored = Stored::random(&mut rng, 5, cols, kind);
        // Any bits at all as weights; scales stay finite.
        rng.fill(&mut stored.weights[..]);
        let mut x = activations(&mut rng, cols);
        (x[3], x[77], x[149]) = (1e-42, -0.0, 3e38);
        let expected = bits(&twin::matmul(&stored.matrix(), &x, 1));
        for isa in Isa::available() {
            assert_eq!(bits(&product(isa, &stored.matrix(), &x, 1)), expected, "{isa}, {kind:?}");
        }
    }
}

pub(super) fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

#[test]
fn threads_do_not_change_a_bit() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let int4 = Stores::Int4 { group: 32, scale_type: ScaleType::Bf16 };
    for (cols, kind) in [(1000, Stores::Bf16), (1000, int4), (992, Stores::Mxfp4)] {
        // Large enough to be split, with a ragged last block.
        let stored = Stored::random(&mut rng, 1021, cols, kind);
        for n in [1, 3] {
            let x = activations(&mut rng, n * cols);
            let expected = bits(&twin::matmul(&stored.matrix(), &x, n));
            for threads in [1, 2, 3] {
                let got = with_threads(threads, || product(Isa::detect(), &stored.matrix(), &x, n));
                assert_eq!(bits(&got), expected, "{threads} threads, {n} tokens, {kind:?}");
            }
        }
    }
}

/// Experts' matrices `[gate, up, down]`, each format in its place.
fn experts(rng: &mut ChaCha8Rng, hidden: usize, inner: usize, count: usize) -> Vec<[Stored; 3]> {
    let int4 = Stores::Int4 { group: 32, scale_type: ScaleType::Bf16 };
    let fp8 = Stores::Fp8 { block: [24, 40], scale_type: ScaleType::F32 };
    let one = |rng: &mut ChaCha8Rng, i: usize| {
        let [gate, up, down] =
            [[int4; 3], [fp8, Stores::Bf16, Stores::F16], [fp8, fp8, int4]][i % 3];
        [
            Stored::random(rng, inner, hidden, gate),
            Stored::random(rng, inner, hidden, up),
            Stored::random(rng, hidden, inner, down),
        ]
    };
    (0..count).map(|i| one(rng, i)).collect()
}

fn tasks<'a>(experts: &'a [[Stored; 3]], tokens: &'a [Vec<(u32, f32)>]) -> Vec<ExpertTask<'a>> {
    let task = |([gate, up, down], tokens): (&'a [Stored; 3], &'a Vec<_>)| ExpertTask {
        weights: ExpertWeights { gate: gate.matrix(), up: up.matrix(), down: down.matrix() },
        tokens,
    };
    experts.iter().zip(tokens).map(task).collect()
}

#[test]
fn the_experts_equal_the_twin_on_any_threads() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    // The second size is large enough to be split.
    for (hidden, inner, n) in [(56, 20, 1), (56, 20, 6), (600, 333, 3)] {
        let experts = experts(&mut rng, hidden, inner, 5);
        let chosen: Vec<Vec<(u32, f32)>> = (0..5)
            .map(|e| (0..n).filter(|t| (t + e) % 3 != 0).map(|t| (t, rng.random())).collect())
            .collect();
        let tasks = tasks(&experts, &chosen);
        let n = n as usize;
        let x = activations(&mut rng, n * hidden);
        let before = activations(&mut rng, n * hidden);
        let mut expected = before.clone();
        twin::moe_ffn(Activation::Silu, &tasks, &x, hidden, &mut expected);
        assert_ne!(bits(&before), bits(&expected));
        let mut scratch = Scratch::default();
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                let mut out = before.clone();
                with_threads(threads, || moe_ffn(isa, &tasks, &x, hidden, &mut out, &mut scratch));
                assert_eq!(bits(&out), bits(&expected), "{isa}, {threads} threads, {n} tokens");
            }
        }
    }
}

#[test]
fn experts_with_a_bounded_activation_equal_the_twin() {
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    let activation = Activation::Situ { beta: 4.0, linear_beta: 25.0 };
    let (hidden, inner, n) = (96, 64, 3);
    let one = |rng: &mut ChaCha8Rng| {
        let mut stored = |rows, cols| Stored::random(rng, rows, cols, Stores::Mxfp4);
        [stored(inner, hidden), stored(inner, hidden), stored(hidden, inner)]
    };
    let experts = [one(&mut rng), one(&mut rng)];
    let chosen = [vec![(0, 0.4), (2, 0.9)], vec![(1, 0.7), (2, -0.2)]];
    let tasks = tasks(&experts, &chosen);
    // Far enough out for both factors to be near their bounds.
    let x: Vec<f32> = activations(&mut rng, n * hidden).iter().map(|x| x * 20.0).collect();
    let mut expected = vec![0.0; n * hidden];
    twin::moe_ffn(activation, &tasks, &x, hidden, &mut expected);
    let mut plain = vec![0.0; n * hidden];
    twin::moe_ffn(Activation::Silu, &tasks, &x, hidden, &mut plain);
    assert_ne!(bits(&plain), bits(&expected));
    for isa in Isa::available() {
        let (mut out, mut scratch) = (vec![0.0; n * hidden], Scratch::default());
        let mut sum = MoeSum::begin(&x, hidden, &mut scratch).with_activation(activation);
        sum.add(isa, &tasks);
        sum.finish(&mut out);
        assert_eq!(bits(&out), bits(&expected), "{isa}");
    }
}

#[test]
fn no_experts_add_nothing() {
    let mut out = [1.0, 2.0, 3.0, 4.0];
    moe_ffn(Isa::detect(), &[], &[9.0; 4], 2, &mut out, &mut Scratch::default());
    assert_eq!(out, [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn a_scratch_carries_nothing_over() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let mut scratch = Scratch::default();
    for (rows, cols, n) in [(30, 200, 5), (4, 17, 1), (12, 130, 2), (1, 300, 1), (30, 200, 5)] {
        for kind in kinds(cols) {
            let stored = Stored::random(&mut rng, rows, cols, kind);
            let x = activations(&mut rng, n * cols);
            let mut out = vec![0.0; n * rows];
            matmul(Isa::detect(), &stored.matrix(), &x, n, &mut out, &mut scratch);
            assert_eq!(bits(&out), bits(&twin::matmul(&stored.matrix(), &x, n)), "{kind:?}");
        }
    }
}

#[test]
fn wrong_lengths_and_groups_are_refused() {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    for kind in kinds(150) {
        let stored = Stored::random(&mut rng, 7, 150, kind);
        let data = stored.matrix().data();
        for (rows, cols) in [(6, 150), (8, 150), (7, 158), (7, 142), (usize::MAX, usize::MAX)] {
            assert!(Matrix::new(rows, cols, data).is_err(), "{rows}x{cols}, {kind:?}");
        }
    }
    let too_large = Matrix::new(usize::MAX / 2, 3, MatrixData::Bf16(&[])).unwrap_err();
    assert_eq!(too_large, MatrixError::TooLarge { rows: usize::MAX / 2, cols: 3 });
    let length = Matrix::new(2, 3, MatrixData::F32(&[0; 23])).unwrap_err();
    assert_eq!(length.to_string(), "weights of a 2x3 matrix needs 24 bytes, has 23");
    for group in [0, 4, 12, 17] {
        let scale_type = ScaleType::Bf16;
        let data = MatrixData::Int4 { packed: &[0; 8], scales: &[0; 2], scale_type, group };
        let error = Matrix::new(1, 16, data).unwrap_err();
        assert!(matches!(error, MatrixError::Grouping { value, .. } if value == group), "{error}");
    }
    let odd = Matrix::new(1, 48, MatrixData::Mxfp4 { packed: &[0; 24], scales: &[0; 2] });
    assert!(odd.unwrap_err().to_string().contains("multiple of 32"));
    for block in [[0, 4], [4, 0]] {
        let scale_type = ScaleType::F32;
        let data = MatrixData::Fp8 { codes: &[0; 4], scales: &[0; 4], scale_type, block };
        assert!(matches!(Matrix::new(2, 2, data), Err(MatrixError::Grouping { value: 0, .. })));
    }
}

#[test]
fn empty_matrices_give_zeros() {
    for isa in Isa::available() {
        let matrix = Matrix::new(3, 0, MatrixData::F32(&[])).unwrap();
        assert_eq!(product(isa, &matrix, &[], 2), [0.0; 6]);
        let matrix = Matrix::new(0, 5, MatrixData::F32(&[])).unwrap();
        assert_eq!(product(isa, &matrix, &[1.0; 5], 1), [0.0_f32; 0]);
    }
}

fn any_scale_type() -> impl Strategy<Value = ScaleType> {
    prop::sample::select(SCALE_TYPES.to_vec())
}

fn any_kind() -> impl Strategy<Value = Stores> {
    prop_oneof![
        prop::sample::select(vec![Stores::F32, Stores::F16, Stores::Bf16]),
        ([1..70usize, 1..300usize], any_scale_type())
            .prop_map(|(block, scale_type)| Stores::Fp8 { block, scale_type }),
        (1..40usize, any_scale_type())
            .prop_map(|(words, scale_type)| Stores::Int4 { group: 8 * words, scale_type }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_matrix_equals_the_twin(
        kind in any_kind(), rows in 1..40usize, cols in 1..700usize, n in 1..10usize, seed: u64,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let stored = Stored::random(&mut rng, rows, cols, kind);
        let x = activations(&mut rng, n * cols);
        let expected = bits(&twin::matmul(&stored.matrix(), &x, n));
        for isa in Isa::available() {
            prop_assert_eq!(bits(&product(isa, &stored.matrix(), &x, n)), expected.clone());
        }
    }

    #[test]
    fn no_shape_panics(
        rows: usize, cols: usize, block: [usize; 2], group: usize, len in 0..64usize,
        scale_type in any_scale_type(),
    ) {
        let bytes = vec![0; len];
        for data in [
            MatrixData::F32(&bytes),
            MatrixData::F16(&bytes),
            MatrixData::Bf16(&bytes),
            MatrixData::Fp8 { codes: &bytes, scales: &bytes, scale_type, block },
            MatrixData::Int4 { packed: &bytes, scales: &bytes, scale_type, group },
            MatrixData::Mxfp4 { packed: &bytes, scales: &bytes },
        ] {
            if let Ok(matrix) = Matrix::new(rows, cols, data) {
                prop_assert!(matrix.size_bytes() <= 2 * len);
            }
        }
    }
}
