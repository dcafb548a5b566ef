use super::MAX_TOKENS_PER_RECORD;
use crate::error::TraceError;
use crate::ids::ModelShape;
use crate::pass::PassInfo;

/// The rules that a record must keep, for the reader and the writer alike.
pub(crate) struct Checker {
    shape: ModelShape,
    last: Option<(u64, u16)>,
}

impl Checker {
    pub(crate) fn new(shape: ModelShape) -> Self {
        Self { shape, last: None }
    }

    /// Forgets what came before: the next record may have any step.
    pub(crate) fn restart(&mut self) {
        self.last = None;
    }

    pub(crate) fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Takes the record at `line` as the next one, or says which rule it breaks.
    pub(crate) fn accept(
        &mut self,
        line: u64,
        info: &PassInfo,
        experts: &[u16],
    ) -> Result<(), TraceError> {
        let PassInfo { step, layer, .. } = *info;
        if self.shape.moe_layers.binary_search(&layer).is_err() {
            return Err(self.unknown_layer(line, layer.into()));
        }
        match self.last {
            Some((previous, _)) if step < previous => {
                return Err(TraceError::StepBack { line, step, previous });
            }
            Some((previous_step, previous)) if step == previous_step && layer <= previous => {
                return Err(TraceError::LayerOrder { line, step, layer, previous });
            }
            _ => {}
        }
        self.check_routes(line, layer, experts)?;
        self.last = Some((step, layer));
        Ok(())
    }

    pub(crate) fn unknown_layer(&self, line: u64, layer: u64) -> TraceError {
        TraceError::UnknownLayer { line, layer, known: self.shape.moe_layers.len() }
    }

    fn check_routes(&self, line: u64, layer: u16, experts: &[u16]) -> Result<(), TraceError> {
        let ModelShape { n_experts, top_k, .. } = self.shape;
        let width = usize::from(top_k);
        let tokens = experts.len().div_ceil(width);
        if tokens == 0 || tokens > MAX_TOKENS_PER_RECORD {
            return Err(TraceError::TokenCount { line, tokens, limit: MAX_TOKENS_PER_RECORD });
        }
        for (token, route) in experts.chunks(width).enumerate() {
            if route.len() != width {
                let found = route.len();
                return Err(TraceError::WrongWidth { line, token, layer, found, top_k });
            }
            for (rank, &expert) in route.iter().enumerate() {
                if expert >= n_experts {
                    let expert = expert.into();
                    return Err(TraceError::UnknownExpert {
                        line,
                        token,
                        layer,
                        expert,
                        n_experts,
                    });
                }
                // At most MAX_TOP_K ids: comparing each pair is cheaper than any set.
                if route[..rank].contains(&expert) {
                    return Err(TraceError::DuplicateExpert { line, token, layer, expert });
                }
            }
        }
        Ok(())
    }
}
