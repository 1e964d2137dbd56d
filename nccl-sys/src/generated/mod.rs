//! The modules that `cargo xtask codegen` generates. This file, which lists them, is written by hand.

#![allow(
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unused_imports,
    clippy::missing_safety_doc,
    clippy::type_complexity
)]

mod constants;
mod dates;
mod enums;
mod functions;
mod layouts;
mod types;

pub use constants::*;
pub(crate) use dates::UNDEFINED;
pub use dates::{CONFIG_FIELDS, CONSTANTS, STRUCTURES};
pub use enums::*;
pub use functions::{FUNCTIONS, Table};
pub use types::*;
