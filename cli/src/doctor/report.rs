//! The report for a person: facts, then verdicts, then findings, the worst last. The error of a part that does not work
//! is in its finding only.

use comfy_table::{ContentArrangement, LineStyle, Table, presets};

use super::Examined;
use super::facts::{Devices, Host, Libraries, Tried, Variable, Works};
use super::verdict::{Finding, Outcome, Verdict, Weight};
use crate::probe::Probe;

const GIB: f64 = (1_u64 << 30) as f64;

/// Follows a part that does not work. Each such part has a finding.
const SEE: &str = "see the findings";

/// Adds a line.
macro_rules! say {
    ($out:expr, $($text:tt)*) => {{
        $out.push_str(&format!($($text)*));
        $out.push('\n');
    }};
}

/// Returns the whole report.
pub(super) fn text(examined: &Examined) -> String {
    let mut text = String::new();
    let out = &mut text;
    let facts = &examined.facts;
    libraries(out, "CUDA driver libraries", &facts.cuda);
    libraries(out, "NCCL libraries", &facts.nccl);
    match &facts.devices {
        Tried::Done(found) => devices(out, found),
        Tried::Failed { .. } if facts.cuda.taken.error().is_some() => {
            say!(out, "GPUs\n  none without a driver\n")
        }
        Tried::Failed { .. } => say!(out, "GPUs\n  none: {SEE}\n"),
    }
    host(out, &facts.host);
    variables(out, &facts.variables);
    verdicts(out, &examined.crates);
    findings(out, &examined.findings);
    text
}

fn libraries(out: &mut String, title: &str, libraries: &Libraries) {
    let taken = libraries.taken();
    let legend =
        if taken.is_some() { " (*: the one that is taken, by the first way that is named)" } else { "" };
    say!(out, "{title}{legend}");
    if libraries.taken.error().is_some() {
        say!(out, "  none is taken: {SEE}");
    }
    for library in &libraries.found {
        let sources = library.sources.join(", ");
        match &library.probe {
            Tried::Failed { .. } => {
                say!(out, "  - {} (from {sources})\n      cannot be used: {SEE}", library.path.display())
            }
            Tried::Done(probe) => {
                say!(
                    out,
                    "  {} {} {} (from {sources})",
                    if library.taken { "*" } else { "-" },
                    probe.version,
                    library.path.display()
                );
                offer(out, probe, taken.filter(|_| !library.taken));
            }
        }
    }
    say!(out, "");
}

/// Lists a library's features and missing functions. For a library that is not selected, lists only the differences
/// from the selected one.
fn offer(out: &mut String, probe: &Probe, taken: Option<&Probe>) {
    let absent: usize = probe.absent.iter().map(|absent| absent.functions.len()).sum();
    let there = probe.functions.len();
    let features = probe.features.len();
    say!(
        out,
        "      {there} of {} functions, {features} of {} features",
        there + absent,
        features + probe.refused.len()
    );
    if let Some(taken) = taken {
        return difference(out, probe, taken);
    }
    for refused in &probe.refused {
        let why = if refused.known_bad { &refused.reason } else { &refused.summary };
        say!(out, "      no {}: {why}", refused.feature);
    }
    for absent in &probe.absent {
        say!(out, "      not before {}: {}", absent.since, some(absent.functions.iter()));
    }
}

fn difference(out: &mut String, probe: &Probe, taken: &Probe) {
    let mut same = true;
    for (word, has, lacks) in [("more", probe, taken), ("less", taken, probe)] {
        let features = has.features.iter().filter(|name| !lacks.features.contains(name));
        let functions = has.functions.difference(&lacks.functions);
        for (what, names) in [("features", some(features)), ("functions", some(functions))] {
            if !names.is_empty() {
                same = false;
                say!(out, "      {word} {what} than the one taken: {names}");
            }
        }
    }
    let bad = |probe: &Probe, feature: &str| {
        probe.refused.iter().any(|refused| refused.known_bad && refused.feature == feature)
    };
    for refused in probe.refused.iter().filter(|refused| refused.known_bad) {
        if !bad(taken, &refused.feature) {
            same = false;
            say!(out, "      no {}: {}", refused.feature, refused.reason);
        }
    }
    if same {
        say!(out, "      the same as the one taken");
    }
}

/// Lists up to eight names.
fn some<'a>(names: impl Iterator<Item = &'a String>) -> String {
    const SHOWN: usize = 8;
    let names: Vec<_> = names.map(String::as_str).collect();
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(" "),
        Some(more) => format!("{} and {more} more", names[..SHOWN].join(" ")),
    }
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    let style = presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none());
    table.load_style(style).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(140);
    }
    table.set_header(header);
    table
}

fn devices(out: &mut String, devices: &Devices) {
    let mut gpus = table([
        "GPU",
        "name",
        "PCI",
        "compute",
        "GiB free",
        "NVLinks",
        "granule KiB",
        "fd export",
        "fabric",
        "multicast",
    ]);
    for gpu in &devices.gpus {
        let gib = |bytes: Option<&u64>| {
            bytes.map_or_else(|| "-".into(), |&bytes| format!("{:.1}", bytes as f64 / GIB))
        };
        let granule = gpu.granularity.map(|of| match (of.minimum >> 10, of.recommended >> 10) {
            (minimum, recommended) if minimum == recommended => minimum.to_string(),
            (minimum, recommended) => format!("{minimum}, better {recommended}"),
        });
        gpus.add_row([
            gpu.ordinal.to_string(),
            told(&gpu.name),
            gpu.pci.clone().unwrap_or_else(|| "-".into()),
            told(&gpu.compute_capability),
            format!("{} of {}", gib(gpu.memory_free.as_ref()), gib(gpu.memory_total.done())),
            gpu.nvlinks.map_or_else(|| "-".into(), |links| links.to_string()),
            granule.unwrap_or_else(|| "none".into()),
            works(&gpu.file_descriptor_export).into(),
            works(&gpu.fabric_export).into(),
            gpu.multicast.done().map_or("-", |&can| if can { "supported" } else { "no" }).into(),
        ]);
    }
    say!(out, "GPUs\n{gpus}");
    for gpu in &devices.gpus {
        say!(out, "  {} {}", gpu.ordinal, gpu.uuid.as_deref().unwrap_or("has no uuid"));
    }
    if !devices.pairs.is_empty() {
        say!(
            out,
            "  from a row's GPU to a column's: access (a: with native atomics) and the link's rank, 0 the best"
        );
        say!(out, "{}", matrix(devices));
    }
    say!(
        out,
        "  module loading: {}\n",
        devices.module_loading.as_deref().unwrap_or("the driver does not tell")
    );
}

fn told(answer: &Tried<String>) -> String {
    answer.done().map_or_else(|| "-".into(), String::clone)
}

fn works(tried: &Tried<Works>) -> &'static str {
    if tried.done().is_some() { "works" } else { "refused" }
}

fn matrix(devices: &Devices) -> Table {
    let mut matrix = table([]);
    let head = devices.gpus.iter().map(|gpu| gpu.ordinal.to_string());
    matrix.set_header(std::iter::once(String::new()).chain(head));
    for from in &devices.gpus {
        let cells = devices.gpus.iter().map(|to| {
            let pair = devices.pairs.iter().find(|pair| (pair.from, pair.to) == (from.ordinal, to.ordinal));
            match pair {
                None => "·".to_owned(),
                Some(pair) if pair.access.error().is_some() => "-".into(),
                Some(pair) if pair.access.done() == Some(&false) => "no".into(),
                Some(pair) => {
                    let atomics = if pair.native_atomics == Some(true) { " a" } else { "" };
                    let rank = pair.performance_rank.map(|rank| format!(" {rank}")).unwrap_or_default();
                    format!("yes{atomics}{rank}")
                }
            }
        });
        matrix.add_row(std::iter::once(from.ordinal.to_string()).chain(cells));
    }
    matrix
}

fn host(out: &mut String, host: &Host) {
    say!(out, "Host");
    say!(out, "  kernel module: {}", host.kernel_module.as_deref().unwrap_or("none"));
    if let Some(sign) = &host.container {
        say!(out, "  container: {sign}");
    }
    match &host.shared_memory {
        Tried::Done(space) => {
            say!(
                out,
                "  /dev/shm: {:.1} GiB free of {:.1}",
                space.free as f64 / GIB,
                space.total as f64 / GIB
            )
        }
        Tried::Failed { .. } => say!(out, "  /dev/shm: cannot be used: {SEE}"),
    }
    let limits = host.limits.iter().map(|(name, limit)| {
        let (what, unit) = match name.as_str() {
            "as" => ("address space", " bytes"),
            "memlock" => ("locked memory", " bytes"),
            "nofile" => ("open files", ""),
            "nproc" => ("processes and threads", ""),
            other => (other, ""),
        };
        let soft = limit.soft.map_or_else(|| "unlimited".into(), |soft| format!("{soft}{unit}"));
        format!("{what} {soft}")
    });
    say!(out, "  limits: {}", limits.collect::<Vec<_>>().join(", "));
    for (name, tried) in [
        ("abstract Unix sockets", &host.abstract_sockets),
        ("loopback interface", &host.loopback),
        ("embedded device", &host.embedded_device),
    ] {
        match tried {
            Tried::Done(_) => say!(out, "  {name}: works"),
            Tried::Failed { .. } => say!(out, "  {name}: does not work: {SEE}"),
        }
    }
    let channels = host.imex_channels.join(", ");
    say!(out, "  IMEX channels: {}\n", if channels.is_empty() { "none" } else { &channels });
}

fn variables(out: &mut String, variables: &[Variable]) {
    if variables.is_empty() {
        return;
    }
    say!(out, "Variables of NCCL and CUDA");
    for Variable { name, value, source, effect, .. } in variables {
        let from = if source == "environment" { String::new() } else { format!(" (from {source})") };
        say!(out, "  {name}={value}{from}: {}", effect.as_deref().unwrap_or("not known here"));
    }
    say!(out, "");
}

fn verdicts(out: &mut String, verdicts: &[Verdict]) {
    say!(out, "Crates");
    for Verdict { name, outcome, why } in verdicts {
        let outcome: &str = (*outcome).into();
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
        say!(out, "  {name:<16} {outcome}{why}");
    }
    if verdicts.iter().any(|verdict| verdict.outcome == Outcome::EmbeddedOnly) {
        say!(out, "  The demo and all tests run on the embedded device, which needs no GPU.");
    }
    say!(out, "");
}

fn findings(out: &mut String, findings: &[Finding]) {
    if findings.is_empty() {
        return say!(out, "Nothing stands in the way.");
    }
    say!(out, "Findings, the worst last");
    for Finding { weight, subject, cause, remedy, crates } in findings {
        let weight = match weight {
            Weight::Note => "note",
            Weight::Limit => "limit",
            Weight::Fault => "fault",
        };
        say!(out, "  {weight}: {subject}: {cause}");
        if !crates.is_empty() {
            say!(out, "      concerns: {}", crates.join(", "));
        }
        if let Some(remedy) = remedy {
            say!(out, "      remedy: {remedy}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::text;
    use crate::doctor::Examined;
    use crate::doctor::verdict::{judge, tests as hosts};

    fn examined(changes: &[hosts::Change]) -> Examined {
        let facts = hosts::changed(changes);
        let (findings, crates) = judge(&facts);
        Examined { facts, findings, crates }
    }

    #[test]
    fn a_host_of_four_gpus_is_shown_as_a_matrix() {
        let text = text(&examined(&[hosts::Change::Devices(4), hosts::Change::Apart(2)]));
        let row = |ordinal: &str| {
            let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            rows.rfind(|row| row.first() == Some(&ordinal)).unwrap_or_default().join(" ")
        };
        assert_eq!(row("1"), "1 yes a 0 · yes a 0 yes a 0", "{text}");
        assert_eq!(row("2"), "2 no no · no", "{text}");
    }

    #[test]
    fn an_error_is_told_once() {
        use hosts::Change::{BrokenNccl, NoDevices, NoDriver, NoEmbedded, NoLoopback, NoNccl, NoSockets};
        for (change, error) in [
            (NoDriver, "no library found"),
            (NoDevices, "CUDA_ERROR_NO_DEVICE"),
            (NoNccl, "no library found"),
            (BrokenNccl, "file too short"),
            (NoSockets, "not permitted"),
            (NoLoopback, "no such device"),
            (NoEmbedded, "out of memory"),
        ] {
            let text = text(&examined(&[change]));
            assert_eq!(text.matches(error).count(), 1, "{error:?} in:\n{text}");
            assert!(text.contains(super::SEE), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_finding_is_told_and_the_worst_last(changes in prop::collection::vec(hosts::change(), 0..8)) {
            let examined = examined(&changes);
            let text = text(&examined);
            let mut rest = text.as_str();
            for finding in &examined.findings {
                let at = rest.find(&finding.cause);
                prop_assert!(at.is_some(), "{:?} is missing in its place:\n{}", finding, text);
                rest = &rest[at.unwrap_or(0)..];
            }
            for verdict in &examined.crates {
                prop_assert!(text.contains(verdict.name));
            }
        }
    }
}
