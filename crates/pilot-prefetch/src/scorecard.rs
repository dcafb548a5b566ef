use crate::plan::Plan;
use crate::predict::Places;
use router_trace::Route;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Widths at which plans are scored, in routes: the first as many experts as a token chooses.
pub const WIDTHS: [usize; 3] = [1, 2, 4];
/// Ranges of probability that are compared with what came true.
const PROBABILITIES: usize = 10;

/// How good the plans of one predictor were, layer by layer.
///
/// Recall at a width is the share of the experts chosen that the plan names that far; precision
/// the share of the experts named that were chosen. Rows are tokens; a row without a plan counts
/// as unscored and nowhere else.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scorecard {
    /// The predictor.
    pub predictor: String,
    /// How many layers ahead it guessed; 0 for the control.
    pub depth: usize,
    /// Experts that a token chooses.
    pub top_k: usize,
    /// One entry a layer with experts, ascending.
    pub layers: Vec<LayerScore>,
    /// Hints by probability, a tenth each.
    pub reliability: [Reliability; PROBABILITIES],
}

/// One layer of a [`Scorecard`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LayerScore {
    /// Layer number, as in the checkpoint.
    pub layer: u16,
    /// Whether the guess came out of the token before, so that no lookahead could help.
    pub first: bool,
    /// What was counted.
    #[serde(flatten)]
    pub scores: Scores,
}

/// Counts of scored rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Scores {
    /// Tokens with a plan.
    pub rows: u64,
    /// Tokens without.
    pub unscored: u64,
    /// Experts chosen by the tokens with a plan.
    pub chosen: u64,
    /// Experts named within each of [`WIDTHS`].
    pub named: [u64; 3],
    /// Of those, chosen.
    pub hits: [u64; 3],
}

/// Hints of about one probability.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Reliability {
    /// How many.
    pub hints: u64,
    /// Sum of their probabilities.
    pub expected: f64,
    /// How many came true.
    pub hits: u64,
}

/// What became of the bytes that hints brought: `None` for what nobody measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HintBytes {
    /// There before demand asked.
    pub early_bytes: Option<u64>,
    /// Still coming when demand asked.
    pub late_bytes: Option<u64>,
    /// Brought for experts that were not chosen.
    pub wasted_bytes: Option<u64>,
    /// Brought and gone again before anybody read them.
    pub evicted_unread_bytes: Option<u64>,
}

impl Scores {
    /// Share of the chosen experts that were named at one of [`WIDTHS`]; `None` without rows.
    #[must_use]
    pub fn recall(&self, width: usize) -> Option<f64> {
        ratio(self.hits[width], self.chosen)
    }

    /// Share of the named experts that were chosen; `None` where none was named.
    #[must_use]
    pub fn precision(&self, width: usize) -> Option<f64> {
        ratio(self.hits[width], self.named[width])
    }

    /// Both counts together.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.rows += other.rows;
        self.unscored += other.unscored;
        self.chosen += other.chosen;
        for width in 0..WIDTHS.len() {
            self.named[width] += other.named[width];
            self.hits[width] += other.hits[width];
        }
        self
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Scorecard {
    /// An empty card of a predictor that guesses `depth` layers ahead.
    #[must_use]
    pub fn new(predictor: &str, depth: usize, places: &Places) -> Self {
        let layer = |place| LayerScore {
            layer: places.layer(place),
            first: place < depth,
            scores: Scores::default(),
        };
        Self {
            predictor: predictor.to_owned(),
            depth,
            top_k: places.top_k(),
            layers: (0..places.len()).map(layer).collect(),
            reliability: Default::default(),
        }
    }

    /// Counts a plan against what its layer chose; an empty plan as unscored.
    pub fn score(&mut self, plan: &Plan, truth: &Route) {
        debug_assert_eq!(plan.layer(), truth.layer());
        let Self { top_k, layers, reliability, .. } = self;
        let at = layers.binary_search_by_key(&truth.layer(), |score| score.layer);
        let Ok(at) = at else { return };
        let scores = &mut layers[at].scores;
        if plan.hints().is_empty() {
            scores.unscored += 1;
            return;
        }
        scores.rows += 1;
        scores.chosen += truth.experts().len() as u64;
        let (mut hits, mut width) = (0, 0);
        for (at, hint) in plan.hints().iter().enumerate() {
            while width < WIDTHS.len() && at == WIDTHS[width] * *top_k {
                scores.close(width, at, hits);
                width += 1;
            }
            let hit = u64::from(truth.experts().contains(&hint.expert));
            hits += hit;
            let tenth = (hint.probability * PROBABILITIES as f32) as usize;
            let range = &mut reliability[tenth.min(PROBABILITIES - 1)];
            range.hints += 1;
            range.expected += f64::from(hint.probability);
            range.hits += hit;
        }
        for width in width..WIDTHS.len() {
            scores.close(width, plan.hints().len(), hits);
        }
    }

    /// Counts a token of a layer for which there was no plan.
    pub fn unscored(&mut self, layer: u16) {
        if let Some(scores) = self.layer(layer) {
            scores.unscored += 1;
        }
    }

    fn layer(&mut self, layer: u16) -> Option<&mut Scores> {
        let at = self.layers.binary_search_by_key(&layer, |score| score.layer).ok()?;
        Some(&mut self.layers[at].scores)
    }

    /// All layers that could be looked ahead to, together.
    #[must_use]
    pub fn ahead(&self) -> Scores {
        self.sum(false)
    }

    /// The first layers, whose guesses came out of the token before.
    #[must_use]
    pub fn first(&self) -> Scores {
        self.sum(true)
    }

    fn sum(&self, first: bool) -> Scores {
        let layers = self.layers.iter().filter(|layer| layer.first == first);
        layers.fold(Scores::default(), |sum, layer| sum.plus(&layer.scores))
    }

    /// Expected calibration error (Naeini, Cooper and Hauskrecht 2015): how far probabilities were
    /// from what came true, over tenths, weighted by hints. `None` without hints.
    #[must_use]
    pub fn calibration_error(&self) -> Option<f64> {
        let hints: u64 = self.reliability.iter().map(|range| range.hints).sum();
        let off = self.reliability.iter().map(|range| (range.expected - range.hits as f64).abs());
        (hints > 0).then(|| off.sum::<f64>() / hints as f64)
    }

    /// Adds the counts of a card of the same predictor and model, for instance of another text.
    pub fn merge(&mut self, other: &Self) {
        for (mine, other) in self.layers.iter_mut().zip(&other.layers) {
            mine.scores = mine.scores.plus(&other.scores);
        }
        for (mine, other) in self.reliability.iter_mut().zip(&other.reliability) {
            mine.hints += other.hints;
            mine.expected += other.expected;
            mine.hits += other.hits;
        }
    }

    /// The card as text: one line a layer, then the layers together, those that nothing could look
    /// ahead to apart.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let widths = WIDTHS.map(|width| width * self.top_k);
        write!(out, "{:>7} {:>7} {:>8}", "layer", "rows", "unscored")?;
        for width in widths {
            write!(out, " {:>9}", format!("recall@{width}"))?;
        }
        for width in widths {
            write!(out, " {:>7}", format!("prec@{width}"))?;
        }
        writeln!(out)?;
        for layer in &self.layers {
            let mark = if layer.first { "*" } else { "" };
            line(out, &format!("{}{mark}", layer.layer), &layer.scores)?;
        }
        line(out, "all", &self.ahead())?;
        if self.first().rows + self.first().unscored > 0 {
            line(out, "all*", &self.first())?;
            writeln!(out, "      * guessed from the token before; not among `all`")?;
        }
        Ok(())
    }
}

impl Scores {
    fn close(&mut self, width: usize, named: usize, hits: u64) {
        self.named[width] += named as u64;
        self.hits[width] += hits;
    }
}

fn line(out: &mut dyn Write, name: &str, scores: &Scores) -> io::Result<()> {
    let percent = |share: Option<f64>| {
        share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
    };
    write!(out, "{name:>7} {:>7} {:>8}", scores.rows, scores.unscored)?;
    for width in 0..WIDTHS.len() {
        write!(out, " {:>9}", percent(scores.recall(width)))?;
    }
    for width in 0..WIDTHS.len() {
        write!(out, " {:>7}", percent(scores.precision(width)))?;
    }
    writeln!(out)
}

impl HintBytes {
    /// One line; what nobody measured is called unknown.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let bytes = |bytes: Option<u64>| {
            bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{bytes} B"))
        };
        writeln!(
            out,
            "delivery early {}, late {}, wasted {}, evicted unread {}",
            bytes(self.early_bytes),
            bytes(self.late_bytes),
            bytes(self.wasted_bytes),
            bytes(self.evicted_unread_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Hint;
    use proptest::prelude::*;
    use router_trace::ModelShape;

    fn places() -> Places {
        Places::new(&ModelShape { moe_layers: vec![1, 3, 5], n_experts: 16, top_k: 2 })
    }

    fn plan(layer: u16, experts: &[u16]) -> Plan {
        let mut plan = Plan::new(0, layer);
        let hints = (0_u16..)
            .zip(experts)
            .map(|(rank, &expert)| Hint { expert, probability: 1.0 - f32::from(rank) / 16.0 });
        plan.rank(hints, 16);
        plan
    }

    #[test]
    fn a_card_by_hand() {
        let mut card = Scorecard::new("test", 1, &places());
        card.score(&plan(3, &[7, 4, 9, 1, 2]), &Route::new(3, &[4, 2]).unwrap());
        card.score(&plan(3, &[4]), &Route::new(3, &[4, 2]).unwrap());
        card.score(&plan(3, &[]), &Route::new(3, &[4, 2]).unwrap());
        card.score(&plan(1, &[1, 2]), &Route::new(1, &[1, 2]).unwrap());
        card.unscored(5);
        let wanted = Scores { rows: 2, unscored: 1, chosen: 4, named: [3, 5, 6], hits: [2, 2, 3] };
        assert_eq!(card.layers[1].scores, wanted);
        assert_eq!(card.ahead(), Scores { unscored: 2, ..wanted });
        assert_eq!((card.first().rows, card.first().recall(0)), (1, Some(1.0)));
        assert_eq!(card.layers[2].scores.recall(0), None);
        let mut text = Vec::new();
        card.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("      3       2        1    50.0 %    50.0 %    75.0 %  66.7 %"),
            "{text}"
        );
        assert!(text.contains("     1*       1        0   100.0 %"), "{text}");
        let again: Scorecard =
            serde_json::from_str(&serde_json::to_string(&card).unwrap()).unwrap();
        assert_eq!(again, card);
    }

    #[test]
    fn what_nobody_measured_is_unknown_not_zero() {
        let mut text = Vec::new();
        HintBytes { late_bytes: Some(0), ..HintBytes::default() }.print(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "delivery early unknown, late 0 B, wasted unknown, evicted unread unknown\n"
        );
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_definition(
            rows in prop::collection::vec((
                prop::sample::subsequence((0_u16..16).collect::<Vec<_>>(), 0..16).prop_shuffle(),
                prop::sample::subsequence((0_u16..16).collect::<Vec<_>>(), 2),
            ), 1..20),
        ) {
            let mut card = Scorecard::new("test", 1, &places());
            let mut halves = [card.clone(), card.clone()];
            let mut naive = Scores::default();
            for (at, (named, chosen)) in rows.iter().enumerate() {
                let (plan, truth) = (plan(5, named), Route::new(5, chosen).unwrap());
                card.score(&plan, &truth);
                halves[at % 2].score(&plan, &truth);
                if named.is_empty() {
                    naive.unscored += 1;
                    continue;
                }
                naive.rows += 1;
                naive.chosen += 2;
                for (at, width) in WIDTHS.into_iter().enumerate() {
                    naive.named[at] += named.len().min(2 * width) as u64;
                    naive.hits[at] += plan.hits(&truth, 2 * width) as u64;
                }
            }
            prop_assert_eq!(card.ahead(), naive);
            let [mut first, second] = halves;
            first.merge(&second);
            prop_assert_eq!(first.ahead(), naive);
            let hints: u64 = card.reliability.iter().map(|range| range.hints).sum();
            prop_assert_eq!(hints, rows.iter().map(|(named, _)| named.len() as u64).sum::<u64>());
        }
    }
}
