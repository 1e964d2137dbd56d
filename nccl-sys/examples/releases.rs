//! What each release of NCCL and of the CUDA driver brings, and what the libraries at hand have of it:
//! `cargo run -p lockstep-nccl-sys --example releases [nccl|cuda]`. Needs neither.

use std::env::args;

/// Whether the library at hand has something: yes, no, or there is no library.
fn mark(there: Option<bool>) -> char {
    there.map_or(' ', |there| if there { '+' } else { '-' })
}

/// Lists one of the crates, all of which are alike.
macro_rules! list {
    ($sys:ident, $library:literal) => {{
        let api = $sys::Api::load();
        match &api {
            Ok(api) => println!("{} {} at {:?}: + has, - lacks\n", $library, api.version(), api.path()),
            Err(error) => println!("no {} at hand to compare with: {error}\n", $library),
        }
        let api = api.as_ref().ok();
        for release in $sys::releases() {
            println!("{} {} brings", $library, release.version);
            for (name, feature) in release.features.iter_names() {
                println!("  {} {name}", mark(api.map(|api| api.has(feature))));
                for bad in feature.known_bad() {
                    println!("      wrong from {} until {}: {}", bad.first, bad.mended, bad.fault);
                }
            }
            for function in release.functions {
                println!(
                    "  {} {}",
                    mark(api.map(|api| api.table().address(function.name).is_some())),
                    function.name
                );
            }
        }
        println!();
    }};
}

fn main() {
    let wanted = args().nth(1);
    let lists = |library| wanted.as_deref().is_none_or(|wanted| wanted == library);
    if lists("nccl") {
        list!(nccl_sys, "NCCL");
        for field in nccl_sys::CONFIG_FIELDS {
            println!("ncclConfig_t.{} since {}", field.name, field.since);
        }
        println!();
    }
    if lists("cuda") {
        list!(cuda_driver_sys, "CUDA driver");
    }
}
