use serde::Serialize;

/// Element type of a tensor in a checkpoint: one number an element, or (types of GGUF that end in
/// `_0`, `_1`, `_K` and the like) blocks of 32 or 256 numbers along a row that share their scales.
///
/// The block types' layouts are those of ggml (`ggml-common.h`, `ggml.c: type_traits`).
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
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    #[serde(rename = "Q2_K")]
    Q2K,
    #[serde(rename = "Q3_K")]
    Q3K,
    #[serde(rename = "Q4_K")]
    Q4K,
    #[serde(rename = "Q5_K")]
    Q5K,
    #[serde(rename = "Q6_K")]
    Q6K,
    #[serde(rename = "IQ1_S")]
    Iq1S,
    #[serde(rename = "IQ1_M")]
    Iq1M,
    #[serde(rename = "IQ2_XXS")]
    Iq2Xxs,
    #[serde(rename = "IQ2_XS")]
    Iq2Xs,
    #[serde(rename = "IQ2_S")]
    Iq2S,
    #[serde(rename = "IQ3_XXS")]
    Iq3Xxs,
    #[serde(rename = "IQ3_S")]
    Iq3S,
    #[serde(rename = "IQ4_NL")]
    Iq4Nl,
    #[serde(rename = "IQ4_XS")]
    Iq4Xs,
    #[serde(rename = "TQ1_0")]
    Tq1_0,
    #[serde(rename = "TQ2_0")]
    Tq2_0,
    #[serde(rename = "MXFP4")]
    Mxfp4,
}

/// What a type is: its name, the numbers and bytes of one block, its number in GGUF files.
struct Spec(Dtype, &'static str, u64, u64, Option<u32>);

/// One row a type, in the order of the enum.
const SPECS: [Spec; 38] = {
    use Dtype::*;
    [
        Spec(F64, "F64", 1, 8, Some(28)),
        Spec(F32, "F32", 1, 4, Some(0)),
        Spec(F16, "F16", 1, 2, Some(1)),
        Spec(Bf16, "BF16", 1, 2, Some(30)),
        Spec(F8E4m3, "F8_E4M3", 1, 1, None),
        Spec(F8E5m2, "F8_E5M2", 1, 1, None),
        Spec(F8E8m0, "F8_E8M0", 1, 1, None),
        Spec(I64, "I64", 1, 8, Some(27)),
        Spec(I32, "I32", 1, 4, Some(26)),
        Spec(I16, "I16", 1, 2, Some(25)),
        Spec(I8, "I8", 1, 1, Some(24)),
        Spec(U64, "U64", 1, 8, None),
        Spec(U32, "U32", 1, 4, None),
        Spec(U16, "U16", 1, 2, None),
        Spec(U8, "U8", 1, 1, None),
        Spec(Bool, "BOOL", 1, 1, None),
        Spec(Q4_0, "Q4_0", 32, 18, Some(2)),
        Spec(Q4_1, "Q4_1", 32, 20, Some(3)),
        Spec(Q5_0, "Q5_0", 32, 22, Some(6)),
        Spec(Q5_1, "Q5_1", 32, 24, Some(7)),
        Spec(Q8_0, "Q8_0", 32, 34, Some(8)),
        Spec(Q2K, "Q2_K", 256, 84, Some(10)),
        Spec(Q3K, "Q3_K", 256, 110, Some(11)),
        Spec(Q4K, "Q4_K", 256, 144, Some(12)),
        Spec(Q5K, "Q5_K", 256, 176, Some(13)),
        Spec(Q6K, "Q6_K", 256, 210, Some(14)),
        Spec(Iq1S, "IQ1_S", 256, 50, Some(19)),
        Spec(Iq1M, "IQ1_M", 256, 56, Some(29)),
        Spec(Iq2Xxs, "IQ2_XXS", 256, 66, Some(16)),
        Spec(Iq2Xs, "IQ2_XS", 256, 74, Some(17)),
        Spec(Iq2S, "IQ2_S", 256, 82, Some(22)),
        Spec(Iq3Xxs, "IQ3_XXS", 256, 98, Some(18)),
        Spec(Iq3S, "IQ3_S", 256, 110, Some(21)),
        Spec(Iq4Nl, "IQ4_NL", 32, 18, Some(20)),
        Spec(Iq4Xs, "IQ4_XS", 256, 136, Some(23)),
        Spec(Tq1_0, "TQ1_0", 256, 54, Some(34)),
        Spec(Tq2_0, "TQ2_0", 256, 66, Some(35)),
        Spec(Mxfp4, "MXFP4", 32, 17, Some(39)),
    ]
};

impl Dtype {
    fn spec(self) -> &'static Spec {
        &SPECS[self as usize]
    }

    /// Bytes of one stored unit: of an element, or of a block.
    #[must_use]
    pub fn size_bytes(self) -> u64 {
        self.spec().3
    }

    /// Numbers in one stored unit: 1, or those of a block.
    #[must_use]
    pub fn block_elements(self) -> u64 {
        self.spec().2
    }

    /// Whether numbers are stored in blocks along a row.
    #[must_use]
    pub fn is_block(self) -> bool {
        self.block_elements() > 1
    }

    /// Bytes of a row of `elements` numbers; `None` if a block would be cut or the size does not
    /// fit 64 bits.
    #[must_use]
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        let whole = elements.is_multiple_of(self.block_elements());
        whole.then_some(elements / self.block_elements())?.checked_mul(self.size_bytes())
    }

    /// What the address of an element or block must be a multiple of to be read by one load a
    /// number. Blocks hold 16-bit scales at most.
    #[must_use]
    pub fn align_bytes(self) -> u64 {
        match self {
            Self::Mxfp4 => 1,
            _ if self.is_block() => 2,
            _ => self.size_bytes(),
        }
    }

    /// The type that a safetensors header calls `name`.
    #[must_use]
    pub fn from_safetensors(name: &str) -> Option<Self> {
        Self::from_name(name).filter(|dtype| !dtype.is_block())
    }

    /// The type of this [`Dtype::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        SPECS.iter().find(|spec| spec.1 == name).map(|spec| spec.0)
    }

    /// The type that GGUF files give this number.
    #[must_use]
    pub fn from_ggml(number: u32) -> Option<Self> {
        SPECS.iter().find(|spec| spec.4 == Some(number)).map(|spec| spec.0)
    }

    /// The number that GGUF files give it; `None` for a type that they do not have.
    #[must_use]
    pub fn ggml(self) -> Option<u32> {
        self.spec().4
    }

    /// What a safetensors header calls it; for block types the name that ggml gives them.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.spec().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (index, spec) in SPECS.iter().enumerate() {
            assert_eq!(spec.0 as usize, index, "{}", spec.1);
            assert_eq!(Dtype::from_name(spec.1), Some(spec.0));
            assert_eq!(spec.0.ggml().and_then(Dtype::from_ggml), spec.4.map(|_| spec.0));
        }
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(Dtype::Q4K.row_bytes(512), Some(288));
        assert_eq!(Dtype::Q4K.row_bytes(500), None);
        assert_eq!(Dtype::F32.row_bytes(u64::MAX), None);
        assert_eq!(Dtype::Mxfp4.row_bytes(0), Some(0));
        assert_eq!(Dtype::from_safetensors("Q4_K"), None);
        assert_eq!(Dtype::from_safetensors("BF16"), Some(Dtype::Bf16));
    }
}
