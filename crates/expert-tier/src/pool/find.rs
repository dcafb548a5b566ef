use super::names::{TensorName, classify};
use super::{Extent, Pool};

impl Pool {
    /// Where the bytes of one tensor lie, by its stored name or without the dialect's prefix:
    /// a tensor of the spine, or a weight or scale of one expert. `None` for names that the pool
    /// does not serve.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Extent> {
        if let Ok(TensorName::Expert(expert)) = classify(name, self.root()) {
            let layout = self.layout().expert(expert.id)?;
            let part = layout.part(expert.role()).filter(|_| !expert.is_shape());
            return part.map(|part| part.extent);
        }
        let by_stored = || self.spine().values().find(|tensor| tensor.stored_name == name);
        self.spine().get(name).or_else(by_stored).map(|tensor| tensor.extent)
    }
}
