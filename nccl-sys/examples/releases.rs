//! Lists the additions of each release of NCCL and of the CUDA driver, and marks those that the installed libraries
//! have: `cargo run -p lockstep-nccl-sys --example releases [nccl|cuda]`. Runs without the libraries too.

use std::env::args;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Returns the mark of an item: `+` if the library has it, `-` if not, a blank if there is no library.
fn mark(there: Option<bool>) -> char {
    there.map_or(' ', |there| if there { '+' } else { '-' })
}

/// Lists the releases of one library. `$sys` is the crate that binds it: `nccl_sys` and `cuda_driver_sys` have the same
/// interface.
macro_rules! list {
    ($out:ident, $sys:ident, $library:literal) => {{
        let api = $sys::Api::load();
        match &api {
            Ok(api) => {
                writeln!($out, "{} {} at {:?}: + has, - lacks\n", $library, api.version(), api.path())?
            }
            Err(error) => writeln!($out, "no {} at hand to compare with: {error}\n", $library)?,
        }
        let api = api.as_ref().ok();
        for release in $sys::releases() {
            writeln!($out, "{} {} brings", $library, release.version)?;
            for (name, feature) in release.features.iter_names() {
                writeln!($out, "  {} {name}", mark(api.map(|api| api.has(feature))))?;
                for bad in feature.known_bad() {
                    writeln!($out, "      wrong from {} until {}: {}", bad.first, bad.mended, bad.fault)?;
                }
            }
            for function in release.functions {
                let there = api.map(|api| api.table().address(function.name).is_some());
                writeln!($out, "  {} {}", mark(there), function.name)?;
            }
        }
        writeln!($out)?;
    }};
}

fn list(out: &mut impl Write) -> io::Result<()> {
    let wanted = args().nth(1);
    if let Some(other) = wanted.as_deref().filter(|wanted| !["nccl", "cuda"].contains(wanted)) {
        return Err(io::Error::other(format!("{other:?} is no library that is listed: `nccl` or `cuda`")));
    }
    let lists = |library| wanted.as_deref().is_none_or(|wanted| wanted == library);
    if lists("nccl") {
        list!(out, nccl_sys, "NCCL");
        for field in nccl_sys::CONFIG_FIELDS {
            writeln!(out, "ncclConfig_t.{} since {}", field.name, field.since)?;
        }
        writeln!(out)?;
    }
    if lists("cuda") {
        list!(out, cuda_driver_sys, "CUDA driver");
    }
    Ok(())
}

fn main() -> ExitCode {
    match list(&mut io::stdout().lock()) {
        // A closed pipe is not an error: the program that reads the output has read as much as it wants.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
