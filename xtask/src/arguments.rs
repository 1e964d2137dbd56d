//! The command line of `cargo xtask`. Without clap's derive macros, which take most of the time of a clean build.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::run_tests;
use crate::{bundle, ci, codegen, forward, interleave, mutants};

/// A task and its options.
pub(crate) enum Task {
    Test(run_tests::Options),
    Ci(ci::Options),
    Codegen(codegen::Options),
    Interleave(interleave::Options),
    Mutants(mutants::Options),
    Sanitize(run_tests::Options),
    GpuBundle(bundle::Options),
    /// The file of the figures.
    PlotKernels(PathBuf),
    TorchEnv,
    /// A command of `lockstep` or `lab`, with its arguments.
    Forward(Vec<OsString>),
}

/// Reads the process's arguments. Exits with the help text, or with an error, if they name no task.
pub(crate) fn parse() -> Task {
    task(command().get_matches())
}

fn task(matches: ArgMatches) -> Task {
    // clap requires a subcommand, and knows no others.
    match matches.subcommand() {
        Some(("test", options)) => Task::Test(test_options(options)),
        Some(("sanitize", options)) => Task::Sanitize(test_options(options)),
        Some(("ci", options)) => Task::Ci(ci::Options {
            full: options.get_flag("full"),
            rerun: options.get_flag("rerun"),
            from: text(options, "from"),
        }),
        Some(("codegen", options)) => Task::Codegen(codegen::Options {
            only_kernels: text(options, "part").is_some(),
            check: options.get_flag("check"),
            history: options.get_flag("history"),
        }),
        Some(("interleave", options)) => {
            Task::Interleave(interleave::Options { quick: options.get_flag("quick"), without: Vec::new() })
        }
        Some(("mutants", options)) => Task::Mutants(mutants::Options {
            only: options.get_many::<String>("only").into_iter().flatten().cloned().collect(),
            package: text(options, "package"),
        }),
        Some(("gpu-bundle", options)) => Task::GpuBundle(bundle::Options {
            dir: options.get_one::<PathBuf>("dir").cloned().unwrap_or_default(),
        }),
        Some(("plot-kernels", options)) => {
            Task::PlotKernels(options.get_one::<PathBuf>("file").cloned().unwrap_or_default())
        }
        Some(("torch-env", _)) => Task::TorchEnv,
        Some((name, options)) => {
            let arguments = options.get_many::<OsString>("").into_iter().flatten().cloned();
            Task::Forward([OsString::from(name)].into_iter().chain(arguments).collect())
        }
        None => Task::Forward(Vec::new()),
    }
}

fn command() -> Command {
    Command::new("xtask")
        .bin_name("cargo xtask")
        .about("Developer tasks of the workspace")
        .after_help(forward::HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .allow_external_subcommands(true)
        .external_subcommand_value_parser(value_parser!(OsString))
        .subcommand(with_test_options(
            Command::new("test").about("Run all tests: unit, property, end-to-end and documentation tests"),
        ))
        .subcommand(
            Command::new("ci")
                .about("Run every check that a change must pass")
                .arg(flag("full", "Run the checks too that take longer or download more than crates"))
                .arg(flag("rerun", "Run the tests of crates too that have not changed since they passed"))
                .arg(option("from", "STEP", "Leave out the steps before this one, such as \"mutants\"")),
        )
        .subcommand(
            Command::new("codegen")
                .about(
                    "Regenerate the tables of cuda-driver-sys and nccl-sys from the pinned headers, and the PTX of \
                     the kernels of peer-kernels",
                )
                .arg(Arg::new("part").value_parser(["kernels"]).help("Regenerate only this part"))
                .arg(flag("check", "Change nothing; fail if the committed files differ from the generated files"))
                .arg(
                    flag(
                        "history",
                        "First record the exports and declarations of every pinned release of NCCL again (up to 7 GB \
                         of downloads)",
                    )
                    .conflicts_with("part"),
                ),
        )
        .subcommand(
            Command::new("interleave")
                .about("Run the models of concurrent code under loom and shuttle")
                .arg(flag("quick", "Run loom alone, with smaller bounds, as `cargo xtask ci` does")),
        )
        .subcommand(
            Command::new("mutants")
                .about("Apply each patch that breaks a crate, and check that the tests detect it")
                .arg(option("only", "NAME,…", "Only these patches: the names of their files without `.patch`").value_delimiter(',').action(ArgAction::Append))
                .arg(option("package", "CRATE", "Only the patches of this crate; those of symm-mem include memory-sharing, peer-kernels and symm-agreement").short('p')),
        )
        .subcommand(with_test_options(
            Command::new("sanitize").about("Run all tests under AddressSanitizer"),
        ))
        .subcommand(
            Command::new("gpu-bundle")
                .about("Write a folder that runs the demo, the tests and the benchmarks on a GPU host without Rust")
                .arg(
                    Arg::new("dir")
                        .required(true)
                        .value_parser(value_parser!(PathBuf))
                        .help("The folder to write; it must not exist, or be empty"),
                ),
        )
        .subcommand(
            Command::new("plot-kernels").about("Draw the figures of `lockstep bench kernels` as SVG files").arg(
                Arg::new("file")
                    .required(true)
                    .value_parser(value_parser!(PathBuf))
                    .help("The output of the benchmark's --json; the plots are written beside it"),
            ),
        )
        .subcommand(Command::new("torch-env").about(
            "Create a Python environment with PyTorch for tests and benchmarks, and print the path of its Python",
        ))
}

fn with_test_options(command: Command) -> Command {
    command
        .arg(option("package", "CRATE", "Only this crate, by the name of its folder").short('p'))
        .arg(Arg::new("filter").help("Only tests whose name contains this"))
        .arg(flag(
            "check-skips",
            "Fail if a test is skipped that xtask/src/run_tests/allowed_skips.txt does not list",
        ))
}

fn test_options(matches: &ArgMatches) -> run_tests::Options {
    run_tests::Options {
        package: text(matches, "package"),
        filter: text(matches, "filter"),
        check_skips: matches.get_flag("check-skips"),
        without: Vec::new(),
    }
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

fn text(matches: &ArgMatches, name: &str) -> Option<String> {
    matches.get_one::<String>(name).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Task {
        task(command().try_get_matches_from([&["xtask"], words].concat()).unwrap())
    }

    #[test]
    fn options_reach_their_tasks() {
        command().debug_assert();
        let Task::Test(test) = parsed(&["test", "-p", "symm-mem", "commit"]) else { panic!("not a test") };
        assert_eq!((test.package.as_deref(), test.filter.as_deref()), (Some("symm-mem"), Some("commit")));
        let Task::Codegen(codegen) = parsed(&["codegen", "kernels", "--check"]) else { panic!("no codegen") };
        assert!(codegen.only_kernels && codegen.check && !codegen.history);
        let Task::GpuBundle(bundle) = parsed(&["gpu-bundle", "folder"]) else { panic!("not a bundle") };
        assert_eq!(bundle.dir, PathBuf::from("folder"));
        let Task::PlotKernels(file) = parsed(&["plot-kernels", "figures.json"]) else { panic!("no plot") };
        assert_eq!(file, PathBuf::from("figures.json"));
        let Task::Mutants(mutants) = parsed(&["mutants", "--only", "overlap,rest-wasted"]) else {
            panic!("no mutants")
        };
        assert_eq!(mutants.only, ["overlap", "rest-wasted"]);
    }

    #[test]
    fn other_commands_keep_all_their_words() {
        let words = ["launch", "-n", "2", "--", "program", "--help"];
        let Task::Forward(forwarded) = parsed(&words) else { panic!("not forwarded") };
        assert_eq!(forwarded, words.map(OsString::from));
    }
}
