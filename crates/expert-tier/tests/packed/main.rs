//! Packed pools: round trips, malformed indexes, kills.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod kill;
mod malformed;
mod round_trip;
mod sources;
mod tails;
