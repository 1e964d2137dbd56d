//! Overlap checks for operations with lists of buffers.

use super::Buffer;
use crate::comm::ArgumentError;

/// A buffer of an operation with lists of buffers: the list, the index in the list, and the address range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
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

    fn name(&self) -> String {
        format!("{} buffer {}", self.list, self.place)
    }
}

/// Returns the non-empty buffers of an operation that reads `send` and writes `receive`. `in_place` is this
/// rank's own share, as its indices in `send` and `receive`. If both are the same buffer, only the receive
/// buffer is returned.
pub(super) fn parts(send: &[Buffer], receive: &[Buffer], in_place: Option<(usize, usize)>) -> Vec<Part> {
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
pub(super) fn apart(call: &'static str, mut parts: Vec<Part>) -> Result<(), ArgumentError> {
    parts.sort_unstable_by_key(|part| part.start);
    // The buffer with the highest end so far, in order of start addresses: of all buffers, and of the written
    // ones.
    let (mut any, mut written) = (None::<Part>, None::<Part>);
    for part in parts {
        let former = if part.written { any } else { written };
        if let Some(former) = former.filter(|former| former.end() > part.start) {
            return Err(ArgumentError::ListOverlap {
                call,
                first: former.name(),
                first_address: former.start,
                first_bytes: former.bytes,
                second: part.name(),
                second_address: part.start,
                second_bytes: part.bytes,
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

    fn buffers() -> impl Strategy<Value = Vec<Buffer>> {
        let buffer = (1u64..40, 0usize..6)
            .prop_map(|(at, elements)| Buffer::new(DevicePtr(at), elements, DataType::U8));
        prop::collection::vec(buffer, 0..5)
    }

    proptest! {
        #[test]
        fn refused_is_what_writes_a_byte_that_another_touches(
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
