//! The error of a group's calls: why a call failed, and which.

use std::{error::Error, fmt, sync::Arc};

use super::GroupErrorKind;

/// The result of the calls of this module.
pub type Result<T, E = GroupError> = std::result::Result<T, E>;

/// The error of a call of a process group, of a batch, or of work.
///
/// ```
/// # use process_group::group::{GroupError, GroupErrorKind};
/// fn lost_rank(error: &GroupError) -> Option<usize> {
///     match error.kind() {
///         GroupErrorKind::Lost { rank, .. } => Some(*rank),
///         _ => None,
///     }
/// }
/// ```
pub struct GroupError(Box<Parts>);

struct Parts {
    context: CallContext,
    kind: GroupErrorKind,
}

/// The call that failed, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct CallContext {
    group: Option<Arc<str>>,
    operation: Option<&'static str>,
    sequence: Option<u64>,
}

impl CallContext {
    /// A group, but no call, for an error that concerns no particular call, for example the reason why the group has
    /// ended.
    pub(super) fn of_group(group: &Arc<str>) -> Self {
        Self { group: Some(group.clone()), ..Self::default() }
    }

    /// A call of a group. `operation` is the name of the public method.
    pub(super) fn of_call(group: &Arc<str>, operation: &'static str) -> Self {
        Self { operation: Some(operation), ..Self::of_group(group) }
    }

    /// Enqueued work of a group. `sequence` is its number in the group.
    pub(super) fn of_work(group: &Arc<str>, operation: &'static str, sequence: u64) -> Self {
        Self { sequence: Some(sequence), ..Self::of_call(group, operation) }
    }

    /// Makes the error of this call. An error of an inner call keeps its own group and operation, for example those of
    /// the work for which the call has waited.
    #[cold]
    pub(super) fn error(self, error: impl Into<GroupError>) -> GroupError {
        let mut error = error.into();
        let context = &mut error.0.context;
        if context.operation.is_none() {
            (context.operation, context.sequence) = (self.operation, self.sequence);
        }
        context.group = context.group.take().or(self.group);
        error
    }
}

impl GroupError {
    /// Adds the name of the group to an error that has none. For crates above this one, whose calls act on a group too.
    #[must_use]
    pub fn of_group(self, group: &str) -> Self {
        CallContext::of_group(&group.into()).error(self)
    }

    /// Returns the name of the group. `None` for an error outside of a group, for example of
    /// [`Environment::read`](super::Environment::read).
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.0.context.group.as_deref()
    }

    /// Returns the operation that failed: the name of the method that was called, or for [`Work`](super::Work) the
    /// operation that was enqueued. `None` if the error is about the group alone, as in
    /// [`ProcessGroup::check`](super::ProcessGroup::check).
    #[must_use]
    pub fn operation(&self) -> Option<&'static str> {
        self.0.context.operation
    }

    /// Returns the number of the work in the group; see [`Work::sequence`](super::Work::sequence). `None` if the error
    /// is not about enqueued work.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        self.0.context.sequence
    }

    /// Returns why the call failed.
    #[must_use]
    pub fn kind(&self) -> &GroupErrorKind {
        &self.0.kind
    }

    /// Returns why the call failed, without the call.
    #[must_use]
    pub fn into_kind(self) -> GroupErrorKind {
        self.0.kind
    }
}

impl<K: Into<GroupErrorKind>> From<K> for GroupError {
    #[cold]
    fn from(kind: K) -> Self {
        Self(Box::new(Parts { context: CallContext::default(), kind: kind.into() }))
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallContext { group, operation, sequence } = &self.0.context;
        let mut kind = self.0.kind.to_string();
        if let Some(group) = group {
            write!(f, "{group}: ")?;
            // The group's own communicator has the group's name, which is not repeated.
            if let GroupErrorKind::Comm(_) = self.0.kind {
                kind = kind.replace(&format!("communicator {group} (rank "), "its communicator (rank ");
            }
        }
        // Texts of the layers below begin with the operation if that layer knows it.
        let is_named =
            |operation: &&str| kind.strip_prefix(*operation).is_some_and(|rest| rest.starts_with([':', ' ']));
        match (operation, sequence) {
            (Some(operation), Some(sequence)) => write!(f, "{operation} (number {sequence}): ")?,
            (Some(operation), None) if !is_named(operation) => write!(f, "{operation}: ")?,
            _ => {}
        }
        f.write_str(&kind)
    }
}

impl fmt::Debug for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { context: CallContext { group, operation, sequence }, kind } = &*self.0;
        f.debug_struct("GroupError")
            .field("group", group)
            .field("operation", operation)
            .field("sequence", sequence)
            .field("kind", kind)
            .finish()
    }
}

impl Error for GroupError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.kind.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::{ArgumentError, CommError};

    fn left() -> GroupErrorKind {
        GroupErrorKind::Left { rank: 1, how: "dropped".into(), steps: 3 }
    }

    #[test]
    fn the_group_the_operation_and_its_number_come_first() {
        let world: Arc<str> = "world".into();
        let kind = left().to_string();
        let (bare, of_group) = (GroupError::from(left()), CallContext::of_group(&world).error(left()));
        assert_eq!((bare.to_string(), bare.group(), bare.operation()), (kind.clone(), None, None));
        assert_eq!(of_group.to_string(), format!("world: {kind}"));
        let of_call = CallContext::of_call(&world, "barrier").error(left());
        assert_eq!(of_call.to_string(), format!("world: barrier: {kind}"));
        let of_work = CallContext::of_work(&world, "all_reduce", 7).error(left());
        assert_eq!(of_work.to_string(), format!("world: all_reduce (number 7): {kind}"));
        let of_work = (of_work.group(), of_work.operation(), of_work.sequence());
        assert_eq!(of_work, (Some("world"), Some("all_reduce"), Some(7)));
    }

    #[test]
    fn an_operation_that_the_layer_below_has_named_appears_once() {
        let text =
            |kind: GroupErrorKind| CallContext::of_call(&"world".into(), "send").error(kind).to_string();
        let argument = ArgumentError::ToOneself { call: "send", rank: 1 };
        let expected = format!("world: {argument}");
        assert!(expected.starts_with("world: send: "), "{expected}");
        assert_eq!(text(GroupErrorKind::of_argument(argument)), expected);
        // `send_stream` begins with `send`, but is another operation, so both names appear.
        let inside = CommError::InsideGroup { call: "send_stream" };
        assert_eq!(
            text(inside.into()),
            "world: send: send_stream was called inside an open group of this thread; finish \
                                         the group first"
        );
    }

    #[test]
    fn an_error_of_the_groups_communicator_names_the_group_once() {
        let text = |call: &'static str, communicator: &str| {
            let (communicator, how) = (communicator.to_owned(), "aborted".to_owned());
            let error = CommError::Closed { call, communicator, how };
            CallContext::of_call(&"world".into(), "send").error(GroupErrorKind::from(error)).to_string()
        };
        assert_eq!(
            text("ncclSend", "communicator world (rank 0 of 2)"),
            "world: send: ncclSend: its communicator (rank 0 of 2) is gone, aborted"
        );
        // The communicator of a pair has a name of its own.
        assert_eq!(
            text("ncclSend", "communicator world pair 0-1 (rank 0 of 2)"),
            "world: send: ncclSend: communicator world pair 0-1 (rank 0 of 2) is gone, aborted"
        );
        assert_eq!(
            text("", "the group (rank 0 of 2)"),
            "world: send: the group (rank 0 of 2) is gone, aborted"
        );
    }

    #[test]
    fn an_error_of_an_inner_call_keeps_its_own_context() {
        let (world, half): (Arc<str>, Arc<str>) = ("world".into(), "half[0]".into());
        let outer = CallContext::of_call(&world, "split");
        let work = outer.clone().error(CallContext::of_work(&world, "all_reduce", 7).error(left()));
        assert_eq!((work.operation(), work.sequence()), (Some("all_reduce"), Some(7)));
        let subgroup = outer.error(CallContext::of_group(&half).error(left()));
        assert_eq!((subgroup.group(), subgroup.operation()), (Some("half[0]"), Some("split")));
    }

    #[test]
    fn the_source_is_that_of_the_kind() {
        let source = crate::group::BufferError::Unknown { address: 64 };
        let error = CallContext::of_call(&"world".into(), "send")
            .error(GroupErrorKind::Buffer { buffer: "send", source });
        let expected = format!("world: send: the send buffer cannot be used: {}", error.source().unwrap());
        assert_eq!(crate::error_text(&error), expected);
        assert!(matches!(error.into_kind(), GroupErrorKind::Buffer { .. }));
    }
}
