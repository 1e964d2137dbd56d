//! Values that other modules attach to memory, for example this rank's mappings of its peers' memory. They are attached
//! to the segments of a pool, or to a [`PeerMemory`](crate::rendezvous::PeerMemory).

use std::{
    any::Any,
    sync::{Arc, Mutex, Weak},
};

use crate::lock::lock;

/// Identifies the owner of attached values, for example a group. Clones of one `Arc` are the same owner.
pub(crate) type Owner = Arc<()>;

/// The attached values: at most one for each pair of an owner and the ordinal (number in the pool) of a segment. For a
/// [`PeerMemory`](crate::rendezvous::PeerMemory), which has no segments, the ordinal is 0. A value is removed as soon
/// as one of these happens: the memory is dropped, the segment is [retired](crate::SymmetricPool::retire), a
/// [`put`](Self::put) for the same owner and segment replaces the value, or any `put` finds that the owner is dropped.
#[derive(Debug, Default)]
pub(crate) struct Attachments(Mutex<Vec<Attachment>>);

#[derive(Debug)]
struct Attachment {
    owner: Weak<()>,
    ordinal: u32,
    value: Arc<dyn Any + Send + Sync>,
}

impl Attachment {
    fn is(&self, owner: &Owner, ordinal: u32) -> bool {
        self.ordinal == ordinal && std::ptr::eq(self.owner.as_ptr(), Arc::as_ptr(owner))
    }
}

impl Attachments {
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Returns the value of `owner` for a segment. `None` if there is no value, or if it has another type.
    pub(crate) fn get<T: Any + Send + Sync>(&self, owner: &Owner, ordinal: u32) -> Option<Arc<T>> {
        let all = lock(&self.0);
        let found = all.iter().find(|attachment| attachment.is(owner, ordinal))?;
        found.value.clone().downcast().ok()
    }

    /// Sets the value of `owner` for a segment. Also drops the values whose owners have been dropped.
    pub(crate) fn put(&self, owner: &Owner, ordinal: u32, value: Arc<dyn Any + Send + Sync>) {
        let mut all = lock(&self.0);
        let stale = |it: &mut Attachment| it.owner.strong_count() == 0 || it.is(owner, ordinal);
        let old: Vec<Attachment> = all.extract_if(.., stale).collect();
        all.push(Attachment { owner: Arc::downgrade(owner), ordinal, value });
        // Unlock before the values are dropped, because their drop may call the driver.
        drop(all);
        drop(old);
    }

    /// Drops the values of all owners for these segments.
    pub(crate) fn forget(&self, ordinals: &[u32]) {
        let mut all = lock(&self.0);
        let old: Vec<Attachment> = all.extract_if(.., |it| ordinals.contains(&it.ordinal)).collect();
        drop(all);
        drop(old);
    }
}
