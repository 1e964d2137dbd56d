//! The page: one file with the drawing code, the charting library and the data in it.
//!
//! Charts are uPlot's (`data/uplot`, MIT licence); the maps are drawn by `page.js`.

use anyhow::Result;
use serde::Serialize;

use super::history::{Curves, History, Span};

const TEMPLATE: &str = include_str!("page.html");
const PROGRAM: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");
const CHARTS: &str = include_str!("../../data/uplot/uPlot.iife.min.js");
const CHARTS_LICENCE: &str = include_str!("../../data/uplot/LICENSE");
const CHARTS_STYLE: &str = include_str!("../../data/uplot/uPlot.min.css");

/// Points of a curve: more than a screen has columns.
const POINTS: usize = 6000;
/// Most blocks on the map. If there are more, those with the largest product of size and duration are kept.
const BLOCKS: usize = 60_000;

/// Input of the page's script. Sizes in bytes; columns rather than rows, which is shorter.
#[derive(Serialize)]
struct Data<'a> {
    title: &'a str,
    device: u32,
    moments: u32,
    /// Address ranges that were ever reserved: start and length.
    ranges: &'a [(u64, u64)],
    owners: &'a [String],
    curves: Curves,
    blocks: Columns,
    all_blocks: usize,
    segments: Columns,
}

/// Rectangles of the map. `at` counts bytes of the ranges, one after the other.
#[derive(Default, Serialize)]
struct Columns {
    at: Vec<u64>,
    bytes: Vec<u64>,
    from: Vec<u32>,
    until: Vec<u32>,
    stream: Vec<u64>,
    let_go: Vec<u32>,
    owner: Vec<u32>,
}

impl Columns {
    /// Adds a rectangle if it lies in one of the ranges. Returns true if it does.
    fn add(&mut self, ranges: &[(u64, u64)], span: &Span) -> bool {
        let Some(at) = place(ranges, span.address) else { return false };
        self.at.push(at);
        self.bytes.push(span.bytes);
        self.from.push(span.from);
        self.until.push(span.until);
        self.stream.push(span.stream);
        true
    }
}

/// Returns the page for a history.
///
/// # Errors
/// None known: every history can be written.
pub(super) fn html(title: &str, history: &History) -> Result<String> {
    let ranges = ranges(history);
    let mut segments = Columns::default();
    for segment in &history.segments {
        segments.add(&ranges, &segment.span);
    }
    let mut chosen: Vec<_> = history.blocks.iter().collect();
    if chosen.len() > BLOCKS {
        let area = |span: &Span| u128::from(span.bytes) * u128::from(span.until - span.from);
        chosen.sort_by_key(|block| std::cmp::Reverse(area(&block.span)));
        chosen.truncate(BLOCKS);
    }
    let mut blocks = Columns::default();
    for block in chosen {
        if blocks.add(&ranges, &block.span) {
            blocks.let_go.push(block.let_go);
            blocks.owner.push(block.owner);
        }
    }
    let data = Data {
        title,
        device: history.device,
        moments: history.moments,
        ranges: &ranges,
        owners: &history.owners,
        curves: history.curves(POINTS),
        blocks,
        all_blocks: history.blocks.len(),
        segments,
    };
    // Escaped, so that the data cannot close the element that contains it.
    let data = serde_json::to_string(&data)?.replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    let parts = [
        ("{{title}}", title.as_str()),
        ("{{licence}}", CHARTS_LICENCE),
        ("{{charts_style}}", CHARTS_STYLE),
        ("{{style}}", STYLE),
        ("{{charts}}", CHARTS),
        ("{{program}}", PROGRAM),
        ("{{data}}", &data),
    ];
    let mut page = String::new();
    let mut rest = TEMPLATE;
    for (mark, part) in parts {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    page.push_str(rest);
    Ok(page)
}

/// Returns the addresses that any segment ever had: start and length, ascending.
fn ranges(history: &History) -> Vec<(u64, u64)> {
    let mut spans: Vec<_> = history.segments.iter().map(|s| (s.span.address, s.span.end())).collect();
    spans.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (start, end) in spans {
        match ranges.last_mut() {
            Some((first, bytes)) if start <= *first + *bytes => *bytes = (*bytes).max(end - *first),
            _ => ranges.push((start, end - start)),
        }
    }
    ranges
}

/// Returns the number of bytes of the ranges below an address in one of them.
fn place(ranges: &[(u64, u64)], address: u64) -> Option<u64> {
    let after = ranges.partition_point(|(first, _)| *first <= address);
    let (before, [.., (first, bytes)]) = (&ranges[..after.saturating_sub(1)], &ranges[..after]) else {
        return None;
    };
    let below: u64 = before.iter().map(|(_, bytes)| bytes).sum();
    (address < first + bytes).then_some(below + (address - first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::budget::ReadLimit;
    use crate::trace::snapshot::Snapshot;
    use crate::trace::{Format, Origin};

    #[test]
    fn the_page_needs_nothing_else_and_holds_what_it_is_given() {
        let json = r#"{"segments": [{"address": 4096, "total_size": 512, "blocks": [
            {"size": 512, "state": "active_allocated", "frames": [
                {"filename": "</script><b>", "line": 1, "name": "??"}]}]}]}"#;
        let snapshot =
            Snapshot::read(json.as_bytes(), Format::Json, &Origin::BuiltIn, &ReadLimit::default().budget(0))
                .unwrap();
        let page = html("<a & b>", &History::of(&snapshot)).unwrap();
        assert!(page.contains("<title>&lt;a &amp; b></title>") && !page.contains("{{"));
        assert_eq!(page.matches("</script>").count(), 4, "nothing ends a script before its end");
        for loads in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(loads), "{loads}");
        }
        let (_, data) = page.split_once("id=\"data\">").unwrap();
        let (data, _) = data.split_once("</script>").unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["owners"][0], "</script><b>:1");
        assert_eq!(data["ranges"], serde_json::json!([[4096, 512]]));
    }

    #[test]
    fn addresses_are_counted_in_what_was_reserved() {
        let ranges = [(100, 10), (200, 5)];
        for (address, at) in
            [(99, None), (100, Some(0)), (109, Some(9)), (110, None), (204, Some(14)), (205, None)]
        {
            assert_eq!(place(&ranges, address), at, "{address}");
        }
    }
}
