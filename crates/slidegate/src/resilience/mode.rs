//! Enforcement mode of a policy.

/// Enforcement mode of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Decisions are enforced.
    #[default]
    Enforce,
    /// Decisions are made, counted and reported in [`Decision::shadow`](slidegate_core::Decision::shadow), but every
    /// request is allowed.
    Shadow,
    /// No decisions are made. Every request is allowed and nothing is counted.
    Off,
}

impl Mode {
    /// Returns the name in configuration and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }
}
