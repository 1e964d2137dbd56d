//! The committed PTX: its content, and the choice for a driver.

use cuda_driver::sys::CUresult;
use process_group::comm::DataType;
use symm_mem::kernels::{CodeSet, KernelError, Kernels, UNITS};

use super::{driver, on_devices, start};
use crate::common::turn;

#[test]
fn every_unit_is_there_for_both_toolkits() {
    for (set, head) in
        CodeSet::ALL.into_iter().zip([".version 7.7\n.target sm_70\n", ".version 8.0\n.target sm_90\n"])
    {
        for unit in UNITS {
            let text = unit.ptx(set);
            assert!(text.contains(head), "{} of {set:?} is not for {head:?}", unit.name);
        }
    }
}

/// A driver's answer to `cuDriverGetVersion`.
macro_rules! version {
    ($code:literal) => {{
        unsafe extern "C" fn version(out: *mut std::ffi::c_int) -> CUresult {
            // SAFETY: the caller passes a valid pointer for the result.
            unsafe { out.write($code) };
            CUresult::CUDA_SUCCESS
        }
        version
    }};
}

#[test]
fn a_driver_is_given_code_that_it_takes() {
    let _turn = turn();
    let world = start(1);
    for (version, set) in [
        (version!(11070) as unsafe extern "C" fn(_) -> _, CodeSet::Compute70),
        (version!(11080), CodeSet::Compute70),
        (version!(12000), CodeSet::Compute90),
        (version!(13050), CodeSet::Compute90),
    ] {
        let mut table = world.cuda();
        table.cuDriverGetVersion = Some(version);
        let driver = driver(table);
        let context = driver.device(0).unwrap().retain_primary().unwrap();
        let kernels = Kernels::load(&context).unwrap();
        assert_eq!(kernels.code_set(), set);
        // Every requested kernel is in the code.
        DataType::ALL.iter().for_each(|dtype| kernels.prepare(*dtype).unwrap());
    }
    world.finish().unwrap();
}

#[test]
fn a_context_loads_its_kernels_once_and_unloads_them_with_the_last_handle() {
    on_devices(2, |world, driver| {
        let contexts = [0, 1].map(|device| driver.device(device).unwrap().retain_primary().unwrap());
        let first = Kernels::load(&contexts[0]).unwrap();
        let again = Kernels::load(&contexts[0]).unwrap();
        let other = Kernels::load(&contexts[1]).unwrap();
        assert_eq!(world.calls("cuModuleLoadDataEx"), 2);
        assert_eq!((first.context(), other.context()), (&contexts[0], &contexts[1]));
        drop(first);
        assert_eq!(world.calls("cuModuleUnload"), 0);
        drop((again, other));
        assert_eq!(world.calls("cuModuleUnload"), 2);
        drop(Kernels::load(&contexts[0]).unwrap());
        assert_eq!(world.calls("cuModuleLoadDataEx"), 3);
    });
}

#[test]
fn kernels_without_twins_are_refused_by_the_embedded_device() {
    let _turn = turn();
    let world = gpu_sim::World::builder().start().unwrap();
    {
        let context = driver(world.cuda()).device(0).unwrap().retain_primary().unwrap();
        let refused = Kernels::load(&context).unwrap_err();
        assert!(matches!(refused, KernelError::Driver(_)), "{refused}");
    }
    world.finish().unwrap();
}
