//! Which pieces of a file a cold expert needs, and by which call each is brought in. Pure.

use crate::pool::Extent;

/// A piece of one file, page-aligned at both ends (the last page of a file counts whole).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// What fills one route: huge windows lie wholly inside an extent and are read as one folio;
/// edges are the rest and are read with exactly the pages they need.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FillPlan {
    pub(crate) windows: Vec<Piece>,
    pub(crate) edges: Vec<Piece>,
}

/// A piece with the way it is brought in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A whole 2 MiB folio.
    Window(Piece),
    /// Exactly the pages named.
    Edge(Piece),
}

impl Step {
    pub(crate) fn piece(self) -> Piece {
        match self {
            Self::Window(piece) | Self::Edge(piece) => piece,
        }
    }
}

/// The numbers a plan depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanLimits {
    pub(crate) page_bytes: u64,
    /// Size and alignment of a huge window; zero where the mapping cannot hold huge folios.
    pub(crate) window_bytes: u64,
    /// Longest piece one advice call really brings in.
    pub(crate) edge_bytes: u64,
    /// An end that does not fill its last window is brought in as a whole window: behind it is a
    /// hole, and memory for it.
    pub(crate) whole_tails: bool,
}

impl FillPlan {
    /// Add one extent of a file that is `file_len` bytes long.
    pub(crate) fn add(&mut self, extent: Extent, file_len: u64, limits: PlanLimits) {
        let start = extent.offset / limits.page_bytes * limits.page_bytes;
        let end = extent.end().next_multiple_of(limits.page_bytes).min(file_len);
        let (first, last) = match limits.window_bytes {
            0 => (end, end),
            // A window is only worth its whole-folio read when the extent covers all of it:
            // half-covered ones would read up to 2 MiB that nobody asked for.
            window => (extent.offset.next_multiple_of(window), extent.end() / window * window),
        };
        if first < last && limits.whole_tails {
            self.cut(extent.file, start, first, limits.edge_bytes, false);
            let last = extent.end().next_multiple_of(limits.window_bytes).min(file_len);
            self.cut(extent.file, first, last, limits.window_bytes, true);
        } else if first < last {
            self.cut(extent.file, start, first, limits.edge_bytes, false);
            self.cut(extent.file, first, last, limits.window_bytes, true);
            self.cut(extent.file, last, end, limits.edge_bytes, false);
        } else {
            self.cut(extent.file, start, end, limits.edge_bytes, false);
        }
    }

    /// All pieces, file by file as they lie there.
    pub(crate) fn in_order(&self) -> Vec<Step> {
        let windows = self.windows.iter().copied().map(Step::Window);
        let mut steps: Vec<Step> =
            windows.chain(self.edges.iter().copied().map(Step::Edge)).collect();
        steps.sort_unstable_by_key(|step| (step.piece().file, step.piece().offset));
        steps
    }

    fn cut(&mut self, file: u32, mut offset: u64, end: u64, piece_bytes: u64, huge: bool) {
        let list = if huge { &mut self.windows } else { &mut self.edges };
        while offset < end {
            let len = piece_bytes.min(end - offset);
            list.push(Piece { file, offset, len });
            offset += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const LIMITS: PlanLimits =
        PlanLimits { page_bytes: 4096, window_bytes: 2 * MIB, edge_bytes: MIB, whole_tails: false };

    fn plan(offset: u64, len: u64, file_len: u64, limits: PlanLimits) -> FillPlan {
        let mut plan = FillPlan::default();
        plan.add(Extent { file: 3, offset, len }, file_len, limits);
        plan
    }

    #[test]
    fn aligned_extent_is_all_windows() {
        let plan = plan(4 * MIB, 4 * MIB, 64 * MIB, LIMITS);
        let window = |offset| Piece { file: 3, offset, len: 2 * MIB };
        assert_eq!(plan.windows, [window(4 * MIB), window(6 * MIB)]);
        assert_eq!(plan.edges, []);
    }

    #[test]
    fn unaligned_extent_has_edges_and_no_half_window() {
        let plan = plan(MIB + 5, 3 * MIB, 64 * MIB, LIMITS);
        assert_eq!(plan.windows, [Piece { file: 3, offset: 2 * MIB, len: 2 * MIB }]);
        let edges = [
            Piece { file: 3, offset: MIB, len: MIB },
            Piece { file: 3, offset: 4 * MIB, len: 4096 },
        ];
        assert_eq!(plan.edges, edges);
        let steps = [Step::Edge(edges[0]), Step::Window(plan.windows[0]), Step::Edge(edges[1])];
        assert_eq!(plan.in_order(), steps);
    }

    #[test]
    fn a_tail_before_a_hole_is_a_whole_window_up_to_the_end_of_the_file() {
        let limits = PlanLimits { whole_tails: true, ..LIMITS };
        let window = |offset, len| Piece { file: 3, offset, len };
        let inside = plan(4 * MIB, 3 * MIB, 64 * MIB, limits);
        assert_eq!(inside.windows, [window(4 * MIB, 2 * MIB), window(6 * MIB, 2 * MIB)]);
        assert_eq!(inside.edges, []);
        let last = plan(4 * MIB, 3 * MIB, 7 * MIB, limits);
        assert_eq!(last.windows, [window(4 * MIB, 2 * MIB), window(6 * MIB, MIB)]);
        // Less than a window would waste most of one.
        let small = plan(4 * MIB, MIB, 64 * MIB, limits);
        assert_eq!((small.windows.len(), small.edges.len()), (0, 1));
    }

    proptest! {
        /// Every byte asked for is in exactly one piece, and no piece reaches past the page the
        /// extent touches.
        #[test]
        fn pieces_cover_the_extent_once(
            offset in 0u64..9 * MIB, len in 1u64..9 * MIB, slack in 0u64..8192, huge: bool,
        ) {
            let file_len = offset + len + slack;
            let window_bytes = if huge { 2 * MIB } else { 0 };
            let plan = plan(offset, len, file_len, PlanLimits { window_bytes, ..LIMITS });
            let mut pieces = [plan.windows.clone(), plan.edges.clone()].concat();
            pieces.sort_by_key(|piece| piece.offset);
            prop_assert_eq!(pieces[0].offset, offset / 4096 * 4096);
            for pair in pieces.windows(2) {
                prop_assert_eq!(pair[0].offset + pair[0].len, pair[1].offset);
            }
            let end = pieces.last().map(|piece| piece.offset + piece.len).unwrap();
            prop_assert_eq!(end, (offset + len).next_multiple_of(4096).min(file_len));
            for piece in plan.windows {
                prop_assert!(piece.offset >= offset && piece.offset + piece.len <= offset + len);
                prop_assert_eq!((piece.offset % (2 * MIB), piece.len), (0, 2 * MIB));
            }
        }
    }
}
