//! What advice promises, on real files: the experts it names and no other, no byte changed, no
//! demand held up.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../tier/checkpoint.rs"]
mod checkpoint;
mod concurrent;
mod large;

use checkpoint::{EXPERTS, pattern, write_checkpoint};
use expert_tier::pool::PartRole;
use expert_tier::{
    Admission, Adopted, AdviceEnd, AdviceForm, Advised, FillMethod, Pool, Tier, TierConfig,
};
use router_trace::ExpertId;
use std::fs::File;
use tempfile::TempDir;

fn parent() -> std::ffi::OsString {
    // Not in the system's temporary folder, which may be a tmpfs: nothing can be evicted there.
    let parent = std::env::var_os("TIER_TEST_DIR");
    parent.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into())
}

fn checkpoint() -> TempDir {
    let dir = tempfile::tempdir_in(parent()).unwrap();
    write_checkpoint(dir.path());
    File::open(dir.path().join("model.safetensors")).unwrap().sync_all().unwrap();
    dir
}

fn open(dir: &TempDir, config: TierConfig) -> Tier {
    Tier::open(Pool::open(dir.path()).unwrap(), config).unwrap()
}

fn cold(tier: &Tier, test: &str) -> bool {
    let left = tier.evict(None).unwrap().resident_bytes;
    if left > 0 {
        println!("SKIPPED {test}: {left} bytes stay cached on this file system");
    }
    left == 0
}

fn assert_bytes(adopted: &Adopted) {
    for expert in adopted.experts() {
        for role in [PartRole::Gate, PartRole::Up, PartRole::Down] {
            let bytes = expert.part(role).unwrap().bytes.host().unwrap();
            assert!(bytes == pattern(expert.id(), role), "{} {role:?}", expert.id());
        }
    }
}

fn keep_on() -> impl FnMut() -> bool {
    || false
}

const WANTED: ExpertId = ExpertId::new(1, 2);

#[test]
fn an_advised_expert_is_there_and_demand_finds_it_warm() {
    let dir = checkpoint();
    for method in [None, Some(FillMethod::Read), Some(FillMethod::WillNeed)] {
        for form in [AdviceForm::Pieces, AdviceForm::BlockingRead] {
            let config = TierConfig { fill_method: method, ..TierConfig::default() };
            let tier = open(&dir, config);
            if !cold(&tier, "advised and warm") {
                return;
            }
            let advisor = tier.advisor();
            let told = advisor.advise(WANTED, form, &mut keep_on()).unwrap();
            let Advised { end, expert_bytes, already_bytes, asked_bytes, brought_bytes } = told;
            assert_eq!((end, already_bytes), (AdviceEnd::Done, 0), "{form} {method:?}");
            assert_eq!((asked_bytes, brought_bytes), (expert_bytes, expert_bytes));
            let adopted = tier.adopt_batch(WANTED.layer, &[WANTED.index]).unwrap();
            assert_bytes(&adopted);
            let seen = tier.snapshot();
            assert_eq!((seen.warm_experts, seen.missing_bytes), (1, 0), "{form} {method:?}");
            let again = advisor.advise(WANTED, form, &mut keep_on()).unwrap();
            assert_eq!((again.end, again.asked_bytes), (AdviceEnd::Warm, 0));
            assert_eq!(again.already_bytes, expert_bytes);
            assert_eq!(advisor.notices(), []);
        }
    }
}

#[test]
fn neighbours_are_left_alone() {
    let dir = checkpoint();
    let tier = open(&dir, TierConfig::default());
    if !cold(&tier, "neighbours") {
        return;
    }
    tier.advisor().advise(WANTED, AdviceForm::Pieces, &mut keep_on()).unwrap();
    let others: Vec<ExpertId> =
        tier.pool().layout().iter().map(|(id, _)| id).filter(|&id| id != WANTED).collect();
    let found = tier.residency(Some(&others)).unwrap();
    // The two pages on its borders, which it shares.
    assert!(found.resident_bytes <= 2 * 65_536, "{found:?}");
}

#[test]
fn a_stale_plan_ends_between_pieces_and_demand_reads_the_rest() {
    let dir = checkpoint();
    let tier = open(&dir, TierConfig::default());
    if !cold(&tier, "stale") {
        return;
    }
    let advisor = tier.advisor();
    let told = advisor.advise(WANTED, AdviceForm::Pieces, &mut || true).unwrap();
    assert_eq!((told.end, told.asked_bytes), (AdviceEnd::Stale, 0));
    let mut asked = 0;
    // Asked before the first probe, then before each piece.
    let mut after_one = || {
        asked += 1;
        asked > 2
    };
    let told = advisor.advise(WANTED, AdviceForm::Pieces, &mut after_one).unwrap();
    assert_eq!(told.end, AdviceEnd::Stale);
    assert!(told.brought_bytes > 0 && told.brought_bytes < told.expert_bytes, "{told:?}");
    assert_bytes(&tier.adopt_batch(WANTED.layer, &[WANTED.index]).unwrap());
    assert_eq!(tier.snapshot().cold_experts, 1, "what lacks a page is cold");
    assert!(tier.snapshot().missing_bytes < told.expert_bytes);
}

#[test]
fn tiers_that_read_past_the_page_cache_take_no_hints() {
    let dir = checkpoint();
    let config = TierConfig { admission: Admission::Direct, ..TierConfig::default() };
    let tier = match Tier::open(Pool::open(dir.path()).unwrap(), config) {
        Ok(tier) => tier,
        Err(error) => {
            println!("SKIPPED: {error}");
            return;
        }
    };
    tier.evict(None).unwrap();
    let advisor = tier.advisor();
    for form in AdviceForm::ALL {
        let told = advisor.advise(WANTED, form, &mut keep_on()).unwrap();
        assert_eq!((told.end, told.asked_bytes), (AdviceEnd::Bypassed, 0));
    }
    let notices = advisor.notices();
    assert_eq!(notices.len(), 1);
    assert!(notices[0].text.contains("direct"), "{notices:?}");
}

#[test]
fn an_expert_that_is_not_there_is_an_error() {
    let dir = checkpoint();
    let advisor = open(&dir, TierConfig::default()).advisor();
    let id = ExpertId::new(1, EXPERTS);
    let error = advisor.advise(id, AdviceForm::Pieces, &mut keep_on()).unwrap_err();
    assert_eq!(error.kind(), "config-inconsistent");
    assert_eq!(advisor.missing_bytes(id).unwrap_err().kind(), "config-inconsistent");
}

#[test]
fn an_advisor_outlives_its_tier_and_a_cut_file_is_its_own_error() {
    let dir = checkpoint();
    let tier = open(&dir, TierConfig::default());
    let advisor = tier.advisor();
    let extent = tier.pool().layout().expert(WANTED).unwrap().extents[0];
    drop(tier);
    advisor.advise(WANTED, AdviceForm::Pieces, &mut keep_on()).unwrap();
    let path = dir.path().join("model.safetensors");
    File::options().write(true).open(path).unwrap().set_len(extent.offset + 4096).unwrap();
    for form in [AdviceForm::Pieces, AdviceForm::BlockingRead] {
        let error = advisor.advise(WANTED, form, &mut keep_on()).unwrap_err();
        assert_eq!(error.kind(), "io-changed", "{error}");
    }
}

#[test]
fn forms_are_named() {
    for form in AdviceForm::ALL {
        assert_eq!(form.to_string().parse::<AdviceForm>().unwrap(), form);
    }
    assert!("pieces,single-call".parse::<AdviceForm>().unwrap_err().contains("blocking-read"));
}
