use super::{arm, assert_bytes, checkpoint, open};
use expert_tier::observe::SystemRoot;
use expert_tier::{Admission, DemandConfig, Tier};
use router_trace::Route;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// A machine of which every counter can be set.
struct Machine {
    dir: tempfile::TempDir,
    device: String,
}

impl Machine {
    fn with_disk_of(path: &Path) -> Self {
        let st_dev = fs::metadata(path).unwrap().dev();
        let device = format!("{}:{}", nix::sys::stat::major(st_dev), nix::sys::stat::minor(st_dev));
        let machine = Self { dir: tempfile::tempdir().unwrap(), device };
        machine.memory(1 << 30);
        machine.reads(0);
        machine.reclaim(100, 100);
        machine.put("proc/self/mountinfo", "");
        machine
    }

    fn root(&self) -> SystemRoot {
        SystemRoot::at(self.dir.path())
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn memory(&self, available: u64) {
        let kib = available >> 10;
        let text =
            format!("MemTotal: 4194304 kB\nMemAvailable: {kib} kB\nUnevictable: 3397386 kB\n");
        self.put("proc/meminfo", &text);
    }

    /// In bytes: the device for everyone, and this process.
    fn reads(&self, bytes: u64) {
        self.device_reads(bytes);
        self.put("proc/self/io", &format!("read_bytes: {bytes}\n"));
    }

    /// Of others: nothing of it is this process's.
    fn device_reads(&self, bytes: u64) {
        let stat = format!("1 0 {} 1 0 0 0 0 0 0 0\n", bytes / 512);
        self.put(&format!("sys/dev/block/{}/stat", self.device), &stat);
    }

    fn reclaim(&self, scanned: u64, stolen: u64) {
        self.put(
            "proc/vmstat",
            &format!(
                "pgscan_kswapd {scanned}\npgsteal_kswapd {stolen}\npgscan_direct 0\n\
                 pgsteal_direct 0\nworkingset_refault_file 7\n"
            ),
        );
    }
}

/// Looks at every adoption; small pools are enough to alarm it.
const KEEN: DemandConfig = DemandConfig {
    refresh: Duration::ZERO,
    window: Duration::from_secs(3600),
    alert_ratio: 1.25,
    alert_least_bytes: 1 << 20,
};

fn adopt(tier: &Tier, experts: &[u16]) {
    drop(tier.adopt(&Route::new(1, experts).unwrap()).unwrap());
}

#[test]
fn computed_misses_follow_the_budget_and_stand_beside_the_reads() {
    let dir = checkpoint();
    let tier = open(dir.path(), arm(Admission::Admit));
    let machine = Machine::with_disk_of(&dir.path().join("model.safetensors"));
    assert_eq!(tier.demand(), None);
    tier.watch_demand(KEEN, &machine.root()).unwrap();
    let expert = tier.demand().unwrap().expert_bytes;
    adopt(&tier, &[0, 1, 2]);
    adopt(&tier, &[2, 1, 0]);
    machine.reads(3 * expert / 512 * 512);
    let report = tier.demand().unwrap();
    assert_eq!((report.accesses, report.computed_misses), (6, 3));
    assert_eq!(report.computed_miss_bytes, 3 * expert);
    assert!((report.amplification.unwrap() - 1.0).abs() < 1e-3, "{report:?}");
    assert_eq!(report.budget.as_ref().unwrap().bytes, 1 << 30);
    assert_eq!(report.alert, None);
    // Room for one expert only: the next adoption sees it.
    machine.memory(expert + (1 << 20));
    adopt(&tier, &[0]);
    assert_eq!(tier.demand().unwrap().capacity_experts, 1);
    adopt(&tier, &[0, 1, 0]);
    let report = tier.demand().unwrap();
    assert_eq!((report.accesses, report.computed_misses), (10, 5));
    // A second watch keeps the first one's counts.
    tier.watch_demand(DemandConfig::default(), &SystemRoot::default()).unwrap();
    assert_eq!(tier.demand().unwrap().accesses, 10);
}

#[test]
fn reads_beyond_the_misses_alert_once_with_the_numbers_and_what_to_do() {
    let dir = checkpoint();
    let machine = Machine::with_disk_of(&dir.path().join("model.safetensors"));
    machine.put("sys/kernel/mm/lru_gen/enabled", "0x0007\n");
    let tier = open(dir.path(), arm(Admission::Admit));
    tier.watch_demand(KEEN, &machine.root()).unwrap();
    let expert = tier.demand().unwrap().expert_bytes;
    adopt(&tier, &[0, 1]);
    // In this order: the watch may look at any moment.
    machine.reclaim(340, 200);
    machine.reads(5 * expert);
    adopt(&tier, &[1]);
    let alert = tier.demand().unwrap().alert.unwrap();
    assert!(alert.warning);
    let (read, computed) = ((5 * expert / 512 * 512).to_string(), (2 * expert).to_string());
    for word in [
        read.as_str(),
        &computed,
        "2.50 times",
        "2.4 pages",
        "81 %",
        "control group",
        "lock less",
        "echo n > /sys/kernel/mm/lru_gen/enabled",
    ] {
        assert!(alert.text.contains(word), "no {word:?} in {alert}");
    }
    machine.reads(50 * expert);
    adopt(&tier, &[0]);
    assert_eq!(tier.demand().unwrap().alert.unwrap(), alert, "once, as it was");
}

#[test]
fn others_reads_and_unbuffered_arms_do_not_alert() {
    let dir = checkpoint();
    let machine = Machine::with_disk_of(&dir.path().join("model.safetensors"));
    let tier = open(dir.path(), arm(Admission::Admit));
    tier.watch_demand(KEEN, &machine.root()).unwrap();
    adopt(&tier, &[0, 1]);
    machine.device_reads(1 << 40);
    let report = tier.demand().unwrap();
    assert_eq!((report.alert, report.amplification), (None, Some(0.0)));
    assert_eq!(report.device_bytes, Some(1 << 40));

    machine.reads(0);
    let tier = open(dir.path(), arm(Admission::DropBehind));
    tier.watch_demand(KEEN, &machine.root()).unwrap();
    adopt(&tier, &[0, 1]);
    machine.reads(1 << 40);
    let report = tier.demand().unwrap();
    assert_eq!(report.alert, None, "nothing is kept on purpose");
    assert!(report.amplification.unwrap() > 1.0);
}

#[test]
fn a_machine_that_says_nothing_is_unknown_everywhere() {
    let dir = checkpoint();
    let empty = tempfile::tempdir().unwrap();
    let tier = open(dir.path(), arm(Admission::Admit));
    tier.watch_demand(KEEN, &SystemRoot::at(empty.path())).unwrap();
    adopt(&tier, &[0, 1]);
    let report = tier.demand().unwrap();
    assert!(report.budget.is_err() && report.reclaim.is_err());
    assert_eq!((report.device_bytes, report.process_read_bytes), (None, None));
    assert_eq!((report.amplification, report.alert), (None, None));
    assert_eq!(report.computed_misses, 2, "what fits is not known: only first uses miss");
}

/// Prints what the watch costs a warm adoption. Run it on an idle machine.
#[test]
#[ignore = "prints times and checks none: run on an idle machine with --ignored --nocapture"]
fn measure_the_cost_of_the_watch() {
    let dir = checkpoint();
    let plain = open(dir.path(), arm(Admission::Admit));
    let watched = open(dir.path(), arm(Admission::Admit));
    watched.watch_demand(DemandConfig::default(), &SystemRoot::default()).unwrap();
    let round = |tier: &Tier| {
        let started = std::time::Instant::now();
        for _ in 0..4_000 {
            adopt(tier, &[0, 1, 2, 3]);
        }
        started.elapsed().as_nanos() as f64 / 4_000.0
    };
    for tier in [&plain, &watched] {
        // Pages that a mapping has never touched are dearer to ask about.
        assert_bytes(&tier.adopt(&Route::new(1, &[0, 1, 2, 3]).unwrap()).unwrap());
    }
    let _ = (round(&plain), round(&watched));
    let mut ratios: Vec<f64> = Vec::new();
    for n in 0..101 {
        let (without, with) = if n % 2 == 0 {
            (round(&plain), round(&watched))
        } else {
            let with = round(&watched);
            (round(&plain), with)
        };
        println!("{without:.0} ns without, {with:.0} ns with the watch");
        ratios.push(with / without);
    }
    ratios.sort_by(f64::total_cmp);
    println!("with / without, median of 101: {:.4}", ratios[50]);
}
