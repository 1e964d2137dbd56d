//! What was found, for a person: facts, then verdicts, then findings, the worst last.

use comfy_table::{ContentArrangement, Table, presets};

use super::Examined;
use super::facts::{Devices, Host, Libraries, Tried, Variable, Works};
use super::verdict::{Finding, Outcome, Weight};
use crate::abi::probe::Probe;

const GIB: f64 = (1_u64 << 30) as f64;

/// Prints all of it.
pub(super) fn print(examined: &Examined) {
    let facts = &examined.facts;
    libraries("CUDA driver libraries", &facts.cuda);
    libraries("NCCL libraries", &facts.nccl);
    match &facts.devices {
        Tried::Done(found) => devices(found),
        Tried::Failed { .. } if facts.cuda.taken.error().is_some() => {
            println!("GPUs\n  none without a driver\n")
        }
        Tried::Failed { error } => println!("GPUs\n  none: {}\n", brief(error)),
    }
    host(&facts.host);
    variables(&facts.variables);
    verdicts(examined);
    findings(&examined.findings);
}

fn libraries(title: &str, libraries: &Libraries) {
    println!("{title}");
    if let Tried::Failed { error } = &libraries.taken {
        println!("  none is taken: {}", brief(error));
    }
    for library in &libraries.found {
        let sources = library.sources.join(", ");
        match &library.probe {
            Tried::Failed { error } => {
                println!("  - {} (from {sources})\n      {}", library.path.display(), brief(error))
            }
            Tried::Done(probe) => {
                println!(
                    "  {} {} {} (from {sources})",
                    if library.taken { "*" } else { "-" },
                    probe.version,
                    library.path.display()
                );
                if let (true, Tried::Done(taken)) = (library.taken, &libraries.taken) {
                    println!("      taken, because of: {}", taken.why);
                }
                offer(probe);
            }
        }
    }
    println!();
}

/// What the library has and lacks, and what for.
fn offer(probe: &Probe) {
    let absent: usize = probe.absent.iter().map(|absent| absent.functions.len()).sum();
    let there = probe.functions.len();
    let features = probe.features.len();
    println!(
        "      {there} of {} functions, {features} of {} features",
        there + absent,
        features + probe.refused.len()
    );
    for refused in &probe.refused {
        println!("      no {}: {}", refused.feature, refused.summary);
        if refused.known_bad {
            println!("        {}", refused.reason);
        }
    }
    for absent in &probe.absent {
        println!("      not before {}: {}", absent.since, some(&absent.functions));
    }
}

/// Up to eight of a list.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 8;
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(" "),
        Some(more) => format!("{} and {more} more", names[..SHOWN].join(" ")),
    }
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(140);
    }
    table.set_header(header);
    table
}

fn devices(devices: &Devices) {
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
        let free = gpu.memory_free.map_or_else(|| "-".into(), |bytes| format!("{:.1}", bytes as f64 / GIB));
        let granule = gpu.granularity.map(|g| format!("{} to {}", g.minimum >> 10, g.recommended >> 10));
        gpus.add_row([
            gpu.ordinal.to_string(),
            gpu.name.clone(),
            gpu.pci.clone().unwrap_or_else(|| "-".into()),
            gpu.compute_capability.clone(),
            format!("{free} of {:.1}", gpu.memory_total as f64 / GIB),
            gpu.nvlinks.map_or_else(|| "-".into(), |links| links.to_string()),
            granule.unwrap_or_else(|| "none".into()),
            works(&gpu.file_descriptor_export).into(),
            works(&gpu.fabric_export).into(),
            if gpu.multicast { "supported" } else { "no" }.into(),
        ]);
    }
    println!("GPUs\n{gpus}");
    for gpu in &devices.gpus {
        println!("  {} {}", gpu.ordinal, gpu.uuid.as_deref().unwrap_or("has no uuid"));
    }
    if !devices.pairs.is_empty() {
        println!(
            "  from a row's GPU to a column's: access (a: with native atomics) and the link's rank, 0 the best"
        );
        println!("{}", matrix(devices));
    }
    println!(
        "  modules are loaded: {}\n",
        devices.module_loading.as_deref().unwrap_or("the driver does not tell")
    );
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
                Some(pair) if !pair.access => "no".into(),
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

fn host(host: &Host) {
    println!("Host");
    println!("  kernel module: {}", host.kernel_module.as_deref().unwrap_or("none"));
    if let Some(sign) = &host.container {
        println!("  container: {sign}");
    }
    match &host.shared_memory {
        Tried::Done(space) => {
            println!("  /dev/shm: {:.1} GiB free of {:.1}", space.free as f64 / GIB, space.total as f64 / GIB)
        }
        Tried::Failed { error } => println!("  /dev/shm: {}", brief(error)),
    }
    let limits = host.limits.iter().map(|(name, limit)| {
        let soft = limit.soft.map_or_else(|| "unlimited".into(), |soft| soft.to_string());
        format!("{name} {soft}")
    });
    println!("  limits: {}", limits.collect::<Vec<_>>().join(", "));
    for (name, tried) in [
        ("abstract Unix sockets", &host.abstract_sockets),
        ("loopback interface", &host.loopback),
        ("embedded device", &host.embedded_device),
    ] {
        println!("  {name}: {}", tried.error().map_or_else(|| "works".into(), brief));
    }
    let channels = host.imex_channels.join(", ");
    println!("  IMEX channels: {}\n", if channels.is_empty() { "none" } else { &channels });
}

fn variables(variables: &[Variable]) {
    if variables.is_empty() {
        return;
    }
    println!("Variables of NCCL and CUDA");
    for Variable { name, value, source, effect, .. } in variables {
        let from = if source == "environment" { String::new() } else { format!(" (from {source})") };
        println!("  {name}={value}{from}: {}", effect.as_deref().unwrap_or("not known here"));
    }
    println!();
}

fn verdicts(examined: &Examined) {
    println!("Crates");
    for verdict in &examined.crates {
        let outcome = match verdict.outcome {
            Outcome::Works => "works",
            Outcome::Limited => "works with limits",
            Outcome::Unavailable => "does not work here",
        };
        let why =
            if verdict.why.is_empty() { String::new() } else { format!(": {}", verdict.why.join("; ")) };
        println!("  {:<16} {outcome}{why}", verdict.name);
    }
    let unavailable = examined.crates.iter().any(|verdict| verdict.outcome == Outcome::Unavailable);
    if unavailable && examined.facts.host.embedded_device.done().is_some() {
        println!("  On the embedded device every crate works here, the demo and all tests with it.");
    }
    println!();
}

fn findings(findings: &[Finding]) {
    if findings.is_empty() {
        return println!("Nothing stands in the way.");
    }
    println!("Findings, the worst last");
    for Finding { weight, subject, cause, remedy, crates } in findings {
        let weight = match weight {
            Weight::Note => "note",
            Weight::Limit => "limit",
            Weight::Fault => "fault",
        };
        println!("  {weight}: {subject}: {cause}");
        if !crates.is_empty() {
            println!("      concerns: {}", crates.join(", "));
        }
        if let Some(remedy) = remedy {
            println!("      remedy: {remedy}");
        }
    }
}

/// An error in a line: of a list of files that were tried, those that are there but cannot be used.
pub(super) fn brief(error: &str) -> String {
    let mut lines = error.lines().map(str::trim);
    let mut text = lines.next().unwrap_or_default().trim_end_matches(" Tried:").to_owned();
    for line in lines.filter(|line| !line.is_empty()) {
        let name = line.split(':').next().unwrap_or_default();
        let absent = format!("{name}: {name}: cannot open shared object file: No such file or directory");
        if line != absent {
            text = format!("{text}; {line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::brief;

    #[test]
    fn of_what_was_tried_only_what_is_there_is_told() {
        let absent =
            "no X found. Tried:\n  x.so: x.so: cannot open shared object file: No such file or directory";
        assert_eq!(brief(absent), "no X found.");
        let broken = format!("{absent}\n  x.so.2: /lib/x.so.2: file too short");
        assert_eq!(brief(&broken), "no X found.; x.so.2: /lib/x.so.2: file too short");
    }
}
