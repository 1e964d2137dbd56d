//! Lists what the NCCL at hand offers, by release: `cargo run -p lockstep-nccl-sys --example features [FILE]`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use nccl_sys::{Api, FUNCTIONS, Feature, Version};

fn main() -> ExitCode {
    let file = std::env::args_os().nth(1);
    match file.map_or_else(Api::load, Api::load_from) {
        Ok(api) => {
            list(&api);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn list(api: &Api) {
    println!("NCCL {} ({})", api.version(), api.path().unwrap_or("no file".as_ref()).display());
    for copy in api.copies() {
        println!("mapped: {}", copy.display());
    }

    let mut releases: BTreeMap<Version, Vec<(bool, &str)>> = BTreeMap::new();
    for function in FUNCTIONS {
        let there = api.table().address(function.name).is_some();
        releases.entry(function.since).or_default().push((there, function.name));
    }
    for (release, functions) in releases {
        println!("\nsince {release}:");
        for (there, name) in functions {
            println!("  {} {name}", if there { "+" } else { "-" });
        }
    }

    println!();
    for (name, feature) in Feature::all().iter_names() {
        match api.require(feature) {
            Ok(()) => println!("+ {name}"),
            Err(missing) => println!("- {missing}"),
        }
    }
}
