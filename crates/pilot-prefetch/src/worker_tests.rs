use super::*;
use crate::plan::Hint;
use std::sync::mpsc::{Receiver, Sender, channel};

const KIB: u64 = 1 << 10;

/// Tells what it is asked for, and answers what it is told to.
struct Scripted<F> {
    asked: Mutex<Sender<ExpertId>>,
    answer: F,
}

impl<F> Advise for Scripted<F>
where
    F: Fn(ExpertId, &mut dyn FnMut() -> bool) -> Result<Advised, TierError> + Send + 'static,
{
    fn advise(
        &self,
        id: ExpertId,
        _: AdviceForm,
        stale: &mut dyn FnMut() -> bool,
    ) -> Result<Advised, TierError> {
        let _ = self.asked.lock().send(id);
        (self.answer)(id, stale)
    }
}

fn scripted<F>(config: WorkerConfig, answer: F) -> (Worker, Receiver<ExpertId>)
where
    F: Fn(ExpertId, &mut dyn FnMut() -> bool) -> Result<Advised, TierError> + Send + 'static,
{
    let (asked, told) = channel();
    (Worker::with(Scripted { asked: Mutex::new(asked), answer }, config).unwrap(), told)
}

fn done(bytes: u64) -> Advised {
    Advised {
        end: AdviceEnd::Done,
        expert_bytes: bytes,
        already_bytes: 0,
        asked_bytes: bytes,
        brought_bytes: bytes,
    }
}

fn plan(step: u64, layer: u16, experts: impl IntoIterator<Item = u16>) -> Plan {
    let mut plan = Plan::new(step, layer);
    let hints = experts.into_iter().zip(0_u16..);
    // The first named is the likeliest.
    plan.rank(
        hints.map(|(expert, rank)| Hint { expert, probability: 1.0 / f32::from(rank + 1) }),
        MAX_WIDTH,
    );
    plan
}

fn until(worker: &Worker, there: impl Fn(&WorkerSnapshot) -> bool) -> WorkerSnapshot {
    let started = Instant::now();
    loop {
        let found = worker.snapshot();
        if there(&found) {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "never: {found:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn hints_come_in_rank_order_and_what_was_used_is_told() {
    let (mut worker, told) = scripted(WorkerConfig::default(), |_, _| Ok(done(KIB)));
    worker.post(&plan(3, 7, [5, 1, 9]));
    until(&worker, |found| found.plans.completed == 1);
    let order: Vec<u16> = told.try_iter().map(|id| id.index).collect();
    assert_eq!(order, [5, 1, 9]);
    worker.begin_demand(3, 7, &[1, 5, 2]);
    assert_eq!(worker.snapshot().settled, Settled::default(), "it has not looked yet");
    // One that was whole has gone again.
    worker.demanded([5, 2]);
    let WorkerSnapshot { plans, hints, settled } = worker.snapshot();
    assert_eq!((plans.submitted, plans.taken, plans.completed), (1, 1, 1));
    assert_eq!((hints.hints, hints.advised_hints), (3, 3));
    assert_eq!((hints.advised_bytes, hints.brought_bytes), (3 * KIB, 3 * KIB));
    assert_eq!((settled.used_bytes, settled.wasted_bytes, settled.evicted_bytes), (KIB, KIB, KIB));
}

#[test]
fn the_width_and_the_limits_bound_a_plan() {
    let bytes = WorkerConfig { budget: ByteBudget::Bytes(3 * KIB), ..WorkerConfig::default() };
    let few = WorkerConfig { max_experts: 2, budget: ByteBudget::Unlimited, ..bytes };
    let tiny = WorkerConfig { budget: ByteBudget::Bytes(1), ..bytes };
    for (config, width, asked) in [(bytes, 99, 3), (few, 99, 2), (tiny, 99, 1), (bytes, 2, 2)] {
        let (mut worker, told) = scripted(config, |_, _| Ok(done(KIB)));
        worker.post_first(&plan(0, 0, 0..9), width);
        let found = until(&worker, |found| found.plans.completed == 1);
        assert_eq!(told.try_iter().count(), asked, "{config:?}");
        let given = width.min(9) as u64;
        assert_eq!(found.hints.hints, given);
        assert_eq!(found.hints.unaffordable_hints, given - asked as u64);
    }
}

#[test]
fn what_is_warm_costs_no_budget() {
    let config = WorkerConfig { max_experts: 1, ..WorkerConfig::default() };
    let (mut worker, told) = scripted(config, |id, _| {
        Ok(match id.index {
            8 => done(KIB),
            _ => Advised {
                end: AdviceEnd::Warm,
                already_bytes: KIB,
                asked_bytes: 0,
                brought_bytes: 0,
                ..done(KIB)
            },
        })
    });
    worker.post(&plan(0, 0, 0..9));
    let found = until(&worker, |found| found.plans.completed == 1);
    assert_eq!(told.try_iter().count(), 9);
    assert_eq!((found.hints.warm_hints, found.hints.warm_bytes), (8, 8 * KIB));
}

#[test]
fn a_demand_ends_the_plan_and_late_hints_are_told() {
    let (mut worker, told) = scripted(WorkerConfig::default(), |id, stale| {
        while id.index == 1 && !stale() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let end = if stale() { AdviceEnd::Stale } else { AdviceEnd::Overtaken };
        Ok(Advised { end, asked_bytes: KIB, brought_bytes: KIB, ..done(4 * KIB) })
    });
    worker.post(&plan(1, 2, [0, 1, 2]));
    assert_eq!(told.recv().unwrap().index, 0);
    assert_eq!(told.recv().unwrap().index, 1);
    worker.begin_demand(1, 2, &[0, 4]);
    let found = until(&worker, |found| found.plans.stale == 1);
    assert_eq!((found.hints.late_hints, found.hints.late_bytes), (1, 3 * KIB));
    assert_eq!(found.hints.stale_hints, 2, "the one under way and the one behind it");
    // The piece that was under way is settled with the next demand.
    worker.begin_demand(1, 3, &[0]);
    worker.demanded([]);
    let settled = worker.snapshot().settled;
    assert_eq!((settled.used_bytes, settled.wasted_bytes), (KIB, KIB));
    assert_eq!((settled.late_experts, settled.late_bytes), (1, 3 * KIB));
    assert_eq!(told.try_iter().count(), 0);
}

#[test]
fn errors_and_panics_are_counted_and_told_once() {
    let (mut worker, _told) = scripted(WorkerConfig::default(), |id, _| match id.index {
        0 => Err(TierError::UnknownExpert { id, in_layer: 0 }),
        1 => panic!("on purpose: the worker must live on"),
        _ => Ok(done(KIB)),
    });
    for step in 0..3 {
        worker.post(&plan(step, 0, 0..4));
        until(&worker, |found| found.plans.completed == step + 1);
    }
    let found = worker.snapshot().hints;
    assert_eq!((found.errors, found.panics, found.advised_hints), (6, 3, 6));
    let notices = worker.notices();
    assert_eq!(notices.len(), 1);
    assert!(notices[0].warning && notices[0].text.contains("layer 0 expert 0"), "{notices:?}");
}

#[test]
fn the_control_reads_nothing_and_the_end_is_prompt() {
    let mut worker = Worker::with(NoAdvice, WorkerConfig::default()).unwrap();
    worker.post(&plan(0, 0, 0..4));
    let found = until(&worker, |found| found.plans.completed == 1);
    assert_eq!((found.hints.bypassed_hints, found.hints.advised_bytes), (4, 0));
    // A hint that would go on for ever is ended by the drop.
    let (mut worker, told) = scripted(WorkerConfig::default(), |_, stale| {
        while !stale() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Advised { end: AdviceEnd::Stale, ..done(0) })
    });
    worker.post(&plan(0, 0, 0..4));
    told.recv().unwrap();
    drop(worker);
}

#[test]
fn settings_have_limits() {
    for max_experts in [0, MAX_WIDTH + 1] {
        let config = WorkerConfig { max_experts, ..WorkerConfig::default() };
        let error = Worker::with(NoAdvice, config).unwrap_err();
        assert!(error.to_string().contains("max_experts"), "{error}");
    }
}

#[test]
fn the_budget_is_what_fits_between_two_plans() {
    let mut pace = Pace::default();
    assert_eq!(pace.budget_bytes(), None);
    pace.between_ns = Some(1e6);
    pace.brought(1, Duration::from_secs(1));
    assert_eq!(pace.budget_bytes(), None, "too small to say anything");
    pace.brought(1 << 20, Duration::from_millis(1));
    assert_eq!(pace.budget_bytes(), Some(1 << 20));
    pace.brought(1 << 20, Duration::from_millis(2));
    let slower = pace.budget_bytes().unwrap();
    assert!(slower < 1 << 20 && slower > 1 << 19, "{slower}");
}
