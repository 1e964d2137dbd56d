//! Launches. A host function runs the whole grid as one call, so attributes that concern blocks (cooperative launch,
//! clusters) are checked and have no other effect. Programmatic stream serialization is accepted and ignored: it
//! permits an early start, but does not require one.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{
    CUfunction, CUgraphNodeType, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig, CUresult, CUstream,
};

use super::device::MAX_GRID;
use super::function::{MAX_THREADS, MULTIPROCESSORS, active_blocks, kernel};
use crate::abi::{DriverError, DriverResult};
use crate::kernel::Invocation;
use crate::world::Machine;

/// Blocks that fit into a cluster on every device that has clusters.
const MAX_CLUSTER: u64 = 8;

abi! {
    call fn cuLaunchKernel(
        machine, function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream, parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        if !extra.is_null() {
            return Err(DriverError::unsupported("parameters in one buffer are not modelled"));
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(machine, function, &Shape { grid, block, shared, ..Shape::default() }, stream, parameters)?;
    }

    call fn cuLaunchCooperativeKernel(
        machine, function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream, parameters: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared, cooperative: true, ..Shape::default() };
        launch(machine, function, &shape, stream, parameters)?;
    }

    call fn cuLaunchKernelEx(
        machine, config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        if !extra.is_null() {
            return Err(DriverError::unsupported("parameters in one buffer are not modelled"));
        }
        let c = get!(config)?;
        let (grid, block) = ([c.gridDimX, c.gridDimY, c.gridDimZ], [c.blockDimX, c.blockDimY, c.blockDimZ]);
        let mut shape = Shape { grid, block, shared: c.sharedMemBytes, ..Shape::default() };
        for attribute in list!(c.attrs.cast_const(), c.numAttrs as usize)? {
            shape.apply(&attribute)?;
        }
        launch(machine, function, &shape, c.hStream, parameters)?;
    }
}

/// The shape of a launch.
#[derive(Debug, Default)]
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    cooperative: bool,
    cluster: Option<[u32; 3]>,
}

impl Shape {
    fn apply(&mut self, attribute: &CUlaunchAttribute) -> DriverResult {
        match attribute.id {
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE
            | CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION => {}
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                // SAFETY: the attribute's identity says which field its value is.
                self.cooperative = unsafe { attribute.value.cooperative } != 0;
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                // SAFETY: as above.
                let cluster = unsafe { attribute.value.clusterDim };
                self.cluster = Some([cluster.x, cluster.y, cluster.z]);
            }
            other => return Err(DriverError::unsupported(format!("{other:?} is not modelled"))),
        }
        Ok(())
    }

    fn check(&self, max_shared: u32) -> DriverResult {
        let threads = volume(self.block);
        let over = self.grid.iter().zip(MAX_GRID).any(|(&blocks, most)| blocks == 0 || blocks > most);
        if over || threads == 0 || threads > MAX_THREADS || self.block[2] > 64 || self.shared > max_shared {
            return Err(DriverError::invalid(format!("{self:?} with up to {max_shared} bytes")));
        }
        if let Some(cluster) = self.cluster {
            let partial = self.grid.iter().zip(cluster).any(|(blocks, of)| of == 0 || blocks % of != 0);
            if partial || volume(cluster) > MAX_CLUSTER {
                return Err(DriverError::new(CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE, format!("{self:?}")));
            }
        }
        if self.cooperative {
            let blocks = volume(self.grid);
            // At most 1024, as was just checked.
            let most = active_blocks(threads as i32, self.shared as usize)? * MULTIPROCESSORS;
            if blocks > most as u64 {
                let code = CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
                return Err(DriverError::new(
                    code,
                    format!("{blocks} blocks, of which {most} run at a time"),
                ));
            }
        }
        Ok(())
    }
}

fn volume(extents: [u32; 3]) -> u64 {
    extents.into_iter().map(u64::from).fold(1, u64::saturating_mul)
}

fn launch(
    machine: &Arc<Machine>,
    function: CUfunction,
    shape: &Shape,
    stream: CUstream,
    parameters: *mut *mut c_void,
) -> DriverResult {
    let ((function, kernel), stream) = (kernel(machine, function)?, machine.stream(stream)?);
    shape.check(function.max_shared())?;
    let cells = list!(parameters.cast_const(), kernel.parameters.len())?;
    let parameters = cells
        .into_iter()
        .zip(&kernel.parameters)
        .map(|(cell, &size)| list!(cell.cast::<u8>().cast_const(), size))
        .collect::<DriverResult<Vec<_>>>()?;
    let &Shape { grid, block, shared, .. } = shape;
    let work = Invocation { function, kernel, grid, block, shared, parameters: Arc::new(parameters) };
    stream.enqueue(machine, CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL, Arc::new(work))
}
