//! Messages without a communicator, on the embedded device and on the machine's own GPUs.

mod ends;
mod faults;
mod graphs;
mod hardware;
mod hook;
mod job;
mod messages;
mod policy;
mod processes;
mod rig;
mod zero_copy;
mod zero_copy_ends;
mod zero_copy_failures;
