//! One exchange of descriptors between the processes of a host.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::{Door, LocalError, Tag, door::Strangers, link::Link};
use crate::store::{Deadline, StoreError};

/// A process of the exchange.
#[derive(Debug)]
pub struct Met {
    /// The connection to it.
    pub link: Link,
    /// The descriptors that it sent, in the order of its tags.
    pub descriptors: Vec<OwnedFd>,
}

/// Sends `own` to each of `others`, and receives as many descriptors from each, with the same tags in the same order.
/// Collective over these processes: each passes its own place as `me`, and the places of the other processes as
/// `others`. `card` returns the [endpoint](Door::card) of a place, and may wait for it.
///
/// The processes are returned in no particular order.
///
/// # Errors
/// [`LocalError`] names the processes that did not come, are gone, or sent something unexpected. Descriptors received
/// until then are closed.
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
