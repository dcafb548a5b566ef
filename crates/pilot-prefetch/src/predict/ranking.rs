use std::cmp::Ordering;

/// Picks the best of a layer's experts; reuses its room.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranking {
    order: Vec<u16>,
}

impl Ranking {
    /// Numbers of the `width` highest `scores`, best first, equal ones by number.
    pub(super) fn top(&mut self, scores: &[f32], width: usize) -> &[u16] {
        let width = width.min(scores.len());
        self.order.clear();
        self.order.extend((0..=u16::MAX).take(scores.len()));
        let better = |a: &u16, b: &u16| -> Ordering {
            scores[usize::from(*b)].total_cmp(&scores[usize::from(*a)]).then(a.cmp(b))
        };
        if width == 0 {
            return &[];
        }
        if width < self.order.len() {
            self.order.select_nth_unstable_by(width - 1, better);
        }
        let best = &mut self.order[..width];
        best.sort_unstable_by(better);
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_best_are_those_of_a_stable_sort(
            scores in prop::collection::vec(-3_i8..3, 0..200),
            width in 0_usize..40,
        ) {
            let scores: Vec<f32> = scores.into_iter().map(f32::from).collect();
            let mut naive: Vec<u16> = (0..).take(scores.len()).collect();
            naive.sort_by(|a, b| {
                scores[usize::from(*b)].partial_cmp(&scores[usize::from(*a)]).unwrap()
            });
            naive.truncate(width);
            let mut ranking = Ranking::default();
            prop_assert_eq!(ranking.top(&scores, width), naive);
        }
    }
}
