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
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
