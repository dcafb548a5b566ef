use super::{Correction, FitError};
use nalgebra::{Cholesky, DMatrix};

/// Ridges that are tried, as a share of the inputs' mean square.
pub const RIDGES: [f64; 4] = [1e-3, 1e-2, 1e-1, 1.0];
/// The ridge where nothing is held out to choose one by.
const DEFAULT_RIDGE: f64 = 1e-2;
/// Tokens that are multiplied together.
const BATCH: usize = 256;
/// The least standard deviation of a logit that is admitted: none is known exactly.
const MIN_SD: f64 = 1e-3;

/// Whether a choice depends on the level of a token's logits: what all of them have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// It does not, since the logits are only compared (softmax): the regression leaves it out.
    Free,
    /// It does, since each becomes a score of its own that a bias is added to (sigmoid).
    Counts,
}

/// What a regression needs of the tokens of one group, summed as they come: memory depends on the
/// model's width alone, `(1 + hidden + 2 E)²` values of 8 bytes.
#[derive(Clone, Debug)]
pub struct NormalEquations {
    hidden: usize,
    n_experts: usize,
    level: Level,
    /// `[F, F]`: sum of `f fᵀ` over tokens, `f` being their inputs.
    inputs: DMatrix<f64>,
    /// `[F, E]`: sum of `f yᵀ`.
    products: DMatrix<f64>,
    /// `[E]`: sum of `y²`.
    squares: Vec<f64>,
    rows: u64,
    /// `[F, BATCH]` and `[E, BATCH]`: tokens that are not summed yet.
    batch: [DMatrix<f64>; 2],
    filled: usize,
}

impl NormalEquations {
    /// No token yet, of a model with a stream of `hidden` values and `n_experts` a layer, whose
    /// level is `level`.
    #[must_use]
    pub fn new(hidden: usize, n_experts: usize, level: Level) -> Self {
        let width = Self::width(hidden, n_experts);
        Self {
            hidden,
            n_experts,
            level,
            inputs: DMatrix::zeros(width, width),
            products: DMatrix::zeros(width, n_experts),
            squares: vec![0.0; n_experts],
            rows: 0,
            batch: [DMatrix::zeros(width, BATCH), DMatrix::zeros(n_experts, BATCH)],
            filled: 0,
        }
    }

    /// Inputs of the regression: 1, the stream, and a 0 or 1 for each expert of both routes.
    #[must_use]
    pub fn width(hidden: usize, n_experts: usize) -> usize {
        1 + hidden + 2 * n_experts
    }

    /// Bytes of the equations of one pair of layers and one group of tokens.
    #[must_use]
    pub fn bytes(hidden: usize, n_experts: usize) -> usize {
        let width = Self::width(hidden, n_experts);
        size_of::<f64>() * (width * (width + n_experts + BATCH) + n_experts * (1 + BATCH))
    }

    /// Tokens seen.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows + self.filled as u64
    }

    /// Takes in one token: the stream `x` (`h / rms(h)`, `hidden` values), the experts chosen at
    /// the source layer (`after`) and by the target for the token before (`again`), and the
    /// target's true logits with those of the lookahead, one an expert.
    ///
    /// # Panics
    /// If a slice has another length.
    pub fn push(
        &mut self,
        x: &[f32],
        after: &[u16],
        again: &[u16],
        truth: &[f32],
        lookahead: &[f32],
    ) {
        assert_eq!((x.len(), truth.len()), (self.hidden, self.n_experts), "stream and logits");
        assert_eq!(lookahead.len(), self.n_experts, "logits of the lookahead");
        let [inputs, outputs] = &mut self.batch;
        let mut column = inputs.column_mut(self.filled);
        column.fill(0.0);
        column[0] = 1.0;
        for (at, &value) in x.iter().enumerate() {
            column[1 + at] = f64::from(value);
        }
        for (part, route) in [after, again].into_iter().enumerate() {
            for expert in route.iter().map(|&expert| usize::from(expert)) {
                if expert < self.n_experts {
                    column[1 + self.hidden + part * self.n_experts + expert] = 1.0;
                }
            }
        }
        let mean = |logits: &[f32]| {
            logits.iter().map(|&logit| f64::from(logit)).sum::<f64>() / logits.len() as f64
        };
        let means = match self.level {
            Level::Free => mean(truth) - mean(lookahead),
            Level::Counts => 0.0,
        };
        let mut column = outputs.column_mut(self.filled);
        for (at, (&truth, &lookahead)) in truth.iter().zip(lookahead).enumerate() {
            let error = f64::from(truth) - f64::from(lookahead) - means;
            column[at] = error;
            self.squares[at] += error * error;
        }
        self.filled += 1;
        if self.filled == BATCH {
            self.sum_up();
        }
    }

    fn sum_up(&mut self) {
        let [inputs, outputs] = &self.batch;
        let inputs = inputs.columns(0, self.filled);
        let outputs = outputs.columns(0, self.filled);
        self.inputs.gemm(1.0, &inputs, &inputs.transpose(), 1.0);
        self.products.gemm(1.0, &inputs, &outputs.transpose(), 1.0);
        self.rows += self.filled as u64;
        self.filled = 0;
    }

    fn add(&mut self, other: &Self, sign: f64) {
        self.inputs += &other.inputs * sign;
        self.products += &other.products * sign;
        self.squares.iter_mut().zip(&other.squares).for_each(|(sum, square)| *sum += square * sign);
        self.rows = self.rows.saturating_add_signed(if sign > 0.0 {
            other.rows.cast_signed()
        } else {
            -other.rows.cast_signed()
        });
    }

    /// `(F + ridge) W = P`; the ridge of each kind of input is a share of its own mean square.
    fn weights(&self, ridge: f64) -> Option<DMatrix<f64>> {
        let mut matrix = self.inputs.clone();
        let floor = 1e-6 * self.rows as f64;
        matrix[(0, 0)] += floor;
        let parts = [(1, self.hidden), (1 + self.hidden, 2 * self.n_experts)];
        for (from, len) in parts {
            let mean = self.inputs.diagonal().rows(from, len).sum() / len as f64;
            for at in from..from + len {
                matrix[(at, at)] += ridge * mean + floor;
            }
        }
        let weights = Cholesky::new(matrix)?.solve(&self.products);
        weights.iter().all(|weight| weight.is_finite()).then_some(weights)
    }

    /// `[E]`: sum over these tokens of the squared error that `weights` leave.
    fn errors(&self, weights: &DMatrix<f64>) -> Vec<f64> {
        let guessed = &self.inputs * weights;
        let error = |(at, square): (usize, &f64)| {
            let (weights, guessed) = (weights.column(at), guessed.column(at));
            square - 2.0 * weights.dot(&self.products.column(at)) + weights.dot(&guessed)
        };
        self.squares.iter().enumerate().map(error).map(|error| error.max(0.0)).collect()
    }
}

/// The correction that the tokens of `groups` give. `gate` is the target's router times its norm's
/// weights, `[E, hidden]`.
///
/// The ridge is the one of [`RIDGES`] with the least squared error on groups that were left out in
/// turn, and the standard deviations are of these errors; with one group there is no choice.
///
/// # Errors
/// [`FitError::Singular`] where numbers are not finite or there are no tokens.
///
/// # Panics
/// If the groups or `gate` are of different shapes.
pub fn solve(
    [source, target]: [u16; 2],
    gate: &[f32],
    groups: &mut [NormalEquations],
) -> Result<Correction, FitError> {
    groups.iter_mut().for_each(NormalEquations::sum_up);
    let groups: Vec<&NormalEquations> = groups.iter().filter(|group| group.rows > 0).collect();
    let rows = groups.iter().map(|group| group.rows).sum();
    let singular = || FitError::Singular { source_layer: source, target, rows };
    let (first, others) = groups.split_first().ok_or_else(singular)?;
    let mut all = (*first).clone();
    others.iter().for_each(|group| all.add(group, 1.0));
    let (ridge, errors) = if others.is_empty() {
        let weights = all.weights(DEFAULT_RIDGE).ok_or_else(singular)?;
        (DEFAULT_RIDGE, all.errors(&weights))
    } else {
        choose_ridge(&all, &groups).ok_or_else(singular)?
    };
    let weights = all.weights(ridge).ok_or_else(singular)?;
    let (hidden, n_experts) = (all.hidden, all.n_experts);
    assert_eq!(gate.len(), n_experts * hidden, "the router of {n_experts} experts");
    let value = |row: usize, expert: usize| weights[(row, expert)] as f32;
    let table = |from: usize| {
        let row = |row| (0..n_experts).map(move |expert| value(from + row, expert));
        (0..n_experts).flat_map(row).collect()
    };
    let at = |at: usize| value(1 + at % hidden, at / hidden);
    Ok(Correction {
        source,
        target,
        gate: gate.iter().enumerate().map(|(index, plain)| plain + at(index)).collect(),
        bias: (0..n_experts).map(|expert| value(0, expert)).collect(),
        after: table(1 + hidden),
        again: table(1 + hidden + n_experts),
        sd: errors.iter().map(|e| (e / rows as f64).sqrt().max(MIN_SD) as f32).collect(),
        ridge,
    })
}

/// The best ridge and `[E]` the squared errors on what was left out.
fn choose_ridge(all: &NormalEquations, groups: &[&NormalEquations]) -> Option<(f64, Vec<f64>)> {
    let mut sums = vec![vec![0.0; all.n_experts]; RIDGES.len()];
    for group in groups {
        let mut rest = all.clone();
        rest.add(group, -1.0);
        for (sums, &ridge) in sums.iter_mut().zip(&RIDGES) {
            let errors = group.errors(&rest.weights(ridge)?);
            sums.iter_mut().zip(errors).for_each(|(sum, error)| *sum += error);
        }
    }
    let total = |errors: &[f64]| errors.iter().sum::<f64>();
    let tried = RIDGES.into_iter().zip(sums);
    tried.min_by(|a, b| total(&a.1).total_cmp(&total(&b.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers without a pattern, -1 to 1.
    fn noise(seed: &mut u64) -> f32 {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Tokens whose logits are the lookahead's plus a known linear error.
    fn group(seed: u64, rows: usize, spread: f32) -> NormalEquations {
        level_group(seed, rows, spread, Level::Free)
    }

    fn level_group(seed: u64, rows: usize, spread: f32, level: Level) -> NormalEquations {
        let mut seed = seed;
        let mut equations = NormalEquations::new(3, 4, level);
        for _ in 0..rows {
            let x: Vec<f32> = (0..3).map(|_| noise(&mut seed)).collect();
            let after = [((noise(&mut seed) + 1.0) * 1.99) as u16];
            let again = [((noise(&mut seed) + 1.0) * 1.99) as u16];
            let lookahead: Vec<f32> = (0..4).map(|_| noise(&mut seed)).collect();
            let truth: Vec<f32> = (0..4_u16)
                .map(|expert| {
                    let known = [0.5, -0.5, 0.25, -0.25][usize::from(expert)] * x[1]
                        + if after[0] == expert { 0.75 } else { -0.25 }
                        + if again[0] == expert { 1.5 } else { -0.5 };
                    let unknown = if expert == 2 { spread * noise(&mut seed) } else { 0.0 };
                    lookahead[usize::from(expert)] + known + unknown
                })
                .collect();
            equations.push(&x, &after, &again, &truth, &lookahead);
        }
        equations
    }

    #[test]
    fn a_linear_error_is_found_whatever_the_batches() {
        let mut groups = [group(1, 700, 0.0), group(2, 256, 0.0), group(3, 90, 0.0)];
        let gate: Vec<f32> = (0_u8..12).map(f32::from).collect();
        let fit = solve([2, 5], &gate, &mut groups).unwrap();
        assert_eq!((fit.source, fit.target, fit.ridge), (2, 5, RIDGES[0]));
        for expert in 0..4 {
            let off = |value: f32, wanted: f32| (value - wanted).abs() < 0.02;
            let wanted = [0.5, -0.5, 0.25, -0.25][expert];
            assert!(off(fit.gate[3 * expert + 1] - gate[3 * expert + 1], wanted), "{fit:?}");
            assert!(off(fit.gate[3 * expert] - gate[3 * expert], 0.0), "{fit:?}");
            let difference =
                |table: &[f32]| table[5 * expert] - table[4 * ((expert + 1) % 4) + expert];
            assert!(off(difference(&fit.after), 1.0), "{fit:?}");
            assert!(off(difference(&fit.again), 2.0), "{fit:?}");
        }
    }

    /// The made-up error has one level for all tokens: 0.75 - 3 × 0.25 and 1.5 - 3 × 0.5, both 0,
    /// and a common push of the second input, which only a regression with the level can find.
    #[test]
    fn a_level_is_found_where_it_counts() {
        let moved = |level| {
            let mut seed = 9;
            let mut equations = level_group(5, 400, 0.0, level);
            for _ in 0..400 {
                let x: Vec<f32> = (0..3).map(|_| noise(&mut seed)).collect();
                let lookahead: Vec<f32> = (0..4).map(|_| noise(&mut seed)).collect();
                let truth: Vec<f32> = lookahead.iter().map(|logit| logit + 3.0 * x[0]).collect();
                equations.push(&x, &[], &[], &truth, &lookahead);
            }
            solve([0, 1], &[0.0; 12], &mut [equations]).unwrap()
        };
        let (with, without) = (moved(Level::Counts), moved(Level::Free));
        for expert in 0..4 {
            // Half of the tokens have it.
            assert!((with.gate[3 * expert] - 1.5).abs() < 0.2, "{with:?}");
            assert!(without.gate[3 * expert].abs() < 0.1, "{without:?}");
        }
    }

    #[test]
    fn a_logit_that_cannot_be_guessed_has_the_larger_deviation() {
        let mut groups = [group(1, 700, 2.0), group(2, 300, 2.0)];
        let fit = solve([0, 1], &[0.0; 12], &mut groups).unwrap();
        // Uniform over -2 to 2, less its share in the mean over four experts.
        assert!((fit.sd[2] - 0.75 * 2.0 / 3.0_f32.sqrt()).abs() < 0.1, "{:?}", fit.sd);
        assert!(fit.sd[0] < 0.4 * fit.sd[2], "{:?}", fit.sd);
    }

    #[test]
    fn nothing_and_nonsense_are_refused() {
        let error = solve([0, 1], &[0.0; 12], &mut []).unwrap_err();
        assert_eq!(error.kind(), "fit-singular");
        let mut nonsense = group(1, 10, 0.0);
        nonsense.push(&[f32::NAN; 3], &[0], &[9], &[0.0; 4], &[0.0; 4]);
        let error = solve([0, 1], &[0.0; 12], &mut [nonsense]).unwrap_err();
        assert_eq!(error.to_string(), "layer 0 to 1: the regression of 11 tokens has no solution");
    }

    #[test]
    fn the_sum_of_groups_is_the_whole() {
        let mut one = [group(7, 300, 1.0)];
        let mut whole = solve([0, 1], &[0.0; 12], &mut one).unwrap();
        let mut twice = [group(7, 300, 1.0), NormalEquations::new(3, 4, Level::Free)];
        let same = solve([0, 1], &[0.0; 12], &mut twice).unwrap();
        assert_eq!(whole, same);
        whole.ridge = 0.0;
        assert_ne!(whole, same);
    }
}
