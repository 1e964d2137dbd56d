//! Formats an error with its causes.

use std::error::Error;

/// Returns the error's text, followed by those of its causes ([`Error::source`]), separated by `": "`.
///
/// The texts of this workspace's errors do not repeat their causes, so reports should print all of them:
///
/// ```
/// # use std::error::Error;
/// # fn job() -> Result<(), Box<dyn Error>> { Ok(()) }
/// if let Err(error) = job() {
///     eprintln!("error: {}", bootstrap::error_text(&*error));
/// }
/// ```
#[must_use]
pub fn error_text(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| text + ": " + &cause.to_string())
}
