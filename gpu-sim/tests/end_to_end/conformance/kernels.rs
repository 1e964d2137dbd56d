//! Rows about modules, their kernels, and launches.

use std::ffi::{CStr, CString, c_void};

use super::*;

/// Accepted by every driver from CUDA 11.0 on.
const PTX: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 table[6];
.visible .entry three(.param .u64 a, .param .u32 b, .param .u8 c) { ret; }
.visible .entry nothing() { ret; }
";

/// Registers the host functions that replace the kernels on the embedded device.
pub(super) fn register(world: &World) {
    world.register_kernel("three", &[8, 4, 1], |_| Ok(()));
    world.register_kernel("nothing", &[], |_| Ok(()));
}

fn load(cuda: &Cuda) -> CUmodule {
    let mut module = null();
    ok!(cuda, cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    module
}

fn function(cuda: &Cuda, name: &CStr) -> CUfunction {
    let mut function = null();
    ok!(cuda, cuModuleGetFunction(&mut function, load(cuda), name.as_ptr()));
    function
}

/// Returns the code of loading [`PTX`] with `instead_of` replaced by `what`.
fn changed(cuda: &Cuda, what: &str, instead_of: &str) -> CUresult {
    let text = CString::new(PTX.to_str().unwrap().replace(what, instead_of)).unwrap();
    let mut module = null();
    cu!(cuda, cuModuleLoadData(&mut module, text.as_ptr().cast()))
}

fn property(cuda: &Cuda, function: CUfunction, attribute: CUfunction_attribute) -> i32 {
    let mut value = -2;
    ok!(cuda, cuFuncGetAttribute(&mut value, attribute, function));
    value
}

/// Returns the code of a launch of a kernel without parameters.
fn launch(cuda: &Cuda, grid: [u32; 3], block: [u32; 3], shared: u32) -> CUresult {
    let (f, none) = (function(cuda, c"nothing"), null());
    let ([x, y, z], [bx, by, bz]) = (grid, block);
    cu!(cuda, cuLaunchKernel(f, x, y, z, bx, by, bz, shared, null(), null(), none))
}

fn cooperative(cuda: &Cuda, blocks: u32) -> CUresult {
    let f = function(cuda, c"nothing");
    cu!(cuda, cuLaunchCooperativeKernel(f, blocks, 1, 1, 1024, 1, 1, 0, null(), null()))
}

/// Returns the code of a launch of 32 blocks in clusters of `blocks`.
fn clustered(cuda: &Cuda, blocks: u32) -> CUresult {
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    value.clusterDim = CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks, y: 1, z: 1 };
    let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    let mut attribute = CUlaunchAttribute { id, pad: [0; 4], value };
    let config = CUlaunchConfig {
        gridDimX: 32,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: null(),
        attrs: &mut attribute,
        numAttrs: 1,
    };
    cu!(cuda, cuLaunchKernelEx(&config, function(cuda, c"nothing"), null(), null()))
}

/// Returns the code of loading with one option.
fn option(cuda: &Cuda, option: CUjit_option, value: usize) -> CUresult {
    let (mut module, mut option) = (null(), option);
    let mut value: *mut c_void = std::ptr::without_provenance_mut(value);
    cu!(cuda, cuModuleLoadDataEx(&mut module, PTX.as_ptr().cast(), 1, &mut option, &mut value))
}

pub(super) const ROWS: &[Row] = &[
    (
        "modules: texts that are not taken",
        |cuda| {
            codes([
                changed(cuda, PTX.to_str().unwrap(), ""),
                changed(cuda, PTX.to_str().unwrap(), "what is this"),
                changed(cuda, ".version 7.0", ""),
                changed(cuda, ".version 7.0", ".version 99.0"),
                changed(cuda, ".target sm_70", ".target sm_121"),
                changed(cuda, ".entry", ".entri"),
                changed(cuda, "", ""),
            ])
        },
        "INVALID_IMAGE INVALID_IMAGE INVALID_IMAGE UNSUPPORTED_PTX_VERSION INVALID_PTX INVALID_PTX SUCCESS",
    ),
    (
        "modules: options",
        |cuda| {
            codes([
                option(cuda, CUjit_option::CU_JIT_OPTIMIZATION_LEVEL, 0),
                option(cuda, CUjit_option::CU_JIT_OPTIMIZATION_LEVEL, 5),
                option(cuda, CUjit_option::CU_JIT_MAX_REGISTERS, 32),
                option(cuda, CUjit_option::CU_JIT_TARGET, 90),
                option(cuda, CUjit_option::CU_JIT_CACHE_MODE, 2),
                option(cuda, CUjit_option::CU_JIT_GENERATE_LINE_INFO, 1),
            ])
        },
        "SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS",
    ),
    (
        "modules: names",
        |cuda| {
            let (module, mut f, mut count) = (load(cuda), null(), 0);
            let absent = [
                cu!(cuda, cuModuleGetFunction(&mut f, module, c"four".as_ptr())),
                cu!(cuda, cuModuleGetGlobal_v2(&mut 0, &mut 0, module, c"three".as_ptr())),
                cu!(cuda, cuModuleGetGlobal_v2(&mut 0, &mut 0, module, c"four".as_ptr())),
            ];
            ok!(cuda, cuModuleGetFunctionCount(&mut count, module));
            let mut functions = vec![null(); count as usize];
            ok!(cuda, cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module));
            let name = |f: &CUfunction| {
                let mut name = std::ptr::null();
                ok!(cuda, cuFuncGetName(&mut name, *f));
                // SAFETY: a string of the driver's.
                unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
            };
            let mut names: Vec<String> = functions.iter().map(name).collect();
            names.sort();
            format!("{}, {names:?}", codes(absent))
        },
        "NOT_FOUND INVALID_VALUE NOT_FOUND, [\"nothing\", \"three\"]",
    ),
    (
        "modules: variables",
        |cuda| {
            let (module, mut start, mut bytes) = (load(cuda), 0, 0);
            ok!(cuda, cuModuleGetGlobal_v2(&mut start, &mut bytes, module, c"table".as_ptr()));
            let values = cuda.download(start, bytes);
            let freed = cu!(cuda, cuMemFree_v2(start));
            let kind = attribute(cuda, CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, start);
            let size_alone = cu!(cuda, cuModuleGetGlobal_v2(null(), &mut bytes, module, c"table".as_ptr()));
            let unloaded = cu!(cuda, cuModuleUnload(module));
            format!("{bytes} {values:?} {kind:?} {}", codes([freed, size_alone, unloaded]))
        },
        "24 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] (CUDA_SUCCESS, 2) INVALID_VALUE SUCCESS SUCCESS",
    ),
    (
        "functions: attributes and parameters",
        |cuda| {
            use CUfunction_attribute as A;
            let f = function(cuda, c"three");
            let values = [
                A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                A::CU_FUNC_ATTRIBUTE_PTX_VERSION,
                A::CU_FUNC_ATTRIBUTE_BINARY_VERSION,
            ]
            .map(|a| property(cuda, f, a));
            let parameters: Vec<String> = (0..4)
                .map(|i| {
                    let (mut offset, mut size) = (0, 0);
                    let code = cu!(cuda, cuFuncGetParamInfo(f, i, &mut offset, &mut size));
                    format!("{} {offset} {size}", codes([code]))
                })
                .collect();
            format!("{values:?} {parameters:?}")
        },
        "[1024, 0, 0, 49152, 70, 90] [\"SUCCESS 0 8\", \"SUCCESS 8 4\", \"SUCCESS 12 1\", \"INVALID_VALUE 0 0\"]",
    ),
    (
        "functions: more shared memory",
        |cuda| {
            use CUfunction_attribute as A;
            let f = function(cuda, c"nothing");
            let set = |attribute, value| cu!(cuda, cuFuncSetAttribute(f, attribute, value));
            let shared = A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let carveout = A::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            let launch =
                |bytes| cu!(cuda, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, bytes, null(), null(), null()));
            let before = launch((48 << 10) + 1);
            let codes = codes([
                before,
                set(shared, (227 << 10) + 1),
                set(shared, -1),
                set(shared, 227 << 10),
                launch(227 << 10),
                launch((227 << 10) + 1),
                set(carveout, 50),
                set(carveout, -1),
                set(carveout, 101),
            ]);
            format!("{codes} {}", property(cuda, f, shared))
        },
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE SUCCESS SUCCESS INVALID_VALUE SUCCESS SUCCESS INVALID_VALUE 232448",
    ),
    (
        "functions: occupancy",
        |cuda| {
            let f = function(cuda, c"nothing");
            let active = |threads, shared| {
                let mut blocks = -1;
                let code =
                    cu!(cuda, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, f, threads, shared));
                format!("{} {blocks}", codes([code]))
            };
            let (mut grid, mut block) = (0, 0);
            ok!(cuda, cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, f, None, 0, 0));
            format!("{}, {}, {}, {grid} of {block}", active(1024, 0), active(32, 0), active(0, 0))
        },
        "SUCCESS 2, SUCCESS 32, INVALID_VALUE -1, 264 of 1024",
    ),
    (
        "launches: shapes",
        |cuda| {
            codes([
                launch(cuda, [1, 1, 1], [1, 1, 1], 0),
                launch(cuda, [0, 1, 1], [1, 1, 1], 0),
                launch(cuda, [1, 1, 1], [1, 0, 1], 0),
                launch(cuda, [1, 65536, 1], [1, 1, 1], 0),
                launch(cuda, [1 << 31, 1, 1], [1, 1, 1], 0),
                launch(cuda, [1, 1, 1], [1025, 1, 1], 0),
                launch(cuda, [1, 1, 1], [32, 33, 1], 0),
                launch(cuda, [1, 1, 1], [1, 1, 65], 0),
                launch(cuda, [1, 1, 1], [1, 1, 1], 48 << 10),
                cu!(cuda, cuCtxSynchronize()),
            ])
        },
        "SUCCESS INVALID_VALUE INVALID_VALUE INVALID_VALUE INVALID_VALUE INVALID_VALUE INVALID_VALUE INVALID_VALUE SUCCESS SUCCESS",
    ),
    (
        "launches: all blocks at once, and in clusters",
        |cuda| {
            codes([
                cooperative(cuda, 264),
                cooperative(cuda, 265),
                clustered(cuda, 8),
                clustered(cuda, 16),
                clustered(cuda, 5),
                clustered(cuda, 0),
                cu!(cuda, cuCtxSynchronize()),
            ])
        },
        "SUCCESS COOPERATIVE_LAUNCH_TOO_LARGE SUCCESS INVALID_CLUSTER_SIZE INVALID_CLUSTER_SIZE INVALID_CLUSTER_SIZE SUCCESS",
    ),
    (
        "capture: modules and launches",
        |cuda| {
            use CUfunction_attribute as A;
            let (module, mut other, mut f) = (load(cuda), null(), null());
            let known = function(cuda, c"nothing");
            let shared = A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let none = null();
            [
                during(cuda, |_| cu!(cuda, cuModuleLoadData(&mut other, PTX.as_ptr().cast()))),
                during(cuda, |_| cu!(cuda, cuModuleGetFunction(&mut f, module, c"three".as_ptr()))),
                during(cuda, |_| cu!(cuda, cuFuncSetAttribute(known, shared, 50_000))),
                during(cuda, |s| cu!(cuda, cuLaunchKernel(known, 1, 1, 1, 1, 1, 1, 50_000, s, null(), none))),
                during(cuda, |s| cu!(cuda, cuLaunchCooperativeKernel(known, 1, 1, 1, 1, 1, 1, 0, s, null()))),
                during(cuda, |_| cu!(cuda, cuModuleUnload(module))),
            ]
            .join(", ")
        },
        "SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS, SUCCESS SUCCESS, STREAM_CAPTURE_UNSUPPORTED STREAM_CAPTURE_INVALIDATED",
    ),
];
