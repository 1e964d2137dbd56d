//! PyTorch's benchmark programs, if their requirements are installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::turns::{Player, rounds};
use crate::child;
use crate::progress::Progress;

const ALLOC: &str = include_str!("../../peers/alloc_bench.cpp");

/// A Python program of several ranks. Its first argument is the number of ranks.
pub(super) struct Script {
    name: &'static str,
    text: &'static str,
}

/// Calls of `torch.distributed`.
pub(super) const CALL: Script =
    Script { name: "call_bench.py", text: include_str!("../../peers/call_bench.py") };
/// All-reduce kernels of `torch.distributed`'s symmetric memory. Its second argument is the list of the rounds' lengths.
pub(super) const KERNELS: Script =
    Script { name: "kernels_bench.py", text: include_str!("../../peers/kernels_bench.py") };
/// Symmetric memory of `torch.distributed`.
pub(super) const SYMM: Script =
    Script { name: "symm_bench.py", text: include_str!("../../peers/symm_bench.py") };

/// On a slow host, a compiler needs a minute for PyTorch's headers.
const LIMIT: Duration = Duration::from_secs(300);

/// Libraries to link. The allocator depends on registrations that run when `torch_cuda` is loaded, but no symbol refers
/// to that library.
const LIBRARIES: [&str; 6] =
    ["-Wl,--no-as-needed", "-ltorch_cuda", "-ltorch_cpu", "-lc10_cuda", "-lc10", "-lcudart"];

/// Builds and starts `peers/alloc_bench.cpp`. Returns the program, and the folder of its files.
///
/// # Errors
/// The reason why it is not available on this host.
pub(super) fn torch_allocator() -> Result<(Player, TempDir)> {
    let find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])";
    let python = child::output_within(Command::new("python3").args(["-c", find]), LIMIT)
        .context("looking for torch with python3")?;
    if !python.status.success() {
        bail!("python3 has no torch");
    }
    let torch = PathBuf::from(String::from_utf8_lossy(&python.stdout).trim());
    let cuda = std::env::var_os("CUDA_HOME").map_or_else(|| PathBuf::from("/usr/local/cuda"), PathBuf::from);
    if !cuda.join("include/cuda_runtime.h").exists() {
        bail!("no CUDA toolkit in {} (CUDA_HOME names another)", cuda.display());
    }
    let folder = tempfile::tempdir().context("a folder for the program")?;
    let (source, program) = (folder.path().join("alloc_bench.cpp"), folder.path().join("alloc_bench"));
    std::fs::write(&source, ALLOC).with_context(|| format!("cannot write {}", source.display()))?;
    let mut compiler = Command::new("g++");
    compiler.args(["-O2", "-std=c++20"]).arg(&source).arg("-o").arg(&program);
    compiler.arg("-pthread").args(flags("-I", &[torch.join("include"), cuda.join("include")]));
    let libraries = [torch.join("lib"), cuda.join("lib64")];
    compiler.args(flags("-L", &libraries)).args(LIBRARIES);
    compiler.args(flags("-Wl,-rpath,", &libraries));
    let built = child::output_within(&mut compiler, LIMIT).context("building it")?;
    if !built.status.success() {
        bail!("building it: {}: {}", built.status, String::from_utf8_lossy(&built.stderr).trim());
    }
    Ok((Player::start(&mut Command::new(&program))?, folder))
}

/// Runs `code`, which imports `torch`, with Python (the variable `PYTHON` names another than python3). Returns that Python
/// and what `code` prints.
///
/// # Errors
/// There is no Python, or it has no `torch`.
pub(super) fn python_with_torch(code: &str) -> Result<(PathBuf, String)> {
    let python = std::env::var_os("PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let found = child::output_within(Command::new(&python).args(["-c", code]), LIMIT)
        .with_context(|| format!("looking for torch with {}", python.display()))?;
    if !found.status.success() {
        bail!("{} has no torch (the variable PYTHON names another Python)", python.display());
    }
    Ok((python, String::from_utf8_lossy(&found.stdout).into_owned()))
}

/// Starts the script with the Python of [`python_with_torch`] and further arguments. Returns the program, and the folder of its files.
///
/// # Errors
/// The reason why it is not available on this host.
pub(super) fn torch_distributed(
    script: &Script,
    ranks: usize,
    further: &[&str],
) -> Result<(Player, TempDir)> {
    let count =
        "import torch, torch.distributed as d; print(torch.cuda.device_count() * d.is_nccl_available())";
    let (python, devices) = python_with_torch(count)?;
    let devices: usize = devices.trim().parse().unwrap_or_default();
    if devices < ranks {
        bail!("torch reaches {devices} GPUs with NCCL, for {ranks} ranks");
    }
    let folder = tempfile::tempdir().context("a folder for the program")?;
    let program = folder.path().join(script.name);
    std::fs::write(&program, script.text).with_context(|| format!("cannot write {}", program.display()))?;
    Ok((Player::start(Command::new(&python).arg(&program).arg(ranks.to_string()).args(further))?, folder))
}

/// Runs all rounds of our program, `count`, and after each one a round of PyTorch's, until that fails: then it is its
/// error.
pub(super) fn alternate(
    progress: &Progress,
    count: usize,
    ours: &mut Player,
    torch: &mut Result<(Player, TempDir)>,
    lines: &mut String,
) -> Result<()> {
    rounds(progress, count, || {
        let has_more = ours.round(lines)?;
        if has_more
            && let Ok((player, _)) = torch
            && let Err(why) = player.round(lines)
        {
            *torch = Err(why);
        }
        Ok(has_more)
    })
}

fn flags<'a>(flag: &'a str, folders: &'a [PathBuf]) -> impl Iterator<Item = String> + 'a {
    folders.iter().map(move |folder: &PathBuf| format!("{flag}{}", Path::display(folder)))
}
