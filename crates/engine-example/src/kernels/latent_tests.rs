//! Latent attention against its definition with everything expanded, in double precision, and its
//! promise of the same bits whoever computes it and however a prompt is split.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::tests::{Stored, Stores, activations, bits, with_threads};
use super::{
    BlockType, Isa, LatentHeads, LatentPass, LatentWeights, Matrix, MatrixData, ScaleType,
    latent_attention,
};

/// Rows of the cache in one piece.
const PIECE: usize = 5;

/// Keys and values of every head written out.
fn expanded(
    heads: LatentHeads,
    kv_b: &Matrix<'_>,
    rows: &[f32],
    q: &[f32],
    scale: f64,
) -> Vec<f64> {
    let LatentHeads { nope, value, latent, .. } = heads;
    let (width, query) = (heads.row(), heads.query());
    let n = q.len() / (heads.heads * query);
    let start = rows.len() / width - n;
    let wide = |values: &[f32]| values.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut weight = vec![0.0; latent];
    let mut out = Vec::new();
    for t in 0..n {
        for h in 0..heads.heads {
            let q = wide(&q[(t * heads.heads + h) * query..][..query]);
            let mut expand = |from: usize, count: usize, row: &[f64]| -> Vec<f64> {
                let first = h * (nope + value) + from;
                (first..first + count)
                    .map(|r| {
                        kv_b.row_to_f32(r, &mut weight);
                        dot(&wide(&weight), &row[..latent])
                    })
                    .collect()
            };
            let seen: Vec<Vec<f64>> = rows.chunks(width).take(start + t + 1).map(wide).collect();
            let mut scores = Vec::new();
            for row in &seen {
                let key = [expand(0, nope, row), row[latent..].to_vec()].concat();
                scores.push((scale * dot(&q, &key)).exp());
            }
            let sum: f64 = scores.iter().sum();
            let mut mixed = vec![0.0; value];
            for (row, score) in seen.iter().zip(&scores) {
                let values = expand(nope, value, row);
                mixed.iter_mut().zip(values).for_each(|(y, v)| *y += score / sum * v);
            }
            out.extend(mixed);
        }
    }
    out
}

fn attend(isa: Isa, heads: LatentHeads, kv_b: &Matrix<'_>, rows: &[f32], q: &[f32]) -> Vec<f32> {
    attend_by(isa, heads, LatentWeights::Joint(kv_b), rows, q)
}

fn attend_by(
    isa: Isa,
    heads: LatentHeads,
    weights: LatentWeights<'_>,
    rows: &[f32],
    q: &[f32],
) -> Vec<f32> {
    let n = q.len() / (heads.heads * heads.query());
    let pieces: Vec<&[f32]> = rows.chunks(PIECE * heads.row()).collect();
    let start = rows.len() / heads.row() - n;
    let pass = LatentPass { heads, weights, rows: &pieces, start, scale: 0.3 };
    let mut out = vec![f32::NAN; n * heads.heads * heads.value];
    latent_attention(isa, &pass, q, &mut out);
    out
}

#[test]
fn every_format_and_size_equals_the_definition() {
    let mut rng = ChaCha8Rng::seed_from_u64(21);
    let fp8 = |block| Stores::Fp8 { block, scale_type: ScaleType::F32 };
    let int4 = Stores::Int4 { group: 32, scale_type: ScaleType::Bf16 };
    let kinds =
        [Stores::F32, Stores::F16, Stores::Bf16, fp8([128, 128]), fp8([3, 32]), fp8([4, 20]), int4];
    for (heads, nope, rope, value, latent) in
        [(1, 1, 2, 1, 1), (3, 4, 2, 5, 17), (2, 16, 8, 20, 40), (9, 8, 4, 3, 96), (4, 7, 6, 9, 130)]
    {
        let heads = LatentHeads { heads, nope, rope, value, latent };
        for kind in kinds {
            let stored = Stored::random(&mut rng, heads.heads * (nope + value), latent, kind);
            let kv_b = stored.matrix();
            for (cached, n) in [(0, 1), (6, 1), (3, 4), (0, 11)] {
                let rows = activations(&mut rng, (cached + n) * heads.row());
                let q = activations(&mut rng, n * heads.heads * heads.query());
                let expected = expanded(heads, &kv_b, &rows, &q, 0.3);
                let first = attend(Isa::detect(), heads, &kv_b, &rows, &q);
                let size = expected.iter().fold(1.0_f64, |most, y| most.max(y.abs()));
                for (got, wanted) in first.iter().zip(&expected) {
                    let off = (f64::from(*got) - wanted).abs();
                    assert!(off < 1e-4 * size, "{kind:?} {heads:?} {n}: {got}, not {wanted}");
                }
                for isa in Isa::available() {
                    let got = attend(isa, heads, &kv_b, &rows, &q);
                    assert_eq!(bits(&got), bits(&first), "{isa} {kind:?} {heads:?} {n}");
                }
            }
        }
    }
}

#[test]
fn threads_and_passes_do_not_change_a_bit() {
    let mut rng = ChaCha8Rng::seed_from_u64(22);
    // Large enough to be split over threads, with heads left over.
    let heads = LatentHeads { heads: 19, nope: 32, rope: 8, value: 24, latent: 128 };
    let stored = Stored::random(&mut rng, 19 * 56, 128, Stores::Bf16);
    let kv_b = stored.matrix();
    let rows = activations(&mut rng, 13 * heads.row());
    let q = activations(&mut rng, 13 * 19 * heads.query());
    let whole = attend(Isa::detect(), heads, &kv_b, &rows, &q);
    for threads in [1, 2, 3] {
        let again = with_threads(threads, || attend(Isa::detect(), heads, &kv_b, &rows, &q));
        assert_eq!(bits(&again), bits(&whole), "{threads} threads");
    }
    let (query, row, out) = (19 * heads.query(), heads.row(), 19 * 24);
    for t in 0..13 {
        let (rows, q) = (&rows[..(t + 1) * row], &q[t * query..][..query]);
        let one = attend(Isa::detect(), heads, &kv_b, rows, q);
        assert_eq!(bits(&one), bits(&whole[t * out..][..out]), "token {t}");
    }
}

/// The joint matrix, F32, that split projections stand for.
fn joined(heads: LatentHeads, keys: &Matrix<'_>, values: &Matrix<'_>) -> Vec<u8> {
    let LatentHeads { heads, nope, value, latent, .. } = heads;
    let (mut key, mut row) = (vec![0.0; nope], vec![0.0; latent]);
    let mut joint = vec![0.0; heads * (nope + value) * latent];
    for (h, joint) in joint.chunks_exact_mut((nope + value) * latent).enumerate() {
        for c in 0..latent {
            keys.row_to_f32(h * latent + c, &mut key);
            (0..nope).for_each(|i| joint[i * latent + c] = key[i]);
        }
        for v in 0..value {
            values.row_to_f32(h * value + v, &mut row);
            joint[(nope + v) * latent..][..latent].copy_from_slice(&row);
        }
    }
    joint.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn split_projections_equal_the_definition_in_every_bit_of_every_isa() {
    let mut rng = ChaCha8Rng::seed_from_u64(24);
    let (q8, q4k) = (Stores::Blocks(BlockType::Q8_0), Stores::Blocks(BlockType::Q4K));
    for (sizes, keys, values) in [
        ((1, 1, 2, 1, 1), Stores::F32, Stores::F16),
        ((3, 16, 8, 20, 24), Stores::Bf16, Stores::F32),
        ((9, 32, 4, 3, 256), q8, q4k),
    ] {
        let (heads, nope, rope, value, latent) = sizes;
        let sizes = LatentHeads { heads, nope, rope, value, latent };
        let keys = Stored::random(&mut rng, heads * latent, nope, keys);
        let values = Stored::random(&mut rng, heads * value, latent, values);
        let (keys, values) = (keys.matrix(), values.matrix());
        let bytes = joined(sizes, &keys, &values);
        let joint = Matrix::new(heads * (nope + value), latent, MatrixData::F32(&bytes)).unwrap();
        let split = LatentWeights::Split { keys: &keys, values: &values };
        for (cached, n) in [(0, 1), (6, 1), (3, 4)] {
            let rows = activations(&mut rng, (cached + n) * sizes.row());
            let q = activations(&mut rng, n * heads * sizes.query());
            let expected = expanded(sizes, &joint, &rows, &q, 0.3);
            let first = attend_by(Isa::detect(), sizes, split, &rows, &q);
            let size = expected.iter().fold(1.0_f64, |most, y| most.max(y.abs()));
            for (got, wanted) in first.iter().zip(&expected) {
                let off = (f64::from(*got) - wanted).abs();
                assert!(off < 1e-4 * size, "{sizes:?} {n}: {got}, not {wanted}");
            }
            for isa in Isa::available() {
                let got = attend_by(isa, sizes, split, &rows, &q);
                assert_eq!(bits(&got), bits(&first), "{isa} {sizes:?} {n}");
            }
            // The last token alone: what the others were does not change its bits.
            let last = &q[(n - 1) * heads * sizes.query()..];
            let one = attend_by(Isa::detect(), sizes, split, &rows, last);
            assert_eq!(bits(&one), bits(&first[(n - 1) * heads * value..]), "{sizes:?} {n}");
        }
    }
}

#[test]
fn a_score_far_above_the_others_takes_all() {
    let heads = LatentHeads { heads: 1, nope: 1, rope: 2, value: 1, latent: 1 };
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    let stored = Stored::random(&mut rng, 2, 1, Stores::F32);
    let kv_b = stored.matrix();
    let mut weights = [0.0; 1];
    kv_b.row_to_f32(1, &mut weights);
    // Only the rope part scores: the second row by 3e4, the others not at all.
    let rows = [5.0, 0.0, 0.0, 7.0, 1e5, 0.0, 9.0, 0.0, 0.0];
    let got = attend(Isa::detect(), heads, &kv_b, &rows, &[0.0, 1.0, 0.0]);
    assert_eq!(got, [weights[0] * 7.0]);
}
