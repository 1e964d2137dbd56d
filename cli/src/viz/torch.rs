//! PyTorch's own viewer, on our snapshots.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use caching_alloc::core::{Allocator, Block, Settings, Snapshot, StreamId};
use caching_alloc::host::{HostSource, HostStreams};

use crate::trace::budget::ReadLimit;
use crate::trace::snapshot::{Block as RecordedBlock, BlockState, Snapshot as Recorded};
use crate::trace::{Format, Origin};

/// Stand-in for the script through which the viewer pipes the lines of its flame graphs, and which it downloads if it
/// is missing. This one copies the lines, and fails if one is not `WORDS NUMBER`.
const FLAME_GRAPH: &str = "#!/bin/sh\nexec awk '{ print } !/^.+ [0-9]+$/ { bad = 1 } END { exit bad }'\n";

/// Runs the viewer's drawing, printing and comparing functions. Its `compare` takes lists of segments, which its
/// command line does not pass, so the command line fails on any two files.
const COMPARE: &str = "
import pickle, runpy, sys
viewer = runpy.run_path(sys.argv[1])
before, after = (pickle.load(open(name, 'rb'))['segments'] for name in sys.argv[2:])
print(viewer['compare'](before, after))
";

/// Checks that PyTorch's viewer, the script at `viewer`, reads snapshots of both kinds of pool.
///
/// # Errors
/// The viewer cannot be run, or does not show what the snapshots hold.
pub(super) fn check(viewer: &Path) -> Result<()> {
    let viewer = viewer.canonicalize().with_context(|| format!("cannot find {}", viewer.display()))?;
    for remap in [false, true] {
        let (before, after) = snapshots(remap)?;
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        for (name, snapshot) in [("before.pickle", &before), ("after.pickle", &after)] {
            let mut file = std::io::BufWriter::new(fs::File::create(at(name))?);
            snapshot.write_pickle(&mut file)?;
            std::io::Write::flush(&mut file)?;
        }
        read_back(&fs::read(at("after.pickle"))?, &after)?;
        let script = at(".cache/flamegraph.pl");
        fs::create_dir_all(at(".cache"))?;
        fs::write(&script, FLAME_GRAPH)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let python = |arguments: &[&str]| {
            let mut python = Command::new("python3");
            python.current_dir(&folder).env("HOME", folder.path()).args(arguments);
            let output = python.output().context("running python3")?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "python3 {}: {}: {said}", arguments.join(" "), output.status);
            Ok(String::from_utf8(output.stdout)?)
        };
        let file = viewer.to_string_lossy();

        let stats = python(&[&file, "stats", "after.pickle"])?;
        let segments = after.segments.len() + after.mapped.len();
        ensure!(stats.contains(&format!("segments: {segments}\n")), "{segments} segments in:\n{stats}");
        let trace = python(&[&file, "trace", "after.pickle"])?;
        for word in ["= ", "del ", "free completed", if remap { "segment_unmap" } else { "cudaFree" }] {
            ensure!(trace.contains(word), "the viewer's trace has no {word:?}");
        }
        let here = Path::new(file!()).file_name().unwrap_or_default().to_string_lossy();
        for command in ["segments", "memory"] {
            python(&[&file, command, "after.pickle", "-o", "flames"])?;
            let flames = fs::read_to_string(at("flames"))?;
            ensure!(
                flames.contains(&format!("active_allocated;{here}:")),
                "the viewer's {command} has no call sites"
            );
        }
        for arguments in
            [&["trace_plot"][..], &["trace_plot", "-s"], &["trace_plot", "-f"], &["segment_plot"]]
        {
            python(&[&[&*file], arguments, &["after.pickle", "-o", "page.html"]].concat())?;
            ensure!(fs::metadata(at("page.html"))?.len() > 1000, "an empty page");
        }
        let compared = python(&["-c", COMPARE, &file, "before.pickle", "after.pickle"])?;
        ensure!(compared.contains("only_after = ["), "what is new in:\n{compared}");
    }
    println!("PyTorch's viewer reads snapshots of fixed and of re-mappable pools");
    Ok(())
}

/// Checks that our own reader finds the same as the viewer.
fn read_back(pickle: &[u8], written: &Snapshot) -> Result<()> {
    let read = Recorded::read(pickle, Format::Pickle, &Origin::BuiltIn, &ReadLimit::default().budget(0))?;
    ensure!(
        read.segments.len() == written.segments.len() + written.mapped.len(),
        "{} segments are read",
        read.segments.len()
    );
    let used = |block: &&RecordedBlock| block.state != BlockState::Inactive;
    let mut blocks = read.segments.iter().flat_map(|segment| &segment.blocks).filter(used);
    ensure!(blocks.all(|block| block.call_site.is_some()), "a block without a call site is read");
    let trace = read.device_traces.first().context("no trace")?;
    ensure!(trace.is_sorted_by_key(|event| event.time_us), "a trace that is not in order is read");
    ensure!(trace.iter().any(|event| event.call_site.is_some()), "a trace without call sites is read");
    Ok(())
}

/// Returns snapshots of a small program: half way, and at its end.
fn snapshots(remap: bool) -> Result<(Snapshot, Snapshot)> {
    let source = Arc::new(HostSource::new(1 << 30));
    let streams = Arc::new(HostStreams::new());
    let settings = Settings { large_segment: 2 << 20, growth_divisor: u64::MAX, ..Settings::default() };
    let allocator = if remap {
        Allocator::remapping(source, streams.clone(), settings)?
    } else {
        Allocator::new(source, streams.clone(), settings)
    };
    let mut live: Vec<Block> = Vec::new();
    let mut run = |rounds: std::ops::Range<u64>| -> Result<Snapshot> {
        for round in rounds {
            let bytes = (round % 7 + 1) * (round % 5 + 1) * 300_000;
            live.push(allocator.allocate(bytes, StreamId(round % 2))?);
            if live.len() > 12 {
                let block = live.swap_remove((round * 5 % 12) as usize);
                if round % 10 == 0 {
                    streams.enqueue(StreamId(9));
                    block.record_stream(StreamId(9))?;
                }
            }
            if round % 40 == 30 {
                allocator.annotate("a step")?;
                live.truncate(4);
                allocator.empty_cache()?;
            }
        }
        ensure!(allocator.allocate(2 << 30, StreamId(0)).is_err(), "more than the source has");
        Ok(allocator.snapshot()?)
    };
    Ok((run(0..60)?, run(60..200)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_viewer_reads_our_snapshots() {
        let wheels = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/xtask/wheels");
        let viewer = Path::new(wheels).join("torch-2.15.0-memory-viewer/torch/cuda/_memory_viz.py");
        if viewer.exists() {
            check(&viewer).unwrap();
        } else {
            println!("skipped: PyTorch's viewer is not here; `cargo xtask torch-viewer` fetches it");
        }
    }
}
