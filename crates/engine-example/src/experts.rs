//! The routed experts of a layer: adopt the route, multiply in place as they come, let go.

use crate::error::EngineError;
use crate::format::weights_in_place;
use crate::kernels::{Activation, ExpertTask, Isa, MoeSum, Scratch};
use crate::models::MoeCall;
use crate::pilot::Pilot;
use crate::router::Routed;
use crate::spinners::Spinners;
use crate::weights::WeightFormat;
use expert_tier::{Adopting, Tier, TierError};
use router_trace::{PassInfo, PassKind, Phase, Recorder};
use serde::Serialize;

/// Experts adopted at once when a prompt is read, while as many more are on their way: enough to
/// keep the device busy, few enough that their bytes need not all fit in memory together.
const BATCH_EXPERTS: usize = 32;

/// What becomes of the experts that a prompt reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PromptReads {
    /// They stay in the page cache, as those of decoding do: good where the pool nearly fits, and
    /// where the text goes on as the prompt was.
    #[default]
    Stay,
    /// What is not in the page cache is read past it, so that a long prompt does not wash out what
    /// decoding had there.
    Pass,
}

/// Runs routed experts through a tier.
#[derive(Debug)]
pub struct Experts {
    tier: Tier,
    isa: Isa,
    format: WeightFormat,
    /// Widths `[read and written, inner]` of every routed expert.
    widths: [usize; 2],
    activation: Activation,
    scratch: Scratch,
    spinners: Spinners,
    recorder: Option<Recorder>,
    /// The pass that is recorded: its number, and the last layer that it reported.
    step: u64,
    last_layer: Option<u16>,
    phase: Phase,
    pilot: Option<Pilot>,
    prompt_reads: PromptReads,
}

/// One expert of a layer pass, and the tokens that chose it with their weights.
struct Group {
    expert: u16,
    tokens: Vec<(u32, f32)>,
}

impl Experts {
    /// Experts of `widths` `[read and written, inner]`, with SiLU, stored in `format`, served by `tier`.
    #[must_use]
    pub fn new(tier: Tier, widths: [usize; 2], format: WeightFormat, isa: Isa) -> Self {
        Self {
            tier,
            isa,
            format,
            widths,
            activation: Activation::Silu,
            scratch: Scratch::default(),
            spinners: Spinners::new(1),
            recorder: None,
            step: 0,
            last_layer: None,
            phase: Phase::Prefill,
            pilot: None,
            prompt_reads: PromptReads::default(),
        }
    }

    /// `out += Σ weight · expert(x)` over every token's route; `x` and `out` are
    /// `[n, width]`.
    ///
    /// # Errors
    /// A demand read that failed, or weights that do not fit the config.
    pub fn run(&mut self, call: &MoeCall<'_>, out: &mut [f32]) -> Result<(), EngineError> {
        // Nobody else asks for the counters here.
        let before = self.pilot.as_ref().map(|_| self.tier.snapshot());
        if let (Some(pilot), Some(before)) = (&mut self.pilot, &before) {
            // Before the wait: its plan has the layer's time.
            pilot.routed(call, self.phase, before.cold_experts);
        }
        // Ascending by expert: a prompt touches each expert once a pass, and sums in the same
        // order as its tokens would one by one.
        let groups = group_by_expert(call.routes);
        let mut sum = MoeSum::begin(call.x, self.widths[0], &mut self.scratch)
            .with_activation(self.activation);
        let passes = self.phase == Phase::Prefill && self.prompt_reads == PromptReads::Pass;
        let mut batches = groups.chunks(BATCH_EXPERTS);
        let mut ahead = batches.next();
        let mut next =
            ahead.map(|batch| begin(&self.tier, call.layer, batch, passes)).transpose()?;
        let mut missing = Vec::new();
        while let (Some(batch), Some(mut adopting)) = (ahead, next.take()) {
            if self.pilot.is_some() {
                missing.extend(adopting.missing());
            }
            // A prompt's next batch is known: the device brings it, in the order of the file,
            // while this one is computed with.
            ahead = batches.next();
            next = ahead.map(|batch| begin(&self.tier, call.layer, batch, passes)).transpose()?;
            loop {
                let more = adopting.wait()?; // the only wait; what has come is computed with
                if more.is_empty() {
                    break;
                }
                // Not before the wait: who reads for it may need the cores.
                self.spinners.keep();
                let usable = adopting.experts().zip(batch).skip(more.start);
                let tasks = usable.map(|(expert, group)| {
                    let weights = weights_in_place(&expert, self.widths, self.format)?;
                    Ok(ExpertTask { weights, tokens: &group.tokens })
                });
                sum.add(self.isa, &tasks.collect::<Result<Vec<_>, EngineError>>()?);
            }
            adopting.finish()?; // before anyone uses the sums
        }
        sum.finish(out);
        if let (Some(pilot), Some(before)) = (&mut self.pilot, before) {
            pilot.demanded((self.tier.snapshot() - before).adopt_ns, &missing);
        }
        self.record(call);
        Ok(())
    }

    /// What the experts do between their projections.
    pub fn set_activation(&mut self, activation: Activation) {
        self.activation = activation;
    }

    /// Let the threads of this pool, which [`Experts::run`] is called on, spin from layer to layer.
    pub fn set_spinners(&mut self, spinners: Spinners) {
        self.spinners = spinners;
    }

    /// What becomes of the experts that the next prompts read.
    pub fn set_prompt_reads(&mut self, prompt_reads: PromptReads) {
        self.prompt_reads = prompt_reads;
    }

    /// Whether the next passes read a prompt or produce tokens.
    pub fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// Record every route from now on.
    pub fn record_to(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// Stop recording.
    pub fn take_recorder(&mut self) -> Option<Recorder> {
        self.recorder.take()
    }

    /// Let this predictor look ahead from now on, or none.
    pub fn set_pilot(&mut self, pilot: Option<Pilot>) {
        self.pilot = pilot;
    }

    /// The predictor that looks ahead.
    #[must_use]
    pub fn pilot(&self) -> Option<&Pilot> {
        self.pilot.as_ref()
    }

    /// The tier that serves.
    #[must_use]
    pub fn tier(&self) -> &Tier {
        &self.tier
    }

    /// Let another tier over the same pool serve.
    pub fn set_tier(&mut self, tier: Tier) {
        self.tier = tier;
    }

    fn record(&mut self, call: &MoeCall<'_>) {
        let Some(recorder) = &mut self.recorder else { return };
        // Layers ascend within a pass, so a layer that does not is the first of the next one.
        if self.last_layer.is_some_and(|last| call.layer <= last) {
            self.step += 1;
        }
        self.last_layer = Some(call.layer);
        let info = PassInfo {
            step: self.step,
            position: call.position as u64,
            layer: call.layer,
            phase: self.phase,
            kind: PassKind::Normal,
        };
        let flat: Vec<u16> =
            call.routes.iter().flat_map(|routed| routed.route.experts()).copied().collect();
        recorder.record(info, &flat); // a full recorder counts what it drops
    }
}

fn begin(tier: &Tier, layer: u16, batch: &[Group], passes: bool) -> Result<Adopting, TierError> {
    let wanted: Vec<u16> = batch.iter().map(|group| group.expert).collect();
    if passes { tier.begin_passing(layer, &wanted) } else { tier.begin(layer, &wanted) }
}

fn group_by_expert(routes: &[Routed]) -> Vec<Group> {
    let mut picks: Vec<(u16, u32, f32)> = (0_u32..)
        .zip(routes)
        .flat_map(|(token, routed)| {
            routed.iter().map(move |(expert, weight)| (expert, token, weight))
        })
        .collect();
    picks.sort_unstable_by_key(|&(expert, token, _)| (expert, token));
    picks
        .chunk_by(|left, right| left.0 == right.0)
        .map(|same| Group {
            expert: same[0].0,
            tokens: same.iter().map(|&(_, token, weight)| (token, weight)).collect(),
        })
        .collect()
}
