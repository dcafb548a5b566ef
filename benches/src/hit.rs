//! A warm expert used where it lies, against a locked arena that holds a copy of it.

use crate::Settings;
use crate::consume::{self, anonymous, thread_seconds};
use crate::machine::mapped_bytes;
use crate::measure::{Arm, Sample, Turns, make_cold};
use crate::pools::{Layout, Spec};
use crate::report::{Bar, Better, Row};
use anyhow::Result;
use expert_tier::{Adopted, Pool, Tier, TierConfig};
use memmap2::MmapMut;
use router_trace::ExpertId;

const ARENA: &str = "arena, 2 MiB pages, locked";
const NULL: &str = "arena again (null)";
const HUGE: &str = "page cache, packed, 2 MiB folios";
const SMALL: &str = "page cache, packed, 4 KiB folios";
const SMALL_ARENA: &str = "arena, 4 KiB pages, locked";
const IN_PLACE: &str = "mapping, in place";
const PRIVATE: &str = "private memory";

pub(crate) fn run(settings: &Settings) -> Result<(Vec<Row>, Vec<Bar>)> {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    let specs =
        [("4.5 MiB", crate::P4, crate::P4_COPY, 16), ("17.5 MiB", crate::P17, crate::P17_COPY, 8)];
    for (name, huge, copy, experts) in specs {
        debug_assert_eq!((huge.layout, copy.layout), (Layout::Packed, Layout::Packed));
        let mut all = placement(settings, name, huge, copy, experts)?;
        for _ in 1..settings.pick(PLACEMENTS, 1) {
            let next = placement(settings, name, huge, copy, experts)?;
            all.turns.append(next.turns)?;
            // The worst of all says what was got.
            for (share, next) in all.huge_shares.iter_mut().zip(next.huge_shares) {
                *share = share.min(next);
            }
        }
        rows.extend(all.rows());
        bars.extend(all.bars(name, huge.expert_bytes));
    }
    Ok((rows, bars))
}

/// The same bytes at as many places of memory: where a machine's memory is itself virtual, one
/// place can be a few per cent slower than another, whoever uses it.
const PLACEMENTS: usize = 7;

/// Turns of one placement or several, and the share of the bytes that 2 MiB pages map: of the
/// arenas, of the page cache, of the page cache without huge folios.
struct Placed {
    turns: Turns,
    huge_shares: [f64; 3],
}

impl Placed {
    fn rows(&self) -> Vec<Row> {
        let mut rows = self.turns.rows(ARENA);
        let [arena, pmd, pmd_small] = self.huge_shares.map(|share| 100.0 * share);
        rows[0].notes.push(format!("{arena:.1} % of both arenas lie in 2 MiB pages"));
        rows[2].notes.push(format!("{pmd:.1} % is mapped by 2 MiB entries"));
        rows[3].notes.push(format!("{pmd_small:.1} % is mapped by 2 MiB entries"));
        rows
    }

    fn bars(&self, name: &str, expert_bytes: usize) -> Vec<Bar> {
        let (turns, [arena, pmd, _]) = (&self.turns, self.huge_shares);
        // A ragged tail below 2 MiB can never be mapped huge.
        let whole = (expert_bytes >> 21 << 21) as f64 / expert_bytes as f64;
        let target = if pmd >= 0.98 * whole { 1.02 } else { 1.10 };
        let text = format!(
            "hit, {name}: packed page cache / arena ({:.0} % in 2 MiB folios, arena {:.0} %)",
            100.0 * pmd.min(1.0),
            100.0 * arena
        );
        vec![Bar::new(text, turns.ratio(HUGE, ARENA), target, Better::Lower)]
    }
}

fn warm(pool: Pool, huge_folios: bool, experts: &[u16]) -> Result<(Adopted, f64)> {
    let tier = Tier::open(pool, TierConfig { huge_folios, ..TierConfig::default() })?;
    let ids: Vec<ExpertId> = experts.iter().map(|&index| ExpertId::new(0, index)).collect();
    make_cold(&[&tier], &ids)?;
    let adopted = tier.adopt_batch(0, experts)?;
    let mut bytes = 0;
    // Touched once, so that all of it is mapped.
    for expert in adopted.experts() {
        std::hint::black_box(consume::expert(&expert));
        bytes +=
            expert.parts().iter().filter_map(|p| p.bytes.host()).map(<[u8]>::len).sum::<usize>();
    }
    let layout = tier.pool().layout();
    let file = layout.layer(0).first().map_or(0, |expert| expert.extents[0].file);
    let huge = mapped_bytes(Some(tier.pool().path_of(file)), "FilePmdMapped");
    Ok((adopted, huge as f64 / bytes.max(1) as f64))
}

fn copy(adopted: &Adopted, into: &mut MmapMut) {
    let mut at = 0;
    for expert in adopted.experts() {
        for bytes in expert.parts().iter().filter_map(|part| part.bytes.host()) {
            into[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
    }
}

/// Everything anew: the pages of the cache, the arenas, the turns.
fn placement(
    settings: &Settings,
    name: &str,
    huge: Spec,
    small: Spec,
    experts: u16,
) -> Result<Placed> {
    let ids: Vec<u16> = (0..experts).collect();
    let bytes = huge.expert_bytes * usize::from(experts);
    let (cached, pmd) = warm(huge.open(&settings.dir)?, true, &ids)?;
    let (cached_small, pmd_small) = warm(small.open(&settings.dir)?, false, &ids)?;
    let before = mapped_bytes(None, "AnonHugePages");
    let mut arenas = [true, true, false].map(|huge| anonymous(bytes, huge, true));
    let got = (mapped_bytes(None, "AnonHugePages") - before) as f64 / (2 * bytes) as f64;
    for arena in arenas.iter_mut().flatten() {
        copy(&cached, arena);
    }
    let [arena, null, arena_small] = arenas;
    let (arena, null, arena_small) = (arena?, null?, arena_small?);
    let passes = settings.pick(4, 1);

    let timed = |work: &dyn Fn() -> u64| -> Result<Sample> {
        let start = thread_seconds()?;
        let checksum = (0..passes).map(|_| work()).fold(0, u64::wrapping_add);
        let value = (thread_seconds()? - start) * 1e6 / (passes * usize::from(experts)) as f64;
        let asked_bytes = (bytes * passes) as u64;
        Ok(Sample { value, asked_bytes, checksum, ..Sample::default() })
    };
    let in_place = |adopted: &Adopted| {
        adopted.experts().map(|expert| consume::expert(&expert)).fold(0, u64::wrapping_add)
    };
    let in_arena = |arena: &MmapMut| {
        let experts = arena[..bytes].chunks(huge.expert_bytes);
        experts.map(consume::sum).fold(0, u64::wrapping_add)
    };
    let arms = vec![
        Arm::new(ARENA, PRIVATE, || timed(&|| in_arena(&arena))),
        Arm::new(NULL, PRIVATE, || timed(&|| in_arena(&null))),
        Arm::new(HUGE, IN_PLACE, || timed(&|| in_place(&cached))),
        Arm::new(SMALL, IN_PLACE, || timed(&|| in_place(&cached_small))),
        Arm::new(SMALL_ARENA, PRIVATE, || timed(&|| in_arena(&arena_small))),
    ];
    let workload = format!("warm, {name} an expert, {experts} experts in turn, thread CPU time");
    let turns = Turns::take(&workload, "us", arms, settings.rounds)?;
    Ok(Placed { turns, huge_shares: [got, pmd, pmd_small] })
}
