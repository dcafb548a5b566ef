//! The vocabulary of Mixture-of-Experts routing, and the traces of it.
//!
//! A [`Route`] is what one token chose at one layer, a [`LayerPass`] the routes of one
//! layer of one forward pass. A [`Recorder`] takes passes on the decode thread without
//! ever making it wait and writes them to a [`JsonlWriter`]'s file; a [`JsonlReader`]
//! gives them back, and says exactly what is wrong with a file that is not a trace.
//!
//! [`locality`] measures how a trace reuses its experts; [`report`] shows that, and what a
//! simulator finds, as text, CSV, plots and a page.
//!
//! ```
//! use router_trace::{
//!     DEFAULT_CAPACITY_BYTES, JsonlReader, JsonlWriter, ModelShape, PassInfo, PassKind, Phase,
//!     Recorder, Tail, TraceHeader,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let header = TraceHeader {
//!     model_name: "two layers".into(),
//!     shape: ModelShape { moe_layers: vec![1, 2], n_experts: 8, top_k: 2 },
//!     expert_bytes: None,
//!     created_by: "an example".into(),
//! };
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("trace.jsonl");
//! let writer = JsonlWriter::create(&path, &header)?;
//! let mut recorder = Recorder::spawn(writer, DEFAULT_CAPACITY_BYTES)?;
//! for layer in [1, 2] {
//!     let info = PassInfo {
//!         step: 0,
//!         position: 0,
//!         layer,
//!         phase: Phase::Decode,
//!         kind: PassKind::Normal,
//!     };
//!     recorder.record(info, &[5, 0]); // best score first; never waits
//! }
//! let summary = recorder.finish()?;
//! assert_eq!((summary.records, summary.dropped.records), (2, 0));
//!
//! for pass in JsonlReader::open(&path, Tail::Strict)? {
//!     let pass = pass?;
//!     assert_eq!(pass.routes().next().unwrap().experts(), [5, 0]);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`format::open`] reads traces of any format, this project's two and other programs', and
//! [`format::convert`] writes them in either of ours; [`canonical`] types the passes of
//! programs that do not, and [`union`] merges traces into a batch.
//!
//! [`Accesses`] is a trace as policies see it: [`simulate`](mod@simulate) replays it through
//! the replacement policies of [`policy`], which are the objects that a live tier runs, and
//! a [`DemandModel`] tells while decoding what LRU would have to read.
//!
//! What it does not do: it knows no weights, no files but traces and no operating system.
#![forbid(unsafe_code)]

mod accesses;
pub mod canonical;
mod demand;
mod error;
pub mod format;
mod ids;
pub mod locality;
mod pass;
pub mod policy;
mod recorder;
#[cfg(feature = "report")]
pub mod report;
mod route;
mod row_fault;
pub mod simulate;
pub mod union;

pub use accesses::{Accesses, Demand, KeySpace, MAX_ACCESSES, Synthetic};
pub use demand::{DemandCount, DemandModel};
pub use error::TraceError;
pub use format::compact::{CompactReader, CompactWriter};
pub use format::jsonl::{
    Dropped, JsonlReader, JsonlWriter, Tail, TornTail, Trace, TraceHeader, TraceSummary, read_all,
};
pub use ids::{ExpertId, ModelShape};
pub use pass::{LayerPass, PassInfo};
pub use recorder::{DEFAULT_CAPACITY_BYTES, MAX_CAPACITY_BYTES, MIN_CAPACITY_BYTES, Recorder};
pub use route::{MAX_TOP_K, PassKind, Phase, Route};
pub use row_fault::RowFault;
