//! Locality figures: equal to naive twins, and to figures that other programs published.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod data;
mod edges;
mod real;
mod twins;
