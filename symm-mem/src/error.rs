//! [`Error`]: the error of the operations on which ranks agree. Its text names the operation, the reason, and the
//! group, the pool, or the plan of an [exchange](crate::exchange).

use std::{error, fmt, sync::Arc};

use process_group::group::{GroupError, GroupId};

use crate::{
    agreement::{PoolId, Refusal},
    error_kind::ErrorKind,
    exchange::protocol::ExchangeRefusal,
    rendezvous::protocol::RendezvousRefusal,
};

/// The error of a [commit](crate::SymmetricPool::commit), a [retirement](crate::SymmetricPool::retire), an [agreed
/// allocation](crate::SymmetricPool::allocate_agreed), a [rendezvous](crate::rendezvous), an
/// [exchange](crate::exchange), a [direct path](crate::direct), or of
/// [`SymmetricPool::symmetric_memory`](crate::SymmetricPool::symmetric_memory).
///
/// An operation is *refused* if it changes nothing, because the ranks cannot agree on it. A group is *poisoned* if its
/// members may have different NCCL windows. If the kind is [`Poisoned`](ErrorKind::Poisoned) or a refusal
/// ([`Refused`](ErrorKind::Refused), [`RendezvousRefused`](ErrorKind::RendezvousRefused),
/// [`ExchangeRefused`](ErrorKind::ExchangeRefused)), all ranks that took part get the same kind, with these exceptions:
/// - If the reason is that members are missing or lost, a member whose group has ended gets
///   [`GroupOver`](ErrorKind::GroupOver) instead of this kind.
/// - A member that cannot learn the result gets [`Store`](ErrorKind::Store), [`Unreadable`](ErrorKind::Unreadable) or
///   [`OutOfStep`](ErrorKind::OutOfStep) instead.
/// - If one member cannot do its part, and the others get a refusal that names this member, the member itself can get a
///   more exact kind instead, such as [`GroupOutsideDomain`](ErrorKind::GroupOutsideDomain) or
///   [`NoChannels`](ErrorKind::NoChannels). The docs of these kinds state this.
/// - If another process runs as this rank, or if this rank has another list of members than the others, it is possible
///   that only this rank gets the error, and that the others have agreed without it.
/// - If NCCL supports no windows for the group, a commit uses `ncclCommRegister` instead. If this fails on one member,
///   all members undo their registrations. If a member cannot undo its own, only this member gets `Poisoned`.
///
/// ```
/// # use symm_mem::{Error, ErrorKind};
/// fn is_dead(error: &Error) -> bool {
///     matches!(error.kind(), ErrorKind::Poisoned { .. } | ErrorKind::GroupOver { .. })
/// }
/// ```
pub struct Error(Box<Parts>);

struct Parts {
    call: CallContext,
    kind: ErrorKind,
}

/// An operation that can fail, and the group, pool or plan that it is about.
#[derive(Debug, Clone)]
pub(crate) struct CallContext {
    operation: &'static str,
    group: Option<GroupId>,
    group_name: Option<Arc<str>>,
    pool: Option<PoolId>,
    plan: Option<Arc<str>>,
}

impl CallContext {
    pub(crate) fn of_group(operation: &'static str, group: GroupId, group_name: Option<Arc<str>>) -> Self {
        Self { operation, group: Some(group), group_name, pool: None, plan: None }
    }

    pub(crate) fn of_pool(operation: &'static str, pool: PoolId) -> Self {
        Self { operation, group: None, group_name: None, pool: Some(pool), plan: None }
    }

    pub(crate) fn of_plan(self, plan: &str) -> Self {
        Self { plan: Some(plan.into()), ..self }
    }

    #[cold]
    pub(crate) fn error(&self, kind: impl Into<ErrorKind>) -> Error {
        Error(Box::new(Parts { call: self.clone(), kind: kind.into() }))
    }

    /// Makes the error of an agreement of the group's members. `is_agreed` is true if the other members got `kind` too.
    /// If it is false and the group has ended (`group_check` is an error), the error's kind is [`ErrorKind::GroupOver`]
    /// instead of `kind`.
    pub(crate) fn error_of_group(
        &self,
        group_check: Result<(), GroupError>,
        is_agreed: bool,
        kind: ErrorKind,
    ) -> Error {
        match group_check {
            Err(cause) if !is_agreed => self.error(ErrorKind::GroupOver { cause }),
            _ => self.error(kind),
        }
    }
}

/// Writes the start of the text of an error, such as `commit of group world (1.0)`.
impl fmt::Display for CallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation)?;
        match &self.plan {
            Some(plan) => write!(f, " of plan {plan:?} in group ")?,
            None if self.group.is_some() => f.write_str(" of group ")?,
            None => {}
        }
        match (&self.group_name, self.group, self.pool) {
            (Some(name), Some(group), _) => write!(f, "{name} ({group})"),
            (None, Some(group), _) => group.fmt(f),
            (_, None, Some(pool)) => write!(f, " in {pool}"),
            (_, None, None) => Ok(()),
        }
    }
}

impl Error {
    /// Returns the name of the failed operation, as in the text of the error: `commit`, `retirement`, `rendezvous`,
    /// `agreed allocation`, `exchange`, `share_regions`, `direct path` or `symmetric memory`.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.0.call.operation
    }

    /// Returns the group, or `None` for a retirement or an agreed allocation.
    #[must_use]
    pub fn group(&self) -> Option<GroupId> {
        self.0.call.group
    }

    /// Returns the group's name, if it has one.
    #[must_use]
    pub fn group_name(&self) -> Option<&str> {
        self.0.call.group_name.as_deref()
    }

    /// Returns the pool of a retirement or an agreed allocation, or `None` for other operations.
    #[must_use]
    pub fn pool(&self) -> Option<PoolId> {
        self.0.call.pool
    }

    /// Returns the name of the plan or of the set of regions on which the members of an [exchange](crate::exchange)
    /// tried to agree. `None` for other operations, and if the exchange itself could not be created.
    #[must_use]
    pub fn plan(&self) -> Option<&str> {
        self.0.call.plan.as_deref()
    }

    /// Returns why the operation failed.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Converts the error to its kind: why the operation failed.
    #[must_use]
    pub fn into_kind(self) -> ErrorKind {
        self.0.kind
    }

    /// If the kind contains a refusal or a [`Poison`](crate::Poison), returns the name of that reason, such as
    /// `SegmentCountMismatch` or `SyncTimeout`. Otherwise returns the name of the kind, such as `Store`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.kind.name()
    }

    /// Returns the refusal, if a commit, a retirement or an agreed allocation was refused. Otherwise returns `None`.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self.kind() {
            ErrorKind::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Returns the refusal, if a rendezvous was refused. Otherwise returns `None`. An exchange and a direct path run a
    /// rendezvous to map memory, so the error of an exchange or a direct path can contain such a refusal too.
    #[must_use]
    pub fn rendezvous_refusal(&self) -> Option<&RendezvousRefusal> {
        match self.kind() {
            ErrorKind::RendezvousRefused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Returns the refusal, if an exchange was refused. Otherwise returns `None`.
    #[must_use]
    pub fn exchange_refusal(&self) -> Option<&ExchangeRefusal> {
        match self.kind() {
            ErrorKind::ExchangeRefused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { call, kind } = &*self.0;
        write!(f, "{call}: ")?;
        let (before, cause) = match kind {
            ErrorKind::GroupOver { cause } => ("the group ended: ", cause),
            ErrorKind::Group(cause) => ("", cause),
            _ => return kind.fmt(f),
        };
        // The text of the group's error starts with the group's name, which is already in the text of `call`.
        let (text, name) = (cause.to_string(), self.group_name().unwrap_or_default());
        let rest = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(": "));
        write!(f, "{before}{}", rest.unwrap_or(&text))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("call", &self.0.call).field("kind", &self.0.kind).finish()
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.kind.source()
    }
}

#[cfg(test)]
mod tests {
    use process_group::{error_text, group::GroupErrorKind, store::StoreError};

    use super::*;

    const GROUP: GroupId = GroupId { uid: 1, epoch: 0 };

    #[test]
    fn the_name_of_an_ended_group_appears_once() {
        let reason = "rank 1 has dropped the group, which ends it for all members; collectives and graph launches that it \
                      had made: 3";
        let text = |name: Option<&str>| {
            let left = GroupErrorKind::Left { rank: 1, how: "dropped".into(), steps: 3 };
            let cause = GroupError::from(left).of_group("world");
            CallContext::of_group("commit", GROUP, name.map(Arc::from))
                .error(ErrorKind::GroupOver { cause })
                .to_string()
        };
        assert_eq!(text(Some("world")), format!("commit of group world (1.0): the group ended: {reason}"));
        // If the call has no group name, or a name that differs from that in the cause, the cause's text is kept in
        // full.
        assert_eq!(text(None), format!("commit of group 1.0: the group ended: world: {reason}"));
        assert_eq!(text(Some("w")), format!("commit of group w (1.0): the group ended: world: {reason}"));
    }

    #[test]
    fn the_operation_comes_first_and_the_source_is_that_of_the_kind() {
        let plan = CallContext::of_group("exchange", GROUP, Some("world".into())).of_plan("ring");
        let error = plan.error(ErrorKind::OutOfStep);
        let expected = "exchange of plan \"ring\" in group world (1.0): the ranks' agreement was driven out of step; \
                        this is a bug of symm-mem";
        assert_eq!((error.to_string().as_str(), error.plan()), (expected, Some("ring")));
        let pool = PoolId { domain: 3, generation: 1, instance: 0, pool: 2 };
        let source = StoreError::RankTaken { rank: 1, at: "a".into() };
        let error = CallContext::of_pool("retirement", pool).error(source);
        let start = format!("retirement in {pool}: could not reach the store");
        assert_eq!((error.to_string(), error.group(), error.pool()), (start.clone(), None, Some(pool)));
        let source = error::Error::source(&error).map(ToString::to_string);
        assert_eq!(error_text(&error), format!("{start}: {}", source.unwrap_or_default()));
    }
}
