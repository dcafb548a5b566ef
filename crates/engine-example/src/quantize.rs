//! A checkpoint with float experts to one with int4 experts, in the form that the
//! compressed-tensors project calls `pack-quantized`.
//!
//! The parts of an expert are written side by side, in the order in which they are read, so that
//! one expert is one extent. Everything else is copied as it is.

use crate::error::EngineError;
use crate::kernels::{Matrix, MatrixData, quantize_int4};
use expert_tier::Pool;
use expert_tier::pool::{Dtype, ExpertLayout, Extent, Part, PartRole};
use rayon::prelude::*;
use router_trace::ExpertId;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct QuantizeReport {
    /// The folder.
    pub out: PathBuf,
    /// Routed experts.
    pub experts: usize,
    /// Columns that share one scale.
    pub group: usize,
    /// Bytes of the experts before.
    pub expert_bytes_before: u64,
    /// And after.
    pub expert_bytes_after: u64,
    /// Root of the mean squared error over the root of the mean square of all expert weights.
    pub relative_rms_error: f64,
}

/// Files beside the weights that the quantised model needs as they are.
const COPIED: [&str; 6] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "LICENSE",
];

const PROJECTIONS: [(PartRole, &str); 3] =
    [(PartRole::Gate, "gate_proj"), (PartRole::Up, "up_proj"), (PartRole::Down, "down_proj")];

/// Write `pool` to the new folder `out` with int4 experts, `group` columns to a scale;
/// `progress(done, total)` counts experts.
///
/// # Errors
/// Experts that are not float, a group that does not fit their width, a folder that is already
/// there, or a disk that fails. What was written so far has names that nothing opens.
pub fn quantize(
    pool: &Pool,
    out: &Path,
    group: usize,
    mut progress: impl FnMut(u64, u64),
) -> Result<QuantizeReport, EngineError> {
    let config = pool.config().ok_or_else(|| EngineError::MissingConfig {
        path: pool.root().to_owned(),
        reason: "there is no config.json beside the weights".to_owned(),
    })?;
    check_group(pool, group)?;
    let at = |path: &Path, source| EngineError::Io { path: path.to_owned(), source };
    fs::create_dir(out).map_err(|source| at(out, source))?;
    let files = pool
        .files()
        .iter()
        .map(|file| File::open(&file.path).map_err(|source| at(&file.path, source)));
    let files: Vec<File> = files.collect::<Result<_, _>>()?;

    let partial = out.join("model.safetensors.part");
    let mut writer = BufWriter::new(File::create(&partial).map_err(|source| at(&partial, source))?);
    let written = write_weights(pool, &files, group, &mut writer, &mut progress);
    let sums = written.map_err(|problem| match problem {
        Problem::Read(file, source) => at(&pool.files()[file as usize].path, source),
        Problem::Write(source) => at(&partial, source),
        Problem::Engine(error) => error,
    })?;
    writer.flush().and_then(|()| writer.get_ref().sync_all()).map_err(|s| at(&partial, s))?;

    copy_side_files(pool.root(), out)?;
    let mut text = config.text.clone();
    text.insert("quantization_config".to_owned(), quantization_config(group));
    let path = out.join("config.json");
    let json = serde_json::to_vec_pretty(&Value::Object(text))
        .map_err(|error| at(&path, io::Error::other(error)))?;
    fs::write(&path, json).map_err(|source| at(&path, source))?;
    // Last: without this name the folder is no model.
    let path = out.join("model.safetensors");
    fs::rename(&partial, &path).map_err(|source| at(&path, source))?;
    Ok(QuantizeReport {
        out: out.to_owned(),
        experts: pool.layout().total_experts(),
        group,
        expert_bytes_before: pool.layout().total_bytes(),
        expert_bytes_after: sums.bytes,
        relative_rms_error: (sums.squared_error / sums.squares).sqrt(),
    })
}

enum Problem {
    Read(u32, io::Error),
    Write(io::Error),
    Engine(EngineError),
}

#[derive(Default)]
struct Sums {
    bytes: u64,
    squared_error: f64,
    squares: f64,
}

fn check_group(pool: &Pool, group: usize) -> Result<(), EngineError> {
    if pool.layout().total_experts() == 0 {
        let problem = format!("{} has no routed experts", pool.root().display());
        return Err(EngineError::config("num_experts", &0, problem));
    }
    for (id, expert) in pool.layout().iter() {
        for (role, _) in PROJECTIONS {
            let part = float_part(id, expert, role)?;
            if group == 0 || !group.is_multiple_of(8) || !(part.cols as usize).is_multiple_of(group)
            {
                let reason = format!(
                    "a multiple of 8 that divides the {} columns of {id} {role:?}",
                    part.cols
                );
                return Err(EngineError::unsupported("group", &group, reason));
            }
        }
    }
    Ok(())
}

fn float_part(id: ExpertId, expert: &ExpertLayout, role: PartRole) -> Result<&Part, EngineError> {
    let part = expert.part(role).ok_or_else(|| EngineError::MissingWeight {
        name: format!("{id} {role:?}"),
        reason: "an expert has gate, up and down projections".to_owned(),
    })?;
    if matches!(part.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
        return Ok(part);
    }
    let reason = "F32, F16 and BF16 experts are";
    Err(EngineError::unsupported(format!("{id} {role:?}"), &format!("{:?}", part.dtype), reason))
}

/// Header first, then the tensors in the header's order.
fn write_weights(
    pool: &Pool,
    files: &[File],
    group: usize,
    out: &mut impl Write,
    progress: &mut impl FnMut(u64, u64),
) -> Result<Sums, Problem> {
    let header = header(pool, group);
    let mut text = serde_json::to_vec(&header).map_err(|error| Problem::Write(error.into()))?;
    // Data that starts at a multiple of 64 keeps every tensor aligned to its element.
    text.resize((text.len() + 8).next_multiple_of(64) - 8, b' ');
    out.write_all(&(text.len() as u64).to_le_bytes()).map_err(Problem::Write)?;
    out.write_all(&text).map_err(Problem::Write)?;
    for tensor in pool.spine().values() {
        let bytes = read(files, tensor.extent)?;
        out.write_all(&bytes).map_err(Problem::Write)?;
    }
    for (id, expert) in pool.layout().iter() {
        for (role, _) in PROJECTIONS {
            let part = float_part(id, expert, role).map_err(Problem::Engine)?;
            for dim in [part.rows, part.cols] {
                out.write_all(&i64::from(dim).to_le_bytes()).map_err(Problem::Write)?;
            }
        }
    }
    let mut sums = Sums::default();
    let total = pool.layout().total_experts() as u64;
    let experts: Vec<_> = pool.layout().iter().collect();
    // A few experts at a time: their weights are in memory as f32.
    for (batch, experts) in experts.chunks(BATCH).enumerate() {
        let done: Vec<_> = experts
            .par_iter()
            .map(|(id, expert)| quantize_expert(*id, expert, files, group))
            .collect::<Result<_, _>>()?;
        for (bytes, sum) in done {
            out.write_all(&bytes).map_err(Problem::Write)?;
            sums.bytes += bytes.len() as u64;
            sums.squared_error += sum.squared_error;
            sums.squares += sum.squares;
        }
        progress((batch * BATCH + experts.len()) as u64, total);
    }
    Ok(sums)
}

const BATCH: usize = 16;

/// The expert's bytes in their new form, and what that costs.
fn quantize_expert(
    id: ExpertId,
    expert: &ExpertLayout,
    files: &[File],
    group: usize,
) -> Result<(Vec<u8>, Sums), Problem> {
    let (mut bytes, mut sums) = (Vec::new(), Sums::default());
    for (role, _) in PROJECTIONS {
        let part = float_part(id, expert, role).map_err(Problem::Engine)?;
        let (rows, cols) = (part.rows as usize, part.cols as usize);
        let stored = read(files, part.extent)?;
        let data = match part.dtype {
            Dtype::F32 => MatrixData::F32(&stored),
            Dtype::F16 => MatrixData::F16(&stored),
            _ => MatrixData::Bf16(&stored),
        };
        let name = || format!("{id} {role:?}");
        let matrix = |data| {
            Matrix::new(rows, cols, data)
                .map_err(|source| Problem::Engine(EngineError::Matrix { name: name(), source }))
        };
        let weights = to_f32(&matrix(data)?);
        let int4 = quantize_int4(&weights, rows, cols, group);
        let scale_type = crate::kernels::ScaleType::Bf16;
        let data =
            MatrixData::Int4 { packed: &int4.packed, scales: &int4.scales, scale_type, group };
        for (before, after) in weights.iter().zip(to_f32(&matrix(data)?)) {
            sums.squared_error += f64::from(before - after).powi(2);
            sums.squares += f64::from(*before).powi(2);
        }
        bytes.extend(int4.packed);
        bytes.extend(int4.scales);
    }
    Ok((bytes, sums))
}

fn to_f32(matrix: &Matrix<'_>) -> Vec<f32> {
    let mut all = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, out) in all.chunks_exact_mut(matrix.cols().max(1)).enumerate() {
        matrix.row_to_f32(row, out);
    }
    all
}

fn read(files: &[File], extent: Extent) -> Result<Vec<u8>, Problem> {
    let mut bytes = vec![0; extent.len as usize];
    files[extent.file as usize]
        .read_exact_at(&mut bytes, extent.offset)
        .map_err(|source| Problem::Read(extent.file, source))?;
    Ok(bytes)
}

/// Names, types, shapes and ranges of everything that `write_weights` writes, in its order.
fn header(pool: &Pool, group: usize) -> Map<String, Value> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut end = 0_u64;
    let mut add = |name: String, dtype: &str, shape: Vec<u64>, len: u64| {
        let range = [end, end + len];
        end += len;
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": range});
        header.insert(name, entry);
    };
    for tensor in pool.spine().values() {
        let dtype = tensor.dtype.name();
        add(tensor.stored_name.clone(), dtype, tensor.shape.clone(), tensor.extent.len);
    }
    let name = |id: ExpertId, projection: &str, part: &str| {
        format!("model.layers.{}.mlp.experts.{}.{projection}.{part}", id.layer, id.index)
    };
    for (id, _) in pool.layout().iter() {
        for (_, projection) in PROJECTIONS {
            add(name(id, projection, "weight_shape"), "I64", vec![2], 16);
        }
    }
    for (id, expert) in pool.layout().iter() {
        for (role, projection) in PROJECTIONS {
            let Some(part) = expert.part(role) else { continue };
            let (rows, cols) = (u64::from(part.rows), u64::from(part.cols));
            let (words, groups) = (cols / 8, cols / group as u64);
            add(name(id, projection, "weight_packed"), "I32", vec![rows, words], rows * words * 4);
            add(
                name(id, projection, "weight_scale"),
                "BF16",
                vec![rows, groups],
                rows * groups * 2,
            );
        }
    }
    header
}

fn copy_side_files(root: &Path, out: &Path) -> Result<(), EngineError> {
    let folder = if root.is_dir() { root } else { root.parent().unwrap_or(root) };
    for name in COPIED {
        let path = folder.join(name);
        if path.exists() {
            fs::copy(&path, out.join(name))
                .map_err(|source| EngineError::Io { path: out.join(name), source })?;
        }
    }
    Ok(())
}

fn quantization_config(group: usize) -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "input_activations": null,
            "output_activations": null,
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": true,
                "strategy": "group",
                "group_size": group,
                "dynamic": false,
                "actorder": null,
                "observer": "minmax",
                "observer_kwargs": {},
                "block_structure": null,
            },
        }},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp\\.gate$", "re:.*mlp\\.(gate|up|down)_proj$"],
        "kv_cache_scheme": null,
        "global_compression_ratio": null,
    })
}
