//! The protocol of the messages that the ranks of a job write to their store.

use bootstrap::wire::Protocol;

/// Ranks with another version of the protocol are refused when they join.
pub(crate) const PROTOCOL: Protocol = Protocol { magic: *b"PG", version: 1 };

/// The kind of each message.
pub(crate) mod kind {
    pub(crate) const MEMBER: u8 = 0;
    #[cfg(feature = "registration")]
    pub(crate) const BALLOT: u8 = 1;
    pub(crate) const HEARTBEAT: u8 = 2;
    pub(crate) const TROUBLE: u8 = 3;
    pub(crate) const TESTIMONY: u8 = 4;
    pub(crate) const ANSWERS: u8 = 5;
    pub(crate) const SPLIT: u8 = 6;
    pub(crate) const CALLS: u8 = 7;
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
