//! Kernels by registered name: parameters, memory, faults, capture.

use std::ffi::c_void;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::common::{Cuda, cu, ok};
use cuda_driver_sys::*;
use gpu_sim::World;
use gpu_sim::fault::Fault;
use gpu_sim::memory::Access;
use gpu_sim::sched::{self, WaitError};
use rusty_fork::rusty_fork_test;

const PTX: &std::ffi::CStr = c".version 8.0
.target sm_90
.address_size 64
.visible .entry add(.param .u64 to, .param .u32 n, .param .u32 by) { ret; }
.visible .entry unknown() { ret; }
";

/// `to[i] += by` for `i < n`, on 32-bit words.
fn add(launch: &gpu_sim::kernel::Launch<'_>) -> Result<(), Fault> {
    let (to, n, by) = (launch.u64(0)?, launch.u32(1)?, launch.u32(2)?);
    assert_eq!((launch.grid, launch.block), ([2, 1, 1], [64, 1, 1]));
    let view = launch.exec.view(to, u64::from(n) * 4, Access::all())?;
    for i in 0..n as usize {
        let mut word = [0; 4];
        view.read(i * 4, &mut word);
        view.write(i * 4, &(u32::from_ne_bytes(word) + by).to_ne_bytes());
    }
    Ok(())
}

/// Changes a word from 1 to 0. A launch that waits in vain writes 7.
fn take(launch: &gpu_sim::kernel::Launch<'_>) -> Result<(), Fault> {
    let view = launch.exec.view(launch.u64(0)?, 8, Access::all())?;
    assert!(matches!(view.atomic_u32(2), Err(Fault::Misaligned { alignment: 4, .. })));
    let word = view.atomic_u32(0)?;
    let deadline = sched::now() + Duration::from_millis(launch.u32(1)?.into());
    let taken = view.wait_until(
        Some(deadline),
        || "the word".into(),
        || word.compare_exchange(1, 0, SeqCst, SeqCst).is_ok(),
    );
    match taken {
        Ok(()) => Ok(()),
        Err(WaitError::TimedOut { .. }) => {
            word.store(7, SeqCst);
            Ok(())
        }
        Err(other) => Err(other.into()),
    }
}

fn load(world: &World, cuda: &Cuda) -> (CUmodule, CUfunction) {
    world.register_kernel("add", &[8, 4, 4], add);
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    ok!(cuda, cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    ok!(cuda, cuModuleGetFunction(&mut function, module, c"add".as_ptr()));
    (module, function)
}

fn launch(cuda: &Cuda, function: CUfunction, stream: CUstream, to: CUdeviceptr, n: u32, by: u32) {
    let mut parameters: [*mut c_void; 3] = [
        (&raw const to).cast_mut().cast(),
        (&raw const n).cast_mut().cast(),
        (&raw const by).cast_mut().cast(),
    ];
    let none = std::ptr::null_mut();
    ok!(cuda, cuLaunchKernel(function, 2, 1, 1, 64, 1, 1, 0, stream, parameters.as_mut_ptr(), none));
}

rusty_fork_test! {
    #[test]
    fn a_kernel_computes_eagerly_and_in_a_graph() {
        for builder in [World::builder(), World::builder().seeded(4)] {
            let world = builder.start().unwrap();
            let cuda = Cuda::of(&world);
            let (module, function) = load(&world, &cuda);
            let (stream, memory) = (cuda.stream(), cuda.alloc(16));
            launch(&cuda, function, stream, memory, 4, 5);
            let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
            ok!(cuda, cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL));
            launch(&cuda, function, stream, memory, 2, 10);
            ok!(cuda, cuStreamEndCapture(stream, &mut graph));
            ok!(cuda, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            ok!(cuda, cuGraphLaunch(exec, stream));
            ok!(cuda, cuGraphLaunch(exec, stream));
            ok!(cuda, cuStreamSynchronize(stream));
            let words: Vec<u8> = cuda.download(memory, 16).chunks(4).map(|c| c[0]).collect();
            assert_eq!(words, [25, 25, 5, 5]);
            ok!(cuda, cuGraphExecDestroy(exec));
            ok!(cuda, cuGraphDestroy(graph));
            ok!(cuda, cuModuleUnload(module));
            ok!(cuda, cuStreamDestroy_v2(stream));
            cuda.free(memory);
            cuda.leave(0);
            world.finish().unwrap();
        }
    }

    #[test]
    fn a_graph_that_outlives_its_kernels_module_fails() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let (module, function) = load(&world, &cuda);
        let (stream, memory) = (cuda.stream(), cuda.alloc(16));
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok!(cuda, cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL));
        launch(&cuda, function, stream, memory, 2, 10);
        ok!(cuda, cuStreamEndCapture(stream, &mut graph));
        ok!(cuda, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok!(cuda, cuModuleUnload(module));
        ok!(cuda, cuGraphLaunch(exec, stream));
        assert_eq!(cu!(cuda, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        assert!(world.notes().iter().any(|n| n.contains("its module was unloaded")), "{:?}", world.notes());
    }

    #[test]
    fn a_kernel_past_the_end_is_an_illegal_address() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let (_, function) = load(&world, &cuda);
        let (stream, memory) = (cuda.stream(), cuda.alloc(16));
        launch(&cuda, function, stream, memory, 5, 1);
        assert_eq!(cu!(cuda, cuStreamSynchronize(stream)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert!(world.notes().iter().any(|n| n.contains("kernel add")), "{:?}", world.notes());
    }

    #[test]
    fn a_panic_in_a_kernel_is_a_failed_launch() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        world.register_kernel("unknown", &[], |_| panic!("on purpose"));
        let (module, _) = load(&world, &cuda);
        let mut function = std::ptr::null_mut();
        ok!(cuda, cuModuleGetFunction(&mut function, module, c"unknown".as_ptr()));
        let null = std::ptr::null_mut();
        ok!(cuda, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null, null.cast(), null.cast()));
        assert_eq!(cu!(cuda, cuCtxSynchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
        assert!(world.notes().iter().any(|n| n.contains("on purpose")), "{:?}", world.notes());
    }

    #[test]
    fn a_kernel_waits_for_a_word_until_its_deadline() {
        for builder in [World::builder(), World::builder().seeded(3)] {
            let world = builder.start().unwrap();
            let cuda = Cuda::of(&world);
            world.register_kernel("unknown", &[8, 4], take);
            let (module, _) = load(&world, &cuda);
            let (mut function, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
            ok!(cuda, cuModuleGetFunction(&mut function, module, c"unknown".as_ptr()));
            ok!(cuda, cuStreamCreate(&mut stream, 1));
            let (word, null) = (cuda.alloc(8), std::ptr::null_mut::<c_void>());
            cuda.upload(word, &[0; 8]);
            for (comes, milliseconds, left) in [(true, 60_000_u32, 0), (false, 5, 7)] {
                let (mut to, mut within) = (word, milliseconds);
                let mut parameters = [(&raw mut to).cast::<c_void>(), (&raw mut within).cast()];
                let values = parameters.as_mut_ptr();
                ok!(cuda, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, values, null.cast()));
                if comes {
                    ok!(cuda, cuMemsetD32_v2(word, 1, 1));
                }
                ok!(cuda, cuStreamSynchronize(stream));
                assert_eq!(cuda.download(word, 4), [left, 0, 0, 0]);
            }
        }
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let world = World::builder().start().unwrap();
        let cuda = Cuda::of(&world);
        let (module, function) = load(&world, &cuda);
        let (mut out, null) = (std::ptr::null_mut(), std::ptr::null_mut());
        let unknown = cu!(cuda, cuModuleGetFunction(&mut out, module, c"unknown".as_ptr()));
        assert_eq!(unknown, CUresult::CUDA_ERROR_NOT_SUPPORTED, "nothing is registered for it");
        let absent = cu!(cuda, cuModuleGetFunction(&mut out, module, c"absent".as_ptr()));
        assert_eq!(absent, CUresult::CUDA_ERROR_NOT_FOUND);
        let too_many = cu!(cuda, cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, null, null.cast(), null.cast()));
        assert_eq!(too_many, CUresult::CUDA_ERROR_INVALID_VALUE);
        let mut broken = std::ptr::null_mut();
        let elf = cu!(cuda, cuModuleLoadData(&mut broken, c"\x7fELF".as_ptr().cast()));
        assert_eq!(elf, CUresult::CUDA_ERROR_NOT_SUPPORTED);
        let garbage = cu!(cuda, cuModuleLoadData(&mut broken, c"// nothing".as_ptr().cast()));
        assert_eq!(garbage, CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
}
