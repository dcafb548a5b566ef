use super::{checkpoint, open};
use expert_tier::observe::SystemRoot;
use expert_tier::plan::{MeasureLimits, measure_device};
use expert_tier::{Pool, TierConfig};

#[test]
fn a_device_is_measured_cold_and_left_as_it_was_found() {
    let dir = checkpoint();
    let pool = Pool::open(dir.path()).unwrap();
    let tier = open(dir.path(), TierConfig::default());
    if tier.evict(None).unwrap().resident_bytes > 0 {
        println!("SKIPPED: nothing can be evicted on this file system");
        return;
    }
    let root = SystemRoot::default();
    let limits = MeasureLimits { threads: 2, ..MeasureLimits::default() };
    let rate = measure_device(&pool, limits, &root).unwrap();
    println!("{rate:?}");
    assert_eq!(rate.experts, pool.layout().total_experts(), "small pools are read whole");
    assert_eq!(rate.cold.asked_bytes, pool.layout().total_bytes());
    assert!(rate.fill_bytes_per_s > 0.0);
    assert_eq!(rate.direct_bytes_per_s.is_none(), rate.direct_refused.is_some());
    match &rate.cold.reason {
        None => {
            let read = rate.cold.process_bytes.or(rate.cold.device_bytes).unwrap();
            assert!(read >= rate.cold.asked_bytes * 98 / 100);
            assert!(rate.proved_bytes_per_s().unwrap() > 0.0);
        }
        Some(reason) => {
            println!("SKIPPED proof: {reason}");
            assert_eq!(rate.proved_bytes_per_s(), None);
        }
    }
    assert_eq!(tier.residency(None).unwrap().resident_bytes, 0, "cold as before");

    // A limit in bytes is kept: at least one batch, then no more than fits.
    let one = MeasureLimits { bytes: 1, ..limits };
    assert!(measure_device(&pool, one, &root).unwrap().experts < rate.experts);
}
