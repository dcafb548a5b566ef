//! The plans that are replayed: an oracle's, a liar's, and one like a predictor's.

use anyhow::{Context, Result, ensure};
use pilot_prefetch::{Hint, MAX_WIDTH, OracleForm, Plan, PlanHeader, PlanReader, PlanWriter};
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use router_trace::{LayerPass, TraceHeader};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Share of a plan's hints that are right, as the paper measured its predictor.
pub(crate) const RECALL: f64 = 0.65;
/// How much likelier than that the first hint is right, and how much less the last.
const SLOPE: f64 = 0.30;
const SEED: u64 = 0x0b5e55ed;

/// Which plans an arm replays.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Told {
    Oracle,
    Pilot,
    Wrong,
}

/// Plan files by what they tell.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) oracle: PathBuf,
    pub(crate) pilot: PathBuf,
    pub(crate) wrong: PathBuf,
    /// Recall of `pilot`, counted.
    pub(crate) recall: f64,
    /// What made it.
    pub(crate) predictor: String,
}

impl Files {
    pub(crate) fn of(&self, told: Told) -> &Path {
        match told {
            Told::Oracle => &self.oracle,
            Told::Pilot => &self.pilot,
            Told::Wrong => &self.wrong,
        }
    }

    /// Writes what is not given into `dir`.
    pub(crate) fn write(
        dir: &Path,
        name: &str,
        tokens: usize,
        pilot: Option<&Path>,
        trace: Option<&Path>,
    ) -> Result<Self> {
        let (header, passes) = super::passes(trace, tokens)?;
        let file = |told: &str| dir.join(format!("plans-{name}-{told}.jsonl"));
        let oracle = OracleForm::plans(passes.iter().cloned().map(Ok))?;
        let wrong = made(header.shape.n_experts, &passes, 0.0);
        let like = made(header.shape.n_experts, &passes, RECALL);
        let name = OracleForm::NextLayer.name();
        write(&file("oracle"), &header, name, &oracle)?;
        write(&file("wrong"), &header, "all wrong, drawn evenly", &wrong)?;
        let pilot = match pilot {
            Some(path) => path.to_owned(),
            None => {
                let name = format!("made up: recall {RECALL}, likelier first, wrong ones by use");
                write(&file("pilot"), &header, &name, &like)?;
                file("pilot")
            }
        };
        let (predictor, plans) = read(&pilot)?;
        let mut counted = (0, 0);
        for pass in &passes {
            for route in pass.routes() {
                counted.1 += route.experts().len();
                if let Some(plan) = plans.get(&(pass.info.step, pass.info.layer)) {
                    counted.0 += plan.hits(&route, usize::from(pass.top_k()));
                }
            }
        }
        ensure!(counted.0 > 0, "{}: none of its plans is right", pilot.display());
        let recall = counted.0 as f64 / counted.1 as f64;
        Ok(Self { oracle: file("oracle"), wrong: file("wrong"), pilot, recall, predictor })
    }
}

fn write(path: &Path, header: &TraceHeader, predictor: &str, plans: &[Plan]) -> Result<()> {
    let header = PlanHeader::new("OLMoE", predictor, header.shape.clone());
    let mut writer = PlanWriter::create(path, &header)?;
    plans.iter().try_for_each(|plan| writer.write(plan))?;
    Ok(writer.finish()?)
}

/// Plans by the pass and layer that they are for.
pub(crate) type ByPlace = HashMap<(u64, u16), Plan>;

/// What made a file's plans, and the plans.
pub(crate) fn read(path: &Path) -> Result<(String, ByPlace)> {
    let reader = PlanReader::open(path)?;
    let predictor = reader.header().predictor.clone();
    let plans = reader.map(|plan| plan.map(|plan| ((plan.step(), plan.layer()), plan)));
    Ok((predictor, plans.collect::<Result<_, _>>().with_context(|| path.display().to_string())?))
}

/// Plans as wide as a route of which so many hints are right: the first more often than the last,
/// as a predictor's are. A right hint is one of the route's experts; a wrong one is another of the
/// layer, the likelier the more the trace uses it (evenly, where none is right).
fn made(n_experts: u16, passes: &[LayerPass], recall: f64) -> Vec<Plan> {
    let mut random = ChaCha8Rng::seed_from_u64(SEED ^ (recall * 1e6) as u64);
    let mut uses: HashMap<u16, Vec<f64>> = HashMap::new();
    for pass in passes {
        let layer = pass.info.layer;
        let counts = uses.entry(layer).or_insert_with(|| vec![1.0; n_experts.into()]);
        let more = f64::from(u8::from(recall > 0.0));
        pass.experts().iter().for_each(|&expert| counts[usize::from(expert)] += more);
    }
    let plan = |pass: &LayerPass| {
        let route = pass.experts();
        let mut right = route.to_vec();
        right.shuffle(&mut random);
        let weights = WeightedIndex::new(&uses[&pass.info.layer]).expect("all are above zero");
        let mut hints: Vec<Hint> = Vec::with_capacity(MAX_WIDTH);
        for rank in 0..route.len() {
            let from_middle = 1.0 - 2.0 * rank as f64 / (route.len() - 1).max(1) as f64;
            let chance = if recall == 0.0 { 0.0 } else { recall + SLOPE * from_middle };
            let expert = match right.pop() {
                Some(expert) if random.random_bool(chance.clamp(0.0, 1.0)) => expert,
                _ => loop {
                    let expert = weights.sample(&mut random) as u16;
                    let named = hints.iter().any(|hint| hint.expert == expert);
                    if !route.contains(&expert) && !named {
                        break expert;
                    }
                },
            };
            hints.push(Hint { expert, probability: chance as f32 });
        }
        let mut plan = Plan::new(pass.info.step, pass.info.layer);
        plan.rank(hints, MAX_WIDTH);
        plan
    };
    passes.iter().map(plan).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_as_right_as_they_say() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::write(dir.path(), "a", 60, None, None).unwrap();
        assert!((files.recall - RECALL).abs() < 0.01, "{}", files.recall);
        let (_, passes) = crate::prefetch::passes(None, 60).unwrap();
        let (_, wrong) = read(&files.wrong).unwrap();
        let (_, oracle) = read(&files.oracle).unwrap();
        let (_, pilot) = read(&files.pilot).unwrap();
        let mut at_rank = [0; 8];
        for pass in &passes {
            let place = (pass.info.step, pass.info.layer);
            let route = pass.routes().next().unwrap();
            assert_eq!((wrong[&place].hits(&route, 8), wrong[&place].hints().len()), (0, 8));
            assert_eq!(oracle[&place].hits(&route, 8), 8);
            for (rank, hint) in pilot[&place].hints().iter().enumerate() {
                at_rank[rank] += usize::from(route.experts().contains(&hint.expert));
            }
        }
        assert!(at_rank[0] > 2 * at_rank[7], "{at_rank:?}");
        // A file that is given is read as it is.
        let given = Files::write(dir.path(), "b", 60, Some(&files.oracle), None).unwrap();
        assert_eq!((given.recall, given.predictor.as_str()), (1.0, OracleForm::NextLayer.name()));
        assert!(Files::write(dir.path(), "c", 60, Some(&files.wrong), None).is_err());
    }
}
