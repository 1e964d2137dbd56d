//! Reports as JSON with rounded numbers.

use std::io;

use anyhow::Result;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

/// Rounds numbers to multiples of 1 / `parts`. The numbers are far below 1e300, so the product is finite.
struct Rounded {
    parts: f64,
}

impl Formatter for Rounded {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        CompactFormatter.write_f64(writer, (value * self.parts).round() / self.parts)
    }
}

/// Returns a report as JSON in one line. Its floating-point numbers have at most this many decimals.
pub(crate) fn rounded(report: &impl Serialize, decimals: i32) -> Result<String> {
    let mut text = Vec::new();
    let formatter = Rounded { parts: 10f64.powi(decimals) };
    report.serialize(&mut Serializer::with_formatter(&mut text, formatter))?;
    Ok(String::from_utf8(text)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_have_at_most_so_many_decimals() {
        let numbers = (12.345_678_9, 0.0004, f64::NAN, 16_777_216.0, 7_u64);
        assert_eq!(super::rounded(&numbers, 3).unwrap(), "[12.346,0.0,null,16777216.0,7]");
        assert_eq!(super::rounded(&numbers, 1).unwrap(), "[12.3,0.0,null,16777216.0,7]");
    }
}
