//! Real traces against figures that other programs computed.

use super::data::{DOMAINS, Real, domain, public, report};
use router_trace::locality::{BatchStats, LocalityOptions, PhaseStats, Reuse};

fn close(got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance, "{got} is not {want} within {tolerance}");
}

fn stats(trace: &Real) -> PhaseStats {
    report(&[("trace", trace)], LocalityOptions::default()).traces.remove(0).decode
}

/// Uses, distinct experts and next-token reuse (.435, .336) as published beside the traces;
/// the exact counts of W1, W8 and W64 by a separate script.
#[test]
fn public_traces() {
    for (name, n_experts, selections, used, hits) in [
        (
            "olmoe_299",
            64,
            38_272,
            974,
            [(1, 16_600, 38_144), (8, 28_942, 37_248), (64, 29_740, 30_080)],
        ),
        (
            "kimi_linear_300",
            256,
            62_400,
            5_083,
            [(1, 20_870, 62_192), (8, 36_983, 60_736), (64, 43_778, 49_088)],
        ),
    ] {
        let stats = stats(&public(name, n_experts));
        assert_eq!((stats.selections, stats.used_experts), (selections, used), "{name}");
        for (window, reused, scored) in hits {
            let reuse = stats.reuse_within(window).unwrap();
            assert_eq!((reuse.reused, reuse.scored), (reused, scored), "{name} W{window}");
        }
        // Recency beyond popularity is near: within 16 tokens clear, within 64 gone. Use in
        // bursts leaves long gaps, so wide windows hold *less* than a shuffle would.
        let near = stats.reuse.iter().filter(|reuse| reuse.window_tokens <= 16);
        assert!(near.map(Reuse::recency).all(|recency| recency > 0.005), "{name}");
        let far = stats.reuse_within(64).unwrap().recency();
        assert!((-0.02..0.0).contains(&far), "{name}: {far}");
        let growth = stats.growth.unwrap();
        assert_eq!(growth.points.last().unwrap().used_experts, used);
        // A trace keeps to fewer experts than its shuffled self does.
        assert!(growth.points.iter().all(|p| p.coverage <= p.shuffled + 1e-12), "{name}");
    }
}

/// One row of the bundled model's card.
struct Card {
    domain: &'static str,
    slope: f64,
    layer_slopes: [f64; 6],
    coverage: f64,
    top16: f64,
    /// (window, measured, one random shuffle)
    reuse: [(u32, f64, f64); 3],
    /// Jaccard of the two halves' 16 busiest experts.
    halves: f64,
}

const CARD: [Card; 4] = [
    Card {
        domain: "systems",
        slope: 1.063,
        layer_slopes: [1.15, 0.92, 0.97, 1.06, 1.18, 1.1],
        coverage: 0.997,
        top16: 0.633,
        reuse: [(1, 0.2312, 0.1407), (8, 0.6443, 0.5904), (64, 0.954, 0.9544)],
        halves: 0.664,
    },
    Card {
        domain: "code",
        slope: 1.279,
        layer_slopes: [1.18, 1.36, 1.28, 1.13, 1.4, 1.34],
        coverage: 0.995,
        top16: 0.686,
        reuse: [(1, 0.2379, 0.1618), (8, 0.6778, 0.6338), (64, 0.9546, 0.9517)],
        halves: 0.624,
    },
    Card {
        domain: "math",
        slope: 0.999,
        layer_slopes: [0.95, 0.95, 1.03, 0.96, 1.02, 1.09],
        coverage: 0.997,
        top16: 0.568,
        reuse: [(1, 0.282, 0.1156), (8, 0.6926, 0.5588), (64, 0.9522, 0.9587)],
        halves: 0.405,
    },
    Card {
        domain: "fiction",
        slope: 1.135,
        layer_slopes: [1.14, 0.99, 1.06, 1.22, 1.21, 1.2],
        coverage: 0.997,
        top16: 0.64,
        reuse: [(1, 0.2739, 0.1601), (8, 0.6549, 0.5978), (64, 0.9559, 0.9553)],
        halves: 0.65,
    },
];

#[test]
fn bundled_model_equals_its_card() {
    for card in CARD {
        let stats = stats(&domain(card.domain));
        assert_eq!((stats.tokens, stats.per_layer.len()), (2048, 6));
        let zipf = stats.zipf.unwrap();
        close(zipf.alpha.mean, card.slope, 0.0005);
        for (layer, want) in stats.per_layer.iter().zip(card.layer_slopes) {
            close(layer.zipf.unwrap().alpha, want, 0.005);
        }
        close(stats.coverage.unwrap(), card.coverage, 0.0005);
        close(stats.share_of(16).unwrap().share.mean, card.top16, 0.0005);
        for (window, measured, shuffled) in card.reuse {
            let reuse = stats.reuse_within(window).unwrap();
            close(reuse.measured, measured, 0.00005);
            // The card shuffled once; ours is the mean of all shuffles.
            close(reuse.shuffled, shuffled, 0.004);
        }
        let halves = stats.halves.unwrap();
        assert_eq!((halves.first_tokens, halves.second_tokens), (1024, 1024));
        // Experts that tie at rank 16 may fall either way; one in a layer moves the mean of
        // six layers by at most 0.011.
        let half = halves.sizes.iter().find(|size| size.top == 16).unwrap();
        close(half.jaccard.mean, card.halves, 0.012);
    }
}

#[test]
fn bundled_domains_overlap_as_its_card_says() {
    let traces = DOMAINS.map(|name| (name, domain(name)));
    let named: Vec<_> = traces.iter().map(|(name, trace)| (*name, trace)).collect();
    let report = report(&named, LocalityOptions::default());
    let card = [
        ("systems", "code", 0.33),
        ("systems", "math", 0.185),
        ("systems", "fiction", 0.327),
        ("code", "math", 0.255),
        ("code", "fiction", 0.11),
        ("math", "fiction", 0.086),
    ];
    assert_eq!(report.overlaps.len(), card.len());
    for (pair, (a, b, want)) in report.overlaps.iter().zip(card) {
        assert_eq!((&*pair.a, &*pair.b), (a, b));
        let size = pair.sizes.iter().find(|size| size.top == 16).unwrap();
        close(size.jaccard.mean, want, 0.012);
    }
    // Any domain differs from the others more than from itself.
    let least_own = report.traces.iter().map(|t| t.decode.halves.as_ref().unwrap().sizes[1]);
    let own = least_own.map(|size| size.jaccard.mean).fold(1.0, f64::min);
    assert!(card.iter().all(|&(_, _, across)| across < own));

    let merged = report.merged.unwrap().decode;
    assert_eq!((merged.tokens, merged.selections), (8192, 196_608));
    // Domains one after the other add to nearness what a shuffle of all of them loses.
    let recency = |stats: &PhaseStats| stats.reuse_within(8).unwrap().recency();
    assert!(report.traces.iter().all(|trace| recency(&trace.decode) + 0.04 < recency(&merged)));
}

/// Four streams of one model side by side: fewer different experts than apart, by a
/// factor between 1 and 4, and a batch of one shares nothing.
#[test]
fn bundled_domains_as_a_batch() {
    let traces = DOMAINS.map(domain);
    let shape = traces[0].header.shape.clone();
    let streams = traces.into_iter().zip(DOMAINS);
    let streams = streams.map(|(trace, name)| (name.to_owned(), trace.passes.into_iter().map(Ok)));
    let batch = BatchStats::count(&shape, streams.collect()).unwrap();
    assert_eq!((batch.iterations, batch.steps[3].accepted_tokens), (2048, 8192));
    assert_eq!(batch.steps[0].dedup(), Some(1.0));
    let dedup: Vec<f64> = batch.steps.iter().map(|step| step.dedup().unwrap()).collect();
    assert!(dedup.is_sorted() && dedup[3] < 1.5, "{dedup:?}");
    assert_eq!(batch.steps[3].selections, batch.steps[3].apart); // one token a pass
}
