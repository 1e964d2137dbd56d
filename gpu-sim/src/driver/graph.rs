//! Capture and graphs. Graphs come from captures alone: nodes added by hand and child graphs are not modelled.

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};

use cuda_driver_sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphExecUpdateResultInfo,
    CUgraphNode, CUgraphNodeType, CUhostFn, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
    CUuserObject, cuuint64_t,
};

use super::edge::text;
use crate::abi::{DriverError, DriverResult};
use crate::stream::capture::Capturing;

abi! {
    call fn cuStreamBeginCapture_v2(machine, stream: CUstream, mode: CUstreamCaptureMode) {
        check_mode(mode)?;
        machine.stream(stream)?.begin_capture(machine, mode)?;
    }

    call fn cuStreamEndCapture(machine, stream: CUstream, out: *mut CUgraph) {
        put!(out, std::ptr::null_mut())?;
        put!(out, machine.stream(stream)?.end_capture(machine)?.id as CUgraph)?;
    }

    call fn cuStreamIsCapturing(machine, stream: CUstream, out: *mut CUstreamCaptureStatus) {
        put!(out, status(machine.stream(stream)?.asked_for_capture(machine)?.as_ref()))?;
    }

    call fn cuStreamGetCaptureInfo_v2(
        machine, stream: CUstream, out: *mut CUstreamCaptureStatus, id: *mut cuuint64_t, graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode, count: *mut usize,
    ) {
        if !graph.is_null() || !dependencies.is_null() || !count.is_null() {
            return Err(DriverError::unsupported("a capture's graph cannot be looked into before its end"));
        }
        capture_info(machine.stream(stream)?.asked_for_capture(machine)?.as_ref(), out, id)?;
    }

    call fn cuStreamGetCaptureInfo_v3(
        machine, stream: CUstream, out: *mut CUstreamCaptureStatus, id: *mut cuuint64_t, graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode, edges: *mut *const CUgraphEdgeData, count: *mut usize,
    ) {
        if !graph.is_null() || !dependencies.is_null() || !edges.is_null() || !count.is_null() {
            return Err(DriverError::unsupported("a capture's graph cannot be looked into before its end"));
        }
        capture_info(machine.stream(stream)?.asked_for_capture(machine)?.as_ref(), out, id)?;
    }

    call fn cuThreadExchangeStreamCaptureMode(machine, mode: *mut CUstreamCaptureMode) {
        let wanted = get!(mode.cast_const())?;
        check_mode(wanted)?;
        put!(mode, machine.streams.exchange_mode(machine, wanted))?;
    }

    call fn cuGraphInstantiateWithFlags(machine, out: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) {
        // 1: free on launch (there are no allocation nodes), 2: upload, 8: node priorities. None changes the result.
        if flags & !(1 | 2 | 8) != 0 {
            return Err(DriverError::unsupported(format!("instantiation flags {flags} are not modelled")));
        }
        put!(out, machine.streams.instantiate(&*machine.streams.graph(graph)?).id as CUgraphExec)?;
    }

    call fn cuGraphInstantiate_v2(
        machine, out: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log: *mut c_char, len: usize,
    ) {
        put!(out, machine.streams.instantiate(&*machine.streams.graph(graph)?).id as CUgraphExec)?;
        if !error_node.is_null() {
            put!(error_node, std::ptr::null_mut())?;
        }
        if !log.is_null() && len > 0 {
            put!(log, 0)?;
        }
    }

    call fn cuGraphInstantiateWithParams(
        machine, out: *mut CUgraphExec, graph: CUgraph, parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) {
        let flags = get!(parameters.cast_const())?.flags;
        if flags & !(1 | 8) != 0 {
            return Err(DriverError::unsupported(format!("instantiation flags {flags} are not modelled")));
        }
        put!(out, machine.streams.instantiate(&*machine.streams.graph(graph)?).id as CUgraphExec)?;
    }

    call fn cuGraphExecUpdate_v2(
        machine, exec: CUgraphExec, graph: CUgraph, out: *mut CUgraphExecUpdateResultInfo,
    ) {
        let (exec, graph) = (machine.streams.exec(exec)?, machine.streams.graph(graph)?);
        if let Err((result, node)) = exec.update(&graph) {
            let node = if graph.nodes.is_empty() { 0 } else { graph.first_node + node as u64 };
            put!(out, CUgraphExecUpdateResultInfo { result, errorNode: node as CUgraphNode, ..Default::default() })?;
            let why = format!("{result:?} at node {node:#x}");
            return Err(DriverError::new(CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, why));
        }
        put!(out, CUgraphExecUpdateResultInfo::default())?;
    }

    call fn cuGraphDebugDotPrint(machine, graph: CUgraph, path: *const c_char, flags: c_uint) {
        let (graph, path) = (machine.streams.graph(graph)?, text(path)?);
        let written = std::fs::write(&path, graph.dot());
        written.map_err(|e| DriverError::new(CUresult::CUDA_ERROR_OPERATING_SYSTEM, format!("writing {path}: {e}")))?;
    }

    call fn cuGraphUpload(machine, exec: CUgraphExec, stream: CUstream) {
        machine.streams.exec(exec)?;
        machine.stream(stream)?;
    }

    call fn cuGraphLaunch(machine, exec: CUgraphExec, stream: CUstream) {
        machine.streams.exec(exec)?.launch(machine, &machine.stream(stream)?)?;
    }

    call fn cuGraphExecDestroy(machine, exec: CUgraphExec) {
        machine.streams.destroy_exec(exec)?;
    }

    call fn cuGraphDestroy(machine, graph: CUgraph) {
        machine.streams.destroy_graph(graph)?;
    }

    call fn cuGraphGetNodes(machine, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let graph = machine.streams.graph(graph)?;
        put_nodes(nodes, count, (0..graph.nodes.len()).map(|i| graph.first_node + i as u64))?;
    }

    call fn cuGraphGetRootNodes(machine, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let graph = machine.streams.graph(graph)?;
        let roots = (0..graph.nodes.len()).filter(|&i| graph.nodes[i].after.is_empty());
        put_nodes(nodes, count, roots.map(|i| graph.first_node + i as u64))?;
    }

    call fn cuGraphGetEdges(
        machine, graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize,
    ) {
        let graph = machine.streams.graph(graph)?;
        let edges = graph.nodes.iter().enumerate().flat_map(|(i, n)| n.after.iter().map(move |&a| (a, i)));
        let (before, behind): (Vec<u64>, Vec<u64>) =
            edges.map(|(a, b)| (graph.first_node + a as u64, graph.first_node + b as u64)).unzip();
        let mut room = get!(count.cast_const())?;
        put_nodes(from, &mut room, before.into_iter())?;
        put_nodes(to, count, behind.into_iter())?;
    }

    call fn cuGraphNodeGetType(machine, node: CUgraphNode, out: *mut CUgraphNodeType) {
        let (graph, index) = machine.streams.node(node as u64)?;
        put!(out, graph.nodes[index].kind)?;
    }

    call fn cuUserObjectCreate(
        machine, out: *mut CUuserObject, object: *mut c_void, destroy: CUhostFn, references: c_uint, flags: c_uint,
    ) {
        let destroy = destroy.ok_or_else(|| DriverError::invalid("a null destructor"))?;
        // 1: `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which must be set. The embedded device never synchronises with the
        // destructor.
        if flags != 1 || references == 0 {
            return Err(DriverError::invalid(format!("{references} references, flags {flags} (1 must be set)")));
        }
        let id = machine.streams.add_object(object as usize, destroy, references);
        put!(out, id as CUuserObject)?;
    }

    call fn cuUserObjectRetain(machine, object: CUuserObject, count: c_uint) {
        machine.streams.retain_object(object as u64, count_of(count)?)?;
    }

    call fn cuUserObjectRelease(machine, object: CUuserObject, count: c_uint) {
        let gone = machine.streams.release_object(object as u64, count_of(count)?)?;
        drop(gone);
    }

    call fn cuGraphRetainUserObject(machine, graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) {
        let (graph, count) = (machine.streams.graph(graph)?, count_of(count)?);
        let known = machine.streams.object(object as u64)?;
        // 1: the references move from the caller to the graph.
        if flags & 1 != 0 {
            machine.streams.release_object(object as u64, count)?;
        }
        graph.retain(known, count);
    }

    call fn cuGraphReleaseUserObject(machine, graph: CUgraph, object: CUuserObject, count: c_uint) {
        let gone = machine.streams.graph(graph)?.release(object as u64, count_of(count)?)?;
        drop(gone);
    }
}

/// Checks a number of references to a user object: at least one, at most `INT_MAX`.
fn count_of(count: c_uint) -> DriverResult<u32> {
    match i32::try_from(count) {
        Ok(1..) => Ok(count),
        _ => Err(DriverError::invalid(format!("{count} references: expected 1 to {}", i32::MAX))),
    }
}

fn check_mode(mode: CUstreamCaptureMode) -> DriverResult {
    match mode {
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL
        | CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        | CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED => Ok(()),
        other => Err(DriverError::invalid(format!("{other:?} is no capture mode"))),
    }
}

fn status(capturing: Option<&Capturing>) -> CUstreamCaptureStatus {
    match capturing {
        None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        Some(c) if c.session.is_invalid() => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
    }
}

fn capture_info(
    capturing: Option<&Capturing>,
    out: *mut CUstreamCaptureStatus,
    id: *mut cuuint64_t,
) -> DriverResult {
    put!(out, status(capturing))?;
    if let Some(capturing) = capturing
        && !id.is_null()
    {
        put!(id, capturing.session.id)?;
    }
    Ok(())
}

/// Writes a list as the driver does: without a buffer, the number of nodes; otherwise as many as fit, and null in the
/// remaining places.
fn put_nodes(out: *mut CUgraphNode, count: *mut usize, nodes: impl Iterator<Item = u64>) -> DriverResult {
    let nodes: Vec<u64> = nodes.collect();
    if out.is_null() {
        return put!(count, nodes.len());
    }
    let (room, all) = (get!(count.cast_const())?, nodes.len());
    for (i, node) in nodes.into_iter().chain(std::iter::repeat(0)).take(room).enumerate() {
        put!(out.wrapping_add(i), node as CUgraphNode)?;
    }
    put!(count, all.min(room))
}
