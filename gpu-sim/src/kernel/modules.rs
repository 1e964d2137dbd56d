//! The kernels that a world knows, and the modules that its programs have loaded.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Body, Kernel};
use crate::world::Leak;

/// Dynamic shared memory of a block in bytes, unless a program asks for more.
const SHARED: u32 = 48 << 10;

/// A kernel of a loaded module.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) handle: u64,
    pub(crate) name: CString,
    /// The architecture that its PTX is for: 70 for `sm_70`.
    pub(crate) target: u32,
    max_shared: AtomicU32,
    /// True until its module is unloaded.
    loaded: AtomicBool,
}

impl Function {
    /// The most dynamic shared memory of a block in bytes.
    pub(crate) fn max_shared(&self) -> u32 {
        self.max_shared.load(Ordering::Relaxed)
    }

    /// True if its module is loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::SeqCst)
    }

    pub(crate) fn set_max_shared(&self, bytes: u32) {
        self.max_shared.store(bytes, Ordering::Relaxed);
    }
}

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) functions: Vec<Arc<Function>>,
    /// Addresses and sizes in bytes.
    pub(crate) variables: BTreeMap<String, (u64, u64)>,
}

impl Module {
    pub(crate) fn function(&self, name: &str) -> Option<&Arc<Function>> {
        self.functions.iter().find(|function| function.name.as_bytes() == name.as_bytes())
    }
}

/// The world's kernels and the modules that were loaded.
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    registered: BTreeMap<String, Arc<Kernel>>,
    next: u64,
    modules: BTreeMap<u64, Arc<Module>>,
}

impl Kernels {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register(&self, name: &str, parameters: &[usize], body: Box<Body>) {
        let kernel = Kernel { name: name.to_owned(), parameters: parameters.to_vec(), body };
        self.tables().registered.insert(name.to_owned(), Arc::new(kernel));
    }

    /// Adds a module with kernels of these names and these variables.
    pub(crate) fn load(
        &self,
        entries: Vec<String>,
        target: u32,
        variables: BTreeMap<String, (u64, u64)>,
    ) -> u64 {
        let mut tables = self.tables();
        tables.next += 1;
        let module = 0x3000_0000 + tables.next;
        let mut functions = Vec::new();
        for name in entries {
            tables.next += 1;
            // The name comes from a C string, so it holds no zero byte.
            let name = CString::new(name).unwrap_or_default();
            let handle = 0x4000_0000 + tables.next;
            let (max_shared, loaded) = (AtomicU32::new(SHARED), AtomicBool::new(true));
            functions.push(Arc::new(Function { handle, name, target, max_shared, loaded }));
        }
        tables.modules.insert(module, Arc::new(Module { functions, variables }));
        module
    }

    /// Returns `None` if there is no such module.
    pub(crate) fn unload(&self, module: u64) -> Option<Arc<Module>> {
        let module = self.tables().modules.remove(&module)?;
        module.functions.iter().for_each(|function| function.loaded.store(false, Ordering::SeqCst));
        Some(module)
    }

    pub(crate) fn module(&self, module: u64) -> Option<Arc<Module>> {
        self.tables().modules.get(&module).cloned()
    }

    pub(crate) fn function(&self, handle: u64) -> Option<Arc<Function>> {
        let tables = self.tables();
        let mut functions = tables.modules.values().flat_map(|module| &module.functions);
        functions.find(|function| function.handle == handle).cloned()
    }

    /// Returns the kernel registered under a function's name.
    pub(crate) fn kernel(&self, function: &Function) -> Option<Arc<Kernel>> {
        self.tables().registered.get(function.name.to_str().ok()?).cloned()
    }

    pub(crate) fn leaks(&self) -> Vec<Leak> {
        let what = |module: &Module| {
            let names: Vec<_> = module.functions.iter().map(|function| &function.name).collect();
            format!("with the kernels {names:?}")
        };
        self.tables().modules.values().map(|module| Leak { kind: "module", what: what(module) }).collect()
    }
}
