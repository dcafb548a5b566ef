//! Safetensors shards and their index, written so that nothing opens before all is there.

use super::SynthOptions;
use super::model::{Model, Tensor};
use crate::error::EngineError;
use expert_tier::{OutputError, TierError};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// There as long as the folder is not whole.
const MARKER: &str = "synth.unfinished";
const INDEX: &str = "model.safetensors.index.json";
/// Bytes that one thread makes and writes at once.
const PIECE_BYTES: u64 = 4 << 20;

/// One file: its head, and its tensors in order with their offsets in the file.
struct Shard {
    name: String,
    head: Vec<u8>,
    tensors: Vec<(Tensor, u64)>,
    len: u64,
}

/// Writes the checkpoint; the number of its weight files.
pub(super) fn write(
    model: &Model,
    options: &SynthOptions,
    out: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<usize, EngineError> {
    prepare(out)?;
    let shards = shards(model, options.shard_bytes);
    for (name, bytes) in model.small_files() {
        write_small(&out.join(name), &bytes)?;
    }
    let total = shards.iter().flat_map(|shard| &shard.tensors).map(|(t, _)| t.bytes()).sum();
    let mut done = 0;
    for shard in &shards {
        let path = out.join(format!("{}.part", shard.name));
        write_shard(model, shard, &path, options.threads, &mut |bytes| {
            done += bytes;
            progress(done, total);
        })?;
    }
    for shard in &shards {
        let (from, to) = (out.join(format!("{}.part", shard.name)), out.join(&shard.name));
        fs::rename(&from, &to).map_err(io_error(&from))?;
    }
    if shards.len() > 1 {
        let (new, path) = (out.join(format!("{INDEX}.part")), out.join(INDEX));
        write_small(&new, index(&shards, total).as_bytes())?;
        fs::rename(&new, &path).map_err(io_error(&new))?;
    }
    sync_dir(out)?;
    let marker = out.join(MARKER);
    fs::remove_file(&marker).map_err(io_error(&marker))?;
    sync_dir(out)?;
    Ok(shards.len())
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> EngineError {
    move |source| EngineError::Io { path: path.to_owned(), source }
}

fn sync_dir(dir: &Path) -> Result<(), EngineError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error(dir))
}

/// Makes the folder, or empties one that an earlier run has not finished.
fn prepare(out: &Path) -> Result<(), EngineError> {
    fs::create_dir_all(out).map_err(io_error(out))?;
    let mut names = Vec::new();
    for entry in fs::read_dir(out).map_err(io_error(out))? {
        names.push(entry.map_err(io_error(out))?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let unfinished = names.iter().any(|name| name == MARKER);
    if let Some(name) = names.first().filter(|_| !unfinished) {
        let reason = format!("the folder holds other things, for example {name}");
        return Err(TierError::Output(OutputError::Refused { path: out.to_owned(), reason }).into());
    }
    for name in names {
        if name.starts_with("model") && name.contains(".safetensors") {
            let path = out.join(name);
            fs::remove_file(&path).map_err(io_error(&path))?;
        }
    }
    write_small(&out.join(MARKER), b"a checkpoint is being written here\n")?;
    sync_dir(out)
}

fn write_small(path: &Path, bytes: &[u8]) -> Result<(), EngineError> {
    let write = || {
        let file = File::create(path)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()
    };
    write().map_err(io_error(path))
}

/// Files of at most `shard_bytes`, filled in the order of the checkpoint. Inside a file the
/// usual writers sort by element type, wide ones first, and then by name.
fn shards(model: &Model, shard_bytes: u64) -> Vec<Shard> {
    let mut members: Vec<Vec<Tensor>> = vec![Vec::new()];
    let mut filled = 0;
    for tensor in model.checkpoint() {
        let bytes = tensor.bytes();
        if filled > 0 && filled + bytes > shard_bytes {
            members.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        if let Some(shard) = members.last_mut() {
            shard.push(tensor);
        }
    }
    let total = members.len();
    let name = |number: usize| match total {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{total:05}.safetensors", number + 1),
    };
    members.into_iter().enumerate().map(|(number, tensors)| shard(name(number), tensors)).collect()
}

fn shard(name: String, mut tensors: Vec<Tensor>) -> Shard {
    tensors.sort_by(|a, b| {
        let wide = |tensor: &Tensor| std::cmp::Reverse(tensor.dtype.size_bytes());
        (wide(a), &a.name).cmp(&(wide(b), &b.name))
    });
    let mut text = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut at = 0;
    for tensor in &tensors {
        let (name, end) = (Value::String(tensor.name.clone()), at + tensor.bytes());
        let (dtype, shape) = (tensor.dtype.name(), &tensor.shape);
        text.push_str(&format!(
            ",{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}"
        ));
        at = end;
    }
    text.push('}');
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.extend_from_slice(text.as_bytes());
    let mut offset = head.len() as u64;
    let tensors = tensors.into_iter().map(|tensor| {
        let place = offset;
        offset += tensor.bytes();
        (tensor, place)
    });
    let tensors: Vec<_> = tensors.collect();
    Shard { name, head, tensors, len: offset }
}

fn index(shards: &[Shard], total: u64) -> String {
    let mut map = Map::new();
    for shard in shards {
        for (tensor, _) in &shard.tensors {
            map.insert(tensor.name.clone(), json!(shard.name));
        }
    }
    format!("{:#}\n", json!({ "metadata": { "total_size": total }, "weight_map": map }))
}

/// A range of the file: pieces of neighbouring tensors.
#[derive(Default)]
struct Piece<'a> {
    offset: u64,
    len: u64,
    /// Tensor, offset in it, length.
    of: Vec<(&'a Tensor, u64, u64)>,
}

fn pieces(shard: &Shard) -> Vec<Piece<'_>> {
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    let mut open = Piece { offset: shard.head.len() as u64, ..Piece::default() };
    for (tensor, place) in &shard.tensors {
        let mut done = 0;
        while done < tensor.bytes() {
            // Large tensors are cut at whole pieces, so that every cut is a multiple of 8.
            let len = PIECE_BYTES.min(tensor.bytes() - done);
            open.of.push((tensor, done, len));
            open.len += len;
            done += len;
            if open.len >= PIECE_BYTES {
                let next = Piece { offset: place + done, ..Piece::default() };
                pieces.push(std::mem::replace(&mut open, next));
            }
        }
    }
    if open.len > 0 {
        pieces.push(open);
    }
    pieces
}

fn write_shard(
    model: &Model,
    shard: &Shard,
    path: &Path,
    threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<(), EngineError> {
    let path: PathBuf = path.to_owned();
    let file = File::create(&path).map_err(io_error(&path))?;
    file.set_len(shard.len)
        .and_then(|()| file.write_all_at(&shard.head, 0))
        .map_err(io_error(&path))?;
    let pieces = pieces(shard);
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = |sender: &mpsc::SyncSender<io::Result<u64>>| {
        let mut buffer = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            // Two pieces at most: a short one and a whole one behind it.
            buffer.resize(piece.len as usize, 0);
            let mut rest = buffer.as_mut_slice();
            for &(tensor, offset, len) in &piece.of {
                let (out, behind) = rest.split_at_mut(len as usize);
                model.fill(tensor, offset, out);
                rest = behind;
            }
            let written = file.write_all_at(&buffer, piece.offset).map(|()| piece.len);
            if sender.send(written).is_err() {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(2 * threads);
        for _ in 0..threads {
            let (sender, work) = (sender.clone(), &work);
            scope.spawn(move || work(&sender));
        }
        drop(sender);
        let mut failed = None;
        for written in receiver {
            match written {
                Ok(bytes) => progress(bytes),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    })
    .and_then(|()| file.sync_data())
    .map_err(io_error(&path))
}
