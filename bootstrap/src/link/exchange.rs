//! One exchange of descriptors between the processes of a host.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

use super::{
    LinkError, Listener, Tag,
    connection::{Link, parse_endpoint},
    folder::is_abandoned,
    listener::Unidentified,
};
use crate::store::{Deadline, StoreError};

/// The interval at which a process that waits checks whether the others still listen.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(50);

/// Another process of an exchange.
#[derive(Debug)]
pub struct Peer {
    /// The connection to that process.
    pub link: Link,
    /// The descriptors that it sent, in the order of the argument `own` of [`exchange()`].
    pub descriptors: Vec<OwnedFd>,
}

/// Sends the descriptors `own` to each of `others`, and receives as many descriptors from each. All of these processes
/// must call this function, with the same tags in the same order. The place of a process is any number that no other
/// process has, for example its rank. `me` is the place of this process, and `others` are those of the other processes.
/// `endpoint` returns the [endpoint](Listener::endpoint) of the process at a place, and may block until that process
/// has published it. Use a listener for one exchange only.
///
/// Blocks until the descriptors of all others have arrived, at most until `deadline`. The deadline does not apply to
/// the calls of `endpoint`. Returns the other processes in no particular order. If `own` is empty, connects to no
/// process and returns none.
///
/// # Errors
/// - [`LinkError::Absent`], [`LinkError::Gone`] and [`LinkError::Unexpected`] contain the places of the processes that
///   caused them.
/// - [`LinkError::Store`] is the error of `endpoint`, and [`LinkError::System`] that of a system call.
///
/// After an error, all descriptors received so far are closed.
pub fn exchange(
    listener: &Listener,
    me: u64,
    others: &[u64],
    endpoint: impl FnMut(u64) -> Result<Vec<u8>, StoreError>,
    own: &[(Tag, BorrowedFd<'_>)],
    deadline: Deadline,
) -> Result<Vec<Peer>, LinkError> {
    meet(listener, me, others, endpoint, own, deadline, |_| Ok(()))
}

/// Like [`exchange()`], for processes whose endpoints are known: `others` has the place and the endpoint of each. Also
/// notices, within about 50 ms, that a process for which it waits has ended: it then returns [`LinkError::Gone`].
///
/// # Errors
/// Those of [`exchange()`], without [`LinkError::Store`].
pub fn exchange_between(
    listener: &Listener,
    me: u64,
    others: &[(u64, &[u8])],
    own: &[(Tag, BorrowedFd<'_>)],
    deadline: Deadline,
) -> Result<Vec<Peer>, LinkError> {
    let places: Vec<u64> = others.iter().map(|(place, _)| *place).collect();
    let endpoint_of = |place: u64| {
        others.iter().find(|(other, _)| *other == place).map_or(&[][..], |(_, endpoint)| *endpoint)
    };
    let check = |expected: &[u64]| {
        expected.iter().try_for_each(|place| match parse_endpoint(endpoint_of(*place)) {
            Ok((_, path)) if is_abandoned(path) => Err(LinkError::nobody(*place, path)),
            _ => Ok(()),
        })
    };
    meet(listener, me, &places, |place| Ok(endpoint_of(place).to_vec()), own, deadline, check)
}

/// Runs an exchange. Calls `check` from time to time with the places of the processes that have not connected yet.
fn meet(
    listener: &Listener,
    me: u64,
    others: &[u64],
    mut endpoint: impl FnMut(u64) -> Result<Vec<u8>, StoreError>,
    own: &[(Tag, BorrowedFd<'_>)],
    deadline: Deadline,
    check: impl Fn(&[u64]) -> Result<(), LinkError>,
) -> Result<Vec<Peer>, LinkError> {
    let send = |link: &Link| own.iter().try_for_each(|(tag, own)| link.send(*tag, *own, deadline));
    let receive = |link: &Link, tags: &[(Tag, BorrowedFd<'_>)]| {
        tags.iter().map(|(tag, _)| link.receive(*tag, deadline)).collect::<Result<Vec<_>, _>>()
    };
    let Some(((first, _), further)) = own.split_first() else { return Ok(Vec::new()) };
    let mut met = Vec::new();
    for place in others.iter().copied().filter(|place| *place > me) {
        let link = Link::connect(me, listener.token, place, &endpoint(place)?, deadline)?;
        send(&link)?;
        let descriptors = receive(&link, own)?;
        met.push(Peer { link, descriptors });
    }
    let mut expected: Vec<u64> = others.iter().copied().filter(|place| *place < me).collect();
    let mut unidentified = Unidentified::default();
    while !expected.is_empty() {
        let Some((socket, message)) = unidentified.next(listener, deadline.at_most(LIVENESS_INTERVAL))?
        else {
            if deadline.expired() {
                return Err(LinkError::Absent { places: expected, waited: deadline.waited() });
            }
            check(&expected)?;
            continue;
        };
        let place = message.place;
        let Some(at) = expected.iter().position(|expected| *expected == place) else { continue };
        if message.tag != *first {
            let problem = format!("it sent {}, expected {first}", message.tag);
            return Err(LinkError::Unexpected { place, problem });
        }
        let link = Link::accepted(socket, me, listener.token, place, &endpoint(place)?)?;
        let mut descriptors = vec![message.descriptor];
        descriptors.extend(receive(&link, further)?);
        send(&link)?;
        expected.swap_remove(at);
        met.push(Peer { link, descriptors });
    }
    Ok(met)
}
