//! Multicast, on drivers that refuse it and on one that pretends to support it. **Never on hardware**: creating a
//! multicast object on a host that is not set up for multicast can stall the fabric for all processes.

use std::ffi::{c_int, c_ulonglong};
use std::os::fd::AsFd as _;
use std::sync::Mutex;

use cuda_driver::sys::{
    Api, CUdevice, CUdevice_attribute, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUmulticastGranularity_flags,
    CUmulticastObjectProp, CUresult, Table,
};
use cuda_driver::vmm::multicast::{Multicast, MulticastProperties};
use cuda_driver::vmm::{FabricHandle, HandleTypes, PhysicalMemory};
use cuda_driver::{DevicePtr, Driver, Error};
use gpu_sim::{Action, Injection, World};

use super::{context, driver, drops, on_devices, start, turn};

const BYTES: usize = 2 << 20;

/// The embedded device's table, whose functions the replacements below call.
static UNDER: Mutex<Option<Table>> = Mutex::new(None);
/// Ranges that are bound and not yet unbound: device, offset in the object, bytes.
static BOUND: Mutex<Vec<(i32, usize, usize)>> = Mutex::new(Vec::new());

unsafe extern "C" fn attribute(out: *mut c_int, which: CUdevice_attribute, device: CUdevice) -> CUresult {
    if which == CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED {
        // SAFETY: the caller's pointer.
        unsafe { out.write(1) };
        return CUresult::CUDA_SUCCESS;
    }
    let under = UNDER.lock().unwrap().as_ref().unwrap().cuDeviceGetAttribute.unwrap();
    // SAFETY: the caller's contract.
    unsafe { under(out, which, device) }
}

unsafe extern "C" fn granularity(
    out: *mut usize,
    _: *const CUmulticastObjectProp,
    _: CUmulticastGranularity_flags,
) -> CUresult {
    // SAFETY: the caller's pointer.
    unsafe { out.write(BYTES) };
    CUresult::CUDA_SUCCESS
}

/// Makes a multicast object that is physical memory of the embedded device, so it can be released, mapped and
/// exported.
unsafe extern "C" fn create(
    out: *mut CUmemGenericAllocationHandle,
    properties: *const CUmulticastObjectProp,
) -> CUresult {
    // SAFETY: the caller's pointer.
    let CUmulticastObjectProp { size, handleTypes: handle_types, .. } = unsafe { *properties };
    let location =
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, ..CUmemLocation::default() };
    let memory = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(handle_types as u32),
        location,
        ..CUmemAllocationProp::default()
    };
    let under = UNDER.lock().unwrap().as_ref().unwrap().cuMemCreate.unwrap();
    // SAFETY: the caller's pointer, and our properties.
    unsafe { under(out, size, &memory, 0) }
}

unsafe extern "C" fn add_device(_: CUmemGenericAllocationHandle, _: CUdevice) -> CUresult {
    CUresult::CUDA_SUCCESS
}

/// Records the binding for the device that holds the memory, as hardware does.
unsafe extern "C" fn bind_memory(
    _: CUmemGenericAllocationHandle,
    offset: usize,
    memory: CUmemGenericAllocationHandle,
    _: usize,
    bytes: usize,
    _: c_ulonglong,
) -> CUresult {
    let under = UNDER.lock().unwrap().as_ref().unwrap().cuMemGetAllocationPropertiesFromHandle.unwrap();
    let mut properties = CUmemAllocationProp::default();
    // SAFETY: the caller's handle; writes the properties, to a local.
    let asked = unsafe { under(&mut properties, memory) };
    // SAFETY: the field is an integer, and any bits are a value of it.
    BOUND.lock().unwrap().push((unsafe { properties.location.__bindgen_anon_1.id }, offset, bytes));
    asked
}

unsafe extern "C" fn bind_address(
    _: CUmemGenericAllocationHandle,
    offset: usize,
    _: u64,
    bytes: usize,
    _: c_ulonglong,
) -> CUresult {
    BOUND.lock().unwrap().push((0, offset, bytes));
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn unbind(
    _: CUmemGenericAllocationHandle,
    device: CUdevice,
    offset: usize,
    bytes: usize,
) -> CUresult {
    let mut bound = BOUND.lock().unwrap();
    match bound.iter().position(|found| *found == (device, offset, bytes)) {
        Some(at) => {
            bound.remove(at);
            CUresult::CUDA_SUCCESS
        }
        None => CUresult::CUDA_ERROR_INVALID_VALUE,
    }
}

/// Returns the embedded device's table with multicast functions that only record the bindings.
fn pretending(world: &World) -> Table {
    let mut table = world.cuda();
    *UNDER.lock().unwrap() = Some(table.clone());
    table.cuDeviceGetAttribute = Some(attribute);
    table.cuMulticastGetGranularity = Some(granularity);
    table.cuMulticastCreate = Some(create);
    table.cuMulticastAddDevice = Some(add_device);
    table.cuMulticastBindMem = Some(bind_memory);
    table.cuMulticastBindAddr = Some(bind_address);
    table.cuMulticastUnbind = Some(unbind);
    table
}

#[test]
fn a_driver_without_it_and_a_device_without_it_refuse_before_anything_is_created() {
    on_devices(1, |_, driver| {
        // SAFETY: no hardware is involved: the driver is simulated.
        let error = unsafe { Multicast::opt_in(&context(driver, 0)) }.unwrap_err();
        assert!(
            matches!(&error, Error::Missing(missing) if missing.to_string().contains("MULTICAST")),
            "{error}"
        );
    });
    on_devices(1, |world, _| {
        let mut table = pretending(world);
        table.cuDeviceGetAttribute = world.cuda().cuDeviceGetAttribute;
        let driver = driver(table);
        // SAFETY: no hardware is involved: the driver is simulated.
        let error = unsafe { Multicast::opt_in(&context(&driver, 0)) }.unwrap_err();
        assert!(matches!(error, Error::Unsupported { what: "multicast", device: 0 }), "{error}");
        assert!(error.to_string().contains("device 0 cannot do multicast"), "{error}");
    });
}

#[test]
fn bindings_go_before_the_object_and_ranges_stay_inside() {
    let _turn = turn();
    let world = start(1);
    {
        // SAFETY: the functions only record bindings, and the world outlives the driver.
        let driver = Driver::new(unsafe { Api::from_parts(pretending(&world)) }.unwrap()).unwrap();
        let context = context(&driver, 0);
        // SAFETY: no hardware is involved: the driver is simulated.
        let multicast = unsafe { Multicast::opt_in(&context) }.unwrap();
        let wanted =
            MulticastProperties { devices: 1, bytes: 2 * BYTES, handle_types: HandleTypes::POSIX_FD };
        assert_eq!(multicast.granularity(wanted).unwrap().minimum, BYTES);
        let object = multicast.create(wanted).unwrap();
        object.add_device(context.device()).unwrap();
        let memory = PhysicalMemory::create(&context, BYTES, HandleTypes::empty()).unwrap();
        let first = object.bind(0, &memory, 0, BYTES).unwrap();
        let second = object.bind(BYTES, &memory, 0, BYTES).unwrap();
        assert_eq!(second.memory().raw(), memory.raw());
        assert_eq!(*BOUND.lock().unwrap(), [(0, 0, BYTES), (0, BYTES, BYTES)]);
        first.release().unwrap();
        drop(second);
        assert_eq!(*BOUND.lock().unwrap(), []);
        // SAFETY: no hardware is involved: the driver is simulated.
        unsafe { object.bind_address(0, DevicePtr(1 << 30), BYTES) }.unwrap();
        object.unbind(context.device(), 0, BYTES).unwrap();
        object.unbind(context.device(), 0, BYTES).expect_err("it is gone");
        for refused in [object.bind(BYTES, &memory, 0, 2 * BYTES), object.bind(0, &memory, BYTES, 1)] {
            assert!(matches!(refused, Err(Error::OutOfBounds { .. })));
        }
        // SAFETY: the call is refused.
        let refused = unsafe { object.bind_address(2 * BYTES, DevicePtr(1 << 30), 1) };
        assert!(matches!(refused, Err(Error::OutOfBounds { .. })));

        let opened = multicast.import_fd(object.export_fd().unwrap().as_fd(), 2 * BYTES).unwrap();
        assert_eq!(opened.bytes(), object.bytes());
        let nowhere = multicast.import_fabric(&FabricHandle([0; 64]), BYTES);
        assert!(matches!(nowhere, Err(Error::NoFabric { .. })));
    }
    assert_eq!(*drops(), Vec::<String>::new());
    world.finish().unwrap();
}

#[test]
fn memory_is_unbound_from_its_own_device() {
    let _turn = turn();
    let world = start(2);
    {
        // SAFETY: the functions only record bindings, and the world outlives the driver.
        let driver = Driver::new(unsafe { Api::from_parts(pretending(&world)) }.unwrap()).unwrap();
        let (here, there) = (context(&driver, 0), context(&driver, 1));
        // SAFETY: no hardware is involved: the driver is simulated.
        let multicast = unsafe { Multicast::opt_in(&here) }.unwrap();
        let wanted = MulticastProperties { devices: 2, bytes: BYTES, handle_types: HandleTypes::empty() };
        let object = multicast.create(wanted).unwrap();
        let memory = PhysicalMemory::create(&there, BYTES, HandleTypes::POSIX_FD).unwrap();
        let imported = PhysicalMemory::import_fd(&here, memory.export_fd().unwrap().as_fd(), BYTES).unwrap();
        let binding = object.bind(0, &imported, 0, BYTES).unwrap();
        assert_eq!(*BOUND.lock().unwrap(), [(1, 0, BYTES)]);
        binding.release().unwrap();
        drop(object.bind(0, &imported, 0, BYTES).unwrap());
        assert_eq!(*BOUND.lock().unwrap(), []);

        let refused = CUresult::CUDA_ERROR_UNKNOWN;
        let injection = Injection::new("cuMemGetAllocationPropertiesFromHandle", Action::Fail(refused.0));
        world.faults().inject(injection).unwrap();
        assert_eq!(object.bind(0, &imported, 0, BYTES).unwrap_err().code(), Some(refused));
        assert_eq!(*BOUND.lock().unwrap(), []);
    }
    assert_eq!(*drops(), Vec::<String>::new());
    world.finish().unwrap();
}
