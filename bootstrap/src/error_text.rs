//! Formats an error with its causes.

use std::error::Error;

/// Returns the error's text, followed by the texts of its causes ([`Error::source`]), separated by `": "`. Leaves out a
/// cause whose text is a part of the text before it.
///
/// The text of an error often does not contain the causes, so use this function to report an error:
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
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Link(&'static str, Option<Box<Link>>);

    impl fmt::Display for Link {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Link {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_ref().map(|cause| &**cause as _)
        }
    }

    #[test]
    fn a_cause_is_printed_once() {
        let link = |text, cause| Link(text, Some(Box::new(cause)));
        let gone = link("it is gone", Link("reset", None));
        let error = link("no commit", link("the store: it is gone", gone));
        assert_eq!(error_text(&error), "no commit: the store: it is gone: reset");
    }
}
