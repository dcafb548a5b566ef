//! Writers for small checkpoints, sound and broken.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// A tensor to write: name, element type, shape, bytes of one element.
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<u64>,
}

pub(crate) fn tensor(name: impl Into<String>, dtype: &'static str, shape: &[u64]) -> Tensor {
    Tensor { name: name.into(), dtype, shape: shape.to_vec() }
}

impl Tensor {
    pub(crate) fn len(&self) -> u64 {
        let size = match self.dtype {
            "I64" => 8,
            "F32" | "I32" => 4,
            "BF16" | "F16" => 2,
            _ => 1,
        };
        self.shape.iter().product::<u64>() * size
    }
}

/// The header with its length field, and the length of the data section.
pub(crate) fn header(tensors: &[Tensor]) -> (Vec<u8>, u64) {
    let mut json = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.len();
        json += &format!(
            ",\"{}\":{{\"dtype\":\"{}\",\"shape\":{:?},\"data_offsets\":[{at},{end}]}}",
            tensor.name, tensor.dtype, tensor.shape
        );
        at = end;
    }
    json += "}";
    while json.len() % 8 != 0 {
        json.push(' ');
    }
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.bytes());
    (bytes, at)
}

/// Writes a file whose data is all ones (so that nothing is a hole).
pub(crate) fn write(path: &Path, tensors: &[Tensor]) {
    let (mut bytes, len) = header(tensors);
    bytes.resize(bytes.len() + len as usize, 1);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Writes a file whose data section is one hole of the right length.
pub(crate) fn write_sparse(path: &Path, tensors: &[Tensor]) {
    let (bytes, len) = header(tensors);
    let mut file = File::create(path).unwrap();
    file.write_all(&bytes).unwrap();
    file.set_len(bytes.len() as u64 + len).unwrap();
}
