//! The identity of a group.

use std::fmt;

/// The identity of a group: equal on all its members, and given to no other group, not even in another store.
/// Displayed as three numbers, also in `Debug`: a random number of the store in hexadecimal, the number of the group in
/// the store, and the epoch. Groups that were [joined from PyTorch](super::Builder::join_torch) are an exception: each
/// has the uid 0, and is displayed as that and the epoch.
///
/// Groups of one store have ascending uids in the order in which they are made. A program that uses its
/// groups in the order of their ids therefore uses them in the same order on every rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The group's number. The upper 32 bits are a random number of the store.
    pub uid: u64,
    /// The generation of the job that made the group; see [`Builder::epoch`](super::Builder::epoch).
    pub epoch: u64,
}
bootstrap::wire_struct!(GroupId { uid, epoch });

impl GroupId {
    /// The position in `uid` of the store's random number.
    pub(super) const STORE_SHIFT: u32 = 32;
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uid >> Self::STORE_SHIFT {
            0 => write!(f, "{}.{}", self.uid, self.epoch),
            store => write!(f, "{store:x}.{}.{}", self.uid & u64::from(u32::MAX), self.epoch),
        }
    }
}

/// Like `Display`, so that reports and errors show one form.
impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_show_the_store_the_number_and_the_epoch() {
        let id = GroupId { uid: 0x73af_e295 << GroupId::STORE_SHIFT | 1, epoch: 2 };
        assert_eq!((id.to_string(), format!("{id:?}")), ("73afe295.1.2".into(), "73afe295.1.2".into()));
    }
}
