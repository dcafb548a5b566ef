//! Experts larger than one advice call can ask for, with an oracle's hints by every form.

use super::decode::{self, Step};
use crate::consume;
use crate::measure::{Arm, Meter, Sample, Turns, make_cold};
use crate::{P17, Settings};
use anyhow::Result;
use expert_tier::{AdviceForm, Pool, Tier, TierConfig};
use pilot_prefetch::{Delivery, Hint, MAX_WIDTH, Plan, Worker, WorkerConfig};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::time::{Duration, Instant};

/// Stands for the arithmetic of one pass.
const COMPUTE: Duration = Duration::from_millis(30);
/// Experts a pass demands.
const TOP_K: usize = 2;

pub(super) const NONE: &str = "none, 17.5 MiB";
pub(super) const PIECES: &str = "oracle, advice in pieces, 17.5 MiB";
pub(super) const SINGLE: &str = "losing: oracle, one call an expert, 17.5 MiB";
const BLOCKING: &str = "oracle, blocking reads, 17.5 MiB";

/// All experts of the pool once, two a pass, from cold.
pub(super) fn turns(settings: &Settings) -> Result<Turns> {
    let pool = P17.open(&settings.dir)?;
    let mut order: Vec<u16> = (0..P17.experts).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(17));
    let workload = format!(
        "{} passes of {TOP_K} x 17.5 MiB from cold, {} ms between, wall time a pass",
        order.len() / TOP_K,
        COMPUTE.as_millis()
    );
    let pieces = Some(AdviceForm::Pieces);
    let arms = [
        (NONE, "demand alone", None),
        (PIECES, "2 MiB populate, idle I/O priority", pieces),
        (BLOCKING, "pread, idle I/O priority", Some(AdviceForm::BlockingRead)),
        (SINGLE, "one fadvise an extent, idle I/O priority", Some(AdviceForm::SingleCall)),
    ];
    let (pool, order) = (&pool, &order);
    let arms =
        arms.map(|(name, channel, form)| Arm::new(name, channel, move || turn(pool, order, form)));
    Turns::take(&workload, "ms", arms.into_iter().collect(), settings.rounds)
}

fn turn(pool: &Pool, order: &[u16], form: Option<AdviceForm>) -> Result<Sample> {
    let tier = Tier::open(pool.clone(), TierConfig::default())?;
    let ids: Vec<_> = tier.pool().layout().iter().map(|(id, _)| id).collect();
    let flag = make_cold(&[&tier], &ids)?;
    // Memory that the host has taken back meanwhile is slow at its first touch.
    drop(consume::anonymous(P17.total_bytes() as usize + (64 << 20), true, false)?);
    let plans: Vec<Plan> = order
        .chunks(TOP_K)
        .zip(0..)
        .map(|(experts, step)| {
            let mut plan = Plan::new(step, 0);
            let hint = |&expert| Hint { expert, probability: 1.0 };
            plan.rank(experts.iter().map(hint), MAX_WIDTH);
            plan
        })
        .collect();
    let mut delivery = match form {
        None => None,
        Some(form) => {
            let config = WorkerConfig { form, ..WorkerConfig::default() };
            Some(Delivery::ungated(Worker::start(tier.advisor(), config)?))
        }
    };
    let meter = Meter::start(&tier);
    let start = Instant::now();
    let (mut checksum, mut asked_bytes) = (0, 0);
    for (experts, number) in order.chunks(TOP_K).zip(0..) {
        let plan = plans.get(number + 1);
        let step = Step { step: number as u64, layer: 0, experts, plan };
        asked_bytes += decode::layer(&tier, delivery.as_mut(), &step, COMPUTE, &mut checksum)?;
    }
    let value = start.elapsed().as_secs_f64() * 1e3 / plans.len() as f64;
    let (device_bytes, process_bytes) = meter.stop();
    Ok(Sample { value, asked_bytes, device_bytes, process_bytes, checksum, flag })
}
