//! One meeting of the processes of a host.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::{Door, LocalError, Tag, door::Strangers, link::Link};
use crate::store::{Deadline, StoreError};

/// A process that was met.
#[derive(Debug)]
pub struct Met {
    /// The connection to it.
    pub link: Link,
    /// What it handed over, in the order of its tags.
    pub descriptors: Vec<OwnedFd>,
}

/// Hands `own` to each of `others`, and takes as much from them, of the same kinds in the same order. Collective over
/// these processes: each gives its own place as `me` and those that it is to meet as `others`. `card` gives what the
/// [door](Door::card) of a place said; it may wait for it.
///
/// Those that were met come in no particular order.
///
/// # Errors
/// [`LocalError`]: who did not come, is gone, or sent something else. What was received until then is closed.
pub fn exchange(
    door: &Door,
    me: u64,
    others: &[u64],
    mut card: impl FnMut(u64) -> Result<Vec<u8>, StoreError>,
    own: &[(Tag, BorrowedFd<'_>)],
    deadline: Deadline,
) -> Result<Vec<Met>, LocalError> {
    let send = |link: &Link| own.iter().try_for_each(|(tag, own)| link.send(*tag, *own, deadline));
    let receive = |link: &Link, tags: &[(Tag, BorrowedFd<'_>)]| {
        tags.iter().map(|(tag, _)| link.receive(*tag, deadline)).collect::<Result<Vec<_>, _>>()
    };
    let Some(((first, _), further)) = own.split_first() else { return Ok(Vec::new()) };
    let mut met = Vec::new();
    for place in others.iter().copied().filter(|place| *place > me) {
        let link = Link::connect(me, door.word, place, &card(place)?, deadline)?;
        send(&link)?;
        let descriptors = receive(&link, own)?;
        met.push(Met { link, descriptors });
    }
    let mut expected: Vec<u64> = others.iter().copied().filter(|place| *place < me).collect();
    let mut strangers = Strangers::default();
    while !expected.is_empty() {
        let Some((socket, heard)) = strangers.next(door, deadline)? else {
            return Err(LocalError::Absent { places: expected, waited: deadline.waited() });
        };
        let place = heard.place;
        let Some(at) = expected.iter().position(|expected| *expected == place) else { continue };
        if heard.tag != *first {
            let problem = format!("it sent {}, expected {first}", heard.tag);
            return Err(LocalError::Unexpected { place, problem });
        }
        let link = Link::answered(socket, me, door.word, place, &card(place)?)?;
        let mut descriptors = vec![heard.descriptor];
        descriptors.extend(receive(&link, further)?);
        send(&link)?;
        expected.swap_remove(at);
        met.push(Met { link, descriptors });
    }
    Ok(met)
}
