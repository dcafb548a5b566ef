//! Experts that become usable one after the other.

use super::*;

const ROUTE: [u16; 4] = [4, 0, 3, 5];

#[test]
fn experts_come_in_order_and_count_when_all_are_there() {
    let dir = checkpoint();
    for admission in Admission::ALL {
        let Some(tier) = open_or_skip(dir.path(), arm(admission)) else { continue };
        tier.evict(None).unwrap();
        let before = tier.snapshot();
        let mut adopting = tier.begin(1, &ROUTE).unwrap();
        assert_eq!(adopting.experts().count(), 0);
        let mut seen = Vec::new();
        loop {
            let more = adopting.wait().unwrap();
            assert_eq!(more.start, seen.len());
            if more.is_empty() {
                break;
            }
            assert_eq!(adopting.experts().len(), more.end);
            for expert in adopting.experts().skip(more.start) {
                seen.push(expert.id().index);
                for part in expert.parts() {
                    assert!(part.bytes.host().unwrap() == pattern(expert.id(), part.role));
                }
            }
        }
        assert_eq!(seen, ROUTE);
        assert_eq!(tier.snapshot(), before, "nothing counts before the end");
        let adopted = adopting.finish().unwrap();
        assert_bytes(&adopted);
        let found = tier.snapshot() - before;
        assert_eq!((found.adoptions, found.adopted_experts), (1, 4));
        assert!(found.fill_ns <= found.adopt_ns);
    }
}

#[test]
fn an_adoption_that_is_given_up_counts_nothing_and_leaves_nothing_in_flight() {
    let dir = checkpoint();
    for admission in Admission::ALL {
        let Some(tier) = open_or_skip(dir.path(), arm(admission)) else { continue };
        let evictable = tier.evict(None).unwrap().resident_bytes == 0;
        let before = tier.snapshot();
        let mut adopting = tier.begin(0, &ROUTE).unwrap();
        adopting.wait().unwrap();
        drop(adopting);
        assert_eq!(tier.snapshot(), before);
        let ids = ROUTE.map(|index| ExpertId::new(0, index));
        let left = tier.residency(Some(&ids)).unwrap();
        match admission {
            Admission::Admit | Admission::Auto => {
                assert_eq!(left.resident_bytes, left.total_bytes);
            }
            _ if evictable => assert_eq!(left.resident_bytes, 0, "{admission}"),
            _ => println!("SKIPPED: this file system keeps its pages"),
        }
        assert_bytes(&tier.adopt_batch(0, &ROUTE).unwrap());
    }
}

#[test]
fn a_failed_read_is_told_once_and_ends_the_adoption() {
    let dir = checkpoint();
    let path = dir.path().join("model.safetensors");
    for method in FillMethod::ALL {
        write_checkpoint(dir.path());
        let config = TierConfig { fill_method: Some(method), ..arm(Admission::Admit) };
        let Some(tier) = open_or_skip(dir.path(), config) else { continue };
        tier.evict(None).unwrap();
        let last = tier.pool().layout().expert(ExpertId::new(1, 5)).unwrap().extents[0];
        let before = tier.snapshot();
        File::options().write(true).open(&path).unwrap().set_len(last.offset + 4096).unwrap();
        let mut adopting = tier.begin(1, &[5]).unwrap();
        if method == FillMethod::Fault {
            // Nothing is read before its use, so nothing can fail before it.
            assert_eq!(adopting.wait().unwrap(), 0..1);
            assert_eq!(adopting.finish().unwrap_err().kind(), "io-changed");
        } else {
            let error = adopting.wait().unwrap_err();
            assert_eq!(error.kind(), "io-changed");
            assert!(error.to_string().contains("model.safetensors"), "{error}");
            let again = adopting.wait().unwrap_err();
            assert!(again.to_string().contains("reported before"), "{again}");
            assert!(adopting.finish().is_err());
        }
        assert_eq!(tier.snapshot(), before);
        // Nobody waits for it for ever: it is not in flight any more.
        assert!(tier.adopt_batch(1, &[5]).is_err());
    }
}
