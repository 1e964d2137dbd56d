//! Plain documents, written as JSON and as the subset of pickle's protocol 2 that PyTorch's readers accept.

use std::fmt::Write as _;

/// A value of a document.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// Must be finite.
    Float(f64),
    Text(String),
    List(Vec<Value>),
    /// Keys in the order given.
    Dict(Vec<(String, Value)>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A dictionary.
pub(super) fn dict<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Dict(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

impl Value {
    /// Encodes it as a pickle of protocol 2.
    pub(super) fn to_pickle(&self) -> Vec<u8> {
        let mut out = vec![0x80, 2];
        self.pickle(&mut out);
        out.push(b'.');
        out
    }

    fn pickle(&self, out: &mut Vec<u8>) {
        match self {
            Self::None => out.push(b'N'),
            Self::Bool(value) => out.push(if *value { 0x88 } else { 0x89 }),
            Self::Int(number) => match i32::try_from(*number) {
                Ok(number) => {
                    out.push(b'J');
                    out.extend(number.to_le_bytes());
                }
                Err(_) => {
                    out.extend([0x8a, 8]);
                    out.extend(number.to_le_bytes());
                }
            },
            Self::Float(number) => {
                out.push(b'G');
                out.extend(number.to_be_bytes());
            }
            Self::Text(text) => pickle_text(text, out),
            Self::List(values) => {
                out.extend(*b"](");
                values.iter().for_each(|value| value.pickle(out));
                out.push(b'e');
            }
            Self::Dict(entries) => {
                out.extend(*b"}(");
                for (key, value) in entries {
                    pickle_text(key, out);
                    value.pickle(out);
                }
                out.push(b'u');
            }
        }
    }

    /// Encodes it as JSON.
    pub(super) fn to_json(&self) -> String {
        let mut out = String::new();
        self.json(&mut out);
        out
    }

    fn json(&self, out: &mut String) {
        match self {
            Self::None => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(number) => {
                let _ = write!(out, "{number}");
            }
            Self::Float(number) => {
                let _ = write!(out, "{number:?}");
            }
            Self::Text(text) => json_text(text, out),
            Self::List(values) => {
                out.push('[');
                for (place, value) in values.iter().enumerate() {
                    out.push_str(if place > 0 { "," } else { "" });
                    value.json(out);
                }
                out.push(']');
            }
            Self::Dict(entries) => {
                out.push('{');
                for (place, (key, value)) in entries.iter().enumerate() {
                    out.push_str(if place > 0 { "," } else { "" });
                    json_text(key, out);
                    out.push(':');
                    value.json(out);
                }
                out.push('}');
            }
        }
    }
}

fn pickle_text(text: &str, out: &mut Vec<u8>) {
    let length = u32::try_from(text.len()).unwrap_or_else(|_| unreachable!("names and paths are short"));
    out.push(b'X');
    out.extend(length.to_le_bytes());
    out.extend(text.as_bytes());
}

fn json_text(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}
