//! The description of a library that tests compile.

use std::ffi::{CStr, c_char, c_int, c_void};

use dynload::{Function, Library, Version, VersionFault, by_name};

dynload::enumeration! { SampleResult: u32 { SAMPLE_SUCCESS = 0, SAMPLE_ERROR = 1, SAMPLE_BUSY = 2, } }
dynload::status!(SampleResult, SAMPLE_SUCCESS);

dynload::functions! {
    api Api;
    status SampleResult;
    (1, 0, 0) "sampleGetVersion" get_version => sampleGetVersion(version: *mut c_int) -> SampleResult;
    (1, 0, 0) "sampleInit" init => sampleInit() -> SampleResult;
    (1, 0, 0) "sampleStop" stop => sampleStop() -> SampleResult;
    (1, 1, 0) "sampleReset" reset => sampleReset();
    (1, 1, 0) "sampleName" name => sampleName(code: SampleResult) returns *const c_char;
    (1, 2, 3) declared (1, 3, 0) "sampleAdd" add => sampleAdd_v2(one: c_int, two: c_int, sum: *mut c_int) -> SampleResult;
    (1, 9, 0) "sampleWait" wait => sampleWait() -> SampleResult;
    (2, 0, 0) "sampleNew" create => sampleNew() -> SampleResult;
}

dynload::features! {
    /// Parts of the sample that depend on the release.
    pub struct Feature of Table;

    /// Names (1.1).
    NAMES: ["sampleName", "sampleReset"];
    /// Sums (1.2.3).
    SUMS: ["sampleAdd_v2"];
    /// A new value of an enumeration, without a function of its own (1.4).
    VALUE: [] since (1, 4, 0);
    /// Resetting (1.1; wrong in 1.2, and from 1.3 until 1.4.2).
    RESET: ["sampleReset"]
        wrong (1, 2, 0) until (1, 3, 0) "resets nothing"
        wrong (1, 3, 0) until (1, 4, 2) "resets too much";
    /// Two functions from different releases, 1.9 and 2.0; the newer one dates the feature (2.0).
    NEW: ["sampleWait", "sampleNew"];
}

pub(crate) const VARIABLE: &str = "DYNLOAD_SAMPLE_LIBRARY";
pub(crate) const NAMES: &[&str] = &["libdynload_sample.so.1", "libdynload_sample.so"];

pub(crate) static LIBRARY: Library = Library {
    name: "sample",
    variable: VARIABLE,
    names: NAMES,
    stem: "libdynload_sample.so",
    required: &["sampleGetVersion", "sampleInit", "sampleStop"],
    functions: FUNCTIONS,
    advice: "compile it, or set DYNLOAD_SAMPLE_LIBRARY",
    packages: "a package",
    packaged: Vec::new,
};

dynload::api!(
    /// The functions of the sample.
    Api, Table, Feature
);

/// Returns the number by which the sample reports a release: 1023 for 1.2.3.
pub(crate) fn code(version: Version) -> i32 {
    (version.major * 1_000 + version.minor * 10 + version.patch) as i32
}

pub(crate) fn from_code(code: i32) -> Version {
    let code = code.unsigned_abs();
    Version::new(code / 1_000, code % 1_000 / 10, code % 10)
}

// SAFETY: in the libraries of these tests, every function that is called has the signature that the table declares.
unsafe impl dynload::Table for Table {
    const LIBRARY: &'static Library = &LIBRARY;
    type Feature = Feature;

    unsafe fn resolve(symbol: &mut dyn FnMut(&CStr) -> *const c_void) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::from_addresses(|function: &Function| by_name(symbol, function.name)) }
    }

    unsafe fn version(&self) -> Result<Version, VersionFault> {
        let function = LIBRARY.required[0];
        let ask = self.sampleGetVersion.ok_or(VersionFault::Absent(function))?;
        let mut code = 0;
        // SAFETY: the version function writes one integer.
        match unsafe { ask(&mut code) } {
            SampleResult::SAMPLE_SUCCESS if code >= 1_000 => Ok(from_code(code)),
            SampleResult::SAMPLE_SUCCESS => Err(VersionFault::Nonsense { function, code }),
            SampleResult(status) => Err(VersionFault::Failed { function, status, hint: "" }),
        }
    }

    fn address(&self, name: &str) -> Option<*const c_void> {
        Self::address(self, name)
    }
}
