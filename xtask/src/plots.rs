//! Plots of the figures in `docs/benchmarks`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// A line of a plot: a contender, and its (bytes, µs) in ascending order.
#[derive(Debug, PartialEq)]
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Plots, by the beginning of their collectives' names.
const COLLECTIVES: [&str; 4] = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all"];
/// Panels of a plot: keys of the times, and titles.
const PANELS: [(&str, &str); 2] =
    [("eager_us", "Launched one by one"), ("graph_us", "From a captured graph")];
/// Colours of the lines, in the order of the contenders.
const COLOURS: [&str; 6] = ["#1c2733", "#8a4fb0", "#51606e", "#c0662b", "#2b7bba", "#3a9a5b"];
/// Left edges of the panels, and the size of each.
const LEFT: [f64; 2] = [70.0, 480.0];
const WIDTH: f64 = 340.0;
const TOP: f64 = 80.0;
const HEIGHT: f64 = 248.0;
const SIZE: (u32, u32) = (860, 430);
const INK: &str = "#1c2733";
const GREY: &str = "#51606e";

/// Draws `kernels-COLLECTIVE.svg` beside `file`, the output of `lockstep bench kernels --json`, for each collective.
/// Returns the paths.
pub(crate) fn kernels(file: &Path) -> Result<Vec<PathBuf>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let report: Value =
        serde_json::from_str(&text).with_context(|| format!("cannot parse {}", file.display()))?;
    let source = file.file_name().unwrap_or_default().to_string_lossy();
    COLLECTIVES
        .iter()
        .map(|collective| {
            let path = file.with_file_name(format!("kernels-{collective}.svg"));
            let plot = plot(&report, collective, &source)?;
            fs::write(&path, plot).with_context(|| format!("cannot write {}", path.display()))?;
            Ok(path)
        })
        .collect()
}

/// Returns the lines of a collective. `key` is that of the times. A contender that was never measured has none.
fn series(report: &Value, collective: &str, key: &str) -> Result<Vec<Series>> {
    let mut all: Vec<Series> = Vec::new();
    let rows = report["rows"].as_array().context("expected an array `rows`")?;
    for row in rows {
        let name = row["collective"].as_str().context("expected a text `collective` in each row")?;
        let bytes = row["bytes"].as_f64().context("expected a number `bytes` in each row")?;
        let Some(algorithm) = name.strip_prefix(collective) else { continue };
        let own = (format!("symm-mem{}", algorithm.replace(',', "")), &row[key]);
        let peers = row["peers"].as_array().into_iter().flatten();
        let peers = peers.map(|peer| (peer["contender"].as_str().unwrap_or_default().to_owned(), &peer[key]));
        for (name, time) in [own].into_iter().chain(peers) {
            let at = all.iter().position(|series| series.name == name).unwrap_or_else(|| {
                all.push(Series { name, points: Vec::new() });
                all.len() - 1
            });
            // The rows of two algorithms have the same peers.
            let points = &mut all[at].points;
            if let Some(time) = time.as_f64()
                && points.iter().all(|(of, _)| *of != bytes)
            {
                points.push((bytes, time));
            }
        }
    }
    for series in &mut all {
        series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    // The algorithms of symm-mem first, in any number of them.
    all.sort_by_key(|series| !series.name.starts_with("symm-mem"));
    Ok(all)
}

fn plot(report: &Value, collective: &str, source: &str) -> Result<String> {
    let machine = report["machine"].as_str().context("expected a text `machine`")?;
    let ranks = report["ranks"].as_u64().context("expected a number `ranks`")?;
    let panels = PANELS.map(|(key, title)| Ok((series(report, collective, key)?, title)));
    let panels = panels.into_iter().collect::<Result<Vec<_>>>()?;
    let points = || panels.iter().flat_map(|(all, _)| all).flat_map(|series| &series.points);
    let bytes = Axis::of(points().map(|point| point.0)).context("no times of the collective")?;
    let times = Axis::of(points().map(|point| point.1)).context("no times of the collective")?;
    let title = format!("Time of {collective} by size, {ranks} ranks");
    let (width, height) = SIZE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n<title>{title}</title>\n\
         <desc>µs for a call by bytes, a line for each contender</desc>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, (16.0, 26.0), "start", 17, INK, &title);
    let about = format!("bf16, {machine}, NVLink multicast off. The slowest rank's time. Lower is faster.");
    text(&mut svg, (16.0, 45.0), "start", 12, GREY, &about);
    for ((all, title), left) in panels.iter().zip(LEFT) {
        text(&mut svg, (left + WIDTH / 2.0, 68.0), "middle", 14, INK, title);
        let x = |value| left + WIDTH * bytes.position(value);
        let y = |value| TOP + HEIGHT * (1.0 - times.position(value));
        for tick in times.decades() {
            let at = y(tick);
            line(&mut svg, (left, at), (left + WIDTH, at), "#d5dbe1", 1.0);
            text(&mut svg, (left - 6.0, at + 4.0), "end", 11, GREY, &tick.to_string());
        }
        for power in (3..64).step_by(5) {
            let tick = 2_f64.powi(power);
            if bytes.has(tick) {
                text(&mut svg, (x(tick), TOP + HEIGHT + 24.0), "middle", 11, GREY, &size(power));
            }
        }
        for (series, colour) in all.iter().zip(COLOURS.iter().cycle()) {
            let points: Vec<_> = series.points.iter().map(|(bytes, us)| (x(*bytes), y(*us))).collect();
            let list: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let list = list.join(" ");
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{list}\"/>"
            );
            for (x, y) in points {
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
    }
    text(&mut svg, (20.0, TOP + HEIGHT / 2.0), "middle", 12, GREY, "µs");
    let (mut left, mut top) = (16.0, 380.0);
    let (contenders, _) = panels.first().context("no panel")?;
    for (series, colour) in contenders.iter().zip(COLOURS.iter().cycle()) {
        let is_measured = panels.iter().flat_map(|(all, _)| all);
        let is_measured = is_measured.filter(|it| it.name == series.name).any(|it| !it.points.is_empty());
        let name = format!("{}{}", series.name, if is_measured { "" } else { " (left out)" });
        let wide = 47.0 + 6.2 * name.len() as f64;
        if left + wide > f64::from(width) {
            (left, top) = (16.0, top + 18.0);
        }
        line(&mut svg, (left, top), (left + 22.0, top), colour, 2.0);
        text(&mut svg, (left + 27.0, top + 4.0), "start", 12, INK, &name);
        left += wide;
    }
    let about = format!("Logarithmic scales. Values: {source}.");
    text(&mut svg, (16.0, 420.0), "start", 11, GREY, &about);
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// A logarithmic axis.
struct Axis {
    least: f64,
    most: f64,
}

impl Axis {
    /// Returns an axis for these values, with a margin. `None` if there are none.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let positive = values.filter(|value| *value > 0.0);
        let (least, most) = positive
            .fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
        (least <= most).then(|| Self { least: least / 1.5, most: most * 1.5 })
    }

    /// Returns the place of a value: 0 at the beginning, 1 at the end.
    fn position(&self, value: f64) -> f64 {
        (value / self.least).ln() / (self.most / self.least).ln()
    }

    fn has(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    /// Returns 1, 2 and 5 of each decade on the axis.
    fn decades(&self) -> Vec<f64> {
        let all = (-3..9).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
        all.filter(|tick| self.has(*tick)).collect()
    }
}

/// Returns a power of two as bytes.
fn size(power: i32) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let unit = (power / 10).clamp(0, 3);
    format!("{} {}", 1_u64 << (power - 10 * unit), units[unit as usize])
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, size: u32, colour: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let weight = if size > 12 { "bold" } else { "normal" };
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{colour}\" \
         font-weight=\"{weight}\">{text}</text>"
    );
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
        from.0, from.1, to.0, to.1
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(collective: &str, bytes: u64, us: f64) -> Value {
        serde_json::json!({
            "collective": collective, "bytes": bytes, "eager_us": us, "graph_us": us / 2.0,
            "peers": [
                { "contender": "NCCL", "eager_us": 3.0 * us, "graph_us": 2.0 * us },
                { "contender": "NCCL with windows", "eager_us": null, "graph_us": null },
            ],
        })
    }

    #[test]
    fn each_contender_has_a_line_and_each_collective_a_plot() {
        let mut rows = Vec::new();
        for collective in
            ["all-reduce, one-shot", "all-reduce, two-shot", "reduce-scatter", "all-gather", "all-to-all"]
        {
            rows.extend([row(collective, 8, 10.0), row(collective, 1 << 28, 2000.0)]);
        }
        let report = serde_json::json!({ "machine": "2 x H100 & more", "ranks": 2, "rows": rows });
        let names: Vec<_> = series(&report, "all-reduce", "eager_us").unwrap();
        let names: Vec<_> = names.iter().map(|series| (series.name.as_str(), series.points.len())).collect();
        let expected =
            [("symm-mem one-shot", 2), ("symm-mem two-shot", 2), ("NCCL", 2), ("NCCL with windows", 0)];
        assert_eq!(names, expected);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("figures.json");
        fs::write(&file, report.to_string()).unwrap();
        let paths = kernels(&file).unwrap();
        assert_eq!(paths.len(), COLLECTIVES.len());
        for path in paths {
            let svg = fs::read_to_string(&path).unwrap();
            let document = roxmltree::Document::parse(&svg).unwrap();
            let all: String = document.descendants().filter_map(|node| node.text()).collect();
            for part in ["2 x H100 & more", "8 B", "256 MiB", "NCCL with windows (left out)", "figures.json"]
            {
                assert!(all.contains(part), "no {part} in {svg}");
            }
        }
    }

    #[test]
    fn an_axis_places_values_by_their_logarithm() {
        let axis = Axis { least: 1.0, most: 100.0 };
        assert!((axis.position(10.0) - 0.5).abs() < 1e-9);
        assert_eq!(axis.decades(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert!(Axis::of([0.0].into_iter()).is_none());
        assert_eq!([size(3), size(18), size(28), size(30)], ["8 B", "256 KiB", "256 MiB", "1 GiB"]);
    }

    #[test]
    fn what_is_no_report_is_an_error() {
        let error = plot(&serde_json::json!({ "machine": "m", "ranks": 2, "rows": [] }), "all-reduce", "f");
        assert!(error.unwrap_err().to_string().contains("no times"));
    }
}
