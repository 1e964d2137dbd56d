//! Reads pickles of plain values: what PyTorch's recorder writes, protocols 2 to 4, and nothing that runs code.
//!
//! PyTorch's dumps refer to one frame from many calls. The library that reads our other pickles gives such a reference
//! up at the second call, so this is written out.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Why bytes are no pickle of plain values.
#[derive(Debug, thiserror::Error)]
#[error("at byte {at}: {problem}")]
pub(super) struct PickleError {
    at: usize,
    problem: String,
}

/// The value that `bytes` are a pickle of; a tuple is a list.
pub(super) fn read(bytes: &[u8]) -> Result<Value, PickleError> {
    let mut machine = Machine { bytes, ..Machine::default() };
    let read = machine.run().and_then(|top| machine.value(top, 0));
    read.map_err(|problem| PickleError { at: machine.at, problem })
}

/// A value, whose parts may be parts of others too.
enum Node {
    Plain(Value),
    List(Vec<usize>),
    /// Keys and values in turn.
    Dict(Vec<usize>),
}

type Step<T> = Result<T, String>;

#[derive(Default)]
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// All values; the others are places here.
    nodes: Vec<Node>,
    stack: Vec<usize>,
    marks: Vec<usize>,
    memo: HashMap<u32, usize>,
    /// How many values have been written out.
    written: usize,
}

impl Machine<'_> {
    /// Deeper than any dump.
    const DEPTH: usize = 32;
    /// More than any dump has.
    const VALUES: usize = 10_000_000;

    fn run(&mut self) -> Step<usize> {
        loop {
            let [code] = self.take()?;
            match code {
                // Protocol and frame.
                0x80 => _ = self.take::<1>()?,
                0x95 => _ = self.take::<8>()?,
                b'.' => return self.pop(),
                b'(' => self.marks.push(self.stack.len()),
                b'N' => self.push(Value::Null),
                0x88 => self.push(true),
                0x89 => self.push(false),
                b'K' => {
                    let number = u8::from_le_bytes(self.take()?);
                    self.push(number);
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.take()?);
                    self.push(number);
                }
                b'J' => {
                    let number = i32::from_le_bytes(self.take()?);
                    self.push(number);
                }
                0x8a => {
                    let number = self.long()?;
                    self.push(number);
                }
                b'G' => {
                    let number = f64::from_be_bytes(self.take()?);
                    self.push(number);
                }
                0x8c => {
                    let length = u8::from_le_bytes(self.take()?);
                    self.text(length.into())?;
                }
                b'X' => {
                    let length = u32::from_le_bytes(self.take()?);
                    self.text(length as usize)?;
                }
                b']' | b')' => self.add(Node::List(Vec::new())),
                b'}' => self.add(Node::Dict(Vec::new())),
                b't' => {
                    let parts = self.marked()?;
                    self.add(Node::List(parts));
                }
                0x85..=0x87 => {
                    let first = self.stack.len().checked_sub(usize::from(code - 0x84));
                    let parts = self.stack.split_off(first.ok_or("a tuple of what is not there")?);
                    self.add(Node::List(parts));
                }
                b'a' => {
                    let parts = vec![self.pop()?];
                    self.extend(parts)?;
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.extend(vec![key, value])?;
                }
                b'e' | b'u' => {
                    let parts = self.marked()?;
                    self.extend(parts)?;
                }
                b'q' => {
                    let name = u8::from_le_bytes(self.take()?);
                    self.remember(name.into())?;
                }
                b'r' => {
                    let name = u32::from_le_bytes(self.take()?);
                    self.remember(name)?;
                }
                0x94 => self.remember(self.memo.len() as u32)?,
                b'h' => {
                    let name = u8::from_le_bytes(self.take()?);
                    self.recall(name.into())?;
                }
                b'j' => {
                    let name = u32::from_le_bytes(self.take()?);
                    self.recall(name)?;
                }
                other => return Err(format!("the code {other:#04x} makes no plain value")),
            }
        }
    }

    fn slice(&mut self, length: usize) -> Step<&[u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let slice = rest.get(..length).ok_or("it ends too early")?;
        self.at += length;
        Ok(slice)
    }

    fn take<const N: usize>(&mut self) -> Step<[u8; N]> {
        let mut taken = [0; N];
        taken.copy_from_slice(self.slice(N)?);
        Ok(taken)
    }

    fn long(&mut self) -> Step<i64> {
        let [length] = self.take()?;
        let bytes = self.slice(length.into())?;
        let negative = bytes.last().is_some_and(|last| *last >= 0x80);
        let sign = if negative { 0xff } else { 0 };
        let (low, high) = bytes.split_at(bytes.len().min(8));
        let mut number = [sign; 8];
        number[..low.len()].copy_from_slice(low);
        let number = i64::from_le_bytes(number);
        let fits = high.iter().all(|byte| *byte == sign) && (number < 0) == negative;
        if fits { Ok(number) } else { Err("a number of more than 64 bits".into()) }
    }

    fn text(&mut self, length: usize) -> Step<()> {
        let text = str::from_utf8(self.slice(length)?).map_err(|error| error.to_string())?.to_owned();
        self.push(text);
        Ok(())
    }

    fn push(&mut self, value: impl Into<Value>) {
        self.add(Node::Plain(value.into()));
    }

    fn add(&mut self, node: Node) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    fn pop(&mut self) -> Step<usize> {
        self.stack.pop().ok_or_else(|| "nothing is on the stack".into())
    }

    fn top(&self) -> Step<usize> {
        self.stack.last().copied().ok_or_else(|| "nothing is on the stack".into())
    }

    /// What lies above the last mark.
    fn marked(&mut self) -> Step<Vec<usize>> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or("no mark is set")?))
    }

    /// Adds parts to what is on the top.
    fn extend(&mut self, parts: Vec<usize>) -> Step<()> {
        let top = self.top()?;
        match &mut self.nodes[top] {
            Node::Dict(own) if parts.len().is_multiple_of(2) => own.extend(parts),
            Node::List(own) => own.extend(parts),
            _ => return Err("a part of what has none".into()),
        }
        Ok(())
    }

    fn remember(&mut self, name: u32) -> Step<()> {
        let top = self.top()?;
        self.memo.insert(name, top);
        Ok(())
    }

    fn recall(&mut self, name: u32) -> Step<()> {
        self.stack.push(*self.memo.get(&name).ok_or("a reference to nothing")?);
        Ok(())
    }

    /// Writes a value out, with a copy of what others refer to too.
    fn value(&mut self, place: usize, depth: usize) -> Step<Value> {
        self.written += 1;
        if depth > Self::DEPTH || self.written > Self::VALUES {
            return Err(format!("deeper than {} or of more than {} values", Self::DEPTH, Self::VALUES));
        }
        Ok(match &self.nodes[place] {
            Node::Plain(value) => value.clone(),
            Node::List(parts) => {
                let parts = parts.clone();
                Value::Array(parts.into_iter().map(|part| self.value(part, depth + 1)).collect::<Step<_>>()?)
            }
            Node::Dict(parts) => {
                let mut map = Map::new();
                for pair in parts.clone().chunks_exact(2) {
                    let Value::String(key) = self.value(pair[0], depth + 1)? else {
                        return Err("a key that is no text".into());
                    };
                    map.insert(key, self.value(pair[1], depth + 1)?);
                }
                Value::Object(map)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i8>().prop_map(Value::from),
            "\\PC{0,300}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".{0,5}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_another_wrote_is_read(value in plain(), protocol_2 in any::<bool>()) {
            let options = serde_pickle::SerOptions::new();
            let options = if protocol_2 { options.proto_v2() } else { options };
            prop_assert_eq!(read(&serde_pickle::to_vec(&value, options).unwrap()).unwrap(), value);
        }

        #[test]
        fn junk_is_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..200), cut in any::<prop::sample::Index>()) {
            let _ = read(&bytes);
            bytes.truncate(cut.index(bytes.len() + 1));
            bytes.retain(|byte| *byte != b'.');
            read(&bytes).unwrap_err();
        }
    }

    #[test]
    fn a_part_of_many_is_in_each() {
        // [d, d] with d = {"a": 1}, as Python writes it.
        let bytes = b"\x80\x02]q\x00(}q\x01X\x01\x00\x00\x00aq\x02K\x01sh\x01e.";
        assert_eq!(read(bytes).unwrap(), serde_json::json!([{"a": 1}, {"a": 1}]));
    }

    #[test]
    fn a_part_of_itself_is_an_error() {
        let error = read(b"\x80\x02]q\x00h\x00a.").unwrap_err().to_string();
        assert!(error.contains("deeper than"), "{error}");
    }
}
