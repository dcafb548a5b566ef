/// What an expert with a logit that is no number, or infinitely low, has for a margin.
const HOPELESS: f32 = -1e6;

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

/// The same with a standard deviation of each logit's error: `(logit - t) / sd[e]`.
pub(super) fn sure_margins(
    logits: &[f32],
    sd: &[f32],
    k: usize,
    out: &mut Vec<f32>,
    scratch: &mut Vec<f32>,
) {
    out.clear();
    let Some(threshold) = threshold(logits, k, scratch) else {
        out.resize(logits.len(), HOPELESS);
        return;
    };
    let each = logits.iter().zip(sd);
    out.extend(each.map(|(&logit, sd)| margin(logit - threshold, 1.0 / sd)));
}

fn margin(over: f32, per_sd: f32) -> f32 {
    let margin = over * per_sd;
    if margin.is_finite() { margin.max(HOPELESS) } else { HOPELESS }
}

#[cfg(test)]
mod tests {
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

    proptest! {
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
