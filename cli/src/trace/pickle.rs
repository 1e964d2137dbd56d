//! Reads pickles of plain values, of protocols 2 to 4, as PyTorch writes them for its allocator and its flight
//! recorder. No pickle can run code.
//!
//! PyTorch's pickles refer to one frame from many places. `serde_pickle`, which writes ours, fails at the second
//! reference; this reader deserializes a value again at every reference.

use std::collections::HashMap;

use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use crate::trace::budget::{Budget, CONTAINER, SCALAR, Spent, TEXT};

/// Why bytes are not a pickle of plain values.
#[derive(Debug, thiserror::Error)]
#[error("at byte {at}: {problem}")]
pub(crate) struct PickleError {
    at: usize,
    problem: String,
}

/// A newtype structure of this name is temporary: its memory is refunded after reading, except for
/// [`TRANSIENT_RESULT`] bytes for the value made from it.
pub(crate) const TRANSIENT: &str = "$pickle::Transient";

/// Bytes that the result of a [`TRANSIENT`] may keep.
pub(crate) const TRANSIENT_RESULT: usize = 512;

/// Memory of one value while the pickle exists, and of one reference to it.
const NODE: u64 = 96;
const PLACE: u64 = 24;

/// A pickle's values.
pub(crate) struct Pickle<'a> {
    nodes: Vec<Node<'a>>,
    top: usize,
    budget: &'a Budget,
    /// Bytes charged for the values.
    charged: u64,
}

impl Drop for Pickle<'_> {
    fn drop(&mut self) {
        self.budget.refund(self.charged);
    }
}

/// A value, whose parts may be shared with others.
enum Node<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// An integer that does not fit an `i64`.
    Big(u64),
    Float(f64),
    Text(&'a str),
    /// A list or a tuple.
    List(Vec<usize>),
    /// Keys and values alternate.
    Dict(Vec<usize>),
}

impl<'a> Pickle<'a> {
    /// Parses all of `bytes`. Values deserialized from it are charged to the budget too.
    pub(crate) fn parse(bytes: &'a [u8], budget: &'a Budget) -> Result<Self, PickleError> {
        let mut machine = Machine {
            bytes,
            at: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            budget,
            charged: 0,
        };
        let outcome = machine.run();
        let Machine { at, nodes, charged, .. } = machine;
        let mut pickle = Self { nodes, top: 0, budget, charged };
        pickle.top = outcome.map_err(|problem| PickleError { at, problem })?;
        Ok(pickle)
    }

    /// Returns the outermost value.
    pub(crate) fn value(&self) -> Part<'_, 'a> {
        Part { pickle: self, place: self.top, depth: 0 }
    }
}

/// A value in a pickle.
#[derive(Clone, Copy)]
pub(crate) struct Part<'p, 'a> {
    pickle: &'p Pickle<'a>,
    place: usize,
    depth: usize,
}

impl<'p, 'a> Part<'p, 'a> {
    /// Deeper than anything that PyTorch writes. A value that contains itself reaches this limit.
    const DEPTH: usize = 64;

    /// Returns the value and counts one more read of it.
    fn node(self) -> Result<&'p Node<'a>, Error> {
        if self.depth > Self::DEPTH {
            return Err(Error::custom(format!("deeper than {}", Self::DEPTH)));
        }
        let node = &self.pickle.nodes[self.place];
        let bytes = if let Node::Text(text) = node { text.len() } else { 0 };
        self.pickle.budget.count_value(bytes as u64).map_err(Error::custom)?;
        Ok(node)
    }

    /// Charges the memory of a deserialized value.
    fn charge(self, node: &Node<'_>) -> Result<(), Error> {
        let memory = match node {
            Node::List(_) | Node::Dict(_) => CONTAINER,
            Node::Text(text) => TEXT + text.len() as u64,
            _ => SCALAR,
        };
        self.pickle.budget.charge(memory).map_err(Error::custom)
    }

    fn part(self, place: usize) -> Self {
        Self { place, depth: self.depth + 1, ..self }
    }
}

impl<'de> IntoDeserializer<'de> for Part<'_, 'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Part<'_, 'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let node = self.node()?;
        self.charge(node)?;
        match node {
            Node::None => visitor.visit_unit(),
            Node::Bool(value) => visitor.visit_bool(*value),
            Node::Int(number) => visitor.visit_i64(*number),
            Node::Big(number) => visitor.visit_u64(*number),
            Node::Float(number) => visitor.visit_f64(*number),
            Node::Text(text) => visitor.visit_borrowed_str(text),
            Node::List(parts) => {
                visitor.visit_seq(SeqDeserializer::new(parts.iter().map(|place| self.part(*place))))
            }
            Node::Dict(parts) => {
                let pairs = parts.chunks_exact(2).map(|pair| (self.part(pair[0]), self.part(pair[1])));
                visitor.visit_map(MapDeserializer::new(pairs))
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node()? {
            Node::None => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.node()? {
            Node::Text(text) => visitor.visit_enum((*text).into_deserializer()),
            _ => Err(Error::custom(format!("a {name} is a text"))),
        }
    }

    /// The name of a field is not kept.
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node()? {
            Node::Text(text) => visitor.visit_borrowed_str(text),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name != TRANSIENT {
            return self.deserialize_any(visitor);
        }
        let budget = self.pickle.budget;
        let used = budget.used();
        let value = visitor.visit_newtype_struct(self)?;
        budget.refund(budget.used() - used);
        budget.charge(TRANSIENT_RESULT as u64).map_err(Error::custom)?;
        Ok(value)
    }

    /// Skips the value with all its parts.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.node()?;
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct
    }
}

type Step<T> = Result<T, String>;

/// State of the pickle's stack machine. All values are in `nodes`; the other fields hold indices into it.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node<'a>>,
    stack: Vec<usize>,
    marks: Vec<usize>,
    memo: HashMap<u32, usize>,
    budget: &'a Budget,
    charged: u64,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Step<usize> {
        loop {
            let [code] = self.take()?;
            match code {
                // Protocol and frame.
                0x80 => _ = self.take::<1>()?,
                0x95 => _ = self.take::<8>()?,
                b'.' => {
                    let top = self.pop()?;
                    return if self.at == self.bytes.len() {
                        Ok(top)
                    } else {
                        Err("bytes follow its end".into())
                    };
                }
                b'(' => {
                    self.charge(PLACE)?;
                    self.marks.push(self.stack.len());
                }
                b'N' => self.add(Node::None)?,
                0x88 => self.add(Node::Bool(true))?,
                0x89 => self.add(Node::Bool(false))?,
                b'K' => {
                    let number = u8::from_le_bytes(self.take()?);
                    self.add(Node::Int(number.into()))?;
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.take()?);
                    self.add(Node::Int(number.into()))?;
                }
                b'J' => {
                    let number = i32::from_le_bytes(self.take()?);
                    self.add(Node::Int(number.into()))?;
                }
                0x8a => self.long()?,
                b'G' => {
                    let number = f64::from_be_bytes(self.take()?);
                    self.add(Node::Float(number))?;
                }
                0x8c => {
                    let length = u8::from_le_bytes(self.take()?);
                    self.text(length.into())?;
                }
                b'X' => {
                    let length = u32::from_le_bytes(self.take()?);
                    self.text(length as usize)?;
                }
                b']' | b')' => self.add(Node::List(Vec::new()))?,
                b'}' => self.add(Node::Dict(Vec::new()))?,
                b't' => {
                    let parts = self.marked()?;
                    self.add(Node::List(parts))?;
                }
                0x85..=0x87 => {
                    let first = self.stack.len().checked_sub(usize::from(code - 0x84));
                    let parts = self.stack.split_off(first.ok_or("a tuple of what is not there")?);
                    self.add(Node::List(parts))?;
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

    fn charge(&mut self, bytes: u64) -> Step<()> {
        self.budget.charge(bytes).map_err(|spent: Spent| spent.to_string())?;
        self.charged += bytes;
        Ok(())
    }

    fn slice(&mut self, length: usize) -> Step<&'a [u8]> {
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

    /// An integer of any length, in two's complement.
    fn long(&mut self) -> Step<()> {
        let [length] = self.take()?;
        let bytes = self.slice(length.into())?;
        let sign = if bytes.last().is_some_and(|last| *last >= 0x80) { 0xff } else { 0 };
        let (low, high) = bytes.split_at(bytes.len().min(16));
        let mut number = [sign; 16];
        number[..low.len()].copy_from_slice(low);
        let number = i128::from_le_bytes(number);
        let node = match (i64::try_from(number), u64::try_from(number)) {
            _ if high.iter().any(|byte| *byte != sign) => None,
            (Ok(number), _) => Some(Node::Int(number)),
            (_, Ok(number)) => Some(Node::Big(number)),
            _ => None,
        };
        self.add(node.ok_or("a number of more than 64 bits")?)
    }

    fn text(&mut self, length: usize) -> Step<()> {
        let text = str::from_utf8(self.slice(length)?).map_err(|error| error.to_string())?;
        self.add(Node::Text(text))
    }

    fn add(&mut self, node: Node<'a>) -> Step<()> {
        self.charge(NODE)?;
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
        Ok(())
    }

    fn pop(&mut self) -> Step<usize> {
        self.stack.pop().ok_or_else(|| "nothing is on the stack".into())
    }

    fn top(&self) -> Step<usize> {
        self.stack.last().copied().ok_or_else(|| "nothing is on the stack".into())
    }

    /// Takes the values above the last mark off the stack.
    fn marked(&mut self) -> Step<Vec<usize>> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or("no mark is set")?))
    }

    /// Adds parts to the value on the top.
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
        self.charge(2 * PLACE)?;
        self.memo.insert(name, top);
        Ok(())
    }

    fn recall(&mut self, name: u32) -> Step<()> {
        self.charge(2 * PLACE)?;
        self.stack.push(*self.memo.get(&name).ok_or("a reference to nothing")?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::budget::ReadLimit;
    use proptest::prelude::*;
    use serde::Deserialize;
    use serde::de::IgnoredAny;
    use serde_json::{Value, json};

    fn read(bytes: &[u8]) -> Result<Value, String> {
        let budget = ReadLimit::default().budget(bytes.len() as u64);
        let pickle = Pickle::parse(bytes, &budget).map_err(|error| error.to_string())?;
        Value::deserialize(pickle.value()).map_err(|error| error.to_string())
    }

    fn plain() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i8>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9..1e9f64).prop_map(Value::from),
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
        // [d, d, d] with d = {"a": ["b"]}, as Python writes it.
        let bytes =
            b"\x80\x02]q\x00(}q\x01X\x01\x00\x00\x00aq\x02]q\x03X\x01\x00\x00\x00bq\x04ash\x01h\x01e.";
        assert_eq!(read(bytes).unwrap(), json!([{"a": ["b"]}, {"a": ["b"]}, {"a": ["b"]}]));
    }

    #[test]
    fn a_part_of_itself_is_an_error() {
        let error = read(b"\x80\x02]q\x00h\x00a.").unwrap_err();
        assert!(error.contains("deeper than"), "{error}");
    }

    #[test]
    fn tuples_that_hold_each_other_often_spend_the_budget() {
        // Each of 20 tuples contains the next one ten times.
        let mut value = b"]q\x00".to_vec();
        for level in 0..20 {
            value = [b"(", &value[..], &[b'h', level].repeat(9)[..], b"tq", &[level + 1]].concat();
        }
        let bytes = [b"\x80\x02", &value[..], b"."].concat();
        let error = read(&bytes).unwrap_err();
        assert!(error.contains("the budget of 256 MiB"), "{error}");
        // The pickle's own memory is refunded.
        let budget = ReadLimit::of_mib(1).budget(0);
        for _ in 0..1000 {
            Pickle::parse(&bytes, &budget).map(drop).unwrap();
        }
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn values_are_counted_where_little_is_kept() {
        #[derive(Deserialize)]
        #[serde(rename = "$pickle::Transient")]
        struct Transient(IgnoredAny);
        #[derive(Deserialize)]
        #[serde(rename = "$pickle::Transient")]
        struct Lists(Vec<Vec<IgnoredAny>>);
        // A list that contains a list of 1000 values 1000 times.
        let inner = [b"](", &b"N".repeat(1000)[..], b"eq\x00"].concat();
        let bytes = [b"\x80\x02](", &inner[..], &b"h\x00".repeat(999), b"e."].concat();
        let budget = ReadLimit::of_mib(1).budget(0);
        let pickle = Pickle::parse(&bytes, &budget).unwrap();
        let used = budget.used();
        assert!(Transient::deserialize(pickle.value()).is_ok());
        assert_eq!(budget.used(), used + TRANSIENT_RESULT as u64);
        let error =
            Lists::deserialize(pickle.value()).map(|Lists(lists)| lists.len()).unwrap_err().to_string();
        assert!(
            error.contains("the budget of 1 MiB") && budget.used() < 1 << 19,
            "{error}: {}",
            budget.used()
        );
    }

    #[test]
    fn texts_stand_for_enums_and_none_for_what_is_not_there() {
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum State {
            Done,
        }
        let bytes = b"\x80\x02(N\x8c\x04doneN\x8c\x04doneKat.";
        let budget = ReadLimit::default().budget(0);
        let pickle = Pickle::parse(bytes, &budget).unwrap();
        let found = <(Option<u8>, State, (), Option<State>, u64)>::deserialize(pickle.value()).unwrap();
        assert_eq!(found, (None, State::Done, (), Some(State::Done), 97));
    }
}
