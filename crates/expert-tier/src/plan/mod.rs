//! Will it run, how fast, and with how much memory: arithmetic before the first byte is read.
//!
//! A [`MissCurve`] says which share of a token's experts a file cache of a given size does not
//! have; [`Rates`] say how fast devices and memory are; [`Forecast`] makes bytes and seconds of
//! both. Nothing here is fitted: a curve comes from a trace (exact LRU), from a measured table, or
//! from an assumption that is stated with the result.

mod admission;
mod curve;
mod forecast;
mod promotion;
mod rates;

pub use admission::{AdmissionAdvice, AdmissionChoice};
pub use curve::{CurveBasis, CurveFault, CurvePoint, MissCurve};
pub use forecast::{Forecast, ForecastRow};
pub use promotion::PromotionAdvice;
pub use rates::{ColdProof, DeviceRate, MeasureLimits, Rates, measure_device, measure_memory};
