//! Detects members with different versions of the protocol.
//!
//! Such members cannot decode each other's records. So a member that reads the records stores a *version report*
//! instead of a decision: the version of every record. The report's format never changes, so every release can decode
//! it, and all members get the same refusal.

use super::{
    PROTOCOL, ValuesByRank,
    wire::{Reader, Wire},
};

/// The value of the version field in a version report. No release has this version.
const NO_VERSION: u16 = u16::MAX;

/// The protocol version of a message.
fn version(bytes: &[u8]) -> Option<u16> {
    u16::read(&mut Reader::new(bytes.strip_prefix(&PROTOCOL.magic)?)).ok()
}

/// The versions of the messages posted by `members`, in their order, if there are several versions.
pub(crate) fn differing(members: &[u32], posted: &[Option<Vec<u8>>]) -> Option<ValuesByRank<u16>> {
    let posted = members.iter().zip(posted);
    let versions =
        ValuesByRank::of(posted.filter_map(|(rank, bytes)| Some((*rank, version(bytes.as_deref()?)?))));
    (!versions.is_unanimous()).then_some(versions)
}

/// Encodes a version report.
pub(crate) fn to_bytes(versions: &ValuesByRank<u16>) -> Vec<u8> {
    let mut out = PROTOCOL.magic.to_vec();
    NO_VERSION.write(&mut out);
    versions.write(&mut out);
    out
}

/// Decodes a version report. Returns `None` for any other message.
pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ValuesByRank<u16>> {
    let mut reader = Reader::new(bytes.strip_prefix(&PROTOCOL.magic)?);
    if u16::read(&mut reader).ok()? != NO_VERSION {
        return None;
    }
    let versions = ValuesByRank::read(&mut reader).ok()?;
    (reader.left() == 0).then_some(versions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agreement::{Decision, Entry, Refusal};

    #[test]
    fn versions_are_told_in_a_form_that_never_changes() {
        let posted = |version: u16| Some([b"SY".as_slice(), &version.to_le_bytes(), &[1, 2, 3]].concat());
        let posted = [posted(5), posted(6), None, posted(5)];
        let found = differing(&[4, 0, 1, 2], &posted).expect("they differ");
        let sides = [Entry { value: 5, ranks: vec![2, 4] }, Entry { value: 6, ranks: vec![0] }];
        assert_eq!(found, ValuesByRank { entries: sides.to_vec() });
        let bytes = to_bytes(&found);
        let form: &[u8] = &[
            b'S', b'Y', 255, 255, 2, 0, 0, 0, 5, 0, 2, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 6, 0, 1, 0, 0, 0, 0,
            0, 0, 0,
        ];
        assert_eq!((bytes.as_slice(), from_bytes(form)), (form, Some(found)));
        assert!(Decision::decode(form).is_err());
        let alike = [posted[0].clone(), None, Some(b"noise".to_vec()), posted[3].clone()];
        assert_eq!(differing(&[0, 1, 2, 3], &alike), None);
        let refusal = Refusal::SyncTimeout { missing: Vec::new(), waited_ms: 0, circle: Vec::new() };
        assert_eq!(from_bytes(&Decision::refuse(refusal).encode()), None);
        assert_eq!(from_bytes(&form[..form.len() - 1]), None);
    }
}
