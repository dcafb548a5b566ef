use super::SelectionRule;

/// What an expert with a logit that is no number, or infinitely low, has for a margin.
const HOPELESS: f32 = -1e6;
/// What one that is chosen whatever its logit has.
const CERTAIN: f32 = 1e6;

/// What a logit must exceed to be among the `k` largest: midway between the `k`-th and the next;
/// the mean where there are no more than `k`. `None` for no finite logit or a `k` of 0.
///
/// `scratch` holds the finite logits afterwards.
fn threshold(logits: &[f32], k: usize, scratch: &mut Vec<f32>) -> Option<f32> {
    scratch.clear();
    scratch.extend(logits.iter().filter(|logit| logit.is_finite()));
    if scratch.is_empty() || k == 0 {
        None
    } else if k < scratch.len() {
        let (_, last, rest) = scratch.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        let next = rest.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Some(f32::midpoint(*last, next))
    } else {
        Some(scratch.iter().sum::<f32>() / scratch.len() as f32)
    }
}

/// Turns router logits into margins over the choice: `(logit - t) / sd`, where `t` lies midway
/// between the `k`-th and the next largest logit and `sd` is the standard deviation over the
/// experts. Above zero are the `k` that these logits would choose; the scale is the same for every
/// token, layer and model. `scratch` is room for as many values.
///
/// Logits that are no number or infinite count as the worst there is.
pub fn margins(logits: &[f32], k: usize, out: &mut Vec<f32>, scratch: &mut Vec<f32>) {
    let Some(threshold) = threshold(logits, k, scratch) else {
        out.clear();
        out.resize(logits.len(), HOPELESS);
        return;
    };
    let n = scratch.len() as f32;
    let mean = scratch.iter().sum::<f32>() / n;
    let variance = scratch.iter().map(|logit| (logit - mean).powi(2)).sum::<f32>() / n;
    let per_sd = 1.0 / variance.sqrt().max(f32::MIN_POSITIVE);
    out.clear();
    out.extend(logits.iter().map(|&logit| margin(logit - threshold, per_sd)));
}

/// The same with a standard deviation of each logit's error, and for any rule of choice:
/// `(logit - t[e]) / sd[e]`, where `t[e]` is the logit that would give the expert the rank value
/// midway between the `k`-th and the next largest. The logit of an expert that is kept out by
/// something else counts as the one that its rank value belongs to. `room` is for as many values,
/// twice.
pub(super) fn sure_margins(
    logits: &[f32],
    sd: &[f32],
    k: usize,
    rule: &mut dyn SelectionRule,
    out: &mut Vec<f32>,
    [values, scratch]: &mut [Vec<f32>; 2],
) {
    values.clear();
    values.extend_from_slice(logits);
    rule.rank_values(values);
    out.clear();
    let Some(threshold) = threshold(values, k, scratch) else {
        out.resize(logits.len(), HOPELESS);
        return;
    };
    let each = logits.iter().zip(&*values).zip(sd).enumerate();
    out.extend(each.map(|(expert, ((&logit, &value), sd))| {
        if !logit.is_finite() || !value.is_finite() {
            return HOPELESS;
        }
        let logit = logit.min(rule.logit_at(expert, value));
        let over = (logit - rule.logit_at(expert, threshold)) * (1.0 / sd);
        // The way back to logits rounds, down to infinities that have no difference: the values
        // themselves decide the side.
        if value > threshold {
            if over.is_nan() { CERTAIN } else { over.clamp(f32::MIN_POSITIVE, CERTAIN) }
        } else if value < threshold {
            if over.is_nan() { HOPELESS } else { over.clamp(HOPELESS, -f32::MIN_POSITIVE) }
        } else {
            0.0
        }
    }));
}

fn margin(over: f32, per_sd: f32) -> f32 {
    let margin = over * per_sd;
    if margin.is_finite() { margin.max(HOPELESS) } else { HOPELESS }
}

#[cfg(test)]
mod tests {
    use super::super::ByLogits;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_cannot_be_ranked_is_worst() {
        let (mut out, mut scratch) = (Vec::new(), Vec::new());
        margins(&[1.0, f32::NAN, 3.0, f32::NEG_INFINITY], 1, &mut out, &mut scratch);
        assert_eq!(out, [-1.0, HOPELESS, 1.0, HOPELESS]);
        margins(&[f32::NAN; 3], 2, &mut out, &mut scratch);
        assert_eq!(out, [HOPELESS; 3]);
        margins(&[2.0; 3], 1, &mut out, &mut scratch);
        assert_eq!(out, [0.0; 3]);
    }

    /// Cubes with a bias, and the first experts shut out: no router's rule.
    struct Cubes {
        bias: Vec<f32>,
        out: usize,
    }

    impl SelectionRule for Cubes {
        fn rank_values(&mut self, logits: &mut [f32]) {
            logits.iter_mut().zip(&self.bias).for_each(|(x, bias)| *x = x.powi(3) + bias);
            logits[..self.out].fill(f32::NEG_INFINITY);
        }

        fn logit_at(&self, expert: usize, value: f32) -> f32 {
            (value - self.bias[expert]).cbrt()
        }
    }

    #[test]
    fn a_logit_that_the_rule_never_lets_win_or_lose_is_as_far_away_as_can_be() {
        struct Fixed;
        impl SelectionRule for Fixed {
            fn rank_values(&mut self, logits: &mut [f32]) {
                logits.copy_from_slice(&[3.0, 2.0, 1.0, 0.0]);
            }
            fn logit_at(&self, expert: usize, _value: f32) -> f32 {
                [f32::NEG_INFINITY, 0.5, f32::INFINITY, f32::NAN][expert]
            }
        }
        let (mut out, mut room) = (Vec::new(), Default::default());
        sure_margins(&[0.5; 4], &[1.0; 4], 2, &mut Fixed, &mut out, &mut room);
        assert_eq!(out, [CERTAIN, f32::MIN_POSITIVE, HOPELESS, HOPELESS]);
        let inputs = [f32::NAN, f32::INFINITY, 1.0, 0.0];
        sure_margins(&inputs, &[1.0; 4], 2, &mut ByLogits, &mut out, &mut room);
        assert_eq!(out[..2], [HOPELESS; 2]);
    }

    proptest! {
        #[test]
        fn above_zero_are_those_that_the_rule_chooses(
            logits in prop::collection::vec(-40_i8..40, 12),
            bias in prop::collection::vec(-100_i8..100, 12),
            out in 0_usize..6,
            k in 1_usize..5,
        ) {
            let logits: Vec<f32> = logits.into_iter().map(|logit| f32::from(logit) / 8.0).collect();
            // Multiples of a number that no difference of cubes has: no two values are equal.
            let bias: Vec<f32> = (0_u8..).zip(bias).map(|(at, bias)| {
                f32::from(bias) + f32::from(at) / 8192.0
            }).collect();
            let mut rule = Cubes { bias, out };
            let mut values = logits.clone();
            rule.rank_values(&mut values);
            let mut order: Vec<usize> = (0..12).collect();
            order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
            order.truncate(k);
            order.sort_unstable();
            let (mut margins, mut room) = (Vec::new(), Default::default());
            sure_margins(&logits, &[0.5; 12], k, &mut rule, &mut margins, &mut room);
            let chosen: Vec<usize> = (0..12).filter(|at| margins[*at] > 0.0).collect();
            prop_assert_eq!(chosen, order, "{:?}", margins);
            prop_assert!(margins[..out].iter().all(|margin| *margin == HOPELESS));
        }

        #[test]
        fn the_chosen_are_above_zero_and_scale_does_not_matter(
            logits in prop::collection::hash_set(-1000_i32..1000, 4..80),
            k in 1_usize..4,
            scale in 1_i32..20,
            shift in -50_i32..50,
        ) {
            let logits: Vec<f32> = logits.into_iter().map(|logit| logit as f32).collect();
            let (mut out, mut scratch) = (Vec::new(), Vec::new());
            margins(&logits, k, &mut out, &mut scratch);
            prop_assert_eq!(out.iter().filter(|margin| **margin > 0.0).count(), k);
            let (best, worst) = (0..out.len()).fold((0, 0), |(best, worst), at| {
                (if logits[at] > logits[best] { at } else { best },
                 if logits[at] < logits[worst] { at } else { worst })
            });
            prop_assert!(out[best] > 0.0 && out[worst] < 0.0);
            let moved: Vec<f32> =
                logits.iter().map(|logit| logit * scale as f32 + shift as f32).collect();
            let mut other = Vec::new();
            margins(&moved, k, &mut other, &mut scratch);
            for (a, b) in out.iter().zip(&other) {
                prop_assert!((a - b).abs() <= 1e-3 * (1.0 + a.abs()), "{a} {b}");
            }
        }
    }
}
