//! The amount of host memory, as the kernel reports it.

use std::fs;

use crate::core::{MemoryInfo, SourceError};

/// The file in which the kernel reports memory sizes.
const MEMINFO: &str = "/proc/meminfo";

/// The file lacks the total or the available size, or has it in another form than kB.
#[derive(Debug, thiserror::Error)]
#[error("{MEMINFO} has no MemTotal and MemAvailable in kB")]
struct NoFigures;

/// Returns the host memory in bytes: as `total`, all of it; as `free`, what is available without swapping.
pub(super) fn memory_info() -> Result<MemoryInfo, SourceError> {
    const CALL: &str = "reading /proc/meminfo";
    let text = fs::read_to_string(MEMINFO)
        .map_err(|error| SourceError::Failed { call: CALL, source: Box::new(error) })?;
    parse(&text).ok_or_else(|| SourceError::Failed { call: CALL, source: Box::new(NoFigures) })
}

fn parse(text: &str) -> Option<MemoryInfo> {
    let figure = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let total = figure("MemTotal")?;
    Some(MemoryInfo { free: figure("MemAvailable")?.min(total), total })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn figures_are_found_among_others(
            total in 0..1u64 << 40,
            free in 0..1u64 << 40,
            others in prop::collection::vec("[A-Za-z_()]{1,12}", 0..6),
            at in any::<prop::sample::Index>(),
        ) {
            let mut lines: Vec<String> = others.iter().map(|name| format!("{name}x: 17 kB")).collect();
            let at = at.index(lines.len() + 1);
            lines.insert(at, format!("MemAvailable:   {free:8} kB"));
            lines.insert(at, format!("MemTotal:       {total:8} kB"));
            let found = parse(&lines.join("\n"));
            prop_assert_eq!(found, Some(MemoryInfo { free: free.min(total) * 1024, total: total * 1024 }));
        }

        #[test]
        fn other_texts_have_no_figures(text in "(MemTotal|MemAvailable|:| |kB|[0-9]|\n){0,40}") {
            if let Some(info) = parse(&text) {
                prop_assert!(info.free <= info.total);
                prop_assert!(text.contains("MemTotal:") && text.contains("MemAvailable:"));
            }
        }
    }
}
