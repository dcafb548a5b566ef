//! Advice right, wrong, stale and of every form, beside demand and evictions.

use super::checkpoint::LAYERS;
use super::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use router_trace::Route;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn any(random: &mut ChaCha8Rng) -> ExpertId {
    ExpertId::new(random.random_range(0..LAYERS), random.random_range(0..EXPERTS))
}

/// Two advisors, one evictor, two demands; returns what the advisors did that was not nothing.
fn storm(tier: &Tier, seed: u64, lasts: Duration) -> u64 {
    let (over, busy) = (AtomicBool::new(false), AtomicU64::new(0));
    let random = |number| ChaCha8Rng::seed_from_u64(seed ^ number);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (over, busy, advisor) = (&over, &busy, tier.advisor());
            scope.spawn(move || {
                let mut random = random(number);
                advisor.lower_reads();
                while !over.load(Ordering::Relaxed) {
                    let form = AdviceForm::ALL[random.random_range(0..AdviceForm::ALL.len())];
                    let patience = random.random_range(0..6);
                    let mut asked = 0;
                    let mut stale = || {
                        asked += 1;
                        asked > patience
                    };
                    let told = advisor.advise(any(&mut random), form, &mut stale).unwrap();
                    assert!(told.asked_bytes <= told.expert_bytes, "{told:?}");
                    assert!(told.brought_bytes <= told.expert_bytes, "{told:?}");
                    busy.fetch_add(u64::from(told.asked_bytes > 0), Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let mut random = random(2);
            while !over.load(Ordering::Relaxed) {
                tier.evict(Some(&[any(&mut random), any(&mut random)])).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for number in 3..5 {
            let over = &over;
            scope.spawn(move || {
                let mut random = random(number);
                let started = Instant::now();
                while started.elapsed() < lasts {
                    let ExpertId { layer, index } = any(&mut random);
                    let route = Route::new(layer, &[index, (index + 1) % EXPERTS]).unwrap();
                    assert_bytes(&tier.adopt(&route).unwrap());
                }
                over.store(true, Ordering::Relaxed);
            });
        }
    });
    busy.into_inner()
}

/// No hint may change an answer: every adoption sees the bytes of the file, whatever is advised,
/// evicted or given up meanwhile.
#[test]
fn advice_of_any_kind_changes_no_byte() {
    let dir = checkpoint();
    for (number, method) in
        [None, Some(FillMethod::Read), Some(FillMethod::WillNeed)].into_iter().enumerate()
    {
        for admission in [Admission::Admit, Admission::DropBehind] {
            let config = TierConfig { fill_method: method, admission, ..TierConfig::default() };
            let tier = open(&dir, config);
            if !cold(&tier, "any advice") {
                return;
            }
            let busy = storm(&tier, number as u64 * 1000, Duration::from_millis(300));
            assert!(busy > 0, "the advisors had something to do");
            // Nothing is left in flight: every expert can still be advised and adopted.
            tier.evict(None).unwrap();
            let advisor = tier.advisor();
            for (id, _) in tier.pool().layout().iter() {
                let told = advisor.advise(id, AdviceForm::Pieces, &mut keep_on()).unwrap();
                let ends = [AdviceEnd::Done, AdviceEnd::Warm];
                assert!(ends.contains(&told.end), "{id}: {told:?}");
                assert_bytes(&tier.adopt_batch(id.layer, &[id.index]).unwrap());
            }
        }
    }
}
