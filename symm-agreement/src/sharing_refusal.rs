//! What the refusals of a rendezvous and of an exchange have in common: both end agreements in which ranks open each
//! other's memory.

/// Implements conversions to the type `$refusal`: from `OpeningFailure`, and from the failure of an agreement. Also
/// implements the method `is_of_the_missing` of `$refusal`. `$refusal` is `RendezvousRefusal` or `ExchangeRefusal`.
/// `$timeout` and `$failed` are the names of those variants that have different names in these two types.
macro_rules! sharing_refusal {
    ($refusal:ident, $timeout:ident, $failed:ident) => {
        impl From<memory_sharing::OpeningFailure> for $refusal {
            fn from(failure: memory_sharing::OpeningFailure) -> Self {
                use memory_sharing::OpeningFailure;
                match failure {
                    OpeningFailure::Failed { rank, cause } => Self::$failed { rank, cause },
                    OpeningFailure::Lost { missing, noticed } => Self::MembersLost { missing, noticed },
                }
            }
        }

        impl From<bootstrap::agreement::Failure> for $refusal {
            fn from(failure: bootstrap::agreement::Failure) -> Self {
                use bootstrap::agreement::Failure;
                match failure {
                    Failure::Absent { missing, waited_ms, circle, .. } => {
                        let missing = missing.into_iter().map(|absentee| absentee.rank).collect();
                        Self::$timeout { missing, waited_ms, circle }
                    }
                    Failure::Unreadable { rank, cause } => Self::RecordUnreadable { rank, cause },
                    Failure::Protocols { protocols } => {
                        Self::VersionMismatch { versions: protocols.map(|spoken| spoken.version) }
                    }
                    Failure::Left { rank, .. } => {
                        Self::MembersLost { missing: vec![rank], noticed: Vec::new() }
                    }
                    failure => {
                        let rank = failure.culprits().first().copied().unwrap_or_default();
                        Self::PeerPrepareFailed { rank, cause: failure.to_string() }
                    }
                }
            }
        }

        impl $refusal {
            /// Returns true if members were missing or lost.
            #[doc(hidden)]
            pub fn is_of_the_missing(&self) -> bool {
                matches!(self, Self::$timeout { .. } | Self::MembersLost { .. })
            }
        }
    };
}
pub(crate) use sharing_refusal;
