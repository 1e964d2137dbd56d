//! How ranks notice the end of others on their host.

/// The mechanism by which processes of one host notice each other's end. Processes of different hosts always
/// use the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Witnesses {
    /// Locks in shared memory, sockets and process descriptors. A death is noticed within milliseconds.
    #[default]
    Kernel,
    /// Heartbeats in the store. A death is noticed within twice the heartbeat. For processes that share a
    /// kernel but no folder for sockets, as in containers.
    Store,
}
