//! Tests of the decoder as a whole, one binary so that they link once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod errors;
mod fp8_cases;
mod gguf;
mod golden;
mod k3;
mod k3_reference;
mod pilot;
mod rope;
mod router;
mod support;
mod text;
mod tiktoken;
