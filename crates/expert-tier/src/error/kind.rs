use super::TierError;

impl TierError {
    /// The category, stable across versions: what scripts and tests compare.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::FileChanged { .. }
            | Self::Fill { .. }
            | Self::FillStopped
            | Self::Poisoned { .. } => "io-changed",
            Self::DirectUnavailable { .. } | Self::FillUnavailable { .. } => "device-unavailable",
            Self::Policy { source } => source.kind(),
            Self::Output(source) => source.kind(),
            Self::Memory { .. }
            | Self::NoRoom { .. }
            | Self::Mappings { .. }
            | Self::Lock { .. }
            | Self::Threads { .. }
            | Self::SettingLimit { .. }
            | Self::Setting { .. } => "limit",
            Self::HeaderTooLarge { .. } => "header-too-large",
            Self::HeaderTruncated { .. } => "header-truncated",
            Self::HeaderInvalid { .. } => "header-invalid",
            Self::BadOffsets { .. } => "bad-offsets",
            Self::SizeMismatch { .. } => "size-mismatch",
            Self::BadShape { .. } => "bad-shape",
            Self::Overflow { .. } => "overflow",
            Self::TruncatedData { .. } => "truncated-data",
            Self::DuplicateName { .. } => "duplicate-name",
            Self::UnsafePath { .. } => "unsafe-path",
            Self::MissingShard { .. } => "missing-shard",
            Self::ShardSetInconsistent { .. } | Self::SplitSet { .. } => "shard-set-inconsistent",
            Self::Ambiguous { .. } => "ambiguous",
            Self::IncompleteDownload { .. } => "incomplete-download",
            Self::NotAModel { .. } => "not-a-model",
            Self::Unsupported { .. } => "unsupported",
            Self::Limit { .. } => "limit",
            Self::BadAlignment { .. } => "bad-alignment",
            Self::UnknownExpert { .. }
            | Self::ConfigValue { .. }
            | Self::ExpertSet { .. }
            | Self::ShapeMismatch { .. }
            | Self::HeadMissing { .. } => "config-inconsistent",
        }
    }
}
