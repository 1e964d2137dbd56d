//! The embedded machine as a shared library with both C ABIs, for programs that we did not write: `libcuda.so.1` and
//! `libnccl.so.2` may both be links to it.
//!
//! ```sh
//! cargo build -p lockstep-gpu-sim --features exports --example shared_library
//! library=${CARGO_TARGET_DIR:-$PWD/target}/debug/examples/libshared_library.so
//! env CUDA_DRIVER_SYS_LIBRARY=$library NCCL_SYS_LIBRARY=$library \
//!     cargo run -p lockstep-nccl-sys --example raw_all_reduce
//! ```
//!
//! The machine exists from the library's loading to the program's end. It has `GPU_SIM_DEVICES` devices (default 2)
//! of `GPU_SIM_CAPACITY` bytes each (default 1 GiB), and NCCL of release code `GPU_SIM_NCCL` (default 22809). The
//! symbols are those of all modelled releases. Errors that hardware ignores are ignored here too.

use std::env::VarError;
use std::str::FromStr;
use std::sync::OnceLock;

use gpu_sim::World;

static WORLD: OnceLock<World> = OnceLock::new();

/// Run by the loader, before any code has an address of this library.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    match world() {
        Ok(world) => {
            let _ = WORLD.set(world);
        }
        // Every call will return that there is no machine; this prints the reason.
        Err(problem) => eprintln!("gpu-sim: {problem}"),
    }
}

fn world() -> Result<World, String> {
    let builder = World::builder()
        .devices(setting("GPU_SIM_DEVICES", 2)?)
        .capacity(setting("GPU_SIM_CAPACITY", 1 << 30)?)
        .nccl_release(setting("GPU_SIM_NCCL", 22809)?)
        .faithful();
    builder.start().map_err(|error| error.to_string())
}

fn setting<T: FromStr>(variable: &str, default: T) -> Result<T, String> {
    match std::env::var(variable) {
        Err(VarError::NotPresent) => Ok(default),
        Err(error) => Err(format!("{variable}: {error}")),
        Ok(text) => text.parse().map_err(|_| format!("{variable}={text} is no number that it takes")),
    }
}
