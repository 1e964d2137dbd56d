//! The help texts of all commands as one page: `docs/commands.md`.

use std::fmt::Write as _;

use anyhow::Result;
use clap::{Command, CommandFactory as _};

use crate::command::Arguments;

const START: &str = "\
# Commands

The binary `lockstep` has the commands for users of the crates. Install it from a clone with `cargo install --locked --path cli`, or \
run any of its commands in the clone as `cargo xtask COMMAND`. The exit code is 0 if the command did all that it should, 2 if its arguments are wrong, and 1 after any other error. \
An argument is wrong if the command cannot take its value: it is malformed, out of range, in conflict with another, or names a file of a wrong kind. A file or folder that does not exist, and a host that does not answer, are other errors. \
`lockstep launch` exits with the code of the rank that failed. \
Commands that report figures print them as JSON with `--json`. Errors are on standard error. With `--json`, standard output has objects only, one in a line; if the command fails, the last is `{\"error\": TEXT}`, with the text that standard error has. Arguments that cannot be parsed are reported on standard error only. Developer tasks are in [development.md](development.md#tasks).

These are the texts of `--help`. `cargo run -p lockstep-cli -- help-page > docs/commands.md` writes this page.
";

pub(crate) fn print() -> Result<()> {
    print!("{}", page());
    Ok(())
}

fn page() -> String {
    let mut page = START.to_owned();
    add(Arguments::command(), &mut page);
    page
}

/// Adds the texts of the visible commands below `parent`.
fn add(parent: Command, page: &mut String) {
    let mut parent = parent.disable_help_subcommand(true);
    parent.build();
    for command in parent.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
        let help = command.clone().term_width(100).render_long_help();
        // Writing to a string cannot fail.
        let _ = writeln!(page, "\n## {name}\n\n```text\n{}\n```", help.to_string().trim_end());
        if command.has_subcommands() {
            add(command.clone(), page);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_page_in_docs_is_the_one_that_is_printed() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/commands.md");
        // The page is not part of the published package.
        let Ok(found) = std::fs::read_to_string(&file) else {
            println!("skipped: not in a checkout");
            return;
        };
        assert!(found == super::page(), "run `cargo run -p lockstep-cli -- help-page > docs/commands.md`");
    }
}
