//! Modules and launches: refusals, by the crate and by the driver, and lifetimes.

use std::ffi::c_uint;

use cuda_driver::graph::CaptureMode;
use cuda_driver::memory::DeviceMemory;
use cuda_driver::module::{
    Argument, Arguments, Dim, Function, JitOptions, LaunchConfig, LaunchError, Module, ModuleError, Parameter,
};
use cuda_driver::sys::{CUfunction_attribute, CUmodule, CUresult, Missing};
use cuda_driver::{Context, Error, Stream, StreamFlags};
use gpu_sim::World;

use super::kernels::{self, PTX};
use super::{context, driver, failed, on_devices, on_stream};

/// Like [`on_stream`], with the kernels registered and the module of [`PTX`] loaded.
fn on_module(test: impl FnOnce(&World, &Context, &Stream, Module)) {
    on_stream(|world, context, stream| {
        kernels::register(world);
        let module = Module::load_ptx(context, PTX, &JitOptions::new()).unwrap();
        test(world, context, stream, module);
    });
}

/// Returns the error of a launch that must be refused.
#[track_caller]
fn refused(stream: &Stream, function: &Function, config: LaunchConfig, arguments: impl Arguments) -> Error {
    // SAFETY: the call is refused.
    unsafe { stream.launch_kernel(function, &config, arguments) }.unwrap_err()
}

#[track_caller]
fn launch_error(error: Error) -> LaunchError {
    match error {
        Error::Launch(error) => error,
        other => panic!("{other}"),
    }
}

#[track_caller]
fn module_error(error: Error) -> ModuleError {
    match error {
        Error::Module(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn the_driver_says_why_it_refuses() {
    on_module(|_, context, _, _| kernels::refusals(context));
}

#[test]
fn texts_that_cannot_be_ptx_never_reach_the_driver() {
    on_stream(|world, context, _| {
        let load =
            |text: &str| module_error(Module::load_ptx(context, text, &JitOptions::new()).unwrap_err());
        assert!(matches!(load(""), ModuleError::Empty));
        assert!(matches!(load(" \n"), ModuleError::Empty));
        assert!(matches!(load("\0"), ModuleError::Empty));
        assert!(matches!(load(".version\0 7.0"), ModuleError::Nul { what: "PTX", at: 8 }));
        assert_eq!(world.calls("cuModuleLoadDataEx"), 0);
        // One trailing NUL is accepted, because compilers count it as part of the text.
        kernels::register(world);
        Module::load_ptx(context, &format!("{PTX}\0"), &JitOptions::new()).unwrap();
    });
}

#[test]
fn images_are_whole_before_the_driver_reads_them() {
    on_stream(|world, context, _| {
        // SAFETY: the crate or the embedded device, which loads PTX only, refuses the image.
        let load =
            |image: &[u8]| unsafe { Module::load_image(context, image, &JitOptions::new()) }.unwrap_err();
        assert!(matches!(module_error(load(b"")), ModuleError::UnknownImage { bytes: 0, .. }));
        assert!(matches!(module_error(load(PTX.as_bytes())), ModuleError::UnknownImage { .. }));

        let mut fat = vec![0u8; 40];
        fat[..8].copy_from_slice(&[0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0]);
        fat[8] = 24;
        let cut = module_error(load(&fat[..39]));
        assert!(
            matches!(cut, ModuleError::Truncated { kind: "fat binary", expected: 40, found: 39 }),
            "{cut}"
        );

        // A section table at offset 64 with two sections: one has 6 bytes at offset 250, the other has 1000 bytes
        // that are not in the file.
        let mut elf = vec![0u8; 256];
        elf[..4].copy_from_slice(b"\x7fELF");
        let mut set = |at: usize, value: u16| elf[at..at + 2].copy_from_slice(&value.to_le_bytes());
        [(40, 64), (58, 64), (60, 2), (64 + 24, 250), (64 + 32, 6), (128 + 4, 8), (128 + 32, 1000)]
            .into_iter()
            .for_each(|(at, value)| set(at, value));
        let cut = module_error(load(&elf[..255]));
        assert!(matches!(cut, ModuleError::Truncated { kind: "cubin", expected: 256, found: 255 }), "{cut}");
        for head in 4..64 {
            assert!(matches!(module_error(load(&elf[..head])), ModuleError::Truncated { .. }));
        }
        assert_eq!(world.calls("cuModuleLoadDataEx"), 0);
        for whole in [fat, elf] {
            assert_eq!(failed(&load(&whole)), ("cuModuleLoadDataEx", 801));
        }
    });
}

#[test]
fn the_compiler_is_heard_when_asked() {
    on_module(|_, context, _, module| {
        assert_eq!(module.log(), "");
        let verbose = Module::load_ptx(context, PTX, &JitOptions::new().verbose()).unwrap();
        assert!(verbose.log().contains("vector_add"), "{}", verbose.log());
    });
}

#[test]
fn a_text_that_is_no_ptx_is_no_image() {
    on_stream(|_, context, _| {
        let refused = Module::load_ptx(context, "what is this", &JitOptions::new()).unwrap_err();
        assert_eq!(failed(&refused), ("cuModuleLoadDataEx", 200));
        assert!(refused.to_string().contains("PTX starts with .version"), "{refused}");
    });
}

#[test]
fn a_module_is_loaded_beside_a_capture() {
    on_stream(|world, context, stream| {
        kernels::register(world);
        let capture = stream.begin_capture(CaptureMode::Global).unwrap();
        let module = Module::load_ptx(context, PTX, &JitOptions::new()).unwrap();
        module.function("vector_add").unwrap();
        assert_eq!(capture.end().unwrap().node_count().unwrap(), 0);
    });
}

#[test]
fn names_with_a_nul_are_refused() {
    on_module(|_, _, _, module| {
        let nul = module_error(module.function("vector\0add").unwrap_err());
        assert!(matches!(nul, ModuleError::Nul { what: "kernel's name", at: 6 }));
        let nul = module_error(module.global("\0").unwrap_err());
        assert!(matches!(nul, ModuleError::Nul { what: "variable's name", at: 0 }));
    });
}

#[test]
fn arguments_are_the_parameters() {
    on_module(|world, _, stream, module| {
        let add = module.function("vector_add").unwrap();
        let config = LaunchConfig::new(1, 1);
        let check = |error| launch_error(error).to_string();
        assert_eq!(
            check(refused(stream, &add, config, (0u64, 0u64, 0u64))),
            "kernel `vector_add` takes 4 parameters, but was given 3"
        );
        assert_eq!(
            check(refused(stream, &add, config, ())),
            "kernel `vector_add` takes 4 parameters, but was given 0"
        );
        assert_eq!(
            check(refused(stream, &add, config, (0u64, 0u64, 0u32, 0u32))),
            "kernel `vector_add` takes 8 bytes as parameter 2 (from 0), but was given 4"
        );
        let list = [Argument::of(&0u64), Argument::of_bytes(&[0; 5])];
        assert_eq!(
            check(refused(stream, &add, config, &list)),
            "kernel `vector_add` takes 4 parameters, but was given 2"
        );
        assert_eq!(world.calls("cuLaunchKernel"), 0);
    });
}

#[test]
fn a_launch_is_one_call() {
    on_module(|world, _, stream, module| {
        let add = module.function("vector_add").unwrap();
        let before: u64 = world.faults().all_calls().values().sum();
        for _ in 0..10 {
            // SAFETY: with a count of 0 words, the kernel accesses no memory.
            unsafe {
                stream.launch_kernel(&add, &LaunchConfig::new(1, 32), (0u64, 0u64, 0u64, 0u32)).unwrap();
            }
        }
        assert_eq!(world.faults().all_calls().values().sum::<u64>(), before + 10);
        stream.synchronize().unwrap();
    });
}

#[test]
fn every_value_arrives() {
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Three {
        a: u16,
        b: u16,
        c: u16,
    }
    // SAFETY: the structure has three numbers without padding, and the host function below reads them in this layout.
    unsafe impl Parameter for Three {}

    on_stream(|world, context, stream| {
        world.register_kernel("vector_add", &[1, 6, 8, 12], |launch| {
            assert_eq!(launch.bytes(0)?, [200]);
            assert_eq!(launch.bytes(1)?, [1u16, 2, 3].map(u16::to_ne_bytes).concat());
            assert_eq!(launch.bytes(2)?, 2.5f64.to_ne_bytes());
            assert_eq!(launch.bytes(3)?, [4u32, 5, 6].map(u32::to_ne_bytes).concat());
            assert_eq!((launch.grid, launch.block, launch.shared), ([2, 3, 4], [5, 6, 7], 8));
            Ok(())
        });
        let kernel =
            Module::load_ptx(context, PTX, &JitOptions::new()).unwrap().function("vector_add").unwrap();
        let config = LaunchConfig::new((2, 3, 4), [5, 6, 7]).shared_bytes(8);
        let three = Three { a: 1, b: 2, c: 3 };
        // SAFETY: the host function touches no memory.
        unsafe { stream.launch_kernel(&kernel, &config, (200u8, three, 2.5f64, [4u32, 5, 6])).unwrap() };
        let default = Stream::legacy_default(context);
        // SAFETY: as above.
        unsafe { default.launch_kernel(&kernel, &config, (200u8, three, 2.5f64, [4u32, 5, 6])).unwrap() };
        context.synchronize().unwrap();
    });
}

#[test]
fn shapes_are_within_the_devices_limits() {
    on_module(|world, _, stream, module| {
        let add = module.function("vector_add").unwrap();
        let arguments = (0u64, 0u64, 0u64, 0u32);
        let over = |grid: [u32; 3], block: [u32; 3]| match launch_error(refused(
            stream,
            &add,
            LaunchConfig::new(grid, block),
            arguments,
        )) {
            ref error @ LaunchError::OverLimit { what, limit, limit_name, .. } => {
                let instead = if what.starts_with("grid") { "a smaller grid" } else { "smaller blocks" };
                assert!(error.to_string().contains(instead), "{error}");
                (what, limit, limit_name)
            }
            LaunchError::Zero { what, .. } => (what, 0, ""),
            other => panic!("{other}"),
        };
        for axis in 0..3 {
            let (mut zero, mut most) = ([1; 3], [1; 3]);
            (zero[axis], most[axis]) = (0, u32::MAX);
            let (grid, block) =
                (["grid.x", "grid.y", "grid.z"][axis], ["block.x", "block.y", "block.z"][axis]);
            assert_eq!(over(zero, [1; 3]), (grid, 0, ""));
            assert_eq!(over([1; 3], zero), (block, 0, ""));
            let (what, _, limit_name) = over(most, [1; 3]);
            assert!(what == grid && limit_name.starts_with("CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_"));
            let (what, _, limit_name) = over([1; 3], most);
            assert!(what == block && limit_name.starts_with("CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_"));
        }
        assert_eq!(over([1, 65536, 1], [1; 3]), ("grid.y", 65535, "CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y"));
        assert_eq!(over([1; 3], [1, 1, 65]), ("block.z", 64, "CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z"));
        let threads = ("threads of a block", 1024, "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK");
        assert_eq!(over([1; 3], [32, 33, 1]), threads);
        assert_eq!(LaunchConfig::linear(0, 0), LaunchConfig::new(0, 0));
        assert_eq!(LaunchConfig::linear(u64::MAX, 1).grid, Dim::from(u32::MAX));

        for (grid, cluster, what) in
            [((5, 1), (2, 1), "grid.x"), ((4, 3), (2, 2), "grid.y"), ((4, 1), (0, 1), "grid.x")]
        {
            let config = LaunchConfig::new(grid, 1).cluster(cluster);
            match launch_error(refused(stream, &add, config, arguments)) {
                LaunchError::PartialCluster { what: found, .. } => assert_eq!(found, what),
                other => panic!("{other}"),
            }
        }
        let too_large = LaunchConfig::new(133 * 2, 1024).cooperative();
        assert_eq!(failed(&refused(stream, &add, too_large, arguments)), ("cuLaunchCooperativeKernel", 720));
        let too_large = LaunchConfig::new(16, 1).cluster(16).cooperative();
        assert_eq!(failed(&refused(stream, &add, too_large, arguments)), ("cuLaunchKernelEx", 912));
        assert_eq!(world.calls("cuLaunchKernel"), 0);
    });
}

#[test]
fn shared_memory_that_another_handle_asked_for_is_found() {
    on_module(|_, _, stream, module| {
        let [one, other] = [(); 2].map(|()| module.function("vector_add").unwrap());
        assert_eq!(one, other);
        let config = LaunchConfig::new(1, 1).shared_bytes(100 << 10);
        let arguments = (0u64, 0u64, 0u64, 0u32);
        let error = launch_error(refused(stream, &one, config, arguments));
        assert!(error.to_string().contains("`Function::set_max_dynamic_shared_bytes`"), "{error}");
        other.set_max_dynamic_shared_bytes(100 << 10).unwrap();
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        assert_eq!(one.attribute(attribute).unwrap(), 100 << 10);
        // SAFETY: with a count of 0 words, the kernel accesses no memory.
        unsafe { stream.launch_kernel(&one, &config, arguments).unwrap() };
        stream.synchronize().unwrap();
        assert_eq!(
            failed(&one.set_max_dynamic_shared_bytes(u32::MAX).unwrap_err()),
            ("cuFuncSetAttribute", 1)
        );
        assert_eq!(failed(&one.set_shared_carveout(Some(101)).unwrap_err()), ("cuFuncSetAttribute", 1));
    });
}

#[test]
fn a_kernel_is_launched_where_its_module_is() {
    on_devices(2, |world, driver| {
        kernels::register(world);
        let (here, there) = (context(driver, 0), context(driver, 1));
        let meet = Module::load_ptx(&here, PTX, &JitOptions::new()).unwrap().function("meet").unwrap();
        let stream = Stream::new(&there, StreamFlags::NON_BLOCKING).unwrap();
        let error = refused(&stream, &meet, LaunchConfig::new(1, 1), (0u64, 0u64));
        assert!(matches!(error, Error::DifferentDevices { found: 0, wanted: 1, .. }), "{error}");
    });
}

#[test]
fn a_module_goes_with_its_last_function() {
    on_module(|world, context, stream, module| {
        let unloaded = || world.calls("cuModuleUnload");
        let memory = DeviceMemory::new(context, 16).unwrap();
        let (function, clone) = (module.function("reverse").unwrap(), module.clone());
        drop(module);
        drop(clone);
        assert_eq!(unloaded(), 0);
        let again = function.module().function("reverse").unwrap();
        drop(function);
        // SAFETY: four words of memory that outlives the launch.
        unsafe {
            stream
                .launch_kernel(&again, &LaunchConfig::new(1, 4).shared_bytes(16), (memory.ptr(), 4u32))
                .unwrap();
        }
        stream.synchronize().unwrap();
        // Unloading does not invalidate a capture.
        let capture = stream.begin_capture(CaptureMode::Global).unwrap();
        drop(again);
        assert_eq!(unloaded(), 1);
        capture.end().unwrap();
    });
}

/// A `cuModuleGetFunctionCount` that reports the largest possible count.
unsafe extern "C" fn too_many(count: *mut c_uint, _: CUmodule) -> CUresult {
    // SAFETY: the caller's pointer.
    unsafe { count.write(c_uint::MAX) };
    CUresult::CUDA_SUCCESS
}

#[test]
fn kernels_are_those_that_the_driver_writes_whatever_it_counts() {
    on_devices(1, |world, _| {
        kernels::register(world);
        let mut table = world.cuda();
        table.cuModuleGetFunctionCount = Some(too_many);
        let context = context(&driver(table), 0);
        let one = |index| format!("\n.visible .entry kernel_{index}()\n{{\n\tret;\n}}\n");
        for more in [0, 1021, 1022, 3000] {
            let text: String = std::iter::once(PTX.to_owned()).chain((0..more).map(one)).collect();
            let module = Module::load_ptx(&context, &text, &JitOptions::new()).unwrap();
            assert_eq!(module.function_names().unwrap().len(), 3 + more);
        }
    });
}

#[test]
fn an_older_driver_does_less_and_says_so() {
    on_devices(1, |world, _| {
        kernels::register(world);
        let mut table = world.cuda();
        table.cuFuncGetParamInfo = None;
        table.cuFuncLoad = None;
        table.cuModuleEnumerateFunctions = None;
        table.cuLaunchKernelEx = None;
        let context = context(&driver(table), 0);
        let stream = Stream::new(&context, StreamFlags::NON_BLOCKING).unwrap();
        let module = Module::load_ptx(&context, PTX, &JitOptions::new()).unwrap();
        assert!(matches!(module.function_names(), Err(Error::Missing(Missing { .. }))));
        let absent = module_error(module.function("absent").unwrap_err());
        assert!(
            matches!(absent, ModuleError::NoSuchFunction { ref known, .. } if known.is_empty()),
            "{absent}"
        );

        let reverse = module.function("reverse").unwrap();
        assert_eq!(reverse.parameter_sizes(), None);
        let memory = DeviceMemory::new(&context, 16).unwrap();
        memory.copy_from_host(0, &[1u32, 2, 3, 4]).unwrap();
        let config = LaunchConfig::new(1, 4).shared_bytes(16);
        // SAFETY: four words of memory that outlives the launch, which is waited for.
        unsafe { stream.launch_kernel(&reverse, &config, (memory.ptr(), 4u32)).unwrap() };
        stream.synchronize().unwrap();
        let mut words = [0u32; 4];
        memory.copy_to_host(0, &mut words).unwrap();
        assert_eq!(words, [4, 3, 2, 1]);

        let missing = refused(&stream, &reverse, config.cluster(1), (memory.ptr(), 4u32));
        assert!(matches!(missing, Error::Missing(_)), "{missing}");
        assert!(missing.to_string().contains("LAUNCH_ATTRIBUTES"), "{missing}");
    });
}
