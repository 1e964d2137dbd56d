//! Sends and receives: all of a group's messages progress together, so no order of them can deadlock.
//!
//! Every ordered pair of ranks has a pipe with words of the sender and of the receiver. Both post their next message,
//! check that the other side has posted the same, and then move bytes. Messages of a pair are transferred one after
//! the other, in launch order.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::comm::Comm;
use super::error::{Failure, Interrupted};
use super::reduce::Element;
use super::shm::{PIPE, Plane};
use crate::memory::View;

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Recv,
}

/// One `ncclSend` or `ncclRecv`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) direction: Direction,
    pub(crate) peer: usize,
    pub(crate) element: Element,
    pub(crate) count: usize,
    pub(crate) buffer: u64,
}

impl Message {
    pub(crate) fn bytes(&self) -> usize {
        self.count * self.element.size()
    }
}

/// Numbers of messages in each direction, and of awaited signals, by peer.
#[derive(Debug)]
pub(crate) struct Counters {
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Signals that waits were enqueued for.
    awaited: Vec<u64>,
}

impl Counters {
    pub(crate) fn new(size: usize) -> Self {
        Self { sent: vec![0; size], received: vec![0; size], awaited: vec![0; size] }
    }

    /// Adds `signals` to the awaited ones and returns the new total, which the wait must reach.
    pub(crate) fn await_signals(&mut self, peer: usize, signals: u64) -> u64 {
        self.awaited[peer] += signals;
        self.awaited[peer]
    }

    fn next(&mut self, direction: Direction, peer: usize) -> u64 {
        let count = match direction {
            Direction::Send => &mut self.sent[peer],
            Direction::Recv => &mut self.received[peer],
        };
        *count += 1;
        *count
    }
}

/// Words of each side of a pair.
const POSTED: usize = 0;
const MOVED: usize = 8;
const CARDS: usize = 16;

/// Moves a group's messages; `views` are their buffers, in the same order.
///
/// A difference between the two sides of a message becomes the communicator's error as soon as it is seen, while
/// other messages of the group may still wait for their peers (strict mode; a faithful world hangs).
pub(crate) fn run(comm: &Comm, messages: &[Message], views: &[View]) -> Result<(), Interrupted> {
    let mut lanes: Vec<Lane<'_>> = Vec::new();
    for (message, view) in messages.iter().zip(views) {
        let same = |lane: &&mut Lane<'_>| lane.direction == message.direction && lane.peer == message.peer;
        match lanes.iter_mut().find(same) {
            Some(lane) => lane.waiting.push_back((*message, view)),
            None => lanes.push(Lane {
                comm,
                direction: message.direction,
                peer: message.peer,
                waiting: VecDeque::from([(*message, view)]),
                current: None,
            }),
        }
    }
    loop {
        let mut moved = false;
        for lane in &mut lanes {
            match lane.advance() {
                Ok(progress) => moved |= progress,
                Err(difference) if comm.strict => {
                    comm.fail(&difference);
                    lane.skip();
                    moved = true;
                }
                Err(difference) => return Err(comm.hang(Plane::Stream, &difference.text)),
            }
        }
        if moved {
            comm.signal().notify();
        }
        lanes.retain(|lane| !lane.is_done());
        if lanes.is_empty() {
            return Ok(());
        }
        let mut gone = None;
        comm.wait(
            Plane::Stream,
            || {
                let lane = &lanes[0];
                let (verb, peer) = match lane.direction {
                    Direction::Send => ("receive what we send", lane.peer),
                    Direction::Recv => ("send what we receive", lane.peer),
                };
                format!("rank {peer} to {verb} on {comm} ({} pairs in the group)", lanes.len())
            },
            || {
                let ready = || lanes.iter().any(Lane::can_advance);
                if ready() {
                    return true;
                }
                // A rank may finish its part and leave after the check above, so check again.
                gone = lanes.iter().map(|lane| lane.peer).find(|&peer| comm.has_departed(peer) && !ready());
                gone.is_some()
            },
        )?;
        if let Some(rank) = gone {
            return Err(Interrupted::Departed(rank));
        }
    }
}

/// The messages of one pair in one direction.
struct Lane<'a> {
    comm: &'a Comm,
    direction: Direction,
    peer: usize,
    waiting: VecDeque<(Message, &'a View)>,
    current: Option<Current<'a>>,
}

struct Current<'a> {
    message: Message,
    view: &'a View,
    number: u64,
    agreed: bool,
    done: usize,
}

impl<'a> Lane<'a> {
    fn is_done(&self) -> bool {
        self.current.is_none() && self.waiting.is_empty()
    }

    /// Returns the sender and the receiver of the pair.
    fn ends(&self) -> (usize, usize) {
        match self.direction {
            Direction::Send => (self.comm.rank, self.peer),
            Direction::Recv => (self.peer, self.comm.rank),
        }
    }

    /// Returns the offsets of this side's words and of the other side's.
    fn sides(&self) -> (usize, usize) {
        let (from, to) = self.ends();
        let layout = self.comm.shared().layout();
        let (sender, receiver) = (layout.sender(from, to), layout.receiver(from, to));
        match self.direction {
            Direction::Send => (sender, receiver),
            Direction::Recv => (receiver, sender),
        }
    }

    fn load(&self, offset: usize) -> u64 {
        self.comm.shared().word(offset).load(Ordering::SeqCst)
    }

    /// Returns the bytes that can be moved now.
    fn room(&self) -> usize {
        let (ours, theirs) = self.sides();
        let (ours, theirs) = (self.load(ours + MOVED), self.load(theirs + MOVED));
        match self.direction {
            Direction::Send => PIPE - ours.wrapping_sub(theirs) as usize,
            Direction::Recv => theirs.wrapping_sub(ours) as usize,
        }
    }

    fn can_advance(&self) -> bool {
        match &self.current {
            None => !self.waiting.is_empty(),
            Some(current) if !current.agreed => self.load(self.sides().1 + POSTED) >= current.number,
            Some(_) => self.room() > 0,
        }
    }

    /// Makes all possible progress. Returns true if there was any, or the difference between the two sides.
    fn advance(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        loop {
            if self.current.is_none() {
                let Some((message, view)) = self.waiting.pop_front() else { return Ok(moved) };
                self.post(message, view);
                moved = true;
            }
            if !self.agree()? {
                return Ok(moved);
            }
            moved |= self.move_bytes();
            match &self.current {
                Some(current) if current.done == current.message.bytes() => self.current = None,
                _ => return Ok(moved),
            }
        }
    }

    /// Drops the current message: both sides have seen the difference.
    fn skip(&mut self) {
        self.current = None;
    }

    /// Posts the next message. There are two slots for descriptors. The one reused here is free: the other side has
    /// finished the previous message, so it has read the one before that.
    fn post(&mut self, message: Message, view: &'a View) {
        let mut counters = self.comm.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let number = counters.next(self.direction, self.peer);
        drop(counters);
        let shared = self.comm.shared();
        let ours = self.sides().0;
        let card = ours + CARDS + (number % 2) as usize * 16;
        shared.word(card).store(message.element as u64, Ordering::Relaxed);
        shared.word(card + 8).store(message.count as u64, Ordering::Relaxed);
        shared.word(ours + POSTED).store(number, Ordering::SeqCst);
        self.current = Some(Current { message, view, number, agreed: false, done: 0 });
    }

    /// Returns true if the other side has posted the same message; a different one is an error.
    fn agree(&mut self) -> Result<bool, Failure> {
        let theirs = self.sides().1;
        let posted = self.load(theirs + POSTED);
        let (from, to) = self.ends();
        let Some(current) = &mut self.current else { return Ok(false) };
        if current.agreed || posted < current.number {
            return Ok(current.agreed);
        }
        let shared = self.comm.shared();
        let card = theirs + CARDS + (current.number % 2) as usize * 16;
        let [element, count] = [card, card + 8].map(|word| shared.word(word).load(Ordering::Relaxed));
        let message = &current.message;
        current.agreed = true;
        if (element, count) == (message.element as u64, message.count as u64) {
            return Ok(true);
        }
        let own = describe(message.element as u64, message.count as u64);
        let other = describe(element, count);
        let (sent, received) = match self.direction {
            Direction::Send => (own, other),
            Direction::Recv => (other, own),
        };
        Err(Failure::usage(format!(
            "message {} from rank {from} to rank {to} of {}: rank {from} sends {sent}, rank {to} receives {received}",
            current.number, self.comm
        )))
    }

    fn move_bytes(&mut self) -> bool {
        let room = self.room();
        let (from, to) = self.ends();
        let ours = self.sides().0;
        let shared = self.comm.shared();
        let pipe = shared.layout().pipe(from, to);
        let word = shared.word(ours + MOVED);
        let Some(current) = &mut self.current else { return false };
        let mut left = room.min(current.message.bytes() - current.done);
        let moved = left > 0;
        while left > 0 {
            let at = word.load(Ordering::SeqCst);
            let place = at as usize % PIPE;
            let len = left.min(PIPE - place);
            match self.direction {
                Direction::Send => {
                    // SAFETY: these bytes of the pipe are free: what was in them is consumed, and only we produce.
                    current.view.read(current.done, unsafe { shared.bytes_mut(pipe + place, len) });
                }
                Direction::Recv => {
                    // SAFETY: these bytes are produced, and stay until we say that they are consumed.
                    current.view.write(current.done, unsafe { shared.bytes(pipe + place, len) });
                }
            }
            word.store(at.wrapping_add(len as u64), Ordering::SeqCst);
            current.done += len;
            left -= len;
        }
        moved
    }
}

fn describe(element: u64, count: u64) -> String {
    let element = Element::ALL.get(element as usize).map_or("?".into(), |e| format!("{e:?}").to_lowercase());
    format!("{count} {element}")
}
