//! Checks of the headers of cubins and fat binaries, and descriptions of device code for error messages.

use super::ModuleError;

/// The magic number of an ELF file.
const ELF: [u8; 4] = *b"\x7fELF";
/// The magic number `0xba55ed50` of a fat binary, in the byte order of the file.
const FAT_BINARY: [u8; 4] = [0x50, 0xed, 0x55, 0xba];

/// Returns a description of a PTX text, made from the first `.version` and `.target` directives and the length.
pub(super) fn describe_ptx(text: &str) -> String {
    let word = |directive: &str| {
        let (_, rest) = text.split_once(directive)?;
        rest.split([',', ' ', '\t', '\r', '\n', ';']).find(|word| !word.is_empty())
    };
    let version = word(".version").unwrap_or("of no version");
    let target = word(".target").unwrap_or("no target");
    format!("PTX {version} for {target} ({} bytes)", text.len())
}

/// Returns a description of an image, for error messages. Returns [`ModuleError::UnknownImage`] if the image is neither
/// a cubin nor a fat binary, and [`ModuleError::Truncated`] if the image is shorter than its headers say.
pub(super) fn check(image: &[u8]) -> Result<String, ModuleError> {
    let (kind, expected) = if image.starts_with(&ELF) {
        ("cubin", elf_bytes(image))
    } else if image.starts_with(&FAT_BINARY) {
        ("fat binary", fat_binary_bytes(image))
    } else {
        return Err(ModuleError::UnknownImage {
            bytes: image.len(),
            start: image.iter().take(4).copied().collect(),
        });
    };
    match expected {
        expected if expected <= image.len() as u64 => Ok(format!("the {kind} of {} bytes", image.len())),
        expected => Err(ModuleError::Truncated { kind, expected, found: image.len() }),
    }
}

/// Returns the little-endian number in the `N` bytes at offset `at`; 0 if they are not all inside the image.
fn number<const N: usize>(image: &[u8], at: u64) -> u64 {
    let bytes = usize::try_from(at).ok().and_then(|at| image.get(at..)?.first_chunk::<N>());
    bytes.map_or(0, |bytes| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Returns the expected length of a fat binary in bytes: the size of its header plus the size of the rest. The size of
/// the header is the 2-byte number at offset 6, but at least 16. The size of the rest is the 8-byte number at offset 8.
fn fat_binary_bytes(image: &[u8]) -> u64 {
    const HEAD: u64 = 16;
    number::<2>(image, 6).max(HEAD).saturating_add(number::<8>(image, 8))
}

/// Returns the expected length of an ELF file in bytes: the offset at which its last part ends. The parts are the
/// header, the table of segments, the table of sections, and the data of each segment and section. Reads the 64-bit
/// layout only, because a 64-bit process cannot load 32-bit device code.
fn elf_bytes(image: &[u8]) -> u64 {
    const HEAD: u64 = 64;
    /// The type of a section without data in the file.
    const NOBITS: u64 = 8;
    let table = |at, size, count| -> (u64, u64, u64) {
        (number::<8>(image, at), number::<2>(image, size), number::<2>(image, count))
    };
    let (segments, segment_bytes, segment_count) = table(32, 54, 56);
    let (sections, section_bytes, section_count) = table(40, 58, 60);
    let tables = [
        segments.saturating_add(segment_bytes * segment_count),
        sections.saturating_add(section_bytes * section_count),
    ];
    let extent = |at: u64, size: u64| number::<8>(image, at).saturating_add(number::<8>(image, size));
    let in_segments = (0..segment_count).map(|index| {
        let at = segments.saturating_add(index * segment_bytes);
        extent(at.saturating_add(8), at.saturating_add(32))
    });
    let in_sections = (0..section_count).map(|index| {
        let at = sections.saturating_add(index * section_bytes);
        let empty = number::<4>(image, at.saturating_add(4)) == NOBITS;
        if empty { 0 } else { extent(at.saturating_add(24), at.saturating_add(32)) }
    });
    tables.into_iter().chain(in_segments).chain(in_sections).max().unwrap_or(0).max(HEAD)
}
