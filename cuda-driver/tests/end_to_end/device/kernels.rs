//! A module of three kernels, as PTX for hardware and as host functions for the embedded device. [`flow`] calls the
//! crate's functions for modules and launches on it.

use std::ffi::c_void;

use cuda_driver::graph::CaptureMode;
use cuda_driver::memory::{DeviceMemory, Element};
use cuda_driver::module::{Argument, CacheMode, Function, JitOptions, LaunchConfig, Module, ModuleError};
use cuda_driver::sys::{
    Api, CUdevice_attribute, CUfunction_attribute, CUjit_target, CUjitInputType, CUresult,
};
use cuda_driver::{Context, DevicePtr, Driver, Error, Result, Stream, StreamFlags};
use gpu_sim::World;
use gpu_sim::fault::Fault;
use gpu_sim::kernel::Launch;
use gpu_sim::memory::{Access, View};

pub(super) const PTX: &str = include_str!("kernels.ptx");

/// Registers the host functions that the embedded device runs in place of the kernels.
pub(super) fn register(world: &World) {
    world.register_kernel("vector_add", &[8, 8, 8, 4], vector_add);
    world.register_kernel("reverse", &[8, 4], reverse);
    world.register_kernel("meet", &[8, 8], meet);
}

fn words(launch: &Launch<'_>, parameter: usize, count: u32) -> Result<View, Fault> {
    launch.exec.view(launch.u64(parameter)?, u64::from(count) * 4, Access::all())
}

fn get(view: &View, index: u32) -> u32 {
    let mut word = [0; 4];
    view.read(index as usize * 4, &mut word);
    u32::from_ne_bytes(word)
}

fn put(view: &View, index: u32, value: u32) {
    view.write(index as usize * 4, &value.to_ne_bytes());
}

fn vector_add(launch: &Launch<'_>) -> Result<(), Fault> {
    let count = launch.u32(3)?.min(launch.grid[0] * launch.block[0]);
    let [to, a, b] = [words(launch, 0, count)?, words(launch, 1, count)?, words(launch, 2, count)?];
    (0..count).for_each(|i| put(&to, i, get(&a, i).wrapping_add(get(&b, i))));
    Ok(())
}

fn reverse(launch: &Launch<'_>) -> Result<(), Fault> {
    let count = launch.u32(1)?;
    if launch.shared < count * 4 {
        return Err(Fault::Trap(format!("{count} words in {} bytes of shared memory", launch.shared)));
    }
    let view = words(launch, 0, count)?;
    let room: Vec<u32> = (0..count).map(|i| get(&view, i)).collect();
    (0..count).zip(room.iter().rev()).for_each(|(i, word)| put(&view, i, *word));
    Ok(())
}

fn meet(launch: &Launch<'_>) -> Result<(), Fault> {
    let blocks = launch.grid[0];
    let (counter, seen) = (words(launch, 0, 1)?, words(launch, 1, blocks)?);
    put(&counter, 0, get(&counter, 0) + blocks);
    (0..blocks).for_each(|block| put(&seen, block, get(&counter, 0)));
    Ok(())
}

fn upload<T: Element>(context: &Context, values: &[T]) -> Result<DeviceMemory> {
    let memory = DeviceMemory::new(context, size_of_val(values))?;
    memory.copy_from_host(0, values)?;
    Ok(memory)
}

fn download(memory: &DeviceMemory) -> Result<Vec<u32>> {
    let mut words = vec![0; memory.bytes() / 4];
    memory.copy_to_host(0, &mut words)?;
    Ok(words)
}

/// Calls the functions for modules, kernels and launches, and checks the results. Leaves out functions that the
/// driver or the device lacks.
pub(super) fn flow(driver: &Driver, context: &Context, stream: &Stream) -> Result<()> {
    driver.module_loading_mode()?;
    let options = JitOptions::new()
        .max_registers(64)
        .optimization_level(3)
        .cache_mode(CacheMode::All)
        .line_info()
        .verbose();
    let module = Module::load_ptx(context, PTX, &options)?;
    if driver.api().table().cuModuleEnumerateFunctions.is_some() {
        let mut names = module.function_names()?;
        names.sort();
        assert_eq!(names, ["meet", "reverse", "vector_add"]);
    }
    assert_eq!(module.global("table")?.bytes, 16);

    let capability = |attribute| context.device().attribute(attribute).map(i32::unsigned_abs);
    let target = CUjit_target(
        10 * capability(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + capability(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let debugged = Module::load_ptx(context, PTX, &JitOptions::new().target(target).debug_info())?;
    let debugged = debugged.function("reverse")?;
    assert_eq!((debugged.name(), debugged.attributes()?.binary_version), ("reverse", target.0));

    let add = module.function("vector_add")?;
    if driver.api().table().cuFuncGetParamInfo.is_some() {
        assert_eq!(add.parameter_sizes(), Some([8, 8, 8, 4].as_slice()));
    }
    let attributes = add.attributes()?;
    assert_eq!((attributes.ptx_version, attributes.static_shared_bytes), (70, 0));
    assert_eq!(attributes.max_dynamic_shared_bytes, 48 << 10);
    assert!(attributes.max_threads_per_block >= 256 && attributes.registers <= 64);
    add.set_shared_carveout(Some(50))?;
    add.set_shared_carveout(None)?;
    let carveout = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    add.set_attribute(carveout, 100)?;
    let suggested = add.suggest_launch(0, 512)?;
    assert!((32..=512).contains(&suggested.block_threads) && suggested.grid_blocks > 0);

    let carveout = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    add.set_attribute(carveout, -1)?;
    let (major, minor) = context.device().compute_capability()?;
    let for_debuggers = JitOptions::new().debug_info().target(CUjit_target(10 * major + minor));
    Module::load_ptx(context, PTX, &for_debuggers)?.function("meet")?;

    vector_sums(context, stream, &module)?;
    more_shared_memory_than_is_free(context, stream, &module)?;
    all_blocks_at_once(context, stream, &module)
}

/// Launches `vector_add` directly, with every way to pass arguments, and then from a graph.
fn vector_sums(context: &Context, stream: &Stream, module: &Module) -> Result<()> {
    const N: u32 = 1000;
    let add = module.function("vector_add")?;
    let first: Vec<u32> = (0..N).collect();
    let (a, b) = (upload(context, &first)?, upload(context, &[7u32; N as usize])?);
    let to = upload(context, &[0u32; N as usize])?;
    let expected: Vec<u32> = (7..N + 7).collect();
    let check = |what: &str| {
        stream.synchronize()?;
        assert_eq!(download(&to)?, expected, "{what}");
        to.copy_from_host(0, &[0u32; N as usize])
    };
    let mut config = LaunchConfig::linear(N.into(), 256);
    // SAFETY: the kernel accesses N words of three memories, which outlive the work: `check` waits for it.
    unsafe { stream.launch_kernel(&add, &config, (to.ptr(), a.ptr(), b.ptr(), N))? };
    check("a tuple")?;
    let addresses = [to.ptr(), a.ptr(), b.ptr()];
    let mut arguments: Vec<_> = addresses.iter().map(Argument::of).collect();
    arguments.push(Argument::of(&N));
    // SAFETY: as above.
    unsafe { stream.launch_kernel(&add, &config, &arguments[..])? };
    check("a list")?;
    built(stream, &add, &first, &expected)?;

    let device = context.device();
    if device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? >= 9 {
        config = config.cluster(2).programmatic_serialization();
        // SAFETY: as above; no earlier kernel on the stream still uses the memory that this kernel accesses.
        unsafe { stream.launch_kernel(&add, &config, (to.ptr(), a.ptr(), b.ptr(), N))? };
        check("clusters of two")?;
    }

    let capture = stream.begin_capture(CaptureMode::ThreadLocal)?;
    // SAFETY: as above, for every launch of the graph.
    unsafe {
        stream.launch_kernel(&add, &LaunchConfig::linear(N.into(), 128), (to.ptr(), a.ptr(), b.ptr(), N))?;
        stream.launch_kernel(
            &add,
            &LaunchConfig::linear(N.into(), 128),
            (to.ptr(), to.ptr(), b.ptr(), 0u32),
        )?;
    }
    let graph = capture.end()?;
    assert_eq!(graph.node_count()?, 2);
    let exec = graph.instantiate()?;
    for launch in ["the graph's first launch", "its second"] {
        stream.launch(&exec)?;
        check(launch)?;
    }
    Ok(())
}

/// Launches `vector_add` with the launch builder, on slices of two streams.
fn built(stream: &Stream, add: &Function, first: &[u32], expected: &[u32]) -> Result<()> {
    let n = first.len() as u32;
    let other = Stream::new(stream.context(), StreamFlags::NON_BLOCKING)?;
    let a = stream.clone_htod(first)?;
    let mut to = other.alloc_zeros::<u32>(first.len() + 1)?;
    let b = other.clone_htod(&vec![7u32; first.len()])?;
    let mut view = to.slice_mut(1..)?;
    let launch = stream.launch_builder(add).grid(n.div_ceil(64)).block((64, 1)).shared_memory(0);
    // SAFETY: the kernel writes n words of its first argument, and reads n of the others.
    unsafe { launch.arg(&mut view).arg(&a).arg(b.as_view()).arg(&n).launch()? };
    drop((a, b));
    assert_eq!(stream.clone_dtoh(to.slice(1..)?)?, expected);
    assert_eq!(stream.clone_dtoh(to.slice(..1)?)?, [0]);
    let launch = stream.launch_builder(add).config(LaunchConfig::new(1, 1));
    // SAFETY: the kernel writes no words.
    unsafe { launch.arg(&mut to).arg(&DevicePtr::NULL).arg(&DevicePtr::NULL).arg(&0u32).launch() }
}

fn more_shared_memory_than_is_free(context: &Context, stream: &Stream, module: &Module) -> Result<()> {
    const N: u32 = 16 << 10;
    let reverse = module.function("reverse")?;
    let memory = upload(context, &(0..N).collect::<Vec<u32>>())?;
    let config = LaunchConfig::new(1, 512).shared_bytes(N * 4);
    // SAFETY: the call is refused.
    let refused = unsafe { stream.launch_kernel(&reverse, &config, (memory.ptr(), N)) };
    match refused {
        Err(Error::Launch(error)) => assert_eq!(
            error.to_string(),
            "kernel `reverse` was to be launched with dynamic shared bytes of a block of 65536, but \
             CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES is 49152: use less, or allow more by \
             `Function::set_max_dynamic_shared_bytes` first"
        ),
        Err(other) => return Err(other),
        Ok(()) => panic!("64 KiB of shared memory, unasked for"),
    }
    reverse.set_max_dynamic_shared_bytes(N * 4)?;
    // SAFETY: the kernel accesses only `memory` and its shared memory; the test waits for the work.
    unsafe { stream.launch_kernel(&reverse, &config, (memory.ptr(), N))? };
    stream.synchronize()?;
    assert!(download(&memory)?.into_iter().eq((0..N).rev()));
    Ok(())
}

fn all_blocks_at_once(context: &Context, stream: &Stream, module: &Module) -> Result<()> {
    let device = context.device();
    if device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? == 0 {
        return Ok(());
    }
    let meet = module.function("meet")?;
    let multiprocessors = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let blocks = meet.max_active_blocks(64, 0)? * multiprocessors as u32;
    let (counter, seen) = (upload(context, &[0u32])?, upload(context, &vec![0u32; blocks as usize])?);
    let config = LaunchConfig::new(blocks, 64).cooperative();
    // SAFETY: the kernel accesses one word of `counter`, and one word of `seen` for each block. The memory outlives
    // the kernel, because the test waits for it.
    unsafe { stream.launch_kernel(&meet, &config, (counter.ptr(), seen.ptr()))? };
    stream.synchronize()?;
    assert_eq!(download(&seen)?, vec![blocks; blocks as usize]);
    Ok(())
}

/// Checks that invalid PTX is refused with the driver's log. Checks the text only: the code of the error depends on
/// the driver.
pub(super) fn refusals(context: &Context) {
    let refused = |text: &str| match Module::load_ptx(context, text, &JitOptions::new()) {
        Err(Error::Module(error @ ModuleError::Refused { .. })) => error,
        other => panic!("{other:?}"),
    };
    let broken = refused(&PTX.replace(".visible .entry reverse", ".visible .entri reverse"));
    let line = 1 + PTX.lines().position(|line| line.contains(".entry reverse")).unwrap();
    let log = broken.log().unwrap();
    assert!(log.contains(&format!("line {line};")) && broken.to_string().contains(log), "{broken}");
    assert!(broken.to_string().starts_with("PTX 7.0 for sm_70 ("), "{broken}");

    let newer = Error::from(refused(&PTX.replace(".version 7.0", ".version 99.0")));
    assert_eq!(newer.code().unwrap().name(), Some("CUDA_ERROR_UNSUPPORTED_PTX_VERSION"), "{newer}");
    let driver = context.driver().version();
    assert!(newer.to_string().contains(&format!("newer than this driver (CUDA {driver}) takes")), "{newer}");

    let module = Module::load_ptx(context, PTX, &JitOptions::new()).unwrap();
    let absent = module.function("vector_sub").unwrap_err().to_string();
    assert!(
        absent.starts_with("PTX 7.0 for sm_70 (") && absent.contains("has no kernel `vector_sub`"),
        "{absent}"
    );
    assert!(absent.contains("it has: ") && absent.contains("vector_add"), "{absent}");
    for name in ["vector_add", "nowhere"] {
        let absent = module.global(name).unwrap_err().to_string();
        assert!(absent.contains(&format!("has no variable `{name}`")), "{absent}");
    }
}

/// Makes a cubin from the PTX with the driver's linker, loads it and launches a kernel of it. Checks that half of the
/// cubin is refused.
pub(super) fn cubin(context: &Context) -> Result<()> {
    let cubin = link(context)?;
    // SAFETY: the driver's linker made the image.
    let module = unsafe { Module::load_image(context, &cubin, &JitOptions::new())? };
    let stream = Stream::new(context, StreamFlags::NON_BLOCKING)?;
    vector_sums(context, &stream, &module)?;
    // SAFETY: the call is refused.
    match unsafe { Module::load_image(context, &cubin[..cubin.len() / 2], &JitOptions::new()) } {
        Err(Error::Module(ModuleError::Truncated { kind: "cubin", expected, .. })) => {
            assert!(expected <= cubin.len() as u64);
            Ok(())
        }
        other => panic!("{other:?}"),
    }
}

fn link(context: &Context) -> Result<Vec<u8>> {
    context.with_current(|| link_in_current(context.driver().api()))?
}

fn link_in_current(api: &Api) -> Result<Vec<u8>> {
    let none = std::ptr::null_mut::<c_void>();
    let (mut state, mut image, mut bytes) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    let mut text = [PTX.as_bytes(), b"\0"].concat();
    let kind = CUjitInputType::CU_JIT_INPUT_PTX;
    // SAFETY: the linker's state is used only between its creation and its destruction, and the text outlives the
    // call that reads it. The image is copied before the state is destroyed.
    unsafe {
        let created = api.cuLinkCreate_v2()?(0, none.cast(), none.cast(), &mut state);
        assert_eq!(created, CUresult::CUDA_SUCCESS);
        let (start, len) = (text.as_mut_ptr().cast(), text.len());
        let added = api.cuLinkAddData_v2()?(
            state,
            kind,
            start,
            len,
            c"kernels".as_ptr(),
            0,
            none.cast(),
            none.cast(),
        );
        assert_eq!(added, CUresult::CUDA_SUCCESS);
        assert_eq!(api.cuLinkComplete()?(state, &mut image, &mut bytes), CUresult::CUDA_SUCCESS);
        let cubin = std::slice::from_raw_parts(image.cast::<u8>(), bytes).to_vec();
        assert_eq!(api.cuLinkDestroy()?(state), CUresult::CUDA_SUCCESS);
        Ok(cubin)
    }
}
