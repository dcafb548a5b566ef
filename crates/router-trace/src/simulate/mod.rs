//! The only counter of hits: replays accesses through policies.
//!
//! A [`Replay`] says which accesses warm the policies and which are scored; a [`Plan`] which
//! policies, budgets and allocations to try; [`simulate`] gives a [`Simulation`] of plain
//! rows. Every policy of a replay warms on the same accesses and is scored on the same ones,
//! because a warm table against a cold cache shows a difference that is not there.
//!
//! ```
//! use router_trace::simulate::{Plan, Replay, Window, simulate};
//! use router_trace::{Accesses, ModelShape};
//!
//! # fn main() -> Result<(), router_trace::TraceError> {
//! // Ten tokens that take turns between the experts 0, 1 and 2 of the only layer.
//! let shape = ModelShape { moe_layers: vec![0], n_experts: 8, top_k: 1 };
//! let tokens: Vec<_> = (0..10).map(|token| vec![(0, vec![token % 3])]).collect();
//! let trace = Accesses::from_keys(&shape, Some(1_000), tokens.iter().map(Vec::as_slice))?;
//!
//! let replay = Replay::of(&trace, "60/40".parse::<Window>()?)?;
//! let plan = Plan {
//!     policies: vec!["lru".parse()?, "belady".parse()?],
//!     budgets: vec!["2".parse()?],
//!     ..Plan::default()
//! };
//! let result = simulate(&replay, &plan, |_row| {})?;
//! assert_eq!(result.rows[0].count.hits, 0); // LRU evicts each expert just before its turn
//! assert_eq!(result.rows[1].count.hits, 2);
//! assert_eq!(result.rows[1].miss_bytes, Some(2_000));
//! # Ok(())
//! # }
//! ```

mod budget;
mod curve;
mod meter;
mod replay;
mod result;
mod run;
mod speed;
mod window;

pub use budget::Budget;
pub use curve::{HitCurve, StackOrder};
pub use meter::{Count, Meter, Pins};
pub use replay::{Replay, Span};
pub use result::{LayerRow, Row, Simulation};
pub use run::{Allocation, Plan, play, simulate};
pub use speed::{LRU_TARGET_PER_S, OTHERS_TARGET_PER_S, SpeedReport, SpeedRow};
pub use window::Window;
