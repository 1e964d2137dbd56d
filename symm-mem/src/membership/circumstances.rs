//! The conditions for a commit or a retirement that do not depend on the segments.

use crate::agreement::Readiness;

/// The conditions that a rank checks in a commit or a retirement before it checks its segments.
pub(crate) struct Circumstances {
    /// True if the thread that requested the commit or retirement has an NCCL group open.
    pub(crate) inside_group: bool,
    /// The reason why the group of the commit, or one of the groups of the retirement, cannot take part on this rank,
    /// for example that its communicator has failed.
    pub(crate) trouble: Option<String>,
    /// True if a stream of the rank's device is capturing. An error if this query of the driver failed. Registration
    /// and deregistration cannot be captured, and may invalidate the capture.
    pub(crate) is_capturing: Result<bool, String>,
}

impl Circumstances {
    /// Converts to the readiness that the rank posts.
    pub(crate) fn readiness(self) -> Readiness {
        match self {
            Self { inside_group: true, .. } => Readiness::GroupOpen,
            Self { trouble: Some(cause), .. } | Self { is_capturing: Err(cause), .. } => {
                Readiness::Failed { ordinal: None, cause }
            }
            Self { is_capturing: Ok(true), .. } => Readiness::Capturing,
            Self { .. } => Readiness::Ready,
        }
    }
}
