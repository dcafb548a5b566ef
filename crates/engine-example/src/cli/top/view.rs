//! What is on the screen.

use super::sample::{Rates, Sample};
use crate::cli::output::bytes;
use anyhow::Result;
use expert_tier::observe::{CastState, PerType, Unavailable};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::widgets::{Block, Paragraph, Sparkline};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Readings that the curves remember.
const HISTORY: usize = 240;
const PAGE: f64 = 4096.0;
/// Of what CAST's controllers say: what they chose comes first, a line a simulated cache after.
const TUNE_LINES: usize = 4;

/// Draws until `q`, Escape or Control-C.
pub(super) fn live(interval: Duration, mut take: impl FnMut() -> Result<Sample>) -> Result<()> {
    let mut earlier = take()?;
    let mut history = History::default();
    let mut rates = None;
    let mut trouble = None;
    let mut terminal = ratatui::try_init()?;
    let mut due = Instant::now() + interval;
    let ended = loop {
        let drawn =
            terminal.draw(|frame| draw(frame, rates.as_ref(), &history, trouble.as_deref()));
        if let Err(error) = drawn {
            break Err(error.into());
        }
        match leave(due.saturating_duration_since(Instant::now())) {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(error),
        }
        if Instant::now() < due {
            continue;
        }
        due = Instant::now() + interval;
        // A tier that is gone for a moment is said, not fatal.
        match take() {
            Ok(later) => {
                let now = Rates::between(&earlier, &later);
                history.push(&now);
                (rates, trouble, earlier) = (Some(now), None, later);
            }
            Err(error) => trouble = Some(format!("{error:#}")),
        }
    };
    ratatui::try_restore()?;
    ended
}

fn leave(patience: Duration) -> Result<bool> {
    if !event::poll(patience)? {
        return Ok(false);
    }
    let Event::Key(key) = event::read()? else { return Ok(false) };
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    Ok(interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

/// Device bytes a second and warm shares of the last readings.
#[derive(Default)]
struct History {
    device: VecDeque<u64>,
    warm: VecDeque<u64>,
}

impl History {
    fn push(&mut self, rates: &Rates) {
        let device = rates.device_read_bytes_per_s.unwrap_or(0.0) as u64;
        let warm = (rates.warm_share.unwrap_or(0.0) * 100.0) as u64;
        for (line, value) in [(&mut self.device, device), (&mut self.warm, warm)] {
            line.push_back(value);
            while line.len() > HISTORY {
                line.pop_front();
            }
        }
    }
}

fn draw(frame: &mut Frame<'_>, rates: Option<&Rates>, history: &History, trouble: Option<&str>) {
    let text = match (rates, trouble) {
        (_, Some(trouble)) => format!("{trouble}\n"),
        (Some(rates), None) => plain(rates),
        (None, None) => "one reading so far\n".to_owned(),
    };
    let lines = u16::try_from(text.lines().count()).unwrap_or(u16::MAX);
    let rows = [Constraint::Length(lines + 2), Constraint::Min(5), Constraint::Min(5)];
    let [top, device, warm] = Layout::vertical(rows).areas(frame.area());
    let block = Block::bordered().title("expert tier".bold()).title_bottom("q leaves");
    frame.render_widget(Paragraph::new(text).block(block), top);
    let curve = |values: &VecDeque<u64>| values.iter().copied().collect::<Vec<_>>();
    let most = history.device.iter().max().copied().unwrap_or(0);
    let title = format!("device reads a second, at most {}", bytes(most));
    let device_values = curve(&history.device);
    let bars = Sparkline::default().data(&device_values).block(Block::bordered().title(title));
    frame.render_widget(bars, device);
    let warm_values = curve(&history.warm);
    let bars = Sparkline::default().data(&warm_values).max(100);
    frame.render_widget(bars.block(Block::bordered().title("experts found warm, %")), warm);
}

/// The same as lines of text.
pub(super) fn plain(rates: &Rates) -> String {
    let mut lines = Vec::new();
    let rate = |name: &str| rates.tier_per_s.get(name).copied().unwrap_or(0.0);
    let percent =
        |share: Option<f64>| share.map_or("n/a".to_owned(), |s| format!("{:.1} %", 100.0 * s));
    if !rates.tier_per_s.is_empty() {
        lines.push(format!(
            "tier      {:.0} adoptions/s, {:.0} experts/s, {} warm, {} of the time waiting",
            rate("adoptions"),
            rate("adopted_experts"),
            percent(rates.warm_share),
            percent(rates.waiting_share),
        ));
        lines.push(format!(
            "bytes     {}/s used, {}/s missing at first use",
            bytes(rate("adopted_bytes") as u64),
            bytes(rate("missing_bytes") as u64),
        ));
        let gauge = |name: &str| rates.tier.get(name).copied();
        if let Some(capacity) = gauge("capacity_experts") {
            let ratio = gauge("amplification");
            lines.push(format!(
                "demand    exact LRU of {capacity:.0} experts would read {}/s, amplification {}{}",
                bytes(rate("computed_miss_bytes") as u64),
                ratio.map_or("n/a".to_owned(), |ratio| format!("{ratio:.2}")),
                if gauge("alert") == Some(1.0) { ", ALERT: reads exceeded it" } else { "" },
            ));
        }
    }
    if let Some(direct) = rates.tier.get("admission_direct") {
        lines.push(admission_line(*direct > 0.0, &rates.tier));
    }
    if let Some(pool) = &rates.pool {
        let share = |found: expert_tier::Residency| {
            100.0 * found.resident_bytes as f64 / found.total_bytes.max(1) as f64
        };
        let by_layer = pool.layers.iter().map(|layer| share(layer.residency));
        let least = by_layer.clone().fold(f64::INFINITY, f64::min);
        let most = by_layer.fold(0.0, f64::max);
        lines.push(format!(
            "pool      {} of {} cached ({:.1} %; layers {least:.1} to {most:.1} %)",
            bytes(pool.total.resident_bytes),
            bytes(pool.total.total_bytes),
            share(pool.total),
        ));
    }
    let device = rates.device_read_bytes_per_s;
    let device = device.map_or("n/a".to_owned(), |rate| format!("{}/s", bytes(rate as u64)));
    let budget = rates.now.file_budget.as_ref().map_or("n/a".to_owned(), |b| bytes(b.bytes));
    lines.push(format!("memory    files can have {budget}; devices read {device}"));
    lines.push(match &rates.reclaim {
        Err(why) => format!("reclaim   n/a: {why}"),
        Ok(pages) => {
            let rate = |pages: u64| bytes((pages as f64 * PAGE / rates.seconds) as u64);
            format!(
                "reclaim   kswapd takes {}/s, tasks {}/s; {}/s read again soon after",
                rate(pages.kswapd_steal_pages),
                rate(pages.direct_steal_pages),
                rate(pages.file_refault_pages),
            )
        }
    });
    if let Some(cast) = &rates.now.cast {
        lines.extend(cast_lines(cast));
    }
    let some = |pressure: &expert_tier::observe::Pressure| {
        pressure.some_avg10.as_ref().map_or("n/a".to_owned(), |share| format!("{share:.1} %"))
    };
    lines.push(format!(
        "pressure  memory {}, storage {} of ten seconds; {} of memory cannot be evicted",
        some(&rates.now.memory_pressure),
        some(&rates.now.io_pressure),
        percent(rates.now.unevictable_share.as_ref().ok().copied()),
    ));
    lines.join("\n") + "\n"
}

/// Whether CAST decides, what it set for files, what waits cost, and its controllers' own words.
fn cast_lines(cast: &CastState) -> Vec<String> {
    let version = cast.version.as_deref().unwrap_or("of unknown version");
    if !cast.enabled {
        return vec![format!("cast      {version} is in this kernel, and off")];
    }
    let file = |found: &Result<PerType, Unavailable>| {
        found.as_ref().map_or("n/a".to_owned(), |pair| pair.file.to_string())
    };
    let by = match cast.automatic {
        Ok(true) => "chosen",
        Ok(false) => "set by hand",
        Err(_) => "set",
    };
    let waits = cast.estimate.as_ref().map_or("n/a".to_owned(), |found| {
        format!(
            "file {} ns, anon {} ns, swappiness {}",
            found.wait_ns.file, found.wait_ns.anon, found.swappiness
        )
    });
    let mut lines = vec![format!(
        "cast      {version} decides; files: decay {}, newcomers {} ‰, {by}; a wait costs {waits}",
        file(&cast.decay),
        file(&cast.newcomers_permille),
    )];
    let tune = cast.tune.as_deref().unwrap_or("");
    lines.extend(tune.lines().take(TUNE_LINES).map(|line| format!("  tune    {line}")));
    lines
}

/// What `--admission auto` has chosen, and the two costs that it weighs.
fn admission_line(direct: bool, gauges: &BTreeMap<String, f64>) -> String {
    let cost = |name: &str| {
        let found = gauges.get(&format!("admission_{name}_ns_per_byte"));
        found.map_or("unknown".to_owned(), |ns| format!("{ns:.3} ns"))
    };
    let ago = gauges.get("admission_checked_seconds_ago");
    format!(
        "admission {}; waiting a byte used: {} admitted, {} past the cache; judged {}",
        if direct { "misses are read past the page cache" } else { "misses are admitted" },
        cost("admit"),
        cost("direct"),
        ago.map_or("never".to_owned(), |seconds| format!("{seconds:.0} s ago")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::Watched;
    use expert_tier::observe::SystemRoot;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn the_choice_of_admission_has_its_line() {
        let mut gauges = BTreeMap::new();
        let line = admission_line(false, &gauges);
        assert!(line.contains("are admitted") && line.contains("judged never"), "{line}");
        for (name, value) in [
            ("admission_admit_ns_per_byte", 0.5),
            ("admission_direct_ns_per_byte", 0.25),
            ("admission_checked_seconds_ago", 3.0),
        ] {
            gauges.insert(name.to_owned(), value);
        }
        let line = admission_line(true, &gauges);
        for word in ["past the page cache", "0.500 ns admitted", "0.250 ns past", "3 s ago"] {
            assert!(line.contains(word), "no {word:?} in {line}");
        }
    }

    #[test]
    fn a_machine_without_a_tier_is_drawn_and_told() {
        let empty = tempfile::tempdir().unwrap();
        for root in [SystemRoot::default(), SystemRoot::at(empty.path())] {
            let watched = Watched { address: None, pool: None, device: None, root };
            let (earlier, later) =
                (Sample::take(&watched).unwrap(), Sample::take(&watched).unwrap());
            let rates = Rates::between(&earlier, &later);
            let text = plain(&rates);
            assert!(text.contains("memory") && text.contains("pressure"), "{text}");
            assert!(!text.contains("tier  "), "{text}");
            let mut history = History::default();
            history.push(&rates);
            let mut terminal = Terminal::new(TestBackend::new(90, 24)).unwrap();
            terminal.draw(|frame| draw(frame, Some(&rates), &history, None)).unwrap();
            let screen = terminal.backend().to_string();
            assert!(screen.contains("expert tier") && screen.contains("q leaves"), "{screen}");
            terminal.draw(|frame| draw(frame, None, &history, Some("gone"))).unwrap();
            assert!(terminal.backend().to_string().contains("gone"));
        }
    }

    /// A machine that runs CAST, as a tree of files.
    #[test]
    fn cast_is_told_with_what_it_chose() {
        let machine = tempfile::tempdir().unwrap();
        let dir = machine.path().join("sys/kernel/mm/lru_cast");
        std::fs::create_dir_all(&dir).unwrap();
        let estimate = "share 0/1000\nswappiness 196\n\
            cost anon 5522 ns (10 waits) file 348935 ns (15237 waits)\n\
            swap-out 2432 ns (661733 pages)\nin flight 0\nbdi 9: anon 0 ns (0)\n";
        for (name, text) in [
            ("enabled", "1\n"),
            ("version", "0.1.0\n"),
            ("decay_auto", "1\n"),
            ("decay", "8 9\n"),
            ("w_permille", "100 125\n"),
            ("estimate", estimate),
            ("tune", "anon: decay 8\nfile: decay 9\n"),
        ] {
            std::fs::write(dir.join(name), text).unwrap();
        }
        let told = || {
            let root = SystemRoot::at(machine.path());
            let watched = Watched { address: None, pool: None, device: None, root };
            let sample = || Sample::take(&watched).unwrap();
            plain(&Rates::between(&sample(), &sample()))
        };
        let text = told();
        for word in [
            "cast      0.1.0 decides; files: decay 9, newcomers 125 ‰, chosen",
            "file 348935 ns, anon 5522 ns, swappiness 196",
            "  tune    file: decay 9",
        ] {
            assert!(text.contains(word), "no {word:?} in {text}");
        }
        std::fs::write(dir.join("enabled"), "0\n").unwrap();
        let text = told();
        assert!(text.contains("0.1.0 is in this kernel, and off"), "{text}");
        assert!(!text.contains("tune"), "{text}");
    }
}
