//! Errors of mistyped commands and options. clap suggests hidden ones too.

use std::ffi::OsString;

use clap::error::{ContextKind, Error};
use clap::{Arg, Command};

/// Returns `error`, the error of parsing `arguments`; if it suggests a hidden command or option of `command`, with the
/// most similar visible one instead, if any.
pub(crate) fn without_hidden(error: Error, command: &Command, arguments: &[OsString]) -> Error {
    let suggestions = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::Suggested]
        .map(|kind| error.get(kind));
    let suggested: Vec<String> = suggestions.into_iter().flatten().map(ToString::to_string).collect();
    let mut hidden = Vec::new();
    collect_hidden(command, &mut hidden);
    if !hidden.iter().any(|name| suggested.iter().any(|text| text.contains(name))) {
        return error;
    }
    rename_hidden(command.clone()).try_get_matches_from(arguments).err().unwrap_or(error)
}

/// Adds the names of the hidden commands and options of `command` and its subcommands to `names`.
fn collect_hidden(command: &Command, names: &mut Vec<String>) {
    for option in command.get_arguments().filter(|option| is_hidden(option)) {
        let long = option.get_long_and_visible_aliases().into_iter().flatten();
        let aliases = option.get_all_aliases().into_iter().flatten();
        names.extend(long.chain(aliases).map(|name| format!("--{name}")));
    }
    for command in command.get_subcommands() {
        if command.is_hide_set() {
            names.push(command.get_name().to_owned());
        }
        collect_hidden(command, names);
    }
}

/// Gives hidden commands and options names that resemble no argument, in `command` and its subcommands.
pub(crate) fn rename_hidden(command: Command) -> Command {
    // Characters for private use, one for each name.
    let mut names = '\u{e000}'..='\u{e0ff}';
    let mut name = || names.next().expect("fewer than 256 hidden names in a command");
    let command = command.mut_args(|option| match is_hidden(&option) {
        true => option.long(name().to_string()).alias(None),
        false => option,
    });
    command.mut_subcommands(|command| {
        let command = if command.is_hide_set() { command.name(name().to_string()) } else { command };
        rename_hidden(command)
    })
}

/// Returns true for an option, not a positional argument, that the help text does not show.
fn is_hidden(option: &Arg) -> bool {
    option.is_hide_set() && option.get_long().is_some()
}
