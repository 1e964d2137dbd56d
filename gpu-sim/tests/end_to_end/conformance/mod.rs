//! Results of driver calls, as measured on an H200 (driver 580, CUDA 13.0). The embedded device must return the same.
//!
//! The driver accepts some calls that have no useful meaning (mapping or unmapping past the end of a reservation).
//! The embedded device refuses these, so they are not in the rows.
//!
//! On a machine with a GPU the rows are checked against the driver itself, each in a process of its own.

mod capture;
mod kernels;
mod memory;

use super::common::{Cuda, GRANULE, cu, ok};
use cuda_driver_sys::*;
use gpu_sim::{World, process::test_command};
use rusty_fork::rusty_fork_test;

const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RW: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
const POSIX_FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const G: u64 = GRANULE as u64;

/// A row: its name, the calls, the expected result.
type Row = (&'static str, fn(&Cuda) -> String, &'static str);

/// Formats codes without their prefix, in one line.
fn codes(codes: impl IntoIterator<Item = CUresult>) -> String {
    let name =
        |c: CUresult| format!("{c:?}").trim_start_matches("CUDA_").trim_start_matches("ERROR_").to_owned();
    codes.into_iter().map(name).collect::<Vec<_>>().join(" ")
}

/// Maps two granules by two handles, and reserves one more.
fn two_mappings(cuda: &Cuda) -> u64 {
    let start = cuda.reserve(3 * GRANULE);
    for i in 0..2 {
        let handle = cuda.create(0, GRANULE);
        ok!(cuda, cuMemMap(start + i * G, GRANULE, 0, handle, 0));
        ok!(cuda, cuMemRelease(handle));
    }
    start
}

fn attribute(cuda: &Cuda, attribute: CUpointer_attribute, pointer: u64) -> (CUresult, u64) {
    let mut value = 0u64;
    (cu!(cuda, cuPointerGetAttribute((&raw mut value).cast(), attribute, pointer)), value)
}

/// Returns the codes of a call during a capture in global mode, and of the capture's end.
fn during(cuda: &Cuda, call: impl FnOnce(CUstream) -> CUresult) -> String {
    let stream = cuda.stream();
    ok!(cuda, cuStreamBeginCapture_v2(stream, GLOBAL));
    let code = call(stream);
    let mut graph = std::ptr::null_mut();
    codes([code, cu!(cuda, cuStreamEndCapture(stream, &mut graph))])
}

fn null<T>() -> *mut T {
    std::ptr::null_mut()
}

/// Returns every row.
fn rows() -> impl Iterator<Item = &'static Row> {
    memory::ROWS.iter().chain(capture::ROWS).chain(kernels::ROWS)
}

const ROW: &str = "GPU_SIM_CONFORMANCE_ROW";

rusty_fork_test! {
    #[test]
    fn the_embedded_device_answers_as_measured() {
        let wrong: Vec<String> = rows()
            .filter_map(|(name, ask, expected)| {
                let world = World::builder().capacity(1 << 30).start().unwrap();
                kernels::register(&world);
                let found = ask(&Cuda::of(&world));
                (found != *expected).then(|| format!("{name}:\n  found    {found}\n  expected {expected}"))
            })
            .collect();
        assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    }
}

/// Runs one row on the machine's own driver.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_row_of_the_real_driver() {
    let row = std::env::var(ROW).expect("the test below starts this process");
    let api = Api::load().unwrap();
    let cuda = Cuda(api.table().clone());
    ok!(cuda, cuInit(0));
    cuda.enter(0);
    println!("\nANSWER {}", rows().nth(row.parse().unwrap()).unwrap().1(&cuda));
}

#[test]
fn the_real_driver_answers_as_measured() {
    let driver = Api::load().ok().filter(|api| {
        let (mut count, table) = (0, Cuda(api.table().clone()));
        cu!(table, cuInit(0)) == CUresult::CUDA_SUCCESS
            && cu!(table, cuDeviceGetCount(&mut count)) == CUresult::CUDA_SUCCESS
            && count > 0
    });
    if driver.is_none() {
        println!("skipped: no CUDA driver with a device on this machine");
        return;
    }
    let mut wrong = Vec::new();
    for (i, (name, _, expected)) in rows().enumerate() {
        let mut child = test_command(concat!(module_path!(), "::one_row_of_the_real_driver")).unwrap();
        child.env(ROW, i.to_string());
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = text.lines().find_map(|l| l.strip_prefix("ANSWER ")).unwrap_or("no answer").to_owned();
        if found != *expected {
            let errors = if found == "no answer" {
                String::from_utf8_lossy(&output.stderr).into_owned()
            } else {
                String::new()
            };
            wrong.push(format!("{name}:\n  found    {found}\n  expected {expected}{errors}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
