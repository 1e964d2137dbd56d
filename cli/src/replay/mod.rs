//! `lockstep replay`: replays recorded programs on the caching allocator and reports the result.
//!
//! - [`options`]: the policy and the memory of a replay
//! - [`program`]: a trace as its program's calls
//! - [`host`]: those calls over memory that is only counted
//! - [`gpu`]: those calls over a device's memory, with a pattern in every block
//! - [`figures`]: the figures, and their output
//! - [`curves`]: dependences of reserved memory, least capacity and driver calls
//! - [`shortage`]: the explanation of a lack of memory
//!
//! Figures come from the trace where possible. Peak active is the trace's own, so everything that an allocator adds
//! (rounding, remainders, caches, pages) shows in the ratio.

mod curves;
mod figures;
mod gpu;
mod host;
mod options;
mod program;
mod shortage;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::exit::{UsageError, explain};
use crate::output;
use crate::plain;
use crate::progress::Progress;
use crate::trace::Trace;
use crate::trace::budget::ReadLimit;
use crate::values;
use curves::Curves;
use figures::Figures;
use gpu::Gpu;
pub(crate) use host::Bench;
use host::ReplayError;
use options::Backend;
pub(crate) use options::Policy;
pub(crate) use program::{Call, Program};
use shortage::Shortage;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Recorded allocations: traces in text form, PyTorch memory snapshots (pickle or JSON), minimalloc CSV; may be gzipped; `-` is standard input
    #[arg(required = true, value_name = "TRACE", value_parser = values::input())]
    traces: Vec<PathBuf>,
    /// Reuse of free memory that fits no request
    #[arg(long, value_enum, default_value_t = Policy::Fixed)]
    policy: Policy,
    /// Memory of the device, in bytes or with a unit (KiB, MiB, GiB, TiB, or K, M, G, T for the same), such as 80GiB [default: unlimited]
    #[arg(long, value_name = "SIZE", default_value_t = u64::MAX, hide_default_value = true, value_parser = values::size, allow_negative_numbers = true)]
    capacity: u64,
    /// The memory that the allocator manages
    #[arg(long, value_enum, default_value_t = Backend::Host)]
    backend: Backend,
    /// Write a pattern into every block on the device, and verify it before the block is freed; not with `--backend host`. Every byte of every block is written and read, 75 GB for the smallest trace in cli/data, which takes minutes with `--backend sim`
    #[arg(long)]
    check: bool,
    /// Write reserved memory, least capacity and driver calls as JSON curves to this file; only with `--backend host`
    #[arg(long, value_name = "FILE")]
    curves: Option<PathBuf>,
    /// Print one line of JSON for each trace
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    limit: ReadLimit,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.backend == Backend::Host && options.check {
        let text = "--check needs memory that can be written: --backend cuda or --backend sim";
        return Err(UsageError(text.into()).into());
    }
    if options.backend != Backend::Host && options.curves.is_some() {
        return Err(
            UsageError("--curves is only for --backend host: it takes hundreds of replays".into()).into()
        );
    }
    if let Some(path) = &options.curves {
        output::check_differs("--curves", path, options.traces.iter().map(PathBuf::as_path))?;
        output::check_writable(path).with_context(|| unwritten(path))?;
    }
    // All traces are read before the first replay, so that a broken one is named early.
    let (mut traces, mut failed) = (Vec::new(), Vec::new());
    for path in &options.traces {
        match Trace::load_all(path, options.limit) {
            Ok(of_file) => traces.extend(of_file),
            Err(error) if options.traces.len() == 1 => return Err(error.into()),
            Err(error) => {
                eprintln!("error: {}", plain::lines(&explain(&error.into())));
                failed.push(path.display().to_string());
            }
        }
    }
    let count = traces.len() + failed.len();
    if cfg!(debug_assertions) {
        eprintln!("note: this is a debug build; for meaningful times use a release build");
    }
    let gpu = match options.backend {
        Backend::Host => None,
        backend => Some(Gpu::open(backend)?),
    };
    let mut curves = Vec::new();
    for trace in &traces {
        let program = Program::of(trace);
        let replayed = replay(options, gpu.as_ref(), &program)
            .with_context(|| format!("{}, {}", program.name, options.policy));
        match replayed {
            Ok((figures, of_trace)) => {
                curves.extend(of_trace);
                if options.json {
                    println!("{}", serde_json::to_string(&figures)?);
                } else {
                    println!("{figures}");
                }
            }
            Err(error) if count == 1 => return Err(error),
            Err(error) => {
                eprintln!("error: {}", plain::lines(&explain(&error)));
                failed.push(program.name);
            }
        }
    }
    if let Some(path) = options.curves.as_ref().filter(|_| !curves.is_empty()) {
        let text = serde_json::to_string_pretty(&curves)?;
        fs::write(path, text + "\n").with_context(|| unwritten(path))?;
    }
    if !failed.is_empty() {
        bail!("{} of {} replays failed: {}", failed.len(), count, failed.join(", "));
    }
    Ok(())
}

/// The error for a file of curves that cannot be written.
fn unwritten(path: &Path) -> String {
    format!("cannot write the curves to {}", path.display())
}

/// Replays a program. Returns its figures, and its curves if the options ask for them.
fn replay(options: &Options, gpu: Option<&Gpu>, program: &Program) -> Result<(Figures, Option<Curves>)> {
    let (policy, capacity) = (options.policy, options.capacity);
    let progress = Progress::start();
    let name = plain::Plain(&program.name);
    if options.check {
        progress.announce(format!("checking {name}: every byte of every block is written and read"));
    } else {
        progress.show(name.to_string());
    }
    let report = |stage: String| progress.show(format!("{name}: {stage}"));
    let figures = match gpu {
        None => Figures::measure(program, policy, capacity),
        Some(gpu) => gpu.measure(program, policy, capacity, options.check, &report),
    };
    let figures = figures.map_err(|error| explained(error, options, program))?;
    if options.curves.is_none() {
        return Ok((figures, None));
    }
    progress.show(format!("{name}: curves"));
    let curves = curves::of(program, policy, &figures)?;
    Ok((figures, Some(curves)))
}

/// Replaces an error of the allocator for lack of memory by one that explains it for a replay.
fn explained(error: ReplayError, options: &Options, program: &Program) -> anyhow::Error {
    match Shortage::of(&error, options.backend, options.policy, program.peak_active) {
        Some(shortage) => anyhow!("{shortage}"),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &str, policy: Policy) -> Figures {
        let [trace] = &Trace::load_all(&crate::trace::recorded(name), ReadLimit::default()).unwrap()[..]
        else {
            panic!("one trace is expected")
        };
        Figures::measure(&Program::of(trace), policy, u64::MAX).unwrap()
    }

    #[test]
    fn pages_that_move_leave_little_idle() {
        for (trace, operations, peak_active, most) in [
            ("gpt2_train.trace.gz", 34_567, 13_064_811_520, 1.02),
            ("resnet_train.trace.gz", 14_633, 7_529_035_776, 1.02),
            ("two_stream.trace.gz", 12_000, 91_402_240, 1.10),
        ] {
            let figures = figures(trace, Policy::Remap);
            assert_eq!((figures.operations, figures.peak_active), (operations, peak_active), "{figures}");
            let capacity = figures.min_capacity as f64 / peak_active as f64;
            assert!(figures.ratio.unwrap() <= most && capacity <= most, "{figures}");
            assert!(figures.driver_calls_steady * 50 <= operations, "{figures}");
        }
    }

    #[test]
    fn segments_that_stay_waste_less_than_pytorch_does() {
        for (trace, native) in
            [("gpt2_train.trace.gz", 1.458), ("resnet_train.trace.gz", 1.318), ("two_stream.trace.gz", 2.226)]
        {
            let figures = figures(trace, Policy::Fixed);
            assert!(figures.ratio.unwrap() <= native, "{figures}");
        }
    }
}
