//! Half messages. A half is the view that one end of a message (its sender or its receiver) has of the message. The
//! halves of the two ends must be equal.

use std::fmt;

use process_group::{comm::DataType, group::Buffer};

/// One end's view of a message, packed into 64 bits: element count, data type, and whether the message is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Half(pub(super) u64);

/// Lowest bit of the element count. Bits 1 to 7 contain the data type, and bit 0 is the capture flag.
const ELEMENTS: u32 = 8;

impl Half {
    /// Packs the half. An element count of 2^56 or more is truncated. No device has memory for so many elements.
    pub(super) fn of(buffer: &Buffer, captured: bool) -> Self {
        Self((buffer.elements as u64) << ELEMENTS | (buffer.dtype as u64) << 1 | u64::from(captured))
    }
}

impl fmt::Display for Half {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ", self.0 >> ELEMENTS)?;
        let code = (self.0 & ((1 << ELEMENTS) - 1)) >> 1;
        match DataType::ALL.into_iter().find(|dtype| *dtype as u64 == code) {
            Some(dtype) => write!(out, "{dtype}")?,
            None => write!(out, "of type {code}, which there is not,")?,
        }
        if self.0 & 1 == 1 { out.write_str(", in a graph") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use cuda_driver::DevicePtr;
    use proptest::prelude::*;

    use super::*;

    fn half(elements: usize, dtype: usize, captured: bool) -> Half {
        Half::of(&Buffer::new(DevicePtr(8), elements, DataType::ALL[dtype % 13]), captured)
    }

    proptest! {
        #[test]
        fn halves_are_equal_if_all_their_fields_are(
            one in (0usize..3, 0usize..13, any::<bool>()), other in (0usize..3, 0usize..13, any::<bool>()),
        ) {
            let halves = [one, other].map(|(elements, dtype, captured)| half(elements, dtype, captured));
            prop_assert_eq!(halves[0] == halves[1], one == other);
        }

        #[test]
        fn any_word_has_a_text(word: u64) {
            let text = Half(word).to_string();
            prop_assert!(text.starts_with(&format!("{} ", word >> ELEMENTS)), "{}", text);
            prop_assert_eq!(text.ends_with(", in a graph"), word & 1 == 1, "{}", text);
            prop_assert_ne!(text, Half(word ^ 1).to_string());
        }
    }

    #[test]
    fn the_text_has_the_count_and_the_type() {
        assert_eq!(half(1 << 40, 7, false).to_string(), "1099511627776 f32");
        assert_eq!(half(3, 0, true).to_string(), "3 i8, in a graph");
    }
}
