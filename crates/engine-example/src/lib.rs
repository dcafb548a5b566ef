//! Example engine: decodes Mixture-of-Experts models through the expert tier.
#![deny(unsafe_code)]

pub mod kernels;
