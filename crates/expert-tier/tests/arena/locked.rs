//! A hot set that is locked inside the mapping.

use super::{locked_bytes, write};
use expert_tier::{Snapshot, Tier, TierConfig};
use router_trace::ExpertId;

#[test]
fn locked_experts_stay_while_the_lock_lives() {
    let (_dir, pool) = write();
    let tier = Tier::open(pool, TierConfig::default()).unwrap();
    let hot: Vec<ExpertId> = (0..40).map(|index| ExpertId::new(3, index)).collect();
    let bytes = tier.residency(Some(&hot)).unwrap().total_bytes;
    let locked = match tier.lock_experts(&hot) {
        Ok(locked) => locked,
        Err(error) if error.kind() == "limit" => {
            println!("SKIPPED: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(tier.snapshot(), Snapshot::default());
    // Neighbours share pages, which count once here and twice in the residency of each.
    assert!(locked.bytes() <= bytes && locked.bytes() >= 40 * super::EXPERT_BYTES);
    assert!(locked_bytes() >= locked.bytes());
    tier.evict(None).unwrap();
    let left = tier.residency(Some(&hot)).unwrap();
    assert_eq!(left.resident_bytes, left.total_bytes, "what is locked is not evicted");
    drop(tier.adopt_batch(3, &[0, 39]).unwrap());
    assert_eq!(tier.snapshot().warm_experts, 2);
    drop(locked);
    match tier.evict(None).unwrap().resident_bytes {
        0 => {}
        left => println!("SKIPPED: {left} bytes stay cached on this file system"),
    }
    let foreign = tier.lock_experts(&[ExpertId::new(3, 64)]).unwrap_err();
    assert_eq!(foreign.kind(), "config-inconsistent");
}
