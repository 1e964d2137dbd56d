//! Libraries that report a wrong version, or lack functions: built by the C compiler, and loaded like any
//! other.

use std::{
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use cuda_driver::DevicePtr;
use nccl_sys::{Api, Feature, Meaning, Why};
use process_group::comm::{
    CommError, Communicator, Config, DataType, Nccl, ReduceOp, WindowOutcome, WindowRequest,
    WindowsUnsupported, wait_for_dropped,
};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, facts, far, machine};

/// The C source of an NCCL that supports one rank. Macros select its behaviour.
const SOURCE: &str = r#"
    #include <string.h>
    typedef struct { char bytes[128]; } id_t;
    #ifndef WINDOW
    #define WINDOW *window = (void *)0x2000; return 0;
    #endif
    #ifndef INIT
    #define INIT *comm = (void *)0x1000; return 0;
    #endif
    #ifndef ID
    #define ID memset(id, 7, sizeof *id); return 0;
    #endif
    #ifndef SPLIT
    #define SPLIT *child = 0; return 0;
    #endif
    #ifndef REDUCE
    #define REDUCE 0
    #endif
    #ifndef STATE
    #define STATE 0
    #endif
    int ncclGetVersion(int *code) { *code = VERSION; return 0; }
    const char *ncclGetErrorString(int code) { return code == 8 ? "what eight is here" : "whatever"; }
    const char *ncclGetLastError(void *comm) { return ""; }
    int ncclGetUniqueId(id_t *id) { ID }
    int ncclCommInitRank(void **comm, int size, id_t id, int rank) { INIT }
    int ncclCommInitRankConfig(void **comm, int size, id_t id, int rank, void *config) { INIT }
    int ncclCommSplit(void *parent, int color, int key, void **child, void *config) { SPLIT }
    int ncclCommFinalize(void *comm) { return 0; }
    int ncclCommDestroy(void *comm) { return 0; }
    int ncclCommAbort(void *comm) { return 0; }
    int ncclCommGetAsyncError(void *comm, int *state) { *state = STATE; return 0; }
    int ncclAllReduce(const void *a, void *b, size_t n, int t, int o, void *comm, void *s) { return REDUCE; }
    int ncclGroupStart(void) { return 0; }
    int ncclGroupEnd(void) { return 0; }
    int ncclCommRegister(void *comm, void *at, size_t bytes, void **handle) { return 0; }
    int ncclCommDeregister(void *comm, void *handle) { return 3; }
    #ifndef NO_WINDOWS
    int ncclCommWindowRegister(void *comm, void *at, size_t bytes, void **window, int flags) { WINDOW }
    int ncclCommWindowDeregister(void *comm, void *window) { return 0; }
    #endif
"#;

/// Loads a library with these macros. Without a C compiler, prints why and returns `None`.
fn library(macros: &[&str]) -> Option<Nccl> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let serial = MADE.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("libraries-{}-{serial}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // Under a name that no other NCCL has, so that one process can load several.
    let (source, file): (PathBuf, PathBuf) = (folder.join("nccl.c"), folder.join("made-for-a-test.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-shared", "-fPIC", "-o"])
        .arg(&file)
        .arg(&source)
        .args(macros.iter().map(|text| format!("-D{text}")));
    let made = cc.status();
    // SAFETY: its functions have NCCL's signatures, and no initialisers.
    let load = || unsafe { Api::load_from(&file) }.unwrap();
    let api = made.as_ref().is_ok_and(|status| status.success()).then(load);
    std::fs::remove_dir_all(&folder).unwrap();
    if let Err(error) = made {
        println!("skipped: no C compiler ({error})");
    } else {
        assert!(api.is_some(), "{cc:?}");
    }
    api.map(Nccl::new)
}

fn join(machine: &Machine, nccl: &Nccl) -> Result<Communicator, CommError> {
    let mut config = Config::new();
    config.window_facts = facts();
    let id = nccl.unique_id()?;
    Communicator::init(nccl, &machine.context(0), &id, 0, 2, &config, far())
}

/// Returns the outcome of registering a window with the library.
fn window(machine: &Machine, nccl: &Nccl) -> WindowOutcome {
    let communicator = join(machine, nccl).unwrap();
    let request = WindowRequest::symmetric(DevicePtr(2 << 20), 2 << 20);
    let outcome = unsafe { communicator.register_windows(&[request], far()) }.unwrap().pop().unwrap();
    communicator.destroy(far()).unwrap();
    outcome
}

rusty_fork_test! {
    #[test]
    fn success_without_a_window_is_no_window() {
        let machine = machine(1);
        for version in ["VERSION=22705", "VERSION=22809", "VERSION=22907", "VERSION=23007", "VERSION=23203"] {
            let Some(good) = library(&[version]) else { return };
            assert!(window(&machine, &good).window().is_some(), "{version}");
            // A null window, and an out-parameter that was not written.
            for answer in ["WINDOW=*window = 0; return 0;", "WINDOW=return 0;"] {
                let nccl = library(&[version, answer]).unwrap();
                let WindowOutcome::Unsupported(reason) = window(&machine, &nccl) else { panic!("{version} {answer}") };
                assert_eq!(reason, WindowsUnsupported::NoHandle { release: nccl.release() });
                assert!(reason.to_string().contains("success without a window"), "{reason}");
            }
        }
    }

    #[test]
    fn the_release_that_is_known_to_be_bad_is_not_even_asked() {
        let Some(nccl) = library(&["VERSION=22803", "WINDOW=__builtin_trap();"]) else { return };
        let WindowOutcome::Unsupported(reason) = window(&machine(1), &nccl) else { panic!("2.28.3 has no windows") };
        assert!(matches!(&reason, WindowsUnsupported::Release(missing) if matches!(missing.why, Why::KnownBad { .. })));
        assert!(reason.to_string().contains("2.28.7 or newer"), "{reason}");
    }

    #[test]
    fn a_release_is_believed_no_more_than_its_symbols() {
        let machine = machine(1);
        // It reports a new version, and lacks the functions of that version.
        let Some(boasts) = library(&["VERSION=23007", "NO_WINDOWS"]) else { return };
        let WindowOutcome::Unsupported(WindowsUnsupported::Release(missing)) = window(&machine, &boasts) else {
            panic!("there is no such function")
        };
        assert_eq!(missing.why, Why::NoSymbol("ncclCommWindowRegister"));
        // It has the functions, and reports an old version: their behaviour is unknown.
        let modest = library(&["VERSION=22105", "WINDOW=__builtin_trap();"]).unwrap();
        let WindowOutcome::Unsupported(WindowsUnsupported::Release(missing)) = window(&machine, &modest) else {
            panic!("2.21 has no windows")
        };
        assert_eq!(missing.why, Why::TooOld);
        assert!(modest.has(Feature::REGISTER));
    }

    #[test]
    fn code_eight_means_what_the_release_says() {
        let machine = machine(1);
        for (version, meaning, word) in [
            ("VERSION=21403", Meaning::Undefined(8), "no result of this release"),
            ("VERSION=22809", Meaning::Undefined(8), "no result of this release"),
            ("VERSION=22907", Meaning::Undefined(8), "no result of this release"),
            ("VERSION=23003", Meaning::Timeout, "ncclTimeout (8)"),
            ("VERSION=23203", Meaning::Timeout, "ncclTimeout (8)"),
        ] {
            let Some(nccl) = library(&[version, "REDUCE=8"]) else { return };
            let communicator = join(&machine, &nccl).unwrap();
            let stream = cuda_driver::Stream::new(&machine.context(0), cuda_driver::StreamFlags::NON_BLOCKING).unwrap();
            let at = DevicePtr(2 << 20);
            let error =
                unsafe { communicator.all_reduce(at, at, 4, DataType::F32, ReduceOp::Sum, &stream) }.unwrap_err();
            assert!(matches!(&error, CommError::Nccl { meaning: found, .. } if *found == meaning), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(word) && text.contains("what eight is here"), "{text}");
            assert_eq!(text.contains("ncclTimeout"), meaning == Meaning::Timeout, "{text}");
            // The state of the communicator is unknown.
            assert!(matches!(communicator.check(), Err(CommError::Poisoned { .. })));
            communicator.abort(far()).unwrap();

            // The same as an asynchronous error.
            let nccl = library(&[version, "STATE=8"]).unwrap();
            let communicator = join(&machine, &nccl).unwrap();
            let error = communicator.async_error().unwrap_err();
            assert!(matches!(&error, CommError::Nccl { meaning: found, .. } if *found == meaning), "{error:?}");
            communicator.abort(far()).unwrap();
        }
    }

    #[test]
    fn success_without_a_communicator_is_an_error() {
        let machine = machine(1);
        for version in ["VERSION=21304", "VERSION=22809", "VERSION=23203"] {
            for (answer, call, what) in [
                ("INIT=return 0;", "ncclCommInitRank", "communicator"),
                ("INIT=*comm = 0; return 0;", "ncclCommInitRank", "communicator"),
                ("ID=return 0;", "ncclGetUniqueId", "unique id"),
            ] {
                let Some(nccl) = library(&[version, answer]) else { return };
                let error = join(&machine, &nccl).unwrap_err();
                let CommError::Unwritten { call: found, what: absent, release, .. } = &error else { panic!("{error:?}") };
                assert!(found.starts_with(call), "{error}");
                assert_eq!((*absent, *release), (what, nccl.release()));
                assert!(error.to_string().contains("made-for-a-test.so"), "{error}");
            }
        }
        // Nothing was made, and nothing is aborted.
        assert!(wait_for_dropped(far()));
    }

    #[test]
    fn a_split_without_a_child_is_an_error_unless_none_was_asked_for() {
        let machine = machine(1);
        let Some(nccl) = library(&["VERSION=22809"]) else { return };
        let communicator = join(&machine, &nccl).unwrap();
        assert!(communicator.split(None, 0, &Config::new(), far()).unwrap().is_none());
        let error = communicator.split(Some(1), 0, &Config::new(), far()).unwrap_err();
        assert!(matches!(error, CommError::Unwritten { call: "ncclCommSplit", .. }), "{error:?}");
        communicator.abort(far()).unwrap();
    }

    #[test]
    fn success_without_a_registration_registers_nothing() {
        let machine = machine(1);
        let Some(nccl) = library(&["VERSION=22809"]) else { return };
        let communicator = join(&machine, &nccl).unwrap();
        let registration = unsafe { communicator.register(DevicePtr(2 << 20), 2 << 20, far()) }.unwrap();
        assert!(!registration.is_effective());
        // There is nothing to deregister, and this library would refuse it.
        registration.deregister(far()).unwrap();
        communicator.destroy(far()).unwrap();
    }
}
