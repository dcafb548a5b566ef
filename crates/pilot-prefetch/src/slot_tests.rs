use super::*;

/// A plan of which a torn half would show.
type Pair = (u64, u64);

/// Takes until the close, completing all that is not stale; checks what it sees.
fn drain(mut taker: Taker<Pair>) {
    let mut last = None;
    while let Some(taken) = taker.take() {
        let &(one, two) = taken.value();
        assert_eq!(one, two, "whole");
        assert!(last.is_none_or(|last| last < one), "in order, none twice");
        last = Some(one);
        if !taken.is_stale() {
            taken.complete();
        }
    }
}

fn check(counts: SlotCounts, left: u64) {
    let SlotCounts { submitted, overwritten, taken, completed, stale } = counts;
    assert!(submitted - overwritten - taken <= left, "{counts:?}");
    assert_eq!(taken, completed + stale, "{counts:?}");
}

#[cfg(not(loom))]
mod threads {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn started(body: impl FnOnce(Taker<Pair>) + Send + 'static) -> Started {
        spawn(|| (0, 0), |taker| std::thread::Builder::new().spawn(move || body(taker))).unwrap()
    }

    type Started = (Poster<Pair>, Counts<Pair>, std::thread::JoinHandle<()>);

    #[test]
    fn the_newest_wins_and_all_are_counted() {
        let (go, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let (mut poster, counts, handle) = started(move |mut taker| {
            wait.recv().unwrap();
            let taken = taker.take().unwrap();
            tell.send(*taken.value()).unwrap();
            taken.complete();
            assert!(taker.take().is_none());
        });
        for number in 1..=3 {
            poster.post(number, |pair| *pair = (number, number));
        }
        go.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), (3, 3));
        drop(poster);
        handle.join().unwrap();
        let wanted = SlotCounts { submitted: 3, overwritten: 2, taken: 1, completed: 1, stale: 0 };
        assert_eq!(counts.now(), wanted);
    }

    #[test]
    fn what_demand_has_reached_is_never_handed_out_and_what_it_reaches_ends() {
        let (tell, told) = mpsc::channel();
        let (mut poster, counts, handle) = started(move |mut taker| {
            let taken = taker.take().unwrap();
            tell.send(*taken.value()).unwrap();
            while !taken.is_stale() {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(taken);
            assert!(taker.take().is_none());
        });
        poster.begin_demand(position(4, 2));
        poster.post(position(4, 2), |pair| *pair = (1, 1));
        while counts.now().stale == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        poster.post(position(4, 3), |pair| *pair = (2, 2));
        assert_eq!(told.recv().unwrap(), (2, 2));
        poster.begin_demand(position(4, 3));
        while counts.now().stale == 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(poster);
        handle.join().unwrap();
        let wanted = SlotCounts { submitted: 2, overwritten: 0, taken: 2, completed: 0, stale: 2 };
        assert_eq!(counts.now(), wanted);
    }

    #[test]
    fn a_long_run_of_two_threads_loses_nothing() {
        let (mut poster, counts, handle) = started(drain);
        for number in 1..=100_000 {
            poster.post(number, |pair| *pair = (number, number));
            if number % 7 == 0 {
                poster.begin_demand(number);
            }
        }
        drop(poster);
        handle.join().unwrap();
        check(counts.now(), 1);
        assert_eq!(counts.now().submitted, 100_000);
    }

    #[test]
    fn positions_are_ordered_by_pass_then_layer() {
        assert!(position(0, u16::MAX) < position(1, 0));
        assert!(position(1, 4) < position(1, 5));
        assert!(position(u64::MAX, u16::MAX) < u64::MAX, "there is one after every position");
    }
}

#[cfg(loom)]
mod loom_models {
    use super::*;

    fn started(body: impl FnOnce(Taker<Pair>) + 'static) -> Started {
        spawn(|| (0, 0), |taker| Ok(loom::thread::spawn(move || body(taker)))).unwrap()
    }

    type Started = (Poster<Pair>, Counts<Pair>, loom::thread::JoinHandle<()>);

    fn post(poster: &mut Poster<Pair>, number: u64) {
        poster.post(number, |pair| *pair = (number, number));
    }

    /// Posts, demands and the close in every interleaving with a taker: no plan is torn, taken
    /// twice or out of order, no cell is contended, nobody sleeps for ever, all are counted.
    #[test]
    fn loom_post_take_stale_close() {
        loom::model(|| {
            let (mut poster, counts, handle) = started(drain);
            post(&mut poster, 1);
            poster.begin_demand(1);
            post(&mut poster, 2);
            drop(poster);
            handle.join().unwrap();
            check(counts.now(), 1);
        });
    }

    #[test]
    fn loom_three_posts_overwrite_each_other() {
        loom::model(|| {
            let (mut poster, counts, handle) = started(drain);
            for number in 1..=3 {
                post(&mut poster, number);
            }
            drop(poster);
            handle.join().unwrap();
            check(counts.now(), 1);
            assert_eq!(counts.now().submitted, 3);
        });
    }

    /// A taker that may sleep at any moment still gets the last plan: no wake-up is lost.
    #[test]
    fn loom_the_last_plan_arrives_without_a_close() {
        loom::model(|| {
            let (mut poster, counts, handle) = started(|mut taker| {
                loop {
                    let taken = taker.take().expect("the slot is open");
                    let last = *taken.value() == (2, 2);
                    taken.complete();
                    if last {
                        break;
                    }
                }
            });
            post(&mut poster, 1);
            post(&mut poster, 2);
            handle.join().unwrap();
            check(counts.now(), 0);
            assert_eq!(counts.now().stale, 0);
        });
    }

    /// A plan whose demand begins while it is held becomes stale, and so does one that a newer
    /// plan replaces: the loop below ends in every interleaving.
    #[test]
    fn loom_a_held_plan_hears_of_demand() {
        loom::model(|| {
            let (mut poster, counts, handle) = started(|mut taker| {
                if let Some(taken) = taker.take() {
                    while !taken.is_stale() {
                        loom::thread::yield_now();
                    }
                }
            });
            post(&mut poster, 1);
            poster.begin_demand(1);
            drop(poster);
            handle.join().unwrap();
            let found = counts.now();
            assert_eq!(found.completed, 0);
            check(found, 1);
        });
    }
}
