//! Operations with lists of buffers, which consist of several ops, and the checks of these lists.

use super::{
    Buffer,
    raw::{Ops, message, on_buffers},
};
use crate::{
    comm::{ArgumentError, ListBuffer, Op, ReduceOp},
    operation::{Operation, Primitive},
};

/// The rule for the lengths of a message that a rank sends to itself.
const TO_ONESELF: &str = "a message to oneself is received as it is sent";

impl Ops {
    pub(super) fn all_gather_list(&self, send: Buffer, receive: &[Buffer]) -> Result<Vec<Op>, ArgumentError> {
        const CALL: Operation = Operation::AllGatherList;
        let own = self.own(CALL, "receive", receive)?;
        self.one_type(CALL, send, receive)?;
        apart(CALL.name(), parts(&[send], receive, Some((0, own))))?;
        Ok(receive
            .iter()
            .enumerate()
            .map(|(root, receive)| {
                on_buffers(Primitive::Broadcast, send, *receive, receive.elements).with(root).within(CALL)
            })
            .collect())
    }

    pub(super) fn reduce_scatter_list(
        &self,
        send: &[Buffer],
        receive: Buffer,
        op: ReduceOp,
    ) -> Result<Vec<Op>, ArgumentError> {
        const CALL: Operation = Operation::ReduceScatterList;
        let own = self.own(CALL, "send", send)?;
        self.one_type(CALL, receive, send)?;
        apart(CALL.name(), parts(send, &[receive], Some((own, 0))))?;
        Ok(send
            .iter()
            .enumerate()
            .map(|(root, send)| {
                on_buffers(Primitive::Reduce, *send, receive, send.elements)
                    .reduced_by(op)
                    .with(root)
                    .within(CALL)
            })
            .collect())
    }

    pub(super) fn all_to_all_list(
        &self,
        send: &[Buffer],
        receive: &[Buffer],
    ) -> Result<Vec<Op>, ArgumentError> {
        const CALL: Operation = Operation::AllToAllList;
        let own = self.own(CALL, "send", send)?;
        self.own(CALL, "receive", receive)?;
        self.one_type(CALL, send[own], send)?;
        self.one_type(CALL, send[own], receive)?;
        self.own_share(CALL, send[own], receive[own])?;
        apart(CALL.name(), parts(send, receive, Some((own, own))))?;
        let in_place = |peer: usize| peer == own && send[own] == receive[own];
        let pair =
            |peer: usize| [message(CALL, send[peer], true, peer), message(CALL, receive[peer], false, peer)];
        Ok((0..send.len()).filter(|peer| !in_place(*peer)).flat_map(pair).collect())
    }

    pub(super) fn gather_list(
        &self,
        send: Buffer,
        receive: &[Buffer],
        root: usize,
    ) -> Result<Vec<Op>, ArgumentError> {
        const CALL: Operation = Operation::GatherList;
        let own = self.rank;
        if own != root {
            return Ok(vec![message(CALL, send, true, root)]);
        }
        self.own(CALL, "receive", receive)?;
        self.one_type(CALL, send, receive)?;
        self.own_share(CALL, send, receive[own])?;
        apart(CALL.name(), parts(&[send], receive, Some((0, own))))?;
        let to_root = (send != receive[own]).then_some(message(CALL, send, true, own));
        let from = |(peer, buffer): (usize, &Buffer)| message(CALL, *buffer, false, peer);
        let wanted = |(peer, _): &(usize, &Buffer)| *peer != own || to_root.is_some();
        Ok(to_root.into_iter().chain(receive.iter().enumerate().filter(wanted).map(from)).collect())
    }

    pub(super) fn scatter_list(
        &self,
        send: &[Buffer],
        receive: Buffer,
        root: usize,
    ) -> Result<Vec<Op>, ArgumentError> {
        const CALL: Operation = Operation::ScatterList;
        let own = self.rank;
        if own != root {
            return Ok(vec![message(CALL, receive, false, root)]);
        }
        self.own(CALL, "send", send)?;
        self.one_type(CALL, receive, send)?;
        self.own_share(CALL, send[own], receive)?;
        apart(CALL.name(), parts(send, &[receive], Some((own, 0))))?;
        let from_root = (receive != send[own]).then_some(message(CALL, receive, false, own));
        let to = |(peer, buffer): (usize, &Buffer)| message(CALL, *buffer, true, peer);
        let wanted = |(peer, _): &(usize, &Buffer)| *peer != own || from_root.is_some();
        Ok(send.iter().enumerate().filter(wanted).map(to).chain(from_root).collect())
    }

    /// Checks that `buffers` has one buffer for every member. Returns the index of this rank's buffer.
    fn own(
        &self,
        operation: Operation,
        list: &'static str,
        buffers: &[Buffer],
    ) -> Result<usize, ArgumentError> {
        let (found, size) = (buffers.len(), self.size);
        if found == size {
            return Ok(self.rank);
        }
        Err(ArgumentError::ListLength { call: operation.name(), list, found, size })
    }

    /// Checks that all `buffers` have the type of `like`.
    fn one_type(&self, operation: Operation, like: Buffer, buffers: &[Buffer]) -> Result<(), ArgumentError> {
        const RULE: &str = "all buffers must hold elements of one type";
        match buffers.iter().find(|buffer| buffer.dtype != like.dtype) {
            None => Ok(()),
            Some(other) => Err(self.lengths(operation, like, *other, RULE)),
        }
    }

    /// Checks that this rank sends itself as many elements as it receives from itself.
    fn own_share(&self, operation: Operation, send: Buffer, receive: Buffer) -> Result<(), ArgumentError> {
        if send.elements == receive.elements {
            return Ok(());
        }
        Err(self.lengths(operation, send, receive, TO_ONESELF))
    }

    /// Fails if `ops` contains a message from this rank to itself without a counterpart, or with one of another
    /// length or type.
    pub(super) fn to_oneself(&self, ops: &[Op]) -> Result<(), ArgumentError> {
        let own = |primitive| ops.iter().filter(move |op| op.primitive == primitive && op.rank == self.rank);
        let (mut sent, mut received) = (own(Primitive::Send), own(Primitive::Recv));
        loop {
            match (sent.next(), received.next()) {
                (None, None) => return Ok(()),
                (Some(from), Some(to)) if (from.count, from.dtype) == (to.count, to.dtype) => {}
                (Some(from), Some(to)) => {
                    let buffer = |op: &Op| Buffer::new(op.send, op.count, op.dtype);
                    return Err(self.lengths(from.call, buffer(from), buffer(to), TO_ONESELF));
                }
                (Some(half), None) | (None, Some(half)) => {
                    return Err(ArgumentError::ToOneself { call: half.call.name(), rank: self.rank });
                }
            }
        }
    }

    fn lengths(
        &self,
        operation: Operation,
        send: Buffer,
        receive: Buffer,
        rule: &'static str,
    ) -> ArgumentError {
        ArgumentError::Lengths {
            call: operation.name(),
            size: self.size,
            send: send.elements,
            send_type: send.dtype,
            receive: receive.elements,
            receive_type: receive.dtype,
            rule,
        }
    }
}

/// A buffer of an operation with lists of buffers: the list, the index in the list, and the address range.
#[derive(Debug, Clone, Copy)]
struct Part {
    list: &'static str,
    place: usize,
    start: u64,
    bytes: usize,
    written: bool,
}

impl Part {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes as u64)
    }

    fn described(&self) -> Box<ListBuffer> {
        let Self { list, place, start, bytes, .. } = *self;
        Box::new(ListBuffer { list, index: place, address: start, bytes })
    }
}

/// Returns the non-empty buffers of an operation that reads `send` and writes `receive`. `in_place` is this
/// rank's own share, as its indices in `send` and `receive`. If both are the same buffer, only the receive
/// buffer is returned.
fn parts(send: &[Buffer], receive: &[Buffer], in_place: Option<(usize, usize)>) -> Vec<Part> {
    let part = |list, written| {
        move |(place, buffer): (usize, &Buffer)| Part {
            list,
            place,
            start: buffer.ptr.0,
            bytes: buffer.bytes(),
            written,
        }
    };
    let own = in_place.filter(|(from, to)| send[*from] == receive[*to]).map(|(from, _)| from);
    let reads = send.iter().enumerate().filter(|(place, _)| Some(*place) != own).map(part("send", false));
    reads.chain(receive.iter().enumerate().map(part("receive", true))).filter(|part| part.bytes > 0).collect()
}

/// Fails if two buffers overlap and at least one of the two is written.
fn apart(call: &'static str, mut parts: Vec<Part>) -> Result<(), ArgumentError> {
    parts.sort_unstable_by_key(|part| part.start);
    // The buffer with the highest end so far, in order of start addresses: of all buffers, and of the written
    // ones.
    let (mut any, mut written) = (None::<Part>, None::<Part>);
    for part in parts {
        let former = if part.written { any } else { written };
        if let Some(former) = former.filter(|former| former.end() > part.start) {
            return Err(ArgumentError::ListOverlap {
                call,
                first: former.described(),
                second: part.described(),
            });
        }
        let later = |former: Option<Part>| former.filter(|former| former.end() >= part.end()).or(Some(part));
        any = later(any);
        if part.written {
            written = later(written);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::DataType;
    use cuda_driver::DevicePtr;
    use proptest::prelude::*;

    #[test]
    fn a_share_of_a_list_that_a_rank_sends_to_itself_is_as_long_as_the_received_one() {
        let buffer = |at, elements| Buffer::new(DevicePtr(at), elements, DataType::U8);
        let (ops, own, other) = (Ops { rank: 0, size: 2 }, buffer(16, 2), buffer(32, 2));
        for (elements, fits) in [(1, false), (2, true), (3, false)] {
            let received = [buffer(64, elements), buffer(96, 2)];
            let results = [
                ops.all_to_all_list(&[own, other], &received),
                ops.gather_list(own, &received, 0),
                ops.scatter_list(&[own, other], received[0], 0),
            ];
            for result in results {
                assert_eq!(result.is_ok(), fits, "{result:?}");
                assert!(matches!(result, Ok(_) | Err(ArgumentError::Lengths { .. })), "{result:?}");
            }
        }
    }

    fn buffers() -> impl Strategy<Value = Vec<Buffer>> {
        let buffer = (1u64..40, 0usize..6)
            .prop_map(|(at, elements)| Buffer::new(DevicePtr(at), elements, DataType::U8));
        prop::collection::vec(buffer, 0..5)
    }

    proptest! {
        #[test]
        fn overlapping_buffers_are_refused_if_one_is_written(
            send in buffers(), receive in buffers(), own in any::<prop::sample::Index>(),
        ) {
            let in_place = (!send.is_empty() && !receive.is_empty())
                .then(|| (own.index(send.len()), own.index(receive.len())));
            let same = in_place.is_some_and(|(from, to)| send[from] == receive[to]);
            let mut touched = std::collections::HashMap::new();
            let mut good = true;
            for (place, buffer) in receive.iter().enumerate() {
                for byte in buffer.ptr.0..buffer.ptr.0 + buffer.elements as u64 {
                    good &= touched.insert(byte, place).is_none();
                }
            }
            for (place, buffer) in send.iter().enumerate() {
                let own = same && in_place.is_some_and(|(from, _)| from == place);
                for byte in buffer.ptr.0..buffer.ptr.0 + buffer.elements as u64 {
                    good &= own || !touched.contains_key(&byte);
                }
            }
            prop_assert_eq!(apart("test", parts(&send, &receive, in_place)).is_ok(), good);
        }
    }
}
