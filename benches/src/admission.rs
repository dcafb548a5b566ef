//! A set that fits in memory, read again and again: kept, or read anew each time.

use crate::Settings;
use crate::consume::{self, anonymous};
use crate::measure::{Arm, Meter, Sample, Turns, make_cold};
use crate::report::{Bar, Better, Row};
use anyhow::Result;
use expert_tier::{Admission, Tier, TierConfig};
use router_trace::ExpertId;
use std::time::Instant;

const ADMIT: &str = "admit";
const AUTO: &str = "auto";
/// What choosing may cost where admission is right.
const AUTO_TARGET: f64 = 1.01;
const DIRECT: &str = "direct";
const DROP: &str = "drop-behind";
const MEMORY: &str = "memory alone: locked arena";
const DEVICE: &str = "device alone: O_DIRECT, not used";
const EXPERTS: u16 = 8;
/// The ratio that was claimed.
const CLAIM: f64 = 5.3;

pub(crate) fn run(settings: &Settings) -> Result<(Vec<Row>, Vec<Bar>)> {
    let open = |spec: crate::pools::Spec, admission| -> Result<Tier> {
        let config = TierConfig { admission, ..TierConfig::default() };
        Ok(Tier::open(spec.open(&settings.dir)?, config)?)
    };
    // Not the same file: what one arm maps the other could not forget.
    let admit = open(crate::P17, Admission::Admit)?;
    let auto = open(crate::P17, Admission::Auto)?;
    let dropped = open(crate::P17_COPY, Admission::DropBehind)?;
    let direct = open(crate::P17_COPY, Admission::Direct)?;
    let bytes = crate::P17.expert_bytes * usize::from(EXPERTS);
    let indices: Vec<u16> = (0..EXPERTS).collect();
    let ids: Vec<ExpertId> = indices.iter().map(|&index| ExpertId::new(0, index)).collect();
    let mut arena = anonymous(bytes, true, true)?;
    let mut at = 0;
    for expert in direct.adopt_batch(0, &indices)?.experts() {
        for part in expert.parts().iter().filter_map(|part| part.bytes.host()) {
            arena[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }
    // Filled by the tier itself, whatever an earlier bench left in the cache.
    let flag = make_cold(&[&admit], &ids)?;
    for &index in &indices {
        drop(admit.adopt_batch(0, &[index])?);
    }
    // The same file and pages: what differs is the arm.
    drop(auto.adopt_batch(0, &indices)?);
    let passes = settings.pick(4, 2);
    let expected = consume::sum(&arena[..bytes]);

    // One expert at a time, as a decoder with a route of one would.
    let read = |tier: &Tier, used: bool| -> Result<u64> {
        let mut sum = 0_u64;
        for &index in &indices {
            let adopted = tier.adopt_batch(0, &[index])?;
            if used {
                let sums = adopted.experts().map(|expert| consume::expert(&expert));
                sum = sums.fold(sum, u64::wrapping_add);
            }
        }
        Ok(if used { sum } else { expected })
    };
    let timed = |tier: &Tier, cold: bool, work: &dyn Fn() -> Result<u64>| -> Result<Sample> {
        // Only the arms that must not find anything begin with nothing.
        let flag = if cold { make_cold(&[&dropped, &direct], &ids)? } else { None };
        let meter = Meter::start(tier);
        let start = Instant::now();
        let mut checksum = 0;
        for _ in 0..passes {
            checksum = work()?;
        }
        let value = start.elapsed().as_secs_f64() * 1e3 / passes as f64;
        let (device_bytes, process_bytes) = meter.stop();
        let asked_bytes = (bytes * passes) as u64;
        Ok(Sample { value, asked_bytes, device_bytes, process_bytes, checksum, flag })
    };
    let in_arena = || {
        let experts = arena[..bytes].chunks(crate::P17.expert_bytes);
        Ok(experts.map(consume::sum).fold(0, u64::wrapping_add))
    };
    let arms = vec![
        Arm::new(ADMIT, "mapping, in place", || timed(&admit, false, &|| read(&admit, true))),
        Arm::new(AUTO, "mapping, in place", || timed(&auto, false, &|| read(&auto, true))),
        Arm::new(DIRECT, "buffers of the tier", || timed(&direct, true, &|| read(&direct, true))),
        Arm::new(DROP, "mapping, in place", || timed(&dropped, true, &|| read(&dropped, true))),
        Arm::new(MEMORY, "private memory", || timed(&admit, false, &in_arena)),
        Arm::new(DEVICE, "buffers of the tier", || timed(&direct, true, &|| read(&direct, false))),
    ];
    let workload =
        format!("repeated, {EXPERTS} experts of 17.5 MiB one by one, each used, wall time a pass");
    let turns = Turns::take(&workload, "ms", arms, settings.rounds)?;
    let mut rows = turns.rows(ADMIT);
    rows[0].flags.extend(flag.map(|flag| format!("before it was filled: {flag}")));
    let machine = turns.ratio(DEVICE, MEMORY);
    let target = machine.map_or(CLAIM, |machine| machine.min(CLAIM));
    let applied = if target < CLAIM { "this machine's ratio" } else { "the claimed ratio" };
    let measured = machine.map_or("unknown".to_owned(), |ratio| format!("{ratio:.2}"));
    let note = format!("claimed {CLAIM}, memory / device here {measured}: {applied} applies");
    rows[0].notes.push(note.clone());
    let bar = |arm: &str| {
        let name = format!("admission: {arm} time / admit time ({note})");
        Bar::new(name, turns.ratio(arm, ADMIT), target, Better::Higher)
    };
    let name = "admission: auto time / admit time, all warm";
    let own = Bar::new(name, turns.ratio(AUTO, ADMIT), AUTO_TARGET, Better::Lower);
    if let Some(choice) = auto.admission_choice() {
        rows[1].notes.push(choice.why);
    }
    Ok((rows, vec![bar(DIRECT), bar(DROP), own]))
}
