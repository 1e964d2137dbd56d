//! The CUDA driver's ABI, release 13.0, as far as it is modelled.
//!
//! Absent from the table, and so not supported: arrays, textures and surfaces, two- and three-dimensional copies,
//! managed memory, multicast, nodes added to graphs by hand, child graphs, external memory and semaphores, green
//! contexts. Kernels run as the host functions registered under their names; only the names of kernels and variables
//! are read from PTX.
//!
//! Present, but returning not-supported: fabric handles unless the world supports them, and events and pools shared
//! between processes.
//!
//! Invariants: a call that returns success has done all of its work. A call that is refused leaves an explanation in
//! the world's notes. No lock is held during a wait.

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
