//! The exercise: sections of calls that run on the embedded device and on the machine's own driver, which must behave
//! alike. `complete.rs` checks that the sections and a few other tests call every public function of the crate.
//! Multicast is tested only in `multicast.rs`, because no test may use it on hardware.

mod devices;
mod graphs;
mod memory;
mod pools;
mod slices;
mod streams;
mod virtual_memory;

use std::cell::RefCell;

use cuda_driver::{Context, Driver, Error, Result, Stream, StreamFlags};

use super::INJECTED;

/// A function that calls the functions of one part of the crate and checks the results.
pub(crate) type Section = fn(&Driver) -> Result<()>;

/// All sections, with their names.
pub(crate) const SECTIONS: &[(&str, Section)] = &[
    ("devices", devices::devices),
    ("contexts", devices::contexts),
    ("peers", devices::peers),
    ("streams", streams::streams),
    ("events", streams::events),
    ("host functions", streams::host_functions),
    ("words", streams::words),
    ("copies", streams::copies),
    ("captures", graphs::captures),
    ("graphs", graphs::graphs),
    ("plain memory", memory::plain),
    ("host memory", memory::host),
    ("queries", memory::queries),
    ("legacy handles", memory::legacy_handles),
    ("stream-ordered memory", pools::stream_ordered),
    ("pools", pools::pools),
    ("shared pools", pools::shared),
    ("slices", slices::slices),
    ("slices on two streams", slices::on_two_streams),
    ("slices on two devices", slices::on_two_devices),
    ("slices of an allocator", slices::of_an_allocator),
    ("pinned slices", slices::pinned),
    ("captured slices", slices::captured),
    ("virtual memory", virtual_memory::mappings),
    ("page tables", virtual_memory::page_tables),
    ("file descriptors", virtual_memory::file_descriptors),
    ("fabric handles", virtual_memory::fabric_handles),
    ("kernels", kernels),
];

/// On the embedded device, `kernels::register` must have registered the kernels.
fn kernels(driver: &Driver) -> Result<()> {
    let (context, stream) = on_stream(driver)?;
    super::kernels::flow(driver, &context, &stream)
}

/// Runs all sections on this thread, until one fails.
pub(crate) fn all(driver: &Driver) -> Result<()> {
    SECTIONS.iter().try_for_each(|(_, section)| section(driver))
}

thread_local! {
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Records a call that could not be exercised here, and the reason, for the caller's report.
fn note(text: impl Into<String>) {
    NOTES.with_borrow_mut(|notes| notes.push(text.into()));
}

/// Takes the notes that this thread's sections recorded.
pub(crate) fn notes() -> Vec<String> {
    NOTES.take()
}

/// Returns `None` for a call that the driver refuses, as drivers may on some systems. Returns other kinds of errors,
/// and errors with the code that tests inject.
fn attempt<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Driver(error)) if error.code.0 != INJECTED => Ok(None),
        Err(Error::NoFabric { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Returns the first device's context and a new stream of this context.
fn on_stream(driver: &Driver) -> Result<(Context, Stream)> {
    let context = driver.device(0)?.retain_primary()?;
    let stream = Stream::new(&context, StreamFlags::NON_BLOCKING)?;
    Ok((context, stream))
}
