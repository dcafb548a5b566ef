use serde::Serialize;

/// Element type of a tensor in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the checkpoint formats' own")]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    F8E4m3,
    F8E5m2,
    F8E8m0,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub fn size_bytes(self) -> u64 {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F8E4m3 | Self::F8E5m2 | Self::F8E8m0 | Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// The type that a safetensors header calls `name`.
    #[must_use]
    pub fn from_safetensors(name: &str) -> Option<Self> {
        Some(match name {
            "F64" => Self::F64,
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "F8_E4M3" => Self::F8E4m3,
            "F8_E5M2" => Self::F8E5m2,
            "F8_E8M0" => Self::F8E8m0,
            "I64" => Self::I64,
            "I32" => Self::I32,
            "I16" => Self::I16,
            "I8" => Self::I8,
            "U64" => Self::U64,
            "U32" => Self::U32,
            "U16" => Self::U16,
            "U8" => Self::U8,
            "BOOL" => Self::Bool,
            _ => return None,
        })
    }
}
