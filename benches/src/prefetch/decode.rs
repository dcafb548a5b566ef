//! A decode thread without its arithmetic: adopts, reads every byte, and waits as if it computed.

use crate::consume;
use anyhow::{Context, Result};
use expert_tier::Tier;
use pilot_prefetch::{Delivery, Plan};
use std::time::{Duration, Instant};

/// One layer of one pass.
pub(crate) struct Step<'a> {
    pub(crate) step: u64,
    pub(crate) layer: u16,
    pub(crate) experts: &'a [u16],
    /// What is posted before it is demanded: a guess at the layer behind it.
    pub(crate) plan: Option<&'a Plan>,
}

/// Adds what is read of the step's experts to `sum`; the bytes of these.
pub(crate) fn layer(
    tier: &Tier,
    delivery: Option<&mut Delivery>,
    step: &Step<'_>,
    compute: Duration,
    sum: &mut u64,
) -> Result<u64> {
    let mut bytes = 0;
    let mut delivery = delivery;
    if let Some(delivery) = delivery.as_deref_mut() {
        if let Some(plan) = step.plan {
            delivery.post(plan);
        }
        delivery.begin_demand(step.step, step.layer, step.experts);
    }
    let before = tier.snapshot();
    let mut adopting = tier.begin(step.layer, step.experts)?;
    let missing: Vec<u16> = adopting.missing().collect();
    loop {
        let more = adopting.wait().context("a demand read")?;
        if more.is_empty() {
            break;
        }
        for expert in adopting.experts().skip(more.start) {
            *sum = sum.wrapping_mul(31).wrapping_add(consume::expert(&expert));
            let parts = expert.parts().iter().filter_map(|part| part.bytes.host());
            bytes += parts.map(|part| part.len() as u64).sum::<u64>();
        }
    }
    let adopted = adopting.finish()?;
    if let Some(delivery) = delivery {
        delivery.demanded((tier.snapshot() - before).adopt_ns, missing);
    }
    spin(compute);
    drop(adopted);
    Ok(bytes)
}

/// The arithmetic that is left out keeps a core busy as well.
fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
