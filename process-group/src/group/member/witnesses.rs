//! The mechanism by which ranks notice the end of other processes on their host.

/// The mechanism by which processes on the same host notice each other's end. Processes on different hosts
/// always use heartbeats in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Witnesses {
    /// Locks in shared memory, sockets and process descriptors. The end of a process is noticed within
    /// milliseconds.
    #[default]
    Kernel,
    /// Heartbeats in the store. The end of a process is noticed within twice the heartbeat period. Choose
    /// this for processes that share a kernel but no folder for sockets, for example in containers.
    Store,
}
