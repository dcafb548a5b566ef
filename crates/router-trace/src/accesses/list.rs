use super::Accesses;
use crate::error::TraceError;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::io::{self, Write};

/// The first bytes of a list; the last one before the line end is the version.
const MAGIC: [u8; 8] = *b"EXPACC1\n";

/// 64-bit FNV-1a (Fowler, Noll, Vo; public domain): small enough to be written twice, once
/// here and once in whatever replays a list, and good enough to tell one order from another.
#[derive(Clone, Copy, Debug)]
struct Fnv(u64);

impl Fnv {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Hashes what passes through.
struct Hashed<W> {
    out: W,
    hash: Fnv,
}

impl<W: Write> Hashed<W> {
    fn number(&mut self, value: u32) -> io::Result<()> {
        self.hash.add(&value.to_le_bytes());
        self.out.write_all(&value.to_le_bytes())
    }

    fn count(&mut self, what: &'static str, value: usize) -> Result<(), TraceError> {
        let fits = u32::try_from(value).map_err(|_| TraceError::TooMany {
            what,
            value: value as u64,
            limit: u32::MAX.into(),
        })?;
        self.number(fits).map_err(io_error)
    }
}

fn io_error(source: io::Error) -> TraceError {
    TraceError::Io { operation: "writing an access list", records: 0, bytes: 0, source }
}

impl Accesses {
    /// A hash of the keys in the order in which they are asked for: whoever replays these
    /// accesses elsewhere shows with it that the order was kept. 64-bit FNV-1a over the keys
    /// as little-endian u32.
    #[must_use]
    pub fn order_hash(&self) -> u64 {
        let mut hash = Fnv::new();
        for key in self.keys() {
            hash.add(&key.to_le_bytes());
        }
        hash.0
    }

    /// Where each key lies if keys are laid out at random: a permutation of `0..n_keys`.
    /// Seed 0 is the order of the keys; the same seed gives the same permutation.
    #[must_use]
    pub fn placement(&self, seed: u64) -> Vec<u32> {
        let mut places: Vec<u32> = (0..self.n_keys() as u32).collect();
        if seed != 0 {
            places.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        }
        places
    }

    /// Writes the accesses for a program that knows nothing of traces, such as one that runs
    /// in a virtual machine and reads a file in this order.
    ///
    /// All numbers are little-endian u32: `EXPACC1\n`, keys, iterations, accesses, the first
    /// scored iteration; the place of each key ([`placement`](Accesses::placement) with
    /// `seed`); for each iteration the number of accesses up to its end; the keys in order;
    /// last, as u64, FNV-1a of all bytes before.
    ///
    /// # Errors
    ///
    /// [`TraceError::Setting`] if nothing would be scored, [`TraceError::Io`] if it cannot be
    /// written.
    pub fn write_list(
        &self,
        out: impl Write,
        first_scored: usize,
        seed: u64,
    ) -> Result<(), TraceError> {
        if first_scored >= self.n_iterations() {
            return Err(TraceError::Setting {
                what: "first scored iteration",
                value: first_scored.to_string(),
                expected: format!("one of the {} iterations", self.n_iterations()),
            });
        }
        let mut out = Hashed { out, hash: Fnv::new() };
        out.hash.add(&MAGIC);
        out.out.write_all(&MAGIC).map_err(io_error)?;
        out.count("keys", self.n_keys())?;
        out.count("iterations", self.n_iterations())?;
        out.count("accesses", self.keys().len())?;
        out.count("iterations", first_scored)?;
        for place in self.placement(seed) {
            out.number(place).map_err(io_error)?;
        }
        for end in 1..=self.n_iterations() {
            out.count("accesses", self.pass_start(self.pass_range(0..end).end))?;
        }
        for &key in self.keys() {
            out.number(key).map_err(io_error)?;
        }
        let hash = out.hash.0;
        out.out.write_all(&hash.to_le_bytes()).and_then(|()| out.out.flush()).map_err(io_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ModelShape;

    fn two_layers() -> Accesses {
        let shape = ModelShape { moe_layers: vec![0, 1], n_experts: 3, top_k: 2 };
        let tokens = [vec![(0, vec![2, 0]), (1, vec![5, 3])], vec![(0, vec![1, 2])]];
        Accesses::from_keys(&shape, None, tokens.iter().map(Vec::as_slice)).unwrap()
    }

    /// Every byte of a small list, written out by hand.
    #[test]
    fn a_list_is_what_is_documented() {
        let mut list = Vec::new();
        two_layers().write_list(&mut list, 1, 0).unwrap();
        let numbers = [6, 2, 6, 1, 0, 1, 2, 3, 4, 5, 4, 6, 2, 0, 5, 3, 1, 2_u32];
        let mut expected = b"EXPACC1\n".to_vec();
        expected.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        assert_eq!(list[..expected.len()], expected);
        let mut hash = Fnv::new();
        hash.add(&expected);
        assert_eq!(list[expected.len()..], hash.0.to_le_bytes());
    }

    /// The test vectors of the hash's authors.
    #[test]
    fn the_hash_is_the_published_one() {
        for (text, expected) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            let mut hash = Fnv::new();
            hash.add(text.as_bytes());
            assert_eq!(hash.0, expected, "{text:?}");
        }
    }

    #[test]
    fn the_order_decides_and_the_layout_does_not() {
        let shape = ModelShape { moe_layers: vec![0], n_experts: 3, top_k: 2 };
        let of = |keys: Vec<u32>| {
            Accesses::from_keys(&shape, None, [vec![(0, keys)]].iter().map(Vec::as_slice)).unwrap()
        };
        assert_ne!(of(vec![0, 1, 2]).order_hash(), of(vec![0, 2, 1]).order_hash());
        let one = two_layers();
        assert_eq!(one.placement(0), [0, 1, 2, 3, 4, 5]);
        let mut placed = one.placement(7);
        assert_eq!(placed, one.placement(7));
        placed.sort_unstable();
        assert_eq!(placed, one.placement(0));
    }

    #[test]
    fn a_list_scores_something() {
        let error = two_layers().write_list(io::sink(), 2, 0).unwrap_err();
        assert_eq!(error.kind(), "usage");
    }
}
