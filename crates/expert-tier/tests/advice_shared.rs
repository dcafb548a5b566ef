//! Demand and advice on one expert at once. Alone in its process, whose reads it counts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "tier/checkpoint.rs"]
mod checkpoint;

use checkpoint::{EXPERTS, LAYERS, pattern, write_checkpoint};
use expert_tier::{AdviceEnd, AdviceForm, Pool, Tier, TierConfig};
use router_trace::ExpertId;
use std::fs::File;
use std::sync::Barrier;

/// Bytes that this process made the block layer read.
fn read_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

/// Demand that meets advice half way reads what advice has not begun; no byte is read twice.
#[test]
fn demand_takes_over_and_nothing_is_read_twice() {
    let parent = std::env::var_os("TIER_TEST_DIR");
    let parent = parent.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let dir = tempfile::tempdir_in(parent).unwrap();
    write_checkpoint(dir.path());
    File::open(dir.path().join("model.safetensors")).unwrap().sync_all().unwrap();
    let tier = Tier::open(Pool::open(dir.path()).unwrap(), TierConfig::default()).unwrap();
    if tier.evict(None).unwrap().resident_bytes > 0 {
        println!("SKIPPED: pages stay cached on this file system");
        return;
    }
    let Some(before) = read_bytes() else {
        println!("SKIPPED: this kernel does not count a process's reads");
        return;
    };
    let advisor = tier.advisor();
    let together = Barrier::new(2);
    let (mut asked, mut overtaken, mut expert_bytes) = (0, 0, 0);
    for layer in 0..LAYERS {
        for index in 0..EXPERTS {
            let id = ExpertId::new(layer, index);
            let told = std::thread::scope(|scope| {
                scope.spawn(|| {
                    together.wait();
                    let adopted = tier.adopt_batch(layer, &[index]).unwrap();
                    for part in adopted.experts().next().unwrap().parts() {
                        assert!(part.bytes.host().unwrap() == pattern(id, part.role), "{id}");
                    }
                });
                let mut pieces = 0;
                // The demand begins just before one of the pieces, a later one each time.
                let mut stale = || {
                    pieces += 1;
                    if pieces == 1 + usize::from(index % 4) {
                        together.wait();
                    }
                    false
                };
                let told = advisor.advise(id, AdviceForm::Pieces, &mut stale).unwrap();
                if pieces < 1 + usize::from(index % 4) {
                    together.wait();
                }
                told
            });
            asked += told.asked_bytes;
            expert_bytes += told.expert_bytes;
            overtaken += u32::from(told.end == AdviceEnd::Overtaken);
        }
    }
    let read = read_bytes().unwrap() - before;
    println!("{read} bytes read of {expert_bytes}, {asked} asked by advice, overtaken {overtaken}");
    assert!(asked > 0 && asked < expert_bytes, "both had their part");
    assert!(overtaken > 0);
    assert!(read <= expert_bytes + expert_bytes / 50, "{read} of {expert_bytes}");
}
