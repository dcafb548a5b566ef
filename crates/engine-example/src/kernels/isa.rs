//! Which instructions this machine has, and the only calls into code that needs them.
//!
//! This file is the kernels' one island of `unsafe`. An [`Isa`] and the tokens below have private
//! fields and are made here, after detection; everything else is safe code that holds one.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls of functions that need detected CPU features")
)]

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::lanes::Lanes;
use super::lanes::portable::Portable;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

/// An instruction set that this machine has.
///
/// It changes speed only: results are the same bits on all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa(Kind);

/// An instruction set that cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum IsaError {
    /// No such name.
    #[error("unknown instruction set {name:?}; there are avx512, avx2, neon and portable")]
    Unknown {
        /// The name.
        name: String,
    },
    /// This machine lacks it.
    #[error("this machine does not have the instruction set {name}")]
    Missing {
        /// The name.
        name: String,
    },
}

impl Isa {
    /// The fastest that this machine has.
    #[must_use]
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// All that this machine has, fastest first; the last is always `portable`.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if avx2 && avx512 {
                found.push(Self(Kind::Avx512));
            }
            if avx2 {
                found.push(Self(Kind::Avx2));
            }
        }
        // NEON is in the baseline: the portable code is compiled to it.
        #[cfg(target_arch = "aarch64")]
        found.push(Self(Kind::Neon));
        found.push(Self(Kind::Portable));
        found
    }

    /// Its name: `avx512`, `avx2`, `neon` or `portable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            Kind::Portable => "portable",
        }
    }

    /// Runs `work` compiled for this instruction set.
    #[inline]
    pub(super) fn run<W: Work>(self, work: W) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => {
                // SAFETY: `available` makes `Kind::Avx512` only after it found every feature.
                unsafe { run_avx512(work) }
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => {
                // SAFETY: `available` makes `Kind::Avx2` only after it found every feature.
                unsafe { run_avx2(work) }
            }
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => work.run(Portable),
            Kind::Portable => work.run(Portable),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Self, IsaError> {
        if let Some(isa) = Self::available().into_iter().find(|isa| isa.name() == name) {
            return Ok(isa);
        }
        let name = name.to_owned();
        match name.as_str() {
            "avx512" | "avx2" | "neon" => Err(IsaError::Missing { name }),
            _ => Err(IsaError::Unknown { name }),
        }
    }
}

/// Something to compute, written once for all instruction sets.
pub(super) trait Work {
    /// Computes it. Must be `#[inline(always)]`: it takes its features from who calls it.
    fn run<L: Lanes>(self, lanes: L);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn run_avx512<W: Work>(work: W) {
    work.run(Avx512(()));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<W: Work>(work: W) {
    work.run(Avx2(()));
}

/// Exists only inside [`run_avx512`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
struct Avx512(());

/// Exists only inside [`run_avx2`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
struct Avx2(());

/// Implements [`Lanes`] for a token by the functions of a module.
#[cfg(target_arch = "x86_64")]
macro_rules! lanes_of {
    ($token:ty, $module:ident, { $($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)* }) => {
        impl Lanes for $token {
            type V = super::lanes::$module::V;
            type W = super::lanes::$module::W;

            const WIDE: bool = super::lanes::$module::WIDE;

            #[inline(always)]
            fn prefetch<T>(self, at: &T, ahead: usize) {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                let line = std::ptr::from_ref(at).wrapping_byte_add(ahead).cast();
                // SAFETY: a prefetch is a hint: it reads nothing, and no address makes it fault.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line) }
            }

            $(
                #[inline(always)]
                fn $name(self, $($arg: $type),*) -> $result {
                    // SAFETY: the token exists only inside the function that enables the features
                    // of the module, and that is called only after they were detected.
                    unsafe { super::lanes::$module::$name($($arg),*) }
                }
            )*
        }
    };
    ($token:ty, $module:ident) => {
        lanes_of!($token, $module, {
            splat(x: f32) -> Self::V;
            load(x: &[f32; 16]) -> Self::V;
            store(v: Self::V, out: &mut [f32; 16]) -> ();
            fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
            sum(v: Self::V) -> f32;
            pick(v: Self::V, index: &[u32; 16]) -> Self::V;
            f32s(bytes: &[u8; 64]) -> Self::V;
            f16s(bytes: &[u8; 32]) -> Self::V;
            bf16s(bytes: &[u8; 32]) -> Self::V;
            fp8s(bytes: &[u8; 32]) -> [Self::V; 2];
            e8m0s(bytes: &[u8; 16]) -> Self::V;
            words(bytes: &[u8; 64]) -> Self::W;
            low_nibbles(words: Self::W) -> Self::V;
            low_e2m1s(words: Self::W) -> Self::V;
            drop_nibbles(words: Self::W) -> Self::W;
            mul(a: Self::V, b: Self::V) -> Self::V;
            add(a: Self::V, b: Self::V) -> Self::V;
            values(v: Self::V) -> [f32; 16];
            u8s(bytes: &[u8; 16]) -> Self::W;
            i8s(bytes: &[u8; 16]) -> Self::V;
            and(words: Self::W, mask: u32) -> Self::W;
            or(a: Self::W, b: Self::W) -> Self::W;
            shift(words: Self::W, left: i32) -> Self::W;
            float(words: Self::W) -> Self::V;
            look_up(table: Self::V, words: Self::W) -> Self::V;
        });
    };
}

#[cfg(target_arch = "x86_64")]
lanes_of!(Avx512, avx512);
#[cfg(target_arch = "x86_64")]
lanes_of!(Avx2, avx2);

/// 64 bytes from any address.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load_512(bytes: &[u8; 64]) -> std::arch::x86_64::__m512i {
    // SAFETY: the reference covers the 64 bytes that an unaligned load reads.
    unsafe { std::arch::x86_64::_mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        let available = Isa::available();
        assert_eq!(available[0], Isa::detect());
        for isa in available {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
    }

    #[test]
    fn a_missing_set_is_not_an_unknown_one() {
        let name = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
        assert_eq!(name.parse::<Isa>(), Err(IsaError::Missing { name: name.to_owned() }));
        assert!(matches!("mmx".parse::<Isa>(), Err(IsaError::Unknown { .. })));
    }
}
