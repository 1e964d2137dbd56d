//! The result codes of a library's functions, and the error of a call.

use std::fmt;

use crate::missing::Missing;

/// A type of result codes, such as `CUresult` or `ncclResult_t`. [`status!`](macro@crate::status) implements this
/// trait.
pub trait Status: Copy + PartialEq + fmt::Debug {
    /// The code of a call that succeeded.
    const SUCCESS: Self;

    /// The code as a number.
    fn number(self) -> u32;

    /// The name of the code's constant in C; `None` for a code without a declared constant.
    fn name(self) -> Option<&'static str>;
}

/// A call of a C function failed, or could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError<S> {
    /// The library lacks the function. Nothing was called.
    Missing(Box<Missing>),
    /// The function returned a code other than success.
    Status {
        /// The C symbol of the function.
        function: &'static str,
        /// The code that the function returned.
        code: S,
    },
}

impl<S: Status> CallError<S> {
    /// Returns the code; `None` if the function is missing.
    pub fn code(&self) -> Option<S> {
        match self {
            Self::Status { code, .. } => Some(*code),
            Self::Missing(_) => None,
        }
    }

    /// Converts the code that `function` returned to a `Result`.
    ///
    /// # Errors
    /// [`CallError::Status`] for every code but success.
    #[inline]
    pub fn check(function: &'static str, code: S) -> Result<(), Self> {
        if code == S::SUCCESS { Ok(()) } else { Err(Self::Status { function, code }) }
    }
}

impl<S: Status> fmt::Display for CallError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => missing.fmt(f),
            Self::Status { function, code } => match code.name() {
                Some(name) => write!(f, "`{function}` returned {name} ({})", code.number()),
                None => write!(f, "`{function}` returned {}, a code without a known name", code.number()),
            },
        }
    }
}

impl<S: Status> std::error::Error for CallError<S> {}
