//! The wire protocol of the messages and agreements between the ranks of a job.

use bootstrap::wire::Protocol;

/// Ranks with another version of the protocol are refused when they join.
pub(crate) const PROTOCOL: Protocol = Protocol { magic: *b"PG", version: 1 };

/// The kind of each message. Agreements use the kinds 0 to 3.
pub(crate) mod kind {
    pub(crate) const HEARTBEAT: u8 = 4;
    pub(crate) const TROUBLE: u8 = 5;
    pub(crate) const CALL_HISTORY: u8 = 6;
    pub(crate) const ANSWERS: u8 = 7;
}

/// Implements `Message` for a type of this crate.
macro_rules! message {
    ($type:ty, $kind:ident) => {
        impl bootstrap::wire::Message for $type {
            const PROTOCOL: bootstrap::wire::Protocol = $crate::messages::PROTOCOL;
            const KIND: u8 = $crate::messages::kind::$kind;
        }
    };
}
pub(crate) use message;
