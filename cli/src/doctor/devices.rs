//! Facts from the driver: GPUs, the links between them, features of their memory.
//!
//! Only harmless operations are tried: a context, and one granule of memory. Multicast objects are never created.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use anyhow::{Context as _, Result, anyhow};
use cuda_driver::module::LoadingMode;
use cuda_driver::sys::{CUcomputemode, CUdevice_attribute};
use cuda_driver::vmm::{Access, Granularity, HandleTypes, PhysicalMemory, Reservation};
use cuda_driver::{Capabilities, Context, Device, Driver, Error, uuid_text};
use nvml_wrapper::Nvml;

use super::facts::{self, Devices, Gpu, Pair, Tried, WORKS};

/// The most NVLinks that a GPU has.
const NVLINKS: u32 = 18;

/// Queries the driver. A query that fails loses only its own answer.
pub(super) fn gather(driver: &Driver) -> Result<Devices> {
    let devices = driver.devices()?;
    let nvml = nvml();
    let gpus = devices.iter().map(|device| gpu(device, nvml.as_ref().ok())).collect();
    let mut pairs = Vec::new();
    for from in &devices {
        for to in devices.iter().filter(|to| *to != from) {
            pairs.push(pair(from, to));
        }
    }
    Ok(Devices { module_loading: module_loading(driver), gpus, pairs, nvml: nvml.map(|_| WORKS).into() })
}

fn nvml() -> Result<Nvml> {
    // The crate's default name is the link that only development packages install.
    Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init().context("libnvidia-ml.so.1")
}

fn gpu(device: &Device, nvml: Option<&Nvml>) -> Gpu {
    let virtual_memory = told(device.can(Capabilities::VIRTUAL_MEMORY));
    let compute_capability = device.compute_capability();
    let compute_mode = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
    let context = device.retain_primary();
    let without = virtual_memory.done() == Some(&false);
    let export = |kind: fn(&Context) -> Result<()>| match &context {
        Ok(_) if without => Tried::Failed { error: "the device has no virtual memory".into() },
        Ok(context) => kind(context).map(|()| WORKS).into(),
        Err(error) => Tried::Failed { error: error.to_string() },
    };
    let uuid = device.uuid().ok().map(|bytes| format!("GPU-{}", uuid_text(&bytes)));
    let seen = nvml.zip(uuid.as_ref()).and_then(|(nvml, uuid)| nvml.device_by_uuid(uuid.as_str()).ok());
    let granularity = Granularity::of(device, HandleTypes::POSIX_FD).ok();
    Gpu {
        ordinal: device.ordinal(),
        name: told(device.name()),
        pci: device.pci_bus_id().ok(),
        compute_capability: told(compute_capability.map(|(major, minor)| format!("{major}.{minor}"))),
        memory_total: told(device.total_memory().map(|bytes| bytes as u64)),
        memory_free: context
            .as_ref()
            .ok()
            .and_then(|context| Some(context.memory_info().ok()?.0))
            .map(|free| free as u64),
        compute_mode: told(compute_mode.map(mode)),
        mig: seen.as_ref().and_then(|device| device.mig_mode().ok()).map(|mode| mode.current != 0),
        nvlinks: seen.as_ref().map(|device| {
            let active = |link: &u32| device.link_wrapper_for(*link).is_active().unwrap_or(false);
            (0..NVLINKS).filter(active).count() as u32
        }),
        virtual_memory,
        granularity: granularity.map(|granularity| facts::Granularity {
            minimum: granularity.minimum as u64,
            recommended: granularity.recommended as u64,
        }),
        file_descriptor_export: export(file_descriptor),
        fabric_export: export(fabric),
        multicast: told(device.can(Capabilities::MULTICAST)),
        uuid,
        context: told(context.map(|_| WORKS)),
    }
}

/// Converts the driver's answer or error.
fn told<T>(answer: cuda_driver::Result<T>) -> Tried<T> {
    answer.map_err(anyhow::Error::from).into()
}

fn mode(mode: i32) -> String {
    match CUcomputemode(mode as _) {
        CUcomputemode::CU_COMPUTEMODE_DEFAULT => "default".into(),
        CUcomputemode::CU_COMPUTEMODE_PROHIBITED => "prohibited".into(),
        CUcomputemode::CU_COMPUTEMODE_EXCLUSIVE_PROCESS => "exclusive process".into(),
        other => format!("{other:?}"),
    }
}

fn module_loading(driver: &Driver) -> Option<String> {
    driver.module_loading_mode().ok().map(|mode| match mode {
        LoadingMode::Lazy => "lazy".into(),
        LoadingMode::Eager => "eager".into(),
        other => format!("{other:?}"),
    })
}

fn pair(from: &Device, to: &Device) -> Pair {
    let link = from.link_to(to).ok();
    Pair {
        from: from.ordinal(),
        to: to.ordinal(),
        access: told(from.can_access_peer(to)),
        native_atomics: link.map(|link| link.native_atomics),
        performance_rank: link.map(|link| link.performance_rank),
    }
}

/// Creates, exports, imports and maps one granule, then releases all of it.
fn file_descriptor(context: &Context) -> Result<()> {
    let (memory, bytes) = granule(context, HandleTypes::POSIX_FD)?;
    let descriptor = memory.export_fd().context("exporting")?;
    let imported = PhysicalMemory::import_fd(context, descriptor.as_fd(), bytes).context("importing")?;
    map(context, &imported, bytes)
}

/// The same with a fabric handle.
fn fabric(context: &Context) -> Result<()> {
    let (memory, bytes) = granule(context, HandleTypes::FABRIC)?;
    let handle = memory.export_fabric().context("exporting")?;
    let imported = PhysicalMemory::import_fabric(context, &handle, bytes);
    let imported = imported.map_err(briefly).context("importing")?;
    map(context, &imported, bytes)
}

fn granule(context: &Context, handles: HandleTypes) -> Result<(PhysicalMemory, usize)> {
    let bytes = Granularity::of(context.device(), handles).context("asking for the granularity")?.recommended;
    Ok((PhysicalMemory::create(context, bytes, handles).map_err(briefly).context("creating")?, bytes))
}

/// Shortens the error of a fabric handle to the driver's part; the verdict names the host's missing requirements.
fn briefly(error: Error) -> anyhow::Error {
    match error {
        Error::NoFabric { function, code, name } => anyhow!("{function} failed with {name} ({})", code.0),
        other => other.into(),
    }
}

fn map(context: &Context, memory: &PhysicalMemory, bytes: usize) -> Result<()> {
    let reservation = Reservation::new(context.driver(), bytes, 0).context("reserving addresses")?;
    let mapping = reservation.map(0, memory, 0, bytes).context("mapping")?;
    mapping.set_access(&[(context.device(), Access::ReadWrite)]).context("setting access")?;
    mapping.unmap().context("unmapping")
}

#[cfg(test)]
mod tests {
    use cuda_driver::sys::CUresult;
    use gpu_sim::{Action, Injection};

    use super::*;

    #[test]
    fn embedded_devices_are_asked_like_real_ones() {
        let _turn = crate::world_lock();
        let world = gpu_sim::World::builder().devices(3).capacity(1 << 30).start().unwrap();
        // SAFETY: the embedded device's functions keep the contracts of the C API, and the world outlives their use.
        let api = unsafe { cuda_driver_sys::Api::from_parts(world.cuda()) }.unwrap();
        let found = gather(&Driver::new(api).unwrap()).unwrap();
        world.finish().unwrap();
        assert_eq!((found.gpus.len(), found.pairs.len()), (3, 6));
        for gpu in &found.gpus {
            assert_eq!(gpu.memory_total.done(), Some(&(1 << 30)));
            assert!(gpu.virtual_memory.done() == Some(&true) && gpu.context.done().is_some(), "{gpu:?}");
            assert!(gpu.file_descriptor_export.done().is_some(), "{gpu:?}");
            assert!(gpu.granularity.is_some_and(|granularity| granularity.minimum > 0), "{gpu:?}");
        }
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Devices>(&text).unwrap(), found);
    }

    #[test]
    fn a_refusal_is_told_with_the_call_that_was_refused() {
        let _turn = crate::world_lock();
        let world = gpu_sim::World::builder().capacity(1 << 30).start().unwrap();
        let refused = CUresult::CUDA_ERROR_NOT_PERMITTED.0;
        world
            .faults()
            .inject(Injection::new("cuMemImportFromShareableHandle", Action::Fail(refused)))
            .unwrap();
        // SAFETY: as above.
        let api = unsafe { cuda_driver_sys::Api::from_parts(world.cuda()) }.unwrap();
        let found = gather(&Driver::new(api).unwrap()).unwrap();
        let error = found.gpus[0].file_descriptor_export.error().unwrap();
        assert!(error.contains("importing") && error.contains("CUDA_ERROR_NOT_PERMITTED"), "{error}");
        world.finish().unwrap();
    }

    #[test]
    fn a_question_that_is_refused_costs_its_answer_alone() {
        let _turn = crate::world_lock();
        let world = gpu_sim::World::builder().devices(2).capacity(1 << 30).start().unwrap();
        let refused = CUresult::CUDA_ERROR_UNKNOWN.0;
        for function in ["cuDeviceGetName", "cuDeviceTotalMem_v2", "cuDeviceCanAccessPeer"] {
            world.faults().inject(Injection::new(function, Action::Fail(refused))).unwrap();
        }
        // SAFETY: as above.
        let api = unsafe { cuda_driver_sys::Api::from_parts(world.cuda()) }.unwrap();
        let found = gather(&Driver::new(api).unwrap()).unwrap();
        world.finish().unwrap();
        let [first, second] = &found.gpus[..] else { panic!("{found:?}") };
        for (function, error) in [
            ("cuDeviceGetName", first.name.error()),
            ("cuDeviceTotalMem_v2", first.memory_total.error()),
            ("cuDeviceCanAccessPeer", found.pairs[0].access.error()),
        ] {
            assert!(error.is_some_and(|error| error.contains(function)), "{found:?}");
        }
        assert!(first.context.done().is_some() && first.file_descriptor_export.done().is_some(), "{first:?}");
        assert!(second.name.done().is_some() && second.memory_total.done().is_some(), "{second:?}");
        assert!(found.pairs[1].access.done().is_some(), "{found:?}");
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Devices>(&text).unwrap(), found);
    }
}
