/// Positions in one block of the cache.
pub const BLOCK_POSITIONS: usize = 256;

/// Rows of values, f32, one of `width` a position.
///
/// It grows a block at a time and never moves what it holds: a cache that doubles would
/// copy itself, and would take memory that the page cache could have used.
#[derive(Clone, Debug)]
pub struct RowCache {
    width: usize,
    blocks: Vec<Vec<f32>>,
}

impl RowCache {
    /// An empty cache with room for the first block; `width` is not zero.
    #[must_use]
    pub fn new(width: usize) -> Self {
        assert!(width > 0, "a cache of rows of no values");
        let mut cache = Self { width, blocks: Vec::new() };
        cache.reserve(1);
        cache
    }

    /// Stores `rows` `[n, width]` at `start` and after.
    ///
    /// What was there is overwritten, so a pass that failed half-way is undone by the next.
    pub fn write(&mut self, start: usize, rows: &[f32]) {
        assert_eq!(rows.len() % self.width, 0);
        self.reserve(start + rows.len() / self.width);
        for (position, row) in (start..).zip(rows.chunks_exact(self.width)) {
            let offset = position % BLOCK_POSITIONS * self.width;
            self.blocks[position / BLOCK_POSITIONS][offset..][..self.width].copy_from_slice(row);
        }
    }

    /// The rows of positions `0..len` in order, `[BLOCK_POSITIONS, width]` a piece, the last
    /// one shorter.
    pub fn rows(&self, len: usize) -> impl Iterator<Item = &[f32]> {
        let width = self.width;
        let starts = (0..len).step_by(BLOCK_POSITIONS);
        self.blocks
            .iter()
            .zip(starts)
            .map(move |(block, start)| &block[..(len - start).min(BLOCK_POSITIONS) * width])
    }

    /// Gives all blocks but the first back.
    pub fn reset(&mut self) {
        self.blocks.truncate(1);
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_POSITIONS * self.bytes_per_token()
    }

    /// Bytes that one more position needs.
    #[must_use]
    pub fn bytes_per_token(&self) -> usize {
        self.width * size_of::<f32>()
    }

    fn reserve(&mut self, positions: usize) {
        let blocks = positions.div_ceil(BLOCK_POSITIONS);
        while self.blocks.len() < blocks {
            self.blocks.push(vec![0.0; BLOCK_POSITIONS * self.width]);
        }
    }
}

/// Keys and values of one layer, one row of `width` (`kv heads × head_dim`) values of each a
/// position.
#[derive(Clone, Debug)]
pub struct KvCache {
    keys: RowCache,
    values: RowCache,
}

impl KvCache {
    /// An empty cache with room for the first block; `width` is not zero.
    #[must_use]
    pub fn new(width: usize) -> Self {
        Self { keys: RowCache::new(width), values: RowCache::new(width) }
    }

    /// Stores `keys` and `values` (each `[n, width]`) at `start` and after.
    pub fn write(&mut self, start: usize, keys: &[f32], values: &[f32]) {
        assert_eq!(keys.len(), values.len());
        self.keys.write(start, keys);
        self.values.write(start, values);
    }

    /// The keys of positions `0..len`, as [`RowCache::rows`].
    pub fn keys(&self, len: usize) -> impl Iterator<Item = &[f32]> {
        self.keys.rows(len)
    }

    /// The values of positions `0..len`, as [`RowCache::rows`].
    pub fn values(&self, len: usize) -> impl Iterator<Item = &[f32]> {
        self.values.rows(len)
    }

    /// Gives all blocks but the first back.
    pub fn reset(&mut self) {
        self.keys.reset();
        self.values.reset();
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    /// Bytes that one more position needs.
    #[must_use]
    pub fn bytes_per_token(&self) -> usize {
        self.keys.bytes_per_token() + self.values.bytes_per_token()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_cross_blocks_in_order() {
        let mut cache = KvCache::new(2);
        let rows: Vec<f32> = (0..2 * 300).map(|i| i as f32).collect();
        let negated: Vec<f32> = rows.iter().map(|x| -x).collect();
        cache.write(0, &rows[..100], &negated[..100]);
        cache.write(50, &rows[100..], &negated[100..]);
        let keys: Vec<f32> = cache.keys(300).flatten().copied().collect();
        let values: Vec<f32> = cache.values(300).flatten().copied().collect();
        assert_eq!(keys, rows);
        assert_eq!(values, negated);
        assert_eq!(cache.bytes(), 2 * 2 * 256 * 2 * 4);
        cache.reset();
        assert_eq!(cache.bytes(), 2 * 256 * 2 * 4);
    }

    #[test]
    fn writing_again_overwrites() {
        let mut cache = KvCache::new(1);
        cache.write(0, &[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]);
        cache.write(1, &[9.0], &[8.0]);
        assert_eq!(cache.keys(3).flatten().copied().collect::<Vec<_>>(), [1.0, 9.0, 3.0]);
        assert_eq!(cache.values(3).flatten().copied().collect::<Vec<_>>(), [1.0, 8.0, 3.0]);
    }
}
