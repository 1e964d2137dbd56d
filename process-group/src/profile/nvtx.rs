//! Ranges of NVTX, version 3, implemented without NVTX's headers. `NVTX_INJECTION64_PATH` names a tool's library.
//! This module loads the library and passes tables of function slots to it. The tool writes its functions into these
//! slots.
//!
//! Invariants: the slots are never freed and have the order of NVTX's own tables, so a tool may write to them at any
//! time. A slot without a function is not called. Every pop follows a push on the same thread and domain.

use std::{
    env,
    ffi::{CString, c_char, c_int, c_uint, c_void},
    marker::PhantomData,
    mem::transmute,
    ptr,
    sync::{
        LazyLock, OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

/// A range of this thread.
pub(super) struct Range {
    pop: Option<Pop>,
    /// Makes the type `!Send`: a range must end on the thread that began the range.
    _thread: PhantomData<*const ()>,
}

impl Range {
    #[inline]
    pub(super) fn begin(operation: &str, group: &str, bytes: u64) -> Self {
        static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
        let tool = TOOL.get_or_init(|| Tool::attach(injected()?));
        Self { pop: tool.as_ref().and_then(|tool| tool.push(operation, group, bytes)), _thread: PhantomData }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(Pop { function, domain }) = self.pop {
            // SAFETY: `function` is the tool's, and `domain` was made by the tool. A push on this thread preceded
            // this pop.
            unsafe { function(domain) };
        }
    }
}

/// The function and the domain that end a range.
#[derive(Clone, Copy)]
struct Pop {
    function: PopFunction,
    domain: Domain,
}

type Domain = *mut c_void;
type DomainCreate = unsafe extern "C" fn(*const c_char) -> Domain;
type PushFunction = unsafe extern "C" fn(Domain, *const Attributes) -> c_int;
type PopFunction = unsafe extern "C" fn(Domain) -> c_int;
type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;
/// A function of a tool, of any type.
type Function = *mut c_void;

/// The attributes of a range (`nvtxEventAttributes_t`).
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

impl Attributes {
    const UNSIGNED_64: i32 = 1;
    const ASCII: i32 = 1;

    fn new(message: *const c_char, payload: u64) -> Self {
        Self {
            version: VERSION as u16,
            size: size_of::<Self>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: Self::UNSIGNED_64,
            reserved: 0,
            payload,
            message_type: Self::ASCII,
            message,
        }
    }
}

const _: () = assert!(size_of::<Attributes>() == 48);

/// NVTX's version, as reported to tools.
const VERSION: u32 = 3;

/// Returns the tool's entry point, if a tool is injected. A library that cannot be loaded is ignored, as in NVTX.
fn injected() -> Option<Initialize> {
    let path = env::var_os("NVTX_INJECTION64_PATH")?;
    // SAFETY: a user who sets the variable asks for the library's code to run in this process.
    let library = unsafe { libloading::Library::new(path) }.ok()?;
    // SAFETY: NVTX defines this type for the function of this name.
    let entry = *unsafe { library.get::<Initialize>(c"InitializeInjectionNvtx2") }.ok()?;
    // Never unload the library, because its functions are called from now on.
    std::mem::forget(library);
    Some(entry)
}

/// An attached tool.
struct Tool {
    domain: Domain,
    push: &'static Place,
    pop: &'static Place,
}

// SAFETY: NVTX's functions may be called from any thread, with a domain that another thread made.
unsafe impl Send for Tool {}
// SAFETY: as above.
unsafe impl Sync for Tool {}

impl Tool {
    const DOMAIN_RANGE_PUSH: usize = 4;
    const DOMAIN_RANGE_POP: usize = 5;
    const DOMAIN_CREATE: usize = 12;

    fn attach(initialize: Initialize) -> Option<Self> {
        // SAFETY: the tool's entry point receives the same argument as from NVTX.
        if unsafe { initialize(export_table) } == 0 {
            return None;
        }
        let places = MODULES[CORE_2].places;
        let create = places[Self::DOMAIN_CREATE].load(Ordering::Acquire);
        if create.is_null() {
            return None;
        }
        // SAFETY: the tool has written a function of this type to this slot.
        let create = unsafe { transmute::<Function, DomainCreate>(create) };
        // SAFETY: the text is a C string, which the tool copies.
        let domain = unsafe { create(c"process_group".as_ptr()) };
        Some(Self { domain, push: &places[Self::DOMAIN_RANGE_PUSH], pop: &places[Self::DOMAIN_RANGE_POP] })
    }

    fn push(&self, operation: &str, group: &str, bytes: u64) -> Option<Pop> {
        let push = self.push.load(Ordering::Acquire);
        let pop = self.pop.load(Ordering::Acquire);
        if push.is_null() || pop.is_null() {
            return None;
        }
        // SAFETY: the tool has written functions of these types to these slots.
        let (push, function) =
            unsafe { (transmute::<Function, PushFunction>(push), transmute::<Function, PopFunction>(pop)) };
        let message = CString::new(format!("{operation} {group}")).unwrap_or_default();
        let attributes = Attributes::new(message.as_ptr(), bytes);
        // SAFETY: the attributes and the text live until the call returns, and the tool copies them. The tool made
        // the domain.
        unsafe { push(self.domain, &attributes) };
        Some(Pop { function, domain: self.domain })
    }
}

/// A slot for a tool's function.
type Place = AtomicPtr<c_void>;

/// The functions of one of NVTX's modules.
struct Module {
    places: &'static [Place],
    /// A pointer to each slot, and null at the end. The first entry is null: function 0 does not exist.
    table: &'static [AtomicPtr<Function>],
}

/// Number of function slots of each NVTX module, including slot 0, which has no function. Module 0 does not exist.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
/// The module of domains.
const CORE_2: usize = 5;

static MODULES: LazyLock<[Module; SIZES.len()]> = LazyLock::new(|| {
    SIZES.map(|size| {
        let places: &'static [Place] = Vec::leak((0..size).map(|_| Place::default()).collect());
        let pointer = |place: &Place| AtomicPtr::new(place.as_ptr());
        let table = places.iter().enumerate().map(|(at, place)| match at {
            0 => AtomicPtr::new(ptr::null_mut()),
            _ => pointer(place),
        });
        let end = AtomicPtr::new(ptr::null_mut());
        Module { places, table: Vec::leak(table.chain([end]).collect()) }
    })
});

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    module: unsafe extern "C" fn(c_uint, *mut *mut *mut Function, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set: unsafe extern "C" fn(u32),
}

/// Returns the NVTX export table with number `id`, or null. A tool calls this function first.
unsafe extern "C" fn export_table(id: u32) -> *const c_void {
    static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), module: function_table };
    static VERSION_INFO: VersionInfo =
        VersionInfo { size: size_of::<VersionInfo>(), version: VERSION, reserved: 0, set: tool_version };
    match id {
        1 => ptr::from_ref(&CALLBACKS).cast(),
        3 => ptr::from_ref(&VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

/// Writes a module's table of function slots, and their number, to `table` and `size`. Returns 1, or 0 if the module
/// does not exist.
unsafe extern "C" fn function_table(
    module: c_uint,
    table: *mut *mut *mut Function,
    size: *mut c_uint,
) -> c_int {
    let Some(found) = MODULES.get(module as usize).filter(|module| !module.places.is_empty()) else {
        return 0;
    };
    // SAFETY: a tool passes null or a valid address for each result.
    unsafe {
        if !size.is_null() {
            size.write(found.places.len() as c_uint);
        }
        if !table.is_null() {
            table.write(found.table.as_ptr().cast_mut().cast());
        }
    }
    1
}

/// Receives the tool's version, which is not used.
unsafe extern "C" fn tool_version(_version: u32) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::CStr, sync::Mutex};

    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn see(what: String) {
        SEEN.lock().unwrap().push(what);
    }

    unsafe extern "C" fn create(name: *const c_char) -> Domain {
        // SAFETY: a C string, as NVTX requires.
        see(format!("domain {}", unsafe { CStr::from_ptr(name) }.to_str().unwrap()));
        ptr::without_provenance_mut(7)
    }

    unsafe extern "C" fn push(domain: Domain, attributes: *const Attributes) -> c_int {
        // SAFETY: attributes with a C string, as NVTX requires.
        let (message, attributes) = unsafe { (CStr::from_ptr((*attributes).message), &*attributes) };
        assert_eq!((attributes.version, attributes.size), (3, 48));
        see(format!("push {} {} {}", domain.addr(), message.to_str().unwrap(), attributes.payload));
        0
    }

    unsafe extern "C" fn pop(domain: Domain) -> c_int {
        see(format!("pop {}", domain.addr()));
        0
    }

    /// A tool that handles only ranges of domains.
    unsafe extern "C" fn tool(export_table: GetExportTable) -> c_int {
        let (mut table, mut size) = (ptr::null_mut(), 0);
        // SAFETY: the tables are queried as NVTX requires, and the slots that are written exist.
        unsafe {
            assert!(export_table(2).is_null());
            let version = &*export_table(3).cast::<VersionInfo>();
            assert_eq!((version.version, version.size), (3, 24));
            (version.set)(3);
            let callbacks = &*export_table(1).cast::<Callbacks>();
            assert_eq!(callbacks.size, 16);
            assert_eq!((callbacks.module)(0, &mut table, &mut size), 0);
            assert_eq!(((callbacks.module)(5, &mut table, &mut size), size), (1, 16));
            assert!((*table).is_null() && (*table.add(16)).is_null());
            **table.add(12) = create as DomainCreate as Function;
            **table.add(4) = push as PushFunction as Function;
            **table.add(5) = pop as PopFunction as Function;
        }
        1
    }

    #[test]
    fn a_tool_sees_the_range_of_a_call() {
        let tool = Tool::attach(tool).unwrap();
        let range = Range { pop: tool.push("all_reduce", "world", 8), _thread: PhantomData };
        see("in it".to_owned());
        drop(range);
        let seen = SEEN.lock().unwrap();
        assert_eq!(*seen, ["domain process_group", "push 7 all_reduce world 8", "in it", "pop 7"]);
    }
}
