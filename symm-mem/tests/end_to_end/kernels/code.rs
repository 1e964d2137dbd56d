//! The committed PTX: its content, and loading it.

use cuda_driver::sys::CUresult;
use process_group::comm::DataType;
use symm_mem::kernels::{KernelError, Kernels, UNITS};

use super::{driver, on_devices, start};
use crate::common::turn;

#[test]
fn every_unit_has_ptx_for_the_oldest_driver_and_device() {
    for unit in UNITS {
        assert!(unit.ptx().contains(".version 7.7\n.target sm_70\n"), "{}", unit.name);
    }
}

/// An answer of the driver about the device's major compute capability.
unsafe extern "C" fn capability_6(
    out: *mut std::ffi::c_int,
    _: cuda_driver::sys::CUdevice_attribute,
    _: cuda_driver::sys::CUdevice,
) -> CUresult {
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { out.write(6) };
    CUresult::CUDA_SUCCESS
}

#[test]
fn every_kernel_is_in_the_code_and_an_old_device_is_refused() {
    let _turn = turn();
    let world = start(1);
    let context = |table| driver(table).device(0).unwrap().retain_primary().unwrap();
    let kernels = Kernels::load(&context(world.cuda())).unwrap();
    DataType::ALL.iter().for_each(|dtype| kernels.prepare(*dtype).unwrap());
    drop(kernels);
    let mut table = world.cuda();
    table.cuDeviceGetAttribute = Some(capability_6);
    let refused = Kernels::load(&context(table)).unwrap_err();
    assert!(matches!(refused, KernelError::DeviceTooOld { found: (6, 6), .. }), "{refused}");
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
