//! What can be wrong with a kernel.

/// Why a kernel cannot be built or printed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The author mixed types, or used a value where it does not exist.
    #[error("invalid kernel: {0}")]
    Invalid(String),
    /// A barrier that not all invocations reach.
    #[error("a barrier stands in control flow that may differ between invocations: {0}")]
    Divergent(String),
    /// The kernel uses what the target does not have.
    #[error("the device has no {0}")]
    Missing(String),
    /// A limit of the device is exceeded.
    #[error("{what} is {needed}, the device allows {limit}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// What the kernel asks for.
        needed: u32,
        /// What the device has.
        limit: u32,
    },
}
