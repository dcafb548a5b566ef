//! Every figure against a slow program that does what the definition says.

use super::data::{Real, header, report};
use proptest::prelude::*;
use router_trace::locality::{BatchStats, LocalityOptions, PhaseStats};
use router_trace::{LayerPass, PassInfo, PassKind, Phase};
use std::collections::HashSet;

const LAYERS: u16 = 2;
const EXPERTS: u16 = 5;
const TOP_K: u16 = 2;

/// The accepted tokens of each layer, in order.
type Tokens = Vec<Vec<Vec<u16>>>;

prop_compose! {
    fn route()(mut ids in prop::sample::subsequence((0..EXPERTS).collect::<Vec<_>>(), 2),
               swap: bool) -> Vec<u16> {
        if swap { ids.reverse(); }
        ids
    }
}

/// In vain first, a prompt, and the routes of each layer's tokens.
type Step = (bool, bool, Vec<Vec<Vec<u16>>>);

/// A step: how many tokens, whether it is tried in vain first, whether it is a prompt,
/// and the routes of each layer.
fn step() -> impl Strategy<Value = Step> {
    (1_usize..4).prop_flat_map(|tokens| {
        let layer = prop::collection::vec(route(), tokens);
        (any::<bool>(), prop::bool::weighted(0.2), prop::collection::vec(layer, LAYERS as usize))
    })
}

fn trace(steps: &[Step]) -> (Real, Tokens, Tokens) {
    let (mut decode, mut prefill) = (vec![Vec::new(); 2], vec![Vec::new(); 2]);
    let (mut passes, mut number, mut position) = (Vec::new(), 0, 0);
    for (in_vain, prompt, layers) in steps {
        let tokens = layers[0].len() as u64;
        let in_vain = *in_vain && !prompt;
        let phase = if *prompt { Phase::Prefill } else { Phase::Decode };
        for attempt in 0..=u8::from(in_vain) {
            for (layer, routes) in (0..).zip(layers) {
                // The attempt itself may or may not be typed as one.
                let typed = attempt == 1 || (in_vain && tokens == 2);
                let kind = if typed { PassKind::SpecFallback } else { PassKind::Normal };
                let mut flat = routes.concat();
                if in_vain && attempt == 0 {
                    flat.extend([3, 4]); // the rejected draft
                }
                let info = PassInfo { step: number, position, layer, phase, kind };
                passes.push(LayerPass::new(info, TOP_K, flat).unwrap());
            }
            number += 1;
        }
        position += tokens;
        for (layer, routes) in layers.iter().enumerate() {
            let tokens = if *prompt { &mut prefill } else { &mut decode };
            tokens[layer].extend(routes.iter().cloned());
        }
    }
    (Real { header: header("twin", LAYERS, EXPERTS, TOP_K), passes }, decode, prefill)
}

fn reuse(tokens: &[Vec<u16>], window: usize) -> (u64, u64) {
    let (mut reused, mut scored) = (0, 0);
    for at in window..tokens.len() {
        let before: HashSet<u16> = tokens[at - window..at].concat().into_iter().collect();
        scored += tokens[at].len() as u64;
        reused += tokens[at].iter().filter(|expert| before.contains(expert)).count() as u64;
    }
    (reused, scored)
}

fn permutations(items: &[Vec<u16>]) -> Vec<Vec<Vec<u16>>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for at in 0..items.len() {
        let mut rest = items.to_vec();
        let first = rest.remove(at);
        all.extend(permutations(&rest).into_iter().map(|mut tail| {
            tail.insert(0, first.clone());
            tail
        }));
    }
    all
}

fn used(tokens: &[Vec<u16>]) -> usize {
    tokens.concat().into_iter().collect::<HashSet<_>>().len()
}

fn check(stats: &PhaseStats, tokens: &Tokens) -> Result<(), TestCaseError> {
    let n = tokens[0].len();
    prop_assert_eq!((stats.tokens, stats.layer_tokens), (n as u64, 2 * n as u64));
    if n == 0 {
        prop_assert!(stats.reuse.is_empty() && stats.coverage.is_none() && stats.growth.is_none());
        return Ok(());
    }
    for (layer, tokens) in stats.per_layer.iter().zip(tokens) {
        let mut counts: Vec<u64> = (0..EXPERTS)
            .map(|e| tokens.iter().filter(|route| route.contains(&e)).count() as u64)
            .filter(|&count| count > 0)
            .collect();
        counts.sort_by(|a, b| b.cmp(a));
        prop_assert_eq!(&layer.rank_counts, &counts);
        prop_assert_eq!(layer.top_share[0].share, counts[0] as f64 / (2 * n) as f64);
        for window in [1_u32, 2, 3] {
            let (reused, scored) = reuse(tokens, window as usize);
            let got = layer.reuse.iter().find(|reuse| reuse.window_tokens == window);
            prop_assert_eq!(
                got.map(|g| (g.reused, g.scored)),
                (scored > 0).then_some((reused, scored))
            );
        }
        for point in &layer.growth.as_ref().unwrap().points {
            prop_assert_eq!(point.used_experts, used(&tokens[..point.tokens as usize]) as u64);
        }
    }
    for window in [1_u32, 2, 3] {
        let sums = tokens.iter().map(|layer| reuse(layer, window as usize));
        let (reused, scored) = sums.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let got = stats.reuse_within(window);
        prop_assert_eq!(
            got.map(|g| (g.reused, g.scored)),
            (scored > 0).then_some((reused, scored))
        );
    }
    Ok(())
}

fn options() -> LocalityOptions {
    LocalityOptions { windows: vec![1, 2, 3], top: vec![1], ..LocalityOptions::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn counts_equal_the_definitions(steps in prop::collection::vec(step(), 0..12)) {
        let (real, decode, prefill) = trace(&steps);
        let stats = report(&[("twin", &real)], options()).traces.remove(0);
        check(&stats.decode, &decode)?;
        check(&stats.prefill, &prefill)?;
        // A try in vain is in no figure, and counted as such.
        let vain: usize = steps.iter().filter(|(vain, prompt, _)| *vain && !prompt)
            .map(|(_, _, layers)| 2 * (layers[0].len() + 1)).sum();
        prop_assert_eq!(stats.decode.superseded_tokens, vain as u64);
        let shared: u64 = steps.iter().filter(|(_, prompt, layers)| *prompt && layers[0].len() > 1)
            .flat_map(|(_, _, layers)| layers).map(|routes| used(routes) as u64).sum();
        prop_assert_eq!(stats.prefill.shared_passes.map_or(0, |s| s.distinct), shared);
    }

    #[test]
    fn merged_is_one_after_the_other(
        a in prop::collection::vec(step(), 0..6), b in prop::collection::vec(step(), 0..6),
    ) {
        let (one, mut decode, mut prefill) = trace(&a);
        let (two, decode2, prefill2) = trace(&b);
        let merged = report(&[("x", &one), ("x", &two)], options());
        prop_assert_eq!(&merged.traces[1].name, "x (2)");
        let merged = merged.merged.unwrap();
        for layer in 0..LAYERS as usize {
            decode[layer].extend(decode2[layer].iter().cloned());
            prefill[layer].extend(prefill2[layer].iter().cloned());
        }
        check(&merged.decode, &decode)?;
        check(&merged.prefill, &prefill)?;
    }

    #[test]
    fn a_batch_counts_what_differs(
        a in prop::collection::vec(step(), 1..8), b in prop::collection::vec(step(), 1..8),
    ) {
        // Without prompts, so that step i of both is iteration i.
        let decode = |steps: &[Step]| -> Vec<_> {
            steps.iter().map(|(vain, _, layers)| (*vain, false, layers.clone())).collect()
        };
        let (a, b) = (decode(&a), decode(&b));
        let stream = |name: &str, steps| {
            (name.to_owned(), trace(steps).0.passes.into_iter().map(Ok))
        };
        let streams = vec![stream("a", &a), stream("b", &b)];
        let shape = header("twin", LAYERS, EXPERTS, TOP_K).shape;
        let batch = BatchStats::count(&shape, streams).unwrap();
        let window = a.len().min(b.len());
        prop_assert_eq!(batch.iterations, window as u64);
        let ids = |step: &Step| -> HashSet<(usize, u16)> {
            let layers = step.2.iter().enumerate();
            layers.flat_map(|(layer, routes)| {
                let drafts = if step.0 { vec![3, 4] } else { vec![] };
                routes.concat().into_iter().chain(drafts).map(move |id| (layer, id))
            }).collect()
        };
        let (mut apart, mut together, mut tokens) = (0, 0, 0);
        for (a, b) in a.iter().zip(&b) {
            apart += ids(a).len() + ids(b).len();
            together += ids(a).union(&ids(b)).count();
            tokens += a.2[0].len() + b.2[0].len();
        }
        let got = &batch.steps[1];
        prop_assert_eq!((got.apart, got.together), (apart as u64, together as u64));
        prop_assert_eq!(got.accepted_tokens, tokens as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The closed forms of "any order of the same tokens" against every order.
    #[test]
    fn shuffled_figures_are_the_mean_of_all_orders(tokens in prop::collection::vec(route(), 2..7)) {
        let step = |route: &Vec<u16>| (false, false, vec![vec![route.clone()]; LAYERS as usize]);
        let (real, ..) = trace(&tokens.iter().map(step).collect::<Vec<_>>());
        let stats = report(&[("twin", &real)], options()).traces.remove(0).decode;
        let orders = permutations(&tokens);
        let mean = |of: &dyn Fn(&[Vec<u16>]) -> f64| {
            orders.iter().map(|order| of(order)).sum::<f64>() / orders.len() as f64
        };
        for got in &stats.reuse {
            let want = mean(&|order| {
                let (reused, scored) = reuse(order, got.window_tokens as usize);
                reused as f64 / scored as f64
            });
            prop_assert!((got.shuffled - want).abs() < 1e-12, "W{} {want}", got.window_tokens);
        }
        for got in &stats.growth.unwrap().points {
            let want = mean(&|order| used(&order[..got.tokens as usize]) as f64);
            prop_assert!((got.shuffled * f64::from(EXPERTS) - want).abs() < 1e-9);
        }
    }
}
