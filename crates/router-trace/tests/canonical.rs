//! Typing of foreign traces: what an engine did is recovered exactly from rows without tags.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::SplitMix;
use proptest::prelude::*;
use router_trace::canonical::{CanonicalCounts, DryRun, Iterations, Notice};
use router_trace::format::{self, Format, OpenOptions, ShapeHints};
use router_trace::{LayerPass, PassKind, Phase, Tail, TraceError};
use std::fmt::Write as _;

const LAYERS: [u16; 3] = [1, 2, 5];
const EXPERTS: u16 = 64;
const TOP_K: usize = 4;

/// What the imagined engine does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Normal,
    Accept,
    /// A draft is rejected; whether the attempt's row has the draft's token too.
    Fallback {
        wide: bool,
    },
    /// A prompt of so many tokens, more than a draft.
    Prompt(usize),
    /// All of -1.
    Padding,
}

/// Rows of one forward pass: for each layer, for each token, its ids.
type Rows = Vec<Vec<Vec<i64>>>;

fn rows(random: &mut SplitMix, tokens: usize) -> Rows {
    let mut route = || {
        let mut ids = Vec::new();
        while ids.len() < TOP_K {
            let id = random.below(EXPERTS.into()) as i64;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    };
    LAYERS.map(|_| (0..tokens).map(|_| route()).collect()).to_vec()
}

/// The forward passes that an event makes.
fn passes(event: Event, random: &mut SplitMix) -> Vec<Rows> {
    match event {
        Event::Normal => vec![rows(random, 1)],
        Event::Accept => vec![rows(random, 2)],
        Event::Fallback { wide } => {
            let attempt = rows(random, if wide { 2 } else { 1 });
            // The pass that runs again sees the same token in the same state.
            let again = attempt.iter().map(|tokens| tokens[..1].to_vec()).collect();
            vec![attempt, again]
        }
        Event::Prompt(tokens) => vec![rows(random, tokens)],
        Event::Padding => vec![vec![vec![vec![-1; TOP_K]]; LAYERS.len()]],
    }
}

fn plain(events: &[Event], nested: bool, by_layer: bool) -> String {
    let mut random = SplitMix(1);
    let mut text = String::new();
    for (step, &event) in events.iter().enumerate() {
        let passes = passes(event, &mut random);
        let mut row = |pass: &Rows, at: usize| {
            let experts = if nested {
                serde_json::to_string(&pass[at]).unwrap()
            } else {
                serde_json::to_string(&pass[at].concat()).unwrap()
            };
            let layer = LAYERS[at];
            writeln!(text, r#"{{"step":{step},"layer":{layer},"experts":{experts}}}"#).unwrap();
        };
        // The pass that runs again follows as a whole, or layer after layer.
        if by_layer {
            for at in 0..LAYERS.len() {
                passes.iter().for_each(|pass| row(pass, at));
            }
        } else {
            for pass in &passes {
                (0..LAYERS.len()).for_each(|at| row(pass, at));
            }
        }
    }
    text
}

fn colibri(events: &[Event]) -> String {
    let mut random = SplitMix(1);
    let mut text = String::new();
    let mut call = 0;
    for &event in events {
        for pass in passes(event, &mut random) {
            for (at, tokens) in pass.iter().enumerate() {
                for (row, ids) in tokens.iter().enumerate() {
                    write!(text, "{call} {row} {}", LAYERS[at]).unwrap();
                    for id in ids {
                        write!(text, " {id}:{:.4}", 0.25).unwrap();
                    }
                    text.push('\n');
                }
                call += 1;
            }
        }
    }
    text
}

fn hints() -> OpenOptions {
    let shape = ShapeHints {
        moe_layers: Some(LAYERS.to_vec()),
        n_experts: Some(EXPERTS),
        top_k: Some(TOP_K as u16),
        ..ShapeHints::default()
    };
    OpenOptions { shape, ..OpenOptions::default() }
}

struct Typed {
    passes: Vec<LayerPass>,
    counts: CanonicalCounts,
    notices: Vec<Notice>,
}

fn read(text: &str, options: &OpenOptions) -> Result<Typed, TraceError> {
    let mut reader = format::open_bytes(text.as_bytes(), options)?;
    let passes = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    let counts = reader.summary().unwrap().canonical.unwrap();
    assert_eq!(reader.summary().unwrap().records, counts.passed_records);
    Ok(Typed { passes, counts, notices: reader.notices() })
}

/// What the typed passes must be: kind, position, tokens of each forward pass.
fn expected(events: &[Event]) -> Vec<(PassKind, u64, Rows)> {
    let mut random = SplitMix(1);
    let mut position = 0;
    let mut typed = Vec::new();
    for &event in events {
        let mut passes = passes(event, &mut random).into_iter();
        let mut pass = || passes.next().unwrap();
        match event {
            Event::Normal => typed.push((PassKind::Normal, position, pass())),
            Event::Accept => typed.push((PassKind::SpecAccept, position, pass())),
            Event::Fallback { .. } => {
                typed.push((PassKind::SpecFallback, position, pass()));
                typed.push((PassKind::SpecFallback, position, pass()));
            }
            Event::Prompt(_) | Event::Padding => {}
        }
        position += accepted(event);
    }
    typed
}

fn accepted(event: Event) -> u64 {
    match event {
        Event::Normal | Event::Fallback { .. } => 1,
        Event::Accept => 2,
        Event::Prompt(_) | Event::Padding => 0,
    }
}

fn check(events: &[Event], typed: &Typed) {
    let expected = expected(events);
    let layers = LAYERS.len();
    assert_eq!(typed.passes.len(), expected.len() * layers);
    for (at, pass) in typed.passes.iter().enumerate() {
        let (kind, position, rows) = &expected[at / layers];
        let info = pass.info;
        assert_eq!((info.kind, info.position), (*kind, *position), "pass {}", at / layers);
        assert_eq!((info.step, info.layer), ((at / layers) as u64, LAYERS[at % layers]));
        assert_eq!(info.phase, Phase::Decode);
        let ids: Vec<i64> = pass.experts().iter().map(|&id| id.into()).collect();
        assert_eq!(ids, rows[at % layers].concat());
    }
    let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count() as u64;
    let counts = &typed.counts;
    assert_eq!(counts.normal, count(|event| *event == Event::Normal));
    assert_eq!(counts.spec_accept, count(|event| *event == Event::Accept));
    assert_eq!(counts.spec_fallback, count(|event| matches!(event, Event::Fallback { .. })));
    assert_eq!(counts.prefill_passes, count(|event| matches!(event, Event::Prompt(_))));
    assert_eq!(counts.padding_rows, 3 * count(|event| *event == Event::Padding));
    assert_eq!(counts.accepted_tokens, events.iter().copied().map(accepted).sum::<u64>());
    // The typed trace alone tells the same again.
    let iterations: Vec<_> = Iterations::new(typed.passes.iter().cloned().map(Ok))
        .collect::<Result<Vec<_>, _>>()
        .unwrap();
    assert_eq!(iterations.len() as u64, counts.iterations());
    let tokens: u64 =
        iterations.iter().map(router_trace::canonical::Iteration::accepted_tokens).sum();
    assert_eq!(tokens, counts.accepted_tokens);
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Normal),
        2 => Just(Event::Accept),
        1 => Just(Event::Fallback { wide: true }),
        1 => Just(Event::Fallback { wide: false }),
        1 => (3..9_usize).prop_map(Event::Prompt),
        1 => Just(Event::Padding),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever an engine did, its plain rows tell it.
    #[test]
    fn plain_rows_tell_all(
        events in prop::collection::vec(any_event(), 1..40),
        nested: bool,
        by_layer: bool,
    ) {
        let typed = read(&plain(&events, nested, by_layer), &hints()).unwrap();
        check(&events, &typed);
        prop_assert_eq!(typed.notices, []);
    }

    /// Without step numbers too, as long as an attempt has the draft's token in its row.
    #[test]
    fn colibri_rows_tell_all(events in prop::collection::vec(any_event(), 1..40)) {
        let told = |event: Event| match event {
            Event::Fallback { .. } => Event::Fallback { wide: true },
            other => other,
        };
        let events: Vec<_> = events.into_iter().map(told).collect();
        check(&events, &read(&colibri(&events), &hints()).unwrap());
    }
}

/// The paper's traces: 299 accepted tokens in 242 to 290 iterations.
#[test]
fn the_papers_accounting() {
    let mut random = SplitMix(299);
    for accepts in [57_usize, 9] {
        let mut events = vec![Event::Accept; accepts];
        events.resize(299 - accepts, Event::Normal);
        for _ in 0..20 {
            let at = random.below(events.len());
            if events[at] == Event::Normal {
                events[at] = Event::Fallback { wide: true };
            }
        }
        for at in (1..events.len()).rev() {
            events.swap(at, random.below(at + 1));
        }
        for text in [plain(&events, false, false), colibri(&events)] {
            let typed = read(&text, &hints()).unwrap();
            assert_eq!(typed.counts.iterations(), 299 - accepts as u64);
            assert_eq!(typed.counts.accepted_tokens, 299);
        }
    }
}

#[test]
fn a_shape_is_taken_from_the_rows() {
    let events = [Event::Prompt(5), Event::Accept, Event::Normal, Event::Normal, Event::Accept];
    for text in [plain(&events, false, false), plain(&events, true, false), colibri(&events)] {
        let typed = read(&text, &OpenOptions::default()).unwrap();
        let [Notice::ShapeInferred { shape }] = &typed.notices[..] else {
            panic!("{:?}", typed.notices)
        };
        assert_eq!((shape.moe_layers.as_slice(), shape.top_k), (&LAYERS[..], 4));
        assert!(shape.n_experts <= EXPERTS && shape.n_experts > EXPERTS / 2);
        check(&events, &typed);
    }
}

/// A pass with the same list at every layer is what a scheduler runs to measure a graph.
#[test]
fn a_dry_run_is_dropped() {
    let mut layers = String::new();
    let more: Vec<u16> = (0..12).collect();
    for layer in &more {
        writeln!(layers, r#"{{"step":0,"layer":{layer},"experts":[0,1,2,3]}}"#).unwrap();
    }
    for step in 1..3 {
        for layer in &more {
            let ids = [layer % 7, 20 + step, 40, 63 - layer];
            writeln!(layers, r#"{{"step":{step},"layer":{layer},"experts":{ids:?}}}"#).unwrap();
        }
    }
    let mut options = hints();
    options.shape.moe_layers = Some(more);
    let typed = read(&layers, &options).unwrap();
    assert_eq!((typed.counts.dry_run_passes, typed.counts.dry_run_records), (1, 12));
    assert_eq!((typed.counts.normal, typed.counts.accepted_tokens), (2, 2));
    options.canonical.dry_run = DryRun::Keep;
    let typed = read(&layers, &options).unwrap();
    assert_eq!((typed.counts.dry_run_passes, typed.counts.normal), (0, 3));
    // Two layers alike happen: one chance in 2^16 is too much.
    let two: String = layers.lines().take(2).map(|line| format!("{line}\n")).collect();
    options.shape.moe_layers = Some(vec![0, 1]);
    options.canonical.dry_run = DryRun::Recognise;
    assert_eq!(read(&two, &options).unwrap().counts.dry_run_passes, 0);
}

/// A dry run with real-looking ids is known by being the same under different prompts.
#[test]
fn a_shared_first_pass_is_a_dry_run() {
    let dir = tempfile::tempdir().unwrap();
    let dry = plain(&[Event::Prompt(8)], false, false);
    let mut paths = Vec::new();
    for prompt in 0..4 {
        let answer = plain(&vec![Event::Normal; 2 + prompt], true, false);
        let answer = answer.replace("\"step\":", "\"step\":1");
        let path = dir.path().join(format!("{prompt}.jsonl"));
        std::fs::write(&path, format!("{dry}{answer}")).unwrap();
        paths.push(path);
    }
    let shared = format::shared_first_pass(&paths, &hints()).unwrap().unwrap();
    assert_eq!(format::shared_first_pass(&paths[..1], &hints()).unwrap(), None);
    let mut options = hints();
    options.canonical.dry_run = DryRun::Known(shared);
    let mut reader = format::open(&paths[2], &options).unwrap();
    let passes = reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    let counts = reader.summary().unwrap().canonical.unwrap();
    assert_eq!((counts.dry_run_passes, counts.dry_run_tokens), (1, 24));
    assert_eq!((counts.prefill_passes, counts.normal, passes.len()), (0, 4, 12));
    assert_eq!(reader.summary().unwrap().dropped.records, 3);
    // A trace that begins otherwise has no first pass in common with them.
    let other = dir.path().join("other.jsonl");
    std::fs::write(&other, plain(&[Event::Normal], false, false)).unwrap();
    paths.push(other);
    assert_eq!(format::shared_first_pass(&paths, &hints()).unwrap(), None);
}

#[test]
fn a_draft_heads_layer_is_skipped_where_asked() {
    let text = colibri(&[Event::Normal]);
    let head = "3 0 6 1:0.5 2:0.5 3:0.5 4:0.5\n";
    let error = read(&format!("{text}{head}"), &hints()).err().unwrap();
    assert!(error.to_string().contains("`layer` is 6, not one of the header's 3"), "{error}");
    let mut options = hints();
    options.canonical.skip_layers = vec![6];
    let typed = read(&format!("{text}{head}"), &options).unwrap();
    assert_eq!((typed.counts.skipped_records, typed.counts.accepted_tokens), (1, 1));
}

#[test]
fn wider_drafts_where_asked() {
    let events = [Event::Normal, Event::Prompt(4), Event::Normal];
    let text = plain(&events, false, false);
    assert_eq!(read(&text, &hints()).unwrap().counts.prefill_passes, 1);
    let mut options = hints();
    options.canonical.max_draft = 4;
    let typed = read(&text, &options).unwrap();
    assert_eq!((typed.counts.spec_accept, typed.counts.accepted_tokens), (1, 6));
}

/// A file that stops inside a pass: what is whole before it is used, and only that.
#[test]
fn torn_anywhere() {
    let events = [Event::Normal, Event::Accept, Event::Fallback { wide: true }, Event::Normal];
    for whole in [plain(&events, false, false), colibri(&events)] {
        let all = read(&whole, &hints()).unwrap().passes;
        for cut in 1..whole.len() - 1 {
            let mut options = OpenOptions { tail: Tail::Tolerate, ..hints() };
            options.format =
                Some(if whole.starts_with('{') { Format::Plain } else { Format::Colibri });
            let typed = match read(&whole[..cut], &options) {
                Ok(typed) => typed,
                // Between two lines there is no tear to see, only a pass that lacks layers.
                Err(error) => {
                    let clean =
                        whole.as_bytes()[cut - 1] == b'\n' || whole.as_bytes()[cut] == b'\n';
                    assert!(clean, "cut {cut}: {error}");
                    let fault = error.to_string();
                    let known = ["layer", "appears twice", "has 1 tokens"];
                    assert!(known.iter().any(|text| fault.contains(text)), "{fault}");
                    continue;
                }
            };
            // A tear can turn a rejected draft into an accepted one, never change a route.
            let layers = LAYERS.len();
            assert_eq!(typed.passes.len() % layers, 0);
            for (pass, full) in typed.passes.iter().zip(&all) {
                assert_eq!(pass.experts(), full.experts(), "cut {cut}");
            }
            if whole.as_bytes()[cut - 1] != b'\n' && whole.as_bytes()[cut] != b'\n' {
                assert!(matches!(typed.notices[..], [Notice::Torn { .. }]), "cut {cut}");
                let strict = OpenOptions { tail: Tail::Strict, ..options };
                let error = read(&whole[..cut], &strict).err().unwrap();
                assert!(error.to_string().contains(": torn: the last line"), "{error}");
            }
        }
    }
}

#[test]
fn foreign_rows_are_told() {
    let row = |step: u64, layer: u16, ids: &str| {
        format!("{{\"step\":{step},\"layer\":{layer},\"experts\":{ids}}}\n")
    };
    let pass = |step| LAYERS.map(|layer| row(step, layer, "[1,2,3,4]")).concat();
    for (text, message) in [
        (pass(0) + &row(1, 3, "[1,2,3,4]"), "line 4: field `layer` is 3, not one of"),
        (pass(0) + &row(1, 1, "[1,2,3,64]"), "line 4: token 1 layer 1 has expert 64, model has 64"),
        (pass(0) + &row(1, 1, "[1,2,3,-2]"), "token 1 layer 1 has expert -2, model has 64"),
        (pass(0) + &row(1, 1, "[]"), "token 1 layer 1 has 0 ids, header says 4"),
        (pass(0) + &row(1, 1, "[1,2,3,4,5]"), "token 1 layer 1 has 5 ids, header says 4"),
        (pass(0) + &row(1, 1, "[[1,2,3,4],[1,2]]"), "token 1 layer 1 has 2 ids"),
        (pass(0) + &row(1, 1, "[1,[2],3,4]"), "line 4: a list mixes expert ids with lists"),
        (pass(5) + &pass(4), "line 4: field `step` is 4 after 5"),
        (pass(4) + &pass(5) + &pass(4), "line 7: token 4 layer 1 appears twice"),
        (pass(0) + &pass(0) + &pass(0), "line 7: token 0 layer 1 appears twice"),
        (pass(0) + &pass(1) + &row(1, 2, "[1,2,3,4]"), "line 7: token 1 layer 2 appears twice"),
        (
            row(0, 1, "[1,2,3,4]") + &row(0, 2, "[1,2,3,4,5,6,7,8]") + &row(0, 5, "[1,2,3,4]"),
            "line 2: token 0 layer 2 has 2 tokens, the layers before it have 1",
        ),
        (pass(0) + "{\"step\":1,\"layer\":1}\n", "line 4: field `experts` is missing"),
        (pass(0) + "{\"step\":1,\"tok\":1,\"layer\":1}\n", "duplicate field `step`"),
    ] {
        let error = read(&text, &hints()).err().unwrap_or_else(|| panic!("taken: {text}"));
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(error.kind(), "trace-invalid");
    }
    // Gaps are counted: nobody knows what was there.
    let mut options = hints();
    options.canonical.dry_run = DryRun::Keep;
    let typed = read(&(pass(0) + &pass(4)), &options).unwrap();
    assert_eq!((typed.counts.missing_steps, typed.counts.normal), (3, 2));
}

/// However many runs are stale, the notices are few and all are counted.
#[test]
fn notices_are_bounded() {
    let mut text = String::new();
    for run in 0..100_u64 {
        for token in 0..8 {
            let step = 8 * run + token;
            for layer in LAYERS {
                let first = (run + u64::from(layer)) % 50;
                let ids = [first, first + 1, first + 2, first + 3];
                writeln!(text, r#"{{"step":{step},"layer":{layer},"experts":{ids:?}}}"#).unwrap();
            }
        }
    }
    let typed = read(&text, &hints()).unwrap();
    assert_eq!((typed.counts.stale_runs, typed.notices.len()), (100, 64));
    let first = Notice::StaleRoutes { line: 1, first_token: 0, last_token: 7, tokens: 8 };
    assert_eq!(typed.notices[0], first);
}
