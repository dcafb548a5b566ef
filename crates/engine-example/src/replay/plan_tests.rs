use super::*;
use crate::replay::{ArmSettings, ReplayArm, measure, replay};
use expert_tier::observe::SystemRoot;
use router_trace::PassKind;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

const EXPERTS: u16 = 8;

/// A pool of `layers` with 8 experts of 6 KiB each.
fn pool(layers: &[u16]) -> (TempDir, Pool) {
    // Beside the test itself: the system's temporary folder may have no direct reads.
    let exe = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in(exe.parent().unwrap()).unwrap();
    let mut tensors = Vec::new();
    for &layer in layers {
        for index in 0..EXPERTS {
            for (name, shape) in [("gate", [16, 64]), ("up", [16, 64]), ("down", [64, 16])] {
                let name = format!("model.layers.{layer}.mlp.experts.{index}.{name}_proj.weight");
                tensors.push((name, shape, vec![(layer * 16 + index) as u8; 2048]));
            }
        }
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::BF16, shape.to_vec(), bytes).unwrap())
    });
    let path = dir.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    std::fs::File::open(path).unwrap().sync_all().unwrap();
    let pool = Pool::open(dir.path()).unwrap();
    (dir, pool)
}

fn header(layers: &[u16], n_experts: u16) -> TraceHeader {
    TraceHeader {
        model_name: String::new(),
        shape: ModelShape { moe_layers: layers.to_vec(), n_experts, top_k: 2 },
        expert_bytes: None,
        created_by: String::new(),
    }
}

fn pass(step: u64, layer: u16, phase: Phase, experts: &[u16]) -> Result<LayerPass, TraceError> {
    let info = PassInfo { step, position: step, layer, phase, kind: PassKind::Normal };
    Ok(LayerPass::new(info, 2, experts.to_vec()).unwrap())
}

fn planned(layer: u16, experts: &[u16]) -> PlannedPass {
    PlannedPass { layer, experts: experts.to_vec() }
}

#[test]
fn passes_are_taken_as_issued_each_expert_once() {
    let (_dir, pool) = pool(&[1, 3]);
    let passes = || {
        vec![
            pass(0, 1, Phase::Prefill, &[0, 1, 2, 3]),
            pass(1, 1, Phase::Decode, &[5, 0, 5, 2]),
            pass(1, 3, Phase::Decode, &[7, 1]),
            pass(2, 1, Phase::Decode, &[4, 3]),
            pass(3, 3, Phase::Decode, &[0, 1]),
        ]
    };
    let header = header(&[1, 3], EXPERTS);
    let plan = ReplayPlan::new(&pool, &header, passes(), false, 2).unwrap();
    let wanted = [vec![planned(1, &[5, 0, 2]), planned(3, &[7, 1])], vec![planned(1, &[4, 3])]];
    assert_eq!(plan.iterations(), wanted);
    assert_eq!((plan.widest_pass(), plan.expert_bytes()), (3, 6144));
    assert!(plan.notices().is_empty());
    let all = ReplayPlan::new(&pool, &header, passes(), true, usize::MAX).unwrap();
    assert_eq!(all.iterations().len(), 4);
    assert_eq!(all.iterations()[0], [planned(1, &[0, 1, 2, 3])]);
}

#[test]
fn a_larger_model_is_mapped_where_it_fits_and_refused_with_both_shapes_where_not() {
    let (_dir, pool) = pool(&[1, 3]);
    let deep = header(&[0, 1, 2, 3, 4], EXPERTS);
    let passes = (0..5).map(|layer| pass(0, layer, Phase::Decode, &[layer, 7])).collect::<Vec<_>>();
    let plan = ReplayPlan::new(&pool, &deep, passes, false, 9).unwrap();
    assert_eq!(plan.iterations(), [[planned(1, &[0, 7]), planned(3, &[1, 7])]]);
    assert!(plan.notices()[0].text.contains("2 of 5 onto 2 layers (1 to 3) of 8 experts"));
    let wide = header(&[1, 3], 9);
    let error = ReplayPlan::new(&pool, &wide, [], false, 9).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
    let text = error.to_string();
    assert!(text.contains("of 9 experts") && text.contains("of 8 experts"), "{text}");
    let error = ReplayPlan::new(&pool, &header(&[1, 3], 8), [], false, 9).unwrap_err();
    assert!(error.to_string().contains("none of its passes"), "{error}");
}

/// Two iterations over all of the pool, and one over half of it.
fn sweep() -> Vec<Result<LayerPass, TraceError>> {
    let all: Vec<u16> = (0..EXPERTS).collect();
    let mut passes = Vec::new();
    for step in 0..3 {
        for layer in [1, 3] {
            let end = if step == 2 { 4 } else { 8 };
            passes.push(pass(step, layer, Phase::Decode, &all[..end]));
        }
    }
    passes
}

#[test]
fn every_arm_reads_the_same_bytes_and_counts_what_it_was_asked() {
    let (_dir, pool) = pool(&[1, 3]);
    let plan = ReplayPlan::new(&pool, &header(&[1, 3], EXPERTS), sweep(), false, 9).unwrap();
    let iterations = plan.iterations();
    let mut checksums = Vec::new();
    for arm in ReplayArm::ALL {
        let hot = if arm.is_oracle() { plan.hottest(8) } else { Vec::new() };
        let settings = ArmSettings { places: 8, fill_threads: 2, fill_method: None };
        let served = match arm.open(pool.clone(), &hot, &settings) {
            Ok(served) => served,
            Err(error) if ["limit", "device-unavailable"].contains(&error.kind()) => {
                println!("SKIPPED {arm}: {error}");
                continue;
            }
            Err(error) => panic!("{arm}: {error}"),
        };
        for threads in [1, 3] {
            let root = SystemRoot::default();
            let found = measure(&served, 0, &iterations, threads, &root).unwrap();
            let asked: Vec<_> = found.iterations.iter().map(|one| one.logical_accesses).collect();
            assert_eq!(asked, [16, 16, 8], "{arm}");
            assert!(found.iterations.iter().all(|one| {
                one.logical_bytes == 6144 * one.logical_accesses && one.wall_ns > 0
            }));
            assert_eq!((found.adopted_experts, found.warm_up_iterations), (40, 3), "{arm}");
            // 3 iterations are too few to choose from what was seen.
            assert_eq!(found.wanted_locked_bytes > 0, arm.is_oracle(), "{arm}");
            checksums.push(found.iterations.iter().map(|one| one.checksum).collect::<Vec<_>>());
        }
    }
    assert!(checksums.windows(2).all(|pair| pair[0] == pair[1]) && checksums[0][0] != 0);
}

#[test]
fn nominal_misses_are_those_of_a_warmed_replay() {
    let (_dir, pool) = pool(&[1, 3]);
    let plan = ReplayPlan::new(&pool, &header(&[1, 3], EXPERTS), sweep(), false, 9).unwrap();
    let lru = plan.lru();
    assert_eq!((lru.accesses(), lru.hits(16), lru.hits(0)), (40, 40, 0));
    // The eight of the last iteration are used three times, the others twice.
    let half = [1, 3].into_iter().flat_map(|layer| (0..4).map(move |e| ExpertId::new(layer, e)));
    assert_eq!(plan.hottest(8), half.collect::<Vec<_>>());
    assert_eq!((plan.fixed_set_misses(8), plan.fixed_set_misses(16)), (16, 0));
}

#[test]
fn the_smallest_fixed_set_for_some_misses_is_found() {
    let (_dir, pool) = pool(&[1, 3]);
    let plan = ReplayPlan::new(&pool, &header(&[1, 3], EXPERTS), sweep(), false, 9).unwrap();
    for misses in 0..=40 {
        let count = plan.fixed_set_for(misses);
        assert!(plan.fixed_set_misses(count) <= misses, "{misses}: {count}");
        assert!(count == 0 || plan.fixed_set_misses(count - 1) > misses, "{misses}: {count}");
    }
    // 16 experts are used, 8 of them in two iterations of three.
    assert_eq!([0, 16, 24, 40].map(|misses| plan.fixed_set_for(misses)), [16, 8, 6, 0]);
}

#[test]
fn a_failed_read_ends_the_replay_and_all_its_threads() {
    let (dir, pool) = pool(&[1, 3]);
    let plan = ReplayPlan::new(&pool, &header(&[1, 3], EXPERTS), sweep(), false, 9).unwrap();
    let settings = ArmSettings { places: 0, fill_threads: 2, fill_method: None };
    let served = ReplayArm::Pread.open(pool, &[], &settings).unwrap();
    let file = std::fs::File::options().write(true).open(dir.path().join("model.safetensors"));
    file.unwrap().set_len(20_000).unwrap();
    let error = replay(served.adopt(), &plan.iterations(), 4, |_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), "io-changed", "{error}");
    for threads in [0, 257] {
        let error = replay(served.adopt(), &[], threads, |_, _| Ok(())).unwrap_err();
        assert!(error.to_string().contains("1 to 256"), "{error}");
    }
}
