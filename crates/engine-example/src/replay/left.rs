use std::time::{Duration, Instant};

/// How far a row of runs has come, and how long the rest may take.
#[derive(Debug)]
pub struct TimeLeft {
    total: usize,
    done: usize,
    /// Of these, done before the clock was started.
    before: usize,
    started: Instant,
}

impl TimeLeft {
    /// A row of `total` runs that begins now.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self { total, done: 0, before: 0, started: Instant::now() }
    }

    /// The same, but the first `done` were made earlier.
    #[must_use]
    pub fn resumed(total: usize, done: usize) -> Self {
        Self { done, before: done, ..Self::new(total) }
    }

    /// Another run is done. Says which and what is left, for example `[3/12, 40 s left]`.
    pub fn done(&mut self) -> String {
        self.done += 1;
        self.text(self.started.elapsed())
    }

    fn text(&self, elapsed: Duration) -> String {
        let (done, total) = (self.done, self.total.max(self.done));
        let made = (done - self.before).max(1) as f64;
        let seconds = elapsed.as_secs_f64() / made * (total - done) as f64;
        if total == done {
            return format!("[{done}/{total}]");
        }
        let left = match seconds.ceil() as u64 {
            seconds @ 0..=90 => format!("{seconds} s"),
            seconds => format!("{} min", seconds.div_ceil(60)),
        };
        format!("[{done}/{total}, {left} left]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_what_was_made() {
        let mut left = TimeLeft::resumed(12, 6);
        left.done += 2;
        assert_eq!(left.text(Duration::from_secs(20)), "[8/12, 40 s left]");
        assert_eq!(left.text(Duration::from_secs(200)), "[8/12, 7 min left]");
        left.done = 12;
        assert_eq!(left.text(Duration::from_secs(20)), "[12/12]");
    }
}
