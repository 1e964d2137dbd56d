//! Keeps the code of rare errors out of the common path.

/// The result type of the common path. The error is one pointer, so that results without an error stay in registers.
pub(crate) type BoxedResult<T, E> = Result<T, Box<E>>;

/// Makes an error out of line, so that the common path stays short.
///
/// Pass a `move` closure: the common path would spill a borrowed capture to the stack.
#[cold]
#[inline(never)]
pub(crate) fn cold_err<E>(make: impl FnOnce() -> E) -> Box<E> {
    Box::new(make())
}
