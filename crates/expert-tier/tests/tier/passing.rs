//! Experts that only pass: nothing new in the page cache, the same bytes, all of it counted.

use crate::{arm, assert_bytes, checkpoint, evicted, open};
use expert_tier::observe::SystemRoot;
use expert_tier::{Admission, DemandConfig};
use router_trace::{ExpertId, Route};

#[test]
fn what_passes_leaves_the_page_cache_as_it_was() {
    let dir = checkpoint();
    let tier = open(dir.path(), arm(Admission::Admit));
    if let Some(reason) = tier.passing_unavailable() {
        println!("SKIPPED passing: {reason}");
        return;
    }
    if !evicted(&tier, "passing") {
        return;
    }
    tier.watch_demand(DemandConfig::default(), &SystemRoot::default()).unwrap();
    assert_bytes(&tier.adopt(&Route::new(0, &[0]).unwrap()).unwrap());
    let cold = [ExpertId::new(0, 4)];
    let resident = || tier.residency(Some(&cold)).unwrap().resident_bytes;
    let before = (tier.snapshot(), resident(), tier.demand().unwrap().accesses);
    let adopted = tier.begin_passing(0, &[0, 4]).unwrap().finish().unwrap();
    assert_bytes(&adopted);
    let seen = tier.snapshot() - before.0;
    assert_eq!((seen.warm_experts, seen.cold_experts), (1, 1));
    assert!(seen.passed_bytes > 0 && seen.passed_bytes == seen.missing_bytes, "{seen:?}");
    assert_eq!(resident(), before.1, "it is as cold as it was");
    // The model of the page cache hears only of what was used there.
    assert_eq!(tier.demand().unwrap().accesses, before.2 + 1);
    assert!(tier.begin_passing(0, &[4000]).is_err());
}

#[test]
fn arms_that_keep_nothing_let_pass_as_they_always_do() {
    let dir = checkpoint();
    let tier = open(dir.path(), arm(Admission::DropBehind));
    assert_eq!(tier.passing_unavailable(), None);
    let adopted = tier.begin_passing(1, &[2, 3]).unwrap().finish().unwrap();
    assert_bytes(&adopted);
    assert_eq!(tier.snapshot().passed_bytes, 0);
}
