//! Values of options: parsers whose errors say the values that are expected.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};

/// Returns a parser of whole numbers in `range`. `what` names the value in errors: `a number of ranks`.
pub(crate) fn whole<T: TryFrom<u64>>(
    what: &'static str,
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| match (range.start(), range.end()) {
            (start, &u64::MAX) => format!("expected {what}, at least {start}"),
            (start, end) => format!("expected {what} from {start} to {end}"),
        })
    }
}

/// Returns a parser of an input's path. `-` is standard input.
pub(crate) fn input() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| if path.as_os_str() == "-" { "/dev/stdin".into() } else { path })
}

/// Returns a parser of the path of an input that several processes read, each from its beginning.
pub(crate) fn shared_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        // Standard input may be a file, but the ranks have another one.
        let is_descriptor =
            ["-", "/dev/stdin", "/dev/fd", "/proc/self/fd"].iter().any(|of| path.starts_with(of));
        // A path without a file is left to the reader.
        let is_stream = path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
        if is_descriptor || is_stream {
            Err("expected a file, because every rank reads it")
        } else {
            Ok(path)
        }
    })
}

/// Parses a number of ranks that form pairs.
pub(crate) fn even_ranks(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|ranks| (2..=64).contains(ranks) && ranks % 2 == 0);
    number.ok_or_else(|| "expected an even number of ranks from 2 to 64".into())
}

/// Parses a size in bytes: a whole number, or one with a binary unit, such as `80GiB` or `80G`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => Some(0),
        "k" | "kib" => Some(10),
        "m" | "mib" => Some(20),
        "g" | "gib" => Some(30),
        "t" | "tib" => Some(40),
        _ => None,
    };
    let bytes = shift.and_then(|shift| number.parse::<u64>().ok()?.checked_mul(1_u64 << shift));
    bytes.ok_or_else(|| {
        let hint = meant_size(text).map(|meant| format!("; write {meant}")).unwrap_or_default();
        format!(
            "expected a whole number of bytes below 2^64, or of KiB, MiB, GiB or TiB, such as 80GiB{hint}"
        )
    })
}

/// Returns the right forms of a size in another form: with a decimal unit, with a space, or in hexadecimal.
fn meant_size(text: &str) -> Option<String> {
    if let Some(digits) = text.strip_prefix("0x") {
        return Some(u64::from_str_radix(digits, 16).ok()?.to_string());
    }
    let joined: String = text.split_whitespace().collect();
    if joined != text && size(&joined).is_ok() {
        return Some(joined);
    }
    let digits = joined.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = joined.split_at(digits);
    let (binary, power) = match unit.to_ascii_lowercase().as_str() {
        "kb" => ("KiB", 1),
        "mb" => ("MiB", 2),
        "gb" => ("GiB", 3),
        "tb" => ("TiB", 4),
        _ => return None,
    };
    let bytes = number.parse::<u64>().ok()?.checked_mul(1000_u64.pow(power))?;
    Some(format!("{number}{binary}, or {bytes} if a unit is 1000^{power} bytes"))
}

/// Parses a port.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "expected a port from 0 to 65535".into())
}

/// Parses a time limit in seconds; fractions are allowed.
pub(crate) fn limit(text: &str) -> Result<Duration, String> {
    seconds(text, 0.1..=3600.0)
}

/// Parses a time in seconds that may be 0.
pub(crate) fn grace(text: &str) -> Result<Duration, String> {
    seconds(text, 0.0..=3600.0)
}

fn seconds(text: &str, range: RangeInclusive<f64>) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if range.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("expected a number of seconds from {} to {}", range.start(), range.end())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_expected_values() {
        let ranks = whole::<u32>("a number of ranks", 1..=64);
        assert_eq!(ranks("64"), Ok(64));
        for text in ["0", "65", "-1", "x", ""] {
            assert_eq!(ranks(text), Err("expected a number of ranks from 1 to 64".into()), "{text}");
        }
        let rounds = whole::<u32>("a number of rounds", 1..=u64::MAX);
        assert_eq!(rounds("0"), Err("expected a number of rounds, at least 1".into()));
        assert!(rounds("4294967296").is_err());
        assert_eq!(even_ranks("6"), Ok(6));
        assert!(even_ranks("3").is_err() && even_ranks("66").is_err());
    }

    #[test]
    fn sizes_have_binary_units() {
        for (text, expected) in [
            ("0", 0_u64),
            ("1073741824", 1 << 30),
            ("3KiB", 3 << 10),
            ("5M", 5 << 20),
            ("1gib", 1 << 30),
            ("80G", 80 << 30),
            ("2TiB", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size(text), Ok(expected), "{text}");
        }
        for text in ["", "GiB", "-1", "1.5GiB", "1GB", "1 GiB", "16777216TiB", "18446744073709551616"] {
            assert!(size(text).unwrap_err().contains("such as 80GiB"), "{text}");
        }
        for (text, hint) in [
            ("80GB", "; write 80GiB, or 80000000000 if a unit is 1000^3 bytes"),
            ("512 kb", "; write 512KiB, or 512000 if a unit is 1000^1 bytes"),
            ("1 GiB", "; write 1GiB"),
            ("0x40000000", "; write 1073741824"),
            ("80Gb/s", "such as 80GiB"),
            ("99999999999TB", "such as 80GiB"),
        ] {
            let error = size(text).unwrap_err();
            assert!(error.ends_with(hint), "{error}");
        }
    }

    #[test]
    fn times_are_in_range() {
        assert_eq!(limit("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(grace("0"), Ok(Duration::ZERO));
        for text in ["0", "-1", "3601", "nan", "inf", "x"] {
            assert_eq!(limit(text), Err("expected a number of seconds from 0.1 to 3600".into()), "{text}");
        }
    }
}
