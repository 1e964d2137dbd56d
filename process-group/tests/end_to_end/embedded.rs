//! End-to-end flows on the embedded device. Ranks are threads, and each test runs in its own process.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one promise for all: buffers are as long as said, and each test waits before it frees them"
)]

mod checked;
pub(crate) mod common;

mod abort;
mod adopt;
#[cfg(feature = "pickle")]
mod analyser;
mod away;
mod background;
mod batches;
mod communicator;
mod doubt;
#[cfg(all(feature = "json", feature = "pickle"))]
mod dumps;
mod element;
mod ended;
mod faults;
mod group;
mod grow;
mod hooked;
mod input;
mod leaving;
mod libraries;
mod lost;
mod making;
pub(crate) mod one_sided;
pub(crate) mod operations;
mod outstanding;
mod p2p;
mod places;
pub(crate) mod processes;
#[cfg(feature = "tracing")]
mod profile;
mod record;
#[cfg(feature = "registration")]
mod registration;
mod seeded_groups;
mod settings;
mod shrink;
mod streams;
mod survivors;
mod suspend;
#[cfg(not(sanitized))]
mod threads;
mod torch;
mod typed;
mod watch;
mod window;
