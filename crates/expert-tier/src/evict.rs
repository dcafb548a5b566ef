//! Which pages may go when some experts are to be forgotten.

use crate::pool::{Extent, PoolLayout};
use router_trace::ExpertId;
use std::collections::HashSet;

/// Runs of whole pages that hold bytes of these experts and of no other: a page on a border that
/// a neighbour also needs stays.
pub(crate) fn private_pages(
    layout: &PoolLayout,
    experts: &[ExpertId],
    page_bytes: u64,
) -> Vec<Extent> {
    let chosen: HashSet<ExpertId> = experts.iter().copied().collect();
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for (id, expert) in layout.iter() {
        let side = if chosen.contains(&id) { &mut ours } else { &mut others };
        side.extend(expert.extents.iter().map(|&extent| pages(extent, page_bytes)));
    }
    ours.sort_unstable();
    others.sort_unstable();
    subtract(&joined(&ours), &joined(&others))
}

/// Runs of whole pages that hold bytes of these experts.
pub(crate) fn page_runs(layout: &PoolLayout, experts: &[ExpertId], page_bytes: u64) -> Vec<Extent> {
    let extents = experts.iter().filter_map(|&id| layout.expert(id)).flat_map(|e| &e.extents);
    let mut ours: Vec<Extent> = extents.map(|&extent| pages(extent, page_bytes)).collect();
    ours.sort_unstable();
    joined(&ours)
}

/// `runs`, which are sorted and do not touch, without what `locked` covers.
pub(crate) fn without(runs: &[Extent], mut locked: Vec<Extent>) -> Vec<Extent> {
    locked.sort_unstable();
    subtract(runs, &joined(&locked))
}

fn pages(extent: Extent, page_bytes: u64) -> Extent {
    let offset = extent.offset / page_bytes * page_bytes;
    Extent { offset, len: extent.end().next_multiple_of(page_bytes) - offset, ..extent }
}

/// Sorted extents, those that touch made one.
fn joined(sorted: &[Extent]) -> Vec<Extent> {
    let mut runs: Vec<Extent> = Vec::new();
    for &extent in sorted {
        match runs.last_mut() {
            Some(last) if last.file == extent.file && extent.offset <= last.end() => {
                last.len = last.end().max(extent.end()) - last.offset;
            }
            _ => runs.push(extent),
        }
    }
    runs
}

/// `from` without what `minus` covers; both sorted and joined.
fn subtract(from: &[Extent], minus: &[Extent]) -> Vec<Extent> {
    let mut left = Vec::new();
    let mut rest = minus;
    for &run in from {
        let is_before = |other: &Extent| (other.file, other.end()) <= (run.file, run.offset);
        rest = &rest[rest.iter().take_while(|other| is_before(other)).count()..];
        let mut offset = run.offset;
        let hits = rest.iter().take_while(|hit| hit.file == run.file && hit.offset < run.end());
        for hit in hits {
            if hit.offset > offset {
                left.push(Extent { file: run.file, offset, len: hit.offset - offset });
            }
            offset = offset.max(hit.end());
        }
        if offset < run.end() {
            left.push(Extent { file: run.file, offset, len: run.end() - offset });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::ExpertLayout;
    use std::collections::BTreeMap;

    fn layout(ranges: &[&[(u64, u64)]]) -> PoolLayout {
        let expert = |extents: &&[(u64, u64)]| {
            let extents = extents.iter().map(|&(start, end)| Extent {
                file: 0,
                offset: start,
                len: end - start,
            });
            ExpertLayout { parts: Box::default(), extents: extents.collect() }
        };
        let layers = BTreeMap::from([(0, ranges.iter().map(expert).collect())]);
        PoolLayout::new(layers, BTreeMap::new())
    }

    fn found(layout: &PoolLayout, experts: &[u16]) -> Vec<(u64, u64)> {
        let ids: Vec<_> = experts.iter().map(|&index| ExpertId::new(0, index)).collect();
        let runs = private_pages(layout, &ids, 10);
        runs.iter().map(|run| (run.offset, run.end())).collect()
    }

    #[test]
    fn border_pages_stay_with_the_neighbour() {
        let three = layout(&[&[(5, 25)], &[(25, 47)], &[(47, 60)]]);
        assert_eq!(found(&three, &[1]), [(30, 40)]);
        assert_eq!(found(&three, &[0]), [(0, 20)], "before the first there is no expert");
        assert_eq!(found(&three, &[0, 1]), [(0, 40)], "borders between the chosen go");
        assert_eq!(found(&three, &[2, 1, 0]), [(0, 60)]);
        assert_eq!(found(&three, &[]), []);
    }

    #[test]
    fn an_expert_may_lie_in_several_places_or_in_one_shared_page() {
        let mixed = layout(&[&[(0, 30), (100, 130)], &[(30, 100)], &[(131, 133)]]);
        assert_eq!(found(&mixed, &[0]), [(0, 30), (100, 130)]);
        assert_eq!(found(&mixed, &[1]), [(30, 100)]);
        let inside = layout(&[&[(0, 100)], &[(42, 44)], &[(61, 75)]]);
        assert_eq!(found(&inside, &[0]), [(0, 40), (50, 60), (80, 100)]);
        assert_eq!(found(&inside, &[1]), []);
    }
}
