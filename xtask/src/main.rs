//! Development tasks.

mod codegen;
mod headers;

use clap::Parser;

/// Development tasks of the workspace.
#[derive(Parser)]
enum Task {
    Codegen(codegen::Args),
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Codegen(args) => codegen::run(args),
    }
}
