//! The CUDA driver's ABI, release 13.0, as far as it is modelled.
//!
//! Absent from the table, and so not supported: arrays, textures and surfaces, two- and three-dimensional copies,
//! managed memory, multicast, nodes added to graphs by hand, child graphs, external memory and semaphores, green
//! contexts. Kernels run as the host functions registered under their names; of PTX the names of kernels and variables
//! are read.
//!
//! There, and answering that they are not supported: fabric handles unless the world grants them, and events and pools shared between processes.
//!
//! Invariants: a call does all of what it answers success for; whatever it refuses it explains in the world's
//! notes; no lock is held while it waits.

#[macro_use]
mod edge;

mod context;
mod copy;
mod device;
mod event;
mod fabric;
mod function;
mod graph;
mod init;
mod ipc;
mod launch;
mod memory;
mod module;
mod pool;
mod stream;
mod value;
mod vmm;

pub(crate) use pool::Pools;

/// The functions that are modelled.
pub(crate) fn table() -> cuda_driver_sys::Table {
    let mut table = cuda_driver_sys::Table::default();
    let installers = [
        context::install,
        copy::install,
        device::install,
        event::install,
        function::install,
        graph::install,
        init::install,
        ipc::install,
        launch::install,
        memory::install,
        module::install,
        pool::install,
        stream::install,
        value::install,
        vmm::install,
    ];
    for install in installers {
        install(&mut table);
    }
    table
}
