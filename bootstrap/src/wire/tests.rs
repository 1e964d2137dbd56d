//! Tests of the binary forms of all types that a message can contain, and of malformed messages.

use proptest::{collection::vec, prelude::*};

use super::*;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Everything {
    numbers: (u8, u64),
    size: usize,
    text: Option<String>,
    time: Duration,
    map: BTreeMap<u16, bool>,
    pair: [u32; 2],
    all: Vec<One>,
    own: Unsent<u32>,
}
wire_struct!(Everything { numbers, size, text, time, map, pair, all, own });

impl Message for Everything {
    const PROTOCOL: Protocol = Protocol { magic: *b"TE", version: 7 };
    const KIND: u8 = 3;
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum One {
    First,
    Second { value: u32 },
    Third(i64),
}
wire_enum!(One { 0 => First {}, 1 => Second { value }, 2 => Third(value) });

fn everything() -> impl Strategy<Value = Everything> {
    let one = prop_oneof![
        Just(One::First),
        any::<u32>().prop_map(|value| One::Second { value }),
        any::<i64>().prop_map(One::Third)
    ];
    let map = prop::collection::btree_map(any::<u16>(), any::<bool>(), 0..4);
    let parts = (any::<(u8, u64)>(), any::<usize>(), any::<Option<String>>(), any::<Duration>());
    (parts, map, any::<[u32; 2]>(), vec(one, 0..4)).prop_map(
        |((numbers, size, text, time), map, pair, all)| Everything {
            numbers,
            size,
            text,
            time,
            map,
            pair,
            all,
            own: Unsent(0),
        },
    )
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(message in everything()) {
        prop_assert_eq!(Everything::from_bytes(&message.to_bytes()), Ok(message));
    }

    #[test]
    fn a_message_has_one_form(message in everything(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = message.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(found) = Everything::from_bytes(&bytes) {
            prop_assert_eq!(found.to_bytes(), bytes);
        }
    }

    #[test]
    fn a_part_of_a_message_is_refused(message in everything(), cut in any::<prop::sample::Index>()) {
        let bytes = message.to_bytes();
        prop_assert!(Everything::from_bytes(&bytes[..cut.index(bytes.len())]).is_err());
        let more = [&bytes[..], &[0]].concat();
        prop_assert_eq!(Everything::from_bytes(&more), Err(Malformed::Trailing { left: 1 }));
    }

    #[test]
    fn garbage_is_read_without_a_panic(garbage in vec(any::<u8>(), 0..60)) {
        let header = [b'T', b'E', 7, 0, 3];
        let _ = Everything::from_bytes(&garbage);
        let _ = Everything::from_bytes(&[&header[..], &garbage].concat());
    }
}

#[test]
fn each_malformation_is_named() {
    let read = |bytes: &[u8]| Everything::from_bytes(bytes).unwrap_err();
    assert_eq!(read(b"XX"), Malformed::NotAMessage { found: b"XX".to_vec() });
    assert_eq!(read(b"TE\x08\0"), Malformed::Version { found: 8, spoken: 7 });
    assert_eq!(read(b"TE\x07\0\x04"), Malformed::Kind { wanted: 3, found: 4 });
    let mut reader = Reader::new(&[2]);
    assert_eq!(bool::read(&mut reader), Err(Malformed::Tag { at: 0, tag: 2, of: "truth value" }));
    let nanoseconds = [&[0; 8][..], &1_000_000_000_u32.to_le_bytes()].concat();
    let read = Duration::read(&mut Reader::new(&nanoseconds));
    assert_eq!(read, Err(Malformed::Value { at: 0, of: "duration" }));
    let twice = [2, 0, 0, 0, 5, 1, 5, 1];
    let read = BTreeMap::<u8, bool>::read(&mut Reader::new(&twice));
    assert_eq!(read, Err(Malformed::Value { at: 0, of: "map" }));
}
