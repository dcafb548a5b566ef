use router_trace::ModelShape;

/// The layers with experts in their order: predictors keep their state by place, 0 for the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    layers: Vec<u16>,
    n_experts: usize,
    top_k: usize,
}

impl Places {
    /// Those of a model.
    #[must_use]
    pub fn new(shape: &ModelShape) -> Self {
        Self {
            layers: shape.moe_layers.clone(),
            n_experts: usize::from(shape.n_experts),
            top_k: usize::from(shape.top_k).clamp(1, usize::from(shape.n_experts).max(1)),
        }
    }

    /// How many layers have experts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether no layer has experts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Experts in a layer.
    #[must_use]
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Experts that a token chooses in a layer.
    #[must_use]
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Place of a layer; `None` for one without experts.
    #[must_use]
    pub fn of(&self, layer: u16) -> Option<usize> {
        self.layers.binary_search(&layer).ok()
    }

    /// The layer at a place.
    ///
    /// # Panics
    /// If there is no such place.
    #[must_use]
    pub fn layer(&self, place: usize) -> u16 {
        self.layers[place]
    }

    /// The place `depth` after `place`, and how many tokens later it comes.
    #[must_use]
    pub fn ahead(&self, place: usize, depth: usize) -> (usize, u64) {
        let at = place + depth;
        (at % self.layers.len(), (at / self.layers.len()) as u64)
    }

    /// The place `depth` before `place`, of an earlier token where there is none in this one.
    #[must_use]
    pub fn behind(&self, place: usize, depth: usize) -> usize {
        let len = self.layers.len();
        (place + len - depth % len) % len
    }
}
