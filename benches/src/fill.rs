//! A cold route: how long until its experts are read and used.

use crate::Settings;
use crate::consume::{self, anonymous};
use crate::measure::{Arm, Meter, Sample, Turns, make_cold};
use crate::pools::Spec;
use crate::report::{Bar, Better, Row};
use anyhow::Result;
use expert_tier::{Admission, FillMethod, Tier, TierConfig};
use memmap2::MmapMut;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use router_trace::ExpertId;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const DIRECT: &str = "O_DIRECT into 2 MiB pages, then used";
const DIRECT_IN_ORDER: &str = "O_DIRECT into 2 MiB pages, used as it arrives";
const PACKED: &str = "tier, packed pool, used as it arrives";
const PACKED_WHOLE: &str = "tier, packed pool, then used";
const UNALIGNED: &str = "tier, unaligned safetensors, used as it arrives";
const FAULTS: &str = "losing: plain page faults";
const PREAD: &str = "losing: pread, one thread";
const UNTOUCHED: &str = "tier, packed, free memory left idle";
const ADVICE: &str = "losing: one WILLNEED an expert, adopt";
/// A hypervisor that takes free memory back has done so by then.
const IDLE: Duration = Duration::from_millis(2500);
/// What makes a reused buffer and fresh page cache comparable: under a hypervisor the first touch
/// of memory that it had taken back can cost more than the read. `UNTOUCHED` shows how much.
const TOUCHED: &str = "free memory of twice the route was touched before each turn";
/// What the losing arm reads at once.
const PREAD_BYTES: usize = 1 << 20;

pub(crate) fn run(settings: &Settings) -> Result<(Vec<Row>, Vec<Bar>)> {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    let sizes = [("4.5 MiB", crate::P4, crate::U4, 8), ("17.5 MiB", crate::P17, crate::U17, 16)];
    for (name, packed, unaligned, experts) in sizes {
        let (more_rows, more_bars) = one(settings, name, packed, unaligned, experts)?;
        rows.extend(more_rows);
        bars.extend(more_bars);
    }
    Ok((rows, bars))
}

/// What all turns of one workload share.
struct Route {
    indices: Vec<u16>,
    ids: Vec<ExpertId>,
    bytes: u64,
}

impl Route {
    /// From cold: `work` brings and uses the route, and answers with its sum.
    fn cold(&self, tiers: &[&Tier], work: impl FnMut() -> Result<u64>) -> Result<Sample> {
        let flag = make_cold(tiers, &self.ids)?;
        drop(anonymous(2 * self.bytes as usize, true, false)?);
        self.timed(tiers, flag, work)
    }

    /// The same into memory that was free for a while and that nobody touched.
    fn cold_idle(&self, tiers: &[&Tier], work: impl FnMut() -> Result<u64>) -> Result<Sample> {
        let flag = make_cold(tiers, &self.ids)?;
        std::thread::sleep(IDLE);
        self.timed(tiers, flag, work)
    }

    fn timed(
        &self,
        tiers: &[&Tier],
        flag: Option<String>,
        mut work: impl FnMut() -> Result<u64>,
    ) -> Result<Sample> {
        let meter = Meter::start(tiers[0]);
        let start = Instant::now();
        let checksum = work()?;
        let value = start.elapsed().as_secs_f64() * 1e3;
        let (device_bytes, process_bytes) = meter.stop();
        let asked_bytes = self.bytes;
        Ok(Sample { value, asked_bytes, device_bytes, process_bytes, checksum, flag })
    }

    /// The first experts are used while the last are read.
    fn in_order(&self, tier: &Tier) -> Result<u64> {
        let mut adopting = tier.begin(0, &self.indices)?;
        let mut sum = 0_u64;
        loop {
            let more = adopting.wait()?;
            if more.is_empty() {
                break;
            }
            for expert in adopting.experts().skip(more.start) {
                sum = sum.wrapping_add(consume::expert(&expert));
            }
        }
        adopting.finish()?;
        Ok(sum)
    }

    fn adopt(&self, tier: &Tier) -> Result<u64> {
        let adopted = tier.adopt_batch(0, &self.indices)?;
        Ok(adopted.experts().map(|expert| consume::expert(&expert)).fold(0, u64::wrapping_add))
    }
}

fn file_of(tier: &Tier) -> Result<File> {
    let file = tier.pool().layout().layer(0).first().map_or(0, |expert| expert.extents[0].file);
    Ok(File::open(tier.pool().path_of(file))?)
}

fn pread(tier: &Tier, file: &File, route: &Route, buffer: &mut MmapMut) -> Result<u64> {
    let mut sum = 0_u64;
    for &id in &route.ids {
        for part in tier.pool().layout().expert(id).iter().flat_map(|expert| &expert.parts) {
            let len = part.extent.len as usize;
            let mut offset = part.extent.offset;
            for piece in buffer[..len].chunks_mut(PREAD_BYTES) {
                file.read_exact_at(piece, offset)?;
                offset += piece.len() as u64;
            }
            sum = sum.wrapping_add(consume::sum(&buffer[..len]));
        }
    }
    Ok(sum)
}

fn advise(tier: &Tier, file: &File, route: &Route) -> Result<u64> {
    for &id in &route.ids {
        for extent in tier.pool().layout().expert(id).iter().flat_map(|expert| &expert.extents) {
            let (offset, len) = (i64::try_from(extent.offset)?, i64::try_from(extent.len)?);
            posix_fadvise(file, offset, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED)?;
        }
    }
    route.adopt(tier)
}

fn one(
    settings: &Settings,
    name: &str,
    packed: Spec,
    unaligned: Spec,
    experts: u16,
) -> Result<(Vec<Row>, Vec<Bar>)> {
    let pool = packed.open(&settings.dir)?;
    let admit = Tier::open(pool.clone(), TierConfig::default())?;
    let direct = TierConfig { admission: Admission::Direct, ..TierConfig::default() };
    let direct = Tier::open(pool.clone(), direct)?;
    let plain = Tier::open(unaligned.open(&settings.dir)?, TierConfig::default())?;
    // The losing arms have mappings that never ask for huge folios.
    let small = TierConfig { huge_folios: false, ..TierConfig::default() };
    let small = Tier::open(pool.clone(), small)?;
    let faults = TierConfig { fill_method: Some(FillMethod::Fault), ..TierConfig::default() };
    let faults = Tier::open(pool, faults)?;
    // Never two neighbours: a router does not choose in file order, and reading ahead must not pay.
    let scattered = || (0..experts).map(|number| 2 * number + 1);
    let route = Route {
        indices: scattered().collect(),
        ids: scattered().map(|index| ExpertId::new(0, index)).collect(),
        bytes: packed.expert_bytes as u64 * u64::from(experts),
    };
    let file = file_of(&admit)?;
    let buffer = RefCell::new(anonymous(packed.expert_bytes, true, false)?);
    let on_packed = [&admit, &direct, &small, &faults];

    let mut arms = vec![
        Arm::new(DIRECT, "buffers of the tier", || route.cold(&on_packed, || route.adopt(&direct))),
        Arm::new(PACKED, "mapping, in place", || route.cold(&on_packed, || route.in_order(&admit))),
        Arm::new(UNALIGNED, "mapping, in place", || {
            route.cold(&[&plain], || route.in_order(&plain))
        }),
        Arm::new(PACKED_WHOLE, "mapping, in place", || {
            route.cold(&on_packed, || route.adopt(&admit))
        }),
        Arm::new(DIRECT_IN_ORDER, "buffers of the tier", || {
            route.cold(&on_packed, || route.in_order(&direct))
        }),
        Arm::new(PREAD, "pread copies", || {
            route.cold(&on_packed, || pread(&admit, &file, &route, &mut buffer.borrow_mut()))
        }),
        Arm::new(ADVICE, "mapping, in place", || {
            route.cold(&on_packed, || advise(&small, &file, &route))
        }),
    ];
    let mut few = [
        Arm::new(FAULTS, "mapping, in place", || route.cold(&on_packed, || route.adopt(&faults))),
        Arm::new(UNTOUCHED, "mapping, in place", || {
            route.cold_idle(&on_packed, || route.in_order(&admit))
        }),
    ];
    few.iter_mut().for_each(|arm| arm.most = 5);
    arms.extend(few);
    let workload = format!("cold route, {experts} experts of {name}, read and used, wall time");
    let turns = Turns::take(&workload, "ms", arms, settings.rounds)?;
    let bar = |what: &str, value, target, better| {
        Bar::new(format!("fill, {experts} x {name}: {what}"), value, target, better)
    };
    let rate = |what: &str, arm, target| {
        let name = format!("{what} rate / O_DIRECT rate");
        bar(&name, turns.ratio(DIRECT, arm), target, Better::Higher)
    };
    let bytes = |what: &str, arm, target| {
        let (value, how) = turns.read_share(arm);
        bar(&format!("{what} device bytes / asked ({how})"), value, target, Better::Lower)
    };
    let bars = vec![
        rate("packed", PACKED, 0.95),
        bytes("packed", PACKED, 1.02),
        rate("unaligned", UNALIGNED, 0.80),
        bytes("unaligned", UNALIGNED, 1.10),
    ];
    let mut rows = turns.rows(DIRECT);
    for row in rows.iter_mut().filter(|row| row.arm != UNTOUCHED) {
        row.notes.push(TOUCHED.to_owned());
    }
    for row in rows.iter_mut().filter(|row| row.arm == UNTOUCHED) {
        row.notes.push(format!("free memory lay untouched for {IDLE:?} before each turn"));
    }
    Ok((rows, bars))
}
