/// Which prepared rows a product takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tokens<'a> {
    /// `start..start + n`.
    Range { start: usize, n: usize },
    /// The token of each entry.
    Listed(&'a [(u32, f32)]),
}

impl Tokens<'_> {
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        match self {
            Self::Range { n, .. } => n,
            Self::Listed(list) => list.len(),
        }
    }

    #[inline(always)]
    pub(super) fn get(self, i: usize) -> usize {
        match self {
            Self::Range { start, .. } => start + i,
            Self::Listed(list) => list[i].0 as usize,
        }
    }
}
