//! Expert FFNs over weights far larger than any cache, against a plain read of the same bytes.

use crate::Settings;
use crate::consume::anonymous;
use crate::measure::{Arm, Sample, Turns};
use crate::report::{Bar, Better, Row};
use anyhow::{Context, Result};
use engine_example::kernels::{
    BlockType, ExpertTask, ExpertWeights, Isa, MXFP4_GROUP, Matrix, MatrixData, ScaleType, Scratch,
    moe_ffn, read_sum,
};
use rayon::prelude::*;
use std::time::Instant;

const HIDDEN: usize = 4096;
const INTER: usize = 1536;
const TOP_K: usize = 4;
const GROUP: usize = 32;
const BLOCK: usize = 128;
const READ: &str = "plain read of the weights, same instruction set";
/// Tokens that choose the same experts; the first is the one with a bar.
const BATCHES: [usize; 4] = [1, 2, 4, 8];
const ARMS: [&str; 4] = ["ffn, batch 1", "ffn, batch 2", "ffn, batch 4", "ffn, batch 8"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Bf16,
    Int4,
    Mxfp4,
    Fp8,
    Blocks(BlockType),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "BF16",
            Self::Int4 => "int4 in groups of 32",
            Self::Mxfp4 => "MXFP4",
            Self::Fp8 => "FP8 in blocks of 128",
            Self::Blocks(BlockType::Q8_0) => "Q8_0",
            Self::Blocks(BlockType::Q4_0) => "Q4_0",
            Self::Blocks(BlockType::Q4K) => "Q4_K",
            Self::Blocks(BlockType::Q5K) => "Q5_K",
            Self::Blocks(BlockType::Q6K) => "Q6_K",
            Self::Blocks(BlockType::Mxfp4) => "MXFP4 in ggml's blocks",
        }
    }

    /// Bytes of weights and of scales.
    fn bytes(self, rows: usize, cols: usize) -> [usize; 2] {
        match self {
            Self::Bf16 => [rows * cols * 2, 0],
            Self::Int4 => [rows * cols / 2, rows * cols / GROUP * 2],
            Self::Mxfp4 => [rows * cols / 2, rows * cols / MXFP4_GROUP],
            Self::Blocks(kind) => [rows * cols / kind.elements() * kind.size_bytes(), 0],
            Self::Fp8 => [rows * cols, rows.div_ceil(BLOCK) * cols.div_ceil(BLOCK) * 4],
        }
    }

    fn expert_bytes(self) -> usize {
        let of = |rows, cols| self.bytes(rows, cols).iter().sum::<usize>();
        2 * of(INTER, HIDDEN) + of(HIDDEN, INTER)
    }

    fn matrix<'a>(self, rows: usize, cols: usize, rest: &mut &'a [u8]) -> Result<Matrix<'a>> {
        let [weights, scales] = self.bytes(rows, cols).map(|len| {
            let (part, after) = rest.split_at(len);
            *rest = after;
            part
        });
        let data = match self {
            Self::Bf16 => MatrixData::Bf16(weights),
            Self::Int4 => {
                let scale_type = ScaleType::Bf16;
                MatrixData::Int4 { packed: weights, scales, scale_type, group: GROUP }
            }
            Self::Mxfp4 => MatrixData::Mxfp4 { packed: weights, scales },
            Self::Fp8 => {
                let (scale_type, block) = (ScaleType::F32, [BLOCK; 2]);
                MatrixData::Fp8 { codes: weights, scales, scale_type, block }
            }
            Self::Blocks(kind) => MatrixData::Blocks { kind, bytes: weights },
        };
        Matrix::new(rows, cols, data).context("a matrix of the bench")
    }

    /// Random weights of ordinary size and constant scales: nothing that is slow to multiply.
    fn fill(self, expert: &mut [u8], seed: u64) {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut rest = expert;
        for (rows, cols) in [(INTER, HIDDEN), (INTER, HIDDEN), (HIDDEN, INTER)] {
            let [weights, scales] = self.bytes(rows, cols);
            let (now, after) = rest.split_at_mut(weights + scales);
            let (weights, scales) = now.split_at_mut(weights);
            for word in weights.chunks_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let value = match self {
                    Self::Bf16 => (state & 0x80ff_80ff_80ff_80ff) | 0x3c00_3c00_3c00_3c00,
                    Self::Int4 | Self::Mxfp4 | Self::Blocks(_) => state,
                    Self::Fp8 => (state & 0xbfbf_bfbf_bfbf_bfbf) | 0x1010_1010_1010_1010,
                };
                word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
            }
            match self {
                Self::Fp8 => {
                    scales.chunks_mut(4).for_each(|s| s.copy_from_slice(&0.01_f32.to_le_bytes()));
                }
                Self::Mxfp4 => scales.fill(121),
                Self::Bf16 | Self::Int4 => {
                    scales.chunks_mut(2).for_each(|s| s.copy_from_slice(&0x3c10_u16.to_le_bytes()));
                }
                Self::Blocks(kind) => {
                    weights.chunks_mut(kind.size_bytes()).for_each(|block| set_scales(kind, block));
                }
            }
            rest = after;
        }
    }
}

/// Scales of ordinary size in a block of random codes.
fn set_scales(kind: BlockType, block: &mut [u8]) {
    let halves: &[usize] = match kind {
        BlockType::Q8_0 | BlockType::Q4_0 => &[0],
        BlockType::Q4K | BlockType::Q5K => &[0, 2],
        BlockType::Q6K => &[208],
        BlockType::Mxfp4 => {
            block[0] = 120;
            &[]
        }
    };
    for &at in halves {
        block[at..at + 2].copy_from_slice(&0x1010_u16.to_le_bytes());
    }
}

pub(crate) fn run(settings: &Settings) -> Result<(Vec<Row>, Vec<Bar>)> {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    let kinds = [Kind::Bf16, Kind::Int4, Kind::Mxfp4, Kind::Fp8];
    for kind in kinds.into_iter().chain(BlockType::ALL.map(Kind::Blocks)) {
        let experts = (settings.pick(1 << 30, 256 << 20) / kind.expert_bytes()).max(TOP_K);
        let experts = experts / TOP_K * TOP_K;
        let mut memory = anonymous(experts * kind.expert_bytes(), true, false)?;
        memory
            .par_chunks_mut(kind.expert_bytes())
            .enumerate()
            .for_each(|(number, expert)| kind.fill(expert, number as u64 + 1));
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
            let turns = pool.install(|| one(settings, kind, threads, experts, &memory))?;
            rows.extend(finish(&turns, kind, experts));
            let value = turns.ratio(READ, ARMS[0]);
            let name =
                format!("ffn, batch 1, {}, {threads} threads: rate / read rate", kind.name());
            match kind {
                Kind::Bf16 => bars.push(Bar::new(name, value, 0.80, Better::Higher)),
                Kind::Int4 => bars.push(Bar::new(name, value, 0.50, Better::Higher)),
                Kind::Mxfp4 | Kind::Fp8 | Kind::Blocks(_) => {}
            }
        }
    }
    Ok((rows, bars))
}

fn one(
    settings: &Settings,
    kind: Kind,
    threads: usize,
    experts: usize,
    memory: &[u8],
) -> Result<Turns> {
    let bytes = experts * kind.expert_bytes();
    let mut rest = &memory[..bytes];
    let mut weights = Vec::with_capacity(experts);
    for _ in 0..experts {
        weights.push(ExpertWeights {
            gate: kind.matrix(INTER, HIDDEN, &mut rest)?,
            up: kind.matrix(INTER, HIDDEN, &mut rest)?,
            down: kind.matrix(HIDDEN, INTER, &mut rest)?,
        });
    }
    let isa = Isa::detect();
    let timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        let value = start.elapsed().as_secs_f64() * 1e3;
        Ok(Sample { value, asked_bytes: bytes as u64, ..Sample::default() })
    };
    let route_bytes = TOP_K * kind.expert_bytes();
    let mut arms = vec![Arm::new(READ, "private memory", move || {
        timed(&mut || {
            for route in memory[..bytes].chunks(route_bytes) {
                let pieces = route.par_chunks(route.len().div_ceil(4 * threads));
                let sum = pieces.map(|piece| read_sum(isa, piece)).reduce(|| 0, u64::wrapping_add);
                std::hint::black_box(sum);
            }
        })
    })];
    for (&batch, name) in BATCHES.iter().zip(ARMS) {
        let x: Vec<f32> = (0..HIDDEN * batch).map(|i| (i % 17) as f32 * 0.01 - 0.05).collect();
        let tokens: Vec<(u32, f32)> = (0..batch as u32).map(|token| (token, 0.3)).collect();
        let mut out = vec![0.0_f32; HIDDEN * batch];
        let mut scratch = Scratch::default();
        let weights = &weights;
        arms.push(Arm::new(name, "private memory", move || {
            timed(&mut || {
                for route in weights.chunks(TOP_K) {
                    let task = |&weights| ExpertTask { weights, tokens: &tokens };
                    let tasks: Vec<ExpertTask<'_>> = route.iter().map(task).collect();
                    moe_ffn(isa, &tasks, &x, HIDDEN, &mut out, &mut scratch);
                }
                std::hint::black_box(&out);
            })
        }));
    }
    let size = kind.expert_bytes() as f64 / f64::from(1 << 20);
    let workload = format!(
        "{}, {threads} threads, {experts} experts of {size:.1} MiB once through, {isa}",
        kind.name()
    );
    Turns::take(&workload, "ms", arms, settings.rounds)
}

fn finish(turns: &Turns, kind: Kind, experts: usize) -> Vec<Row> {
    let mut rows = turns.rows(READ);
    let gigabytes = (experts * kind.expert_bytes()) as f64 / 1e9;
    let batches = std::iter::once(0).chain(BATCHES);
    for (row, batch) in rows.iter_mut().zip(batches) {
        let Some(result) = row.result else { continue };
        let rate = gigabytes / (result.median / 1e3);
        row.notes.push(match batch {
            0 => format!("{rate:.2} GB/s"),
            _ => format!("{rate:.2} GB/s of weights, {:.2} token-GB/s", rate * batch as f64),
        });
    }
    rows
}
