//! From findings to sentences.

use super::read::{Failed, Findings, NotFinite};
use super::units::{Plan, Unit, Use};
use crate::error::TierError;
use crate::pool::{FileIdentity, HeadKind, PartRole, Pool, Quantization, SettingSource};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;

/// Something that makes a pool unfit for use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Problem {
    /// The category, as of [`TierError::kind`]; `weights-invalid` for values that are not
    /// finite.
    pub kind: &'static str,
    /// One line that names the file, the thing and the numbers.
    pub text: String,
}

/// What reading all of a pool showed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Files of the pool.
    pub files: usize,
    /// Bytes read of all files, headers included.
    pub bytes_read: u64,
    /// Tensors in these files, whether they are served or not.
    pub tensors: usize,
    /// Routed experts.
    pub experts: usize,
    /// What makes the pool unfit for use; empty for a sound pool.
    pub problems: Vec<Problem>,
    /// What is odd, but can be used. The pool's own warnings are among them, unless a problem
    /// says the same.
    pub warnings: Vec<String>,
}

/// Fewer zeros than this are no sign of anything: what was never written comes in blocks of file
/// systems, and no real weight is smaller.
const LEAST_ZERO_BYTES: u64 = 4096;

/// A report in the making.
pub(super) struct Draft<'a> {
    pool: &'a Pool,
    report: VerifyReport,
}

impl<'a> Draft<'a> {
    /// Begins with what needs no data: holes, head, config.
    pub(super) fn new(pool: &'a Pool) -> Self {
        let report = VerifyReport {
            files: pool.files().len(),
            experts: pool.layout().total_experts(),
            ..VerifyReport::default()
        };
        let mut draft = Self { pool, report };
        draft.add_holes();
        for error in [draft.check_head(), draft.check_router(), pool.check_spine_scales()]
            .into_iter()
            .filter_map(Result::err)
        {
            draft.problem(error.kind(), error.to_string());
        }
        draft
    }

    pub(super) fn problem(&mut self, kind: &'static str, text: String) {
        self.report.problems.push(Problem { kind, text });
    }

    pub(super) fn warning(&mut self, text: String) {
        self.report.warnings.push(text);
    }

    fn add_holes(&mut self) {
        for hole in self.pool.holes() {
            self.problem(
                "incomplete-download",
                format!(
                    "{}: tensor {}: bytes [{},{}) were never written",
                    self.pool.path_of(hole.extent.file).display(),
                    hole.tensor,
                    hole.extent.offset,
                    hole.extent.end()
                ),
            );
        }
    }

    /// Files that hold no whole model have neither embedding nor head; where the config says
    /// nothing of the head, an embedding without a final norm is no whole model either.
    fn check_head(&self) -> Result<(), TierError> {
        let Some(setting) = self.pool.config().and_then(|config| config.tie_word_embeddings) else {
            return Ok(());
        };
        let has = |name: &str| self.pool.spine().contains_key(name);
        let told = setting.source == SettingSource::Config || has("norm.weight");
        let whole = has("lm_head.weight") || (has("embed_tokens.weight") && told);
        if !whole {
            return Ok(());
        }
        self.pool.check_head().map(|_: HeadKind| ())
    }

    fn check_router(&self) -> Result<(), TierError> {
        let Some(config) = self.pool.config().filter(|_| self.report.experts > 0) else {
            return Ok(());
        };
        config.require_norm_topk_prob()?;
        let top_k = config.require_top_k()?;
        let layout = self.pool.layout();
        let fewest = layout.moe_layers().map(|layer| layout.layer(layer).len()).min().unwrap_or(0);
        if (1..=fewest).contains(&usize::from(top_k)) {
            return Ok(());
        }
        Err(TierError::ConfigValue {
            path: config.path.clone(),
            key: "num_experts_per_tok".to_owned(),
            reason: format!("is {top_k}, must be 1 to {fewest}: no layer has more experts"),
        })
    }

    pub(super) fn add_findings(&mut self, plan: &Plan, findings: &Findings) {
        self.add_failed(&findings.failed);
        // A file that is no model is not for us to judge: any code may be meant.
        let model = self.pool.config().is_some() || self.report.experts > 0;
        let served = |found: &&NotFinite| model && plan.units[found.unit].purpose != Use::Aside;
        let (problems, warnings): (Vec<_>, Vec<_>) = findings.not_finite.iter().partition(served);
        for text in self.not_finite(plan, &problems) {
            self.problem("weights-invalid", text);
        }
        for text in self.not_finite(plan, &warnings) {
            self.warning(format!("{text} (not served)"));
        }
        self.add_shapes(plan, &findings.shapes);
    }

    /// One sentence a file.
    fn not_finite(&self, plan: &Plan, found: &[&NotFinite]) -> Vec<String> {
        let file = |found: &&NotFinite| plan.units[found.unit].extent.file;
        let in_file = |found: &[&NotFinite]| {
            let first = found[0];
            let unit = &plan.units[first.unit];
            let count: u64 = found.iter().map(|found| found.count).sum();
            let tensors: BTreeSet<usize> = found.iter().map(|found| found.unit).collect();
            format!(
                "{}: {} in {} not finite, the first: tensor {} ({:?}), element {} is {}",
                self.path(unit),
                counted(count, "value"),
                counted(tensors.len() as u64, "tensor"),
                unit.name,
                unit.dtype,
                first.element,
                if first.infinite { "infinite" } else { "NaN" }
            )
        };
        found.chunk_by(|a, b| file(a) == file(b)).map(in_file).collect()
    }

    /// Ranges that could not be read, neighbours joined.
    fn add_failed(&mut self, failed: &[Failed]) {
        let code = |failed: &Failed| failed.source.as_ref().map(io::Error::raw_os_error);
        let together =
            |a: &Failed, b: &Failed| a.file == b.file && a.end == b.start && code(a) == code(b);
        for run in failed.chunk_by(together) {
            let (first, end) = (&run[0], run[run.len() - 1].end);
            let path = self.pool.path_of(first.file).display();
            let range = format!("bytes [{},{end})", first.start);
            let (kind, text) = match &first.source {
                Some(error) => ("io", format!("{path}: {range} cannot be read: {error}")),
                None => (
                    "io-changed",
                    format!(
                        "{path}: {range} are gone, the file ended at {}: it was cut while it was \
                         read",
                        first.start
                    ),
                ),
            };
            self.problem(kind, text);
        }
    }

    fn add_shapes(&mut self, plan: &Plan, shapes: &[(usize, [i64; 2])]) {
        let mut wrong: BTreeMap<u32, (usize, String)> = BTreeMap::new();
        for &(index, shape) in shapes {
            let unit = &plan.units[index];
            let Use::Shape(id, role) = unit.purpose else { continue };
            let part = self.pool.layout().expert(id).and_then(|expert| expert.part(role));
            let Some(part) = part else { continue };
            let per_word = self.values_a_word();
            let stored = (u64::from(part.rows), u64::from(part.cols));
            let [rows, cols] = shape.map(|dim| u64::try_from(dim).ok());
            let words = cols.map(|cols| cols.div_ceil(per_word));
            if (rows, words) == (Some(stored.0), Some(stored.1)) {
                continue;
            }
            let first = || {
                let says = if shape == [-1, -1] {
                    "does not hold two sizes".to_owned()
                } else {
                    format!("says [{}, {}]", shape[0], shape[1])
                };
                format!(
                    "tensor {} {says}, but its weight has {} rows of {} words ({per_word} values \
                     each)",
                    unit.name, stored.0, stored.1
                )
            };
            wrong.entry(unit.extent.file).or_insert_with(|| (0, first())).0 += 1;
        }
        for (file, (count, first)) in wrong {
            let path = self.pool.path_of(file).display();
            self.problem("config-inconsistent", format!("{path}: {first}{}", more(count)));
        }
    }

    fn values_a_word(&self) -> u64 {
        match self.pool.config().map(|config| &config.quantization) {
            Some(Quantization::PackQuantized { bits, .. }) => u64::from(32 / (*bits).clamp(1, 32)),
            _ => 8,
        }
    }

    /// Expert weights that are zeros only, unless a hole says so already: one sentence a file.
    pub(super) fn add_zero_weights(&mut self, plan: &Plan, is_zero: impl Fn(usize) -> bool) {
        let holes = self.pool.holes();
        let in_hole = |unit: &Unit| {
            holes.iter().any(|hole| {
                hole.extent.file == unit.extent.file
                    && hole.extent.offset < unit.extent.end()
                    && unit.extent.offset < hole.extent.end()
            })
        };
        let mut zero: BTreeMap<u32, (usize, &Unit)> = BTreeMap::new();
        for (index, unit) in plan.units.iter().enumerate() {
            let weight =
                matches!(unit.purpose, Use::Weight(_)) && unit.extent.len >= LEAST_ZERO_BYTES;
            if weight && is_zero(index) && !in_hole(unit) {
                zero.entry(unit.extent.file).or_insert((0, unit)).0 += 1;
            }
        }
        for (count, unit) in zero.into_values() {
            let path = self.path(unit);
            self.warning(format!("{path}: tensor {} holds only zeros{}", unit.name, more(count)));
        }
    }

    /// Files that are no longer what they were, as far as no lost range says so already.
    pub(super) fn add_changes(&mut self, plan: &Plan, findings: &Findings) {
        for ((index, file), readable) in (0_u32..).zip(self.pool.files()).zip(&plan.readable) {
            if !readable || findings.failed.iter().any(|failed| failed.file == index) {
                continue;
            }
            let io =
                |operation, source| TierError::Io { path: file.path.clone(), operation, source };
            let error = match File::open(&file.path) {
                Ok(open) => match FileIdentity::of(&open) {
                    Ok(found) if found == file.identity => continue,
                    Ok(found) => TierError::FileChanged {
                        path: file.path.clone(),
                        opened: Box::new(file.identity),
                        found: Box::new(found),
                    },
                    Err(source) => io("stat", source),
                },
                Err(source) => io("open", source),
            };
            self.problem(error.kind(), error.to_string());
        }
    }

    pub(super) fn finish(mut self, plan: &Plan, bytes_read: u64) -> VerifyReport {
        self.report.tensors = plan.tensors;
        self.report.bytes_read = bytes_read;
        let said =
            |text: &str| self.report.problems.iter().any(|problem| text.starts_with(&problem.text));
        let notices = self.pool.notices().iter().filter(|notice| notice.warning);
        let mut warnings: Vec<String> =
            notices.map(|notice| notice.text.clone()).filter(|text| !said(text)).collect();
        warnings.append(&mut self.report.warnings);
        self.report.warnings = warnings;
        self.report
    }

    fn path(&self, unit: &Unit) -> String {
        self.pool.path_of(unit.extent.file).display().to_string()
    }
}

/// What follows the first of `count` tensors with the same fault.
pub(super) fn more(count: usize) -> String {
    match count as u64 {
        0 | 1 => String::new(),
        count => format!(" (and {} like it)", counted(count - 1, "tensor")),
    }
}

/// `1 value`, `2 values`.
pub(super) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The scales of a projection.
pub(super) fn scale_role(weight: PartRole) -> PartRole {
    match weight {
        PartRole::Gate | PartRole::GateScale => PartRole::GateScale,
        PartRole::Up | PartRole::UpScale => PartRole::UpScale,
        PartRole::Down | PartRole::DownScale => PartRole::DownScale,
    }
}
