//! PILOT: guesses which experts the next layers will choose, and advises the kernel of them.
#![forbid(unsafe_code)]

// The model checker needs the slot alone.
#[cfg(not(loom))]
mod delivery;
#[cfg(not(loom))]
pub mod fit;
#[cfg(not(loom))]
mod gate;
#[cfg(not(loom))]
mod oracle;
#[cfg(not(loom))]
mod plan;
#[cfg(not(loom))]
mod plan_file;
#[cfg(not(loom))]
pub mod predict;
#[cfg(not(loom))]
mod scorecard;
#[cfg(not(loom))]
mod settle;
mod slot;
#[cfg(not(loom))]
mod worker;

#[cfg(not(loom))]
pub use delivery::{Delivery, DeliverySnapshot};
#[cfg(not(loom))]
pub use gate::{Gate, GateConfig, LayerGate};
#[cfg(not(loom))]
pub use oracle::OracleForm;
#[cfg(not(loom))]
pub use plan::{Hint, MAX_WIDTH, Plan};
#[cfg(not(loom))]
pub use plan_file::{
    MAX_LINE_BYTES, PLAN_FORMAT, PLAN_VERSION, PlanFileError, PlanHeader, PlanReader, PlanWriter,
};
#[cfg(not(loom))]
pub use scorecard::{HintBytes, LayerScore, Reliability, Scorecard, Scores, WIDTHS};
#[cfg(not(loom))]
pub use settle::Settled;
pub use slot::SlotCounts;
#[cfg(not(loom))]
pub use worker::{
    Advise, ByteBudget, HintCounts, NoAdvice, Worker, WorkerConfig, WorkerError, WorkerSnapshot,
};
