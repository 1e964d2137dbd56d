//! What hardly ever happens, kept out of the way of what always does.

/// The result on the way that every call takes: an error is a pointer, so that what is none stays in registers.
pub(crate) type Slim<T, E> = Result<T, Box<E>>;

/// Makes an error out of line, so that the way on stays short and straight.
///
/// Give it a closure that moves what it needs: what one borrows has to lie in memory on the way on too.
#[cold]
#[inline(never)]
pub(crate) fn rare<E>(make: impl FnOnce() -> E) -> Box<E> {
    Box::new(make())
}
