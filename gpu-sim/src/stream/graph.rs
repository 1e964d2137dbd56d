//! Graphs: recorded work, and its execution.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::{CUgraph, CUgraphExec, CUgraphExecUpdateResult, CUgraphNodeType, CUresult};

use super::{Exec, Launched, Op, Stream, Streams, Work};
use crate::abi::{DriverError, DriverResult};
use crate::fault::Fault;
use crate::sched::{self, Signal};
use crate::world::Machine;

/// One recorded piece of work.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) kind: CUgraphNodeType,
    /// `None` for an empty node.
    pub(crate) work: Option<Arc<dyn Work>>,
    /// Indices of its predecessors. They are smaller than its own, so node order is a topological order.
    pub(crate) after: Vec<usize>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = self.work.as_ref().map_or("nothing".to_owned(), |w| w.describe());
        f.debug_struct("Node")
            .field("kind", &self.kind)
            .field("what", &what)
            .field("after", &self.after)
            .finish()
    }
}

/// A recorded graph.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) id: u64,
    pub(crate) nodes: Vec<Node>,
    /// Node handles: `first_node + index`.
    pub(crate) first_node: u64,
    /// User objects that live as long as the graph, by their handles, with the graph's number of references.
    objects: Mutex<BTreeMap<u64, (Arc<UserObject>, u32)>>,
}

/// An executable graph.
#[derive(Debug)]
pub(crate) struct GraphExec {
    pub(crate) id: u64,
    /// Replaced by updates. Launches in flight keep the nodes they began with.
    nodes: Mutex<Arc<Vec<Node>>>,
    /// Its last launch: launches of one executable graph run one after the other. This lock is taken inside a
    /// stream's queue lock, never around it.
    last: Mutex<Option<(Arc<Stream>, u64)>>,
    _objects: Vec<Arc<UserObject>>,
}

/// A program's object that graphs keep alive; its destructor runs when the last reference is dropped.
#[derive(Debug)]
pub(crate) struct UserObject {
    id: u64,
    object: usize,
    destroy: unsafe extern "C" fn(*mut c_void),
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // SAFETY: the program gave object and destructor together (`cuUserObjectCreate`), to be called once.
        unsafe { (self.destroy)(self.object as *mut _) }
    }
}

impl Graph {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<u64, (Arc<UserObject>, u32)>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `count` references of the graph.
    pub(crate) fn retain(&self, object: Arc<UserObject>, count: u32) {
        let mut objects = self.objects();
        let (_, references) = objects.entry(object.id).or_insert((object, 0));
        *references = references.saturating_add(count);
    }

    /// Removes `count` references of the graph; fails and changes nothing if it has fewer. Returns the object if
    /// these were the graph's last, so that the caller can drop it where its destructor may run.
    pub(crate) fn release(&self, id: u64, count: u32) -> DriverResult<Option<Arc<UserObject>>> {
        let mut objects = self.objects();
        let references = objects.get(&id).map_or(0, |(_, references)| *references);
        match references.checked_sub(count) {
            None => Err(DriverError::invalid(format!(
                "the graph has {references} references to {id:#x}, of which {count} are to go"
            ))),
            Some(0) => Ok(objects.remove(&id).map(|(object, _)| object)),
            Some(left) => {
                objects.entry(id).and_modify(|(_, references)| *references = left);
                Ok(None)
            }
        }
    }
}

impl GraphExec {
    /// Enqueues one run of the graph on `stream`.
    pub(crate) fn launch(&self, machine: &Arc<Machine>, stream: &Arc<Stream>) -> DriverResult {
        stream.make_room();
        if stream.capturing_or_refuse(machine)?.is_some() {
            let why = "launching a graph into a capture (child graphs) is not modelled";
            return Err(DriverError::unsupported(why));
        }
        stream.push_with(machine, |ticket| {
            let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let work = nodes.iter().map(|n| n.work.as_ref().map(|w| w.launch())).collect();
            let run = Box::new(move |exec: &Exec| run(exec, &nodes, work));
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let before = last.replace((stream.clone(), ticket));
            Op {
                what: format!("graph {:#x}", self.id),
                run,
                always: false,
                after: before.into_iter().collect(),
            }
        });
        Ok(())
    }
}

impl GraphExec {
    /// Replaces the nodes by those of `graph` if they differ in parameters alone. Otherwise returns the kind of
    /// difference and the node.
    pub(crate) fn update(&self, graph: &Graph) -> Result<(), (CUgraphExecUpdateResult, usize)> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let topology = CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        let kind = CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if nodes.len() != graph.nodes.len() {
            return Err((topology, 0));
        }
        for (i, (old, new)) in nodes.iter().zip(&graph.nodes).enumerate() {
            if old.after != new.after {
                return Err((topology, i));
            }
            if old.kind != new.kind {
                return Err((kind, i));
            }
        }
        *nodes = Arc::new(graph.nodes.clone());
        Ok(())
    }
}

impl Graph {
    /// Returns the graph in the DOT language.
    pub(crate) fn dot(&self) -> String {
        let node = |i: usize| format!("\"{:#x}\"", self.first_node + i as u64);
        let mut dot = format!("digraph graph_{:x} {{\n", self.id);
        for (i, n) in self.nodes.iter().enumerate() {
            let what = n.work.as_ref().map_or("nothing".to_owned(), |w| w.describe().replace('"', "'"));
            dot += &format!("  {} [label=\"{:?}: {what}\"];\n", node(i), n.kind);
            for &before in &n.after {
                dot += &format!("  {} -> {};\n", node(before), node(i));
            }
        }
        dot + "}\n"
    }
}

/// Runs the nodes in dependency order; independent nodes run concurrently.
fn run(exec: &Exec, nodes: &Arc<Vec<Node>>, work: Vec<Option<Launched>>) -> Result<(), Fault> {
    let chain = nodes.iter().enumerate().all(|(i, n)| match i {
        0 => n.after.is_empty(),
        _ => n.after == [i - 1],
    });
    if chain {
        return work.into_iter().flatten().try_for_each(|w| w(exec));
    }
    let missing: Vec<usize> = nodes.iter().map(|n| n.after.len()).collect();
    let ready = (0..nodes.len()).filter(|&i| missing[i] == 0).rev().collect();
    let progress = Progress { work, missing, ready, left: nodes.len(), result: Ok(()) };
    let run =
        Arc::new(Running { nodes: nodes.clone(), progress: Mutex::new(progress), signal: Signal::new() });
    run.help_with(exec);
    loop {
        run.work(exec);
        let idle = || {
            let progress = run.progress();
            progress.left == 0 || !progress.ready.is_empty()
        };
        sched::wait(&run.signal, || "the branches of a graph".to_owned(), None, idle)?;
        let mut progress = run.progress();
        if progress.left == 0 {
            return std::mem::replace(&mut progress.result, Ok(()));
        }
    }
}

/// One run of a graph with branches.
struct Running {
    nodes: Arc<Vec<Node>>,
    progress: Mutex<Progress>,
    signal: Signal,
}

struct Progress {
    work: Vec<Option<Launched>>,
    /// Number of unfinished predecessors, by node.
    missing: Vec<usize>,
    /// Nodes that may run; the last one is next.
    ready: Vec<usize>,
    left: usize,
    result: Result<(), Fault>,
}

impl Running {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an executor for each ready node but one.
    fn help_with(self: &Arc<Self>, exec: &Exec) {
        let spare = self.progress().ready.len().saturating_sub(1);
        for _ in 0..spare {
            let (me, machine, stream) = (self.clone(), exec.machine.clone(), exec.stream.clone());
            let name = format!("a branch of a graph on {}", stream.name).into();
            let branch = Exec { machine, stream };
            let pool = exec.machine.devices[exec.device()].pool.clone();
            exec.machine.sched.spawn(&pool, name, Box::new(move || me.work(&branch)));
        }
    }

    /// Runs ready nodes until there is none.
    fn work(self: &Arc<Self>, exec: &Exec) {
        loop {
            let (node, work) = {
                let mut progress = self.progress();
                let Some(node) = progress.ready.pop() else { return };
                let work = if progress.result.is_ok() { progress.work[node].take() } else { None };
                (node, work)
            };
            let body = std::panic::AssertUnwindSafe(|| work.map_or(Ok(()), |w| w(exec)));
            let result = std::panic::catch_unwind(body)
                .unwrap_or_else(|payload| Err(Fault::Panic(sched::panic_text(&*payload))));
            {
                let mut progress = self.progress();
                progress.left -= 1;
                if progress.result.is_ok() {
                    progress.result = result;
                }
                for (i, next) in self.nodes.iter().enumerate().skip(node + 1) {
                    if next.after.contains(&node) {
                        progress.missing[i] -= 1;
                        if progress.missing[i] == 0 {
                            progress.ready.push(i);
                        }
                    }
                }
            }
            self.help_with(exec);
            self.signal.notify();
        }
    }
}

impl Streams {
    pub(crate) fn add_graph(&self, nodes: Vec<Node>) -> Arc<Graph> {
        let id = self.number();
        let first_node = self.next.fetch_add(nodes.len() as u64, std::sync::atomic::Ordering::SeqCst);
        let graph = Arc::new(Graph { id, nodes, first_node, objects: Mutex::default() });
        self.table().graphs.insert(id, graph.clone());
        graph
    }

    pub(crate) fn graph(&self, handle: CUgraph) -> DriverResult<Arc<Graph>> {
        self.table().graphs.get(&(handle as u64)).cloned().ok_or_else(|| gone("graph", handle as u64))
    }

    /// Returns the graph that has this node, and the node's index in it.
    pub(crate) fn node(&self, handle: u64) -> DriverResult<(Arc<Graph>, usize)> {
        let table = self.table();
        let found = table.graphs.values().find_map(|g| {
            let index = handle.checked_sub(g.first_node).filter(|&i| i < g.nodes.len() as u64)?;
            Some((g.clone(), index as usize))
        });
        found.ok_or_else(|| gone("graph node", handle))
    }

    pub(crate) fn destroy_graph(&self, handle: CUgraph) -> DriverResult {
        let graph = self.table().graphs.remove(&(handle as u64));
        graph.map(drop).ok_or_else(|| gone("graph", handle as u64))
    }

    pub(crate) fn instantiate(&self, graph: &Graph) -> Arc<GraphExec> {
        let objects = graph.objects().values().map(|(object, _)| object.clone()).collect();
        let id = self.number();
        let nodes = Arc::new(graph.nodes.clone());
        let exec =
            Arc::new(GraphExec { id, nodes: Mutex::new(nodes), last: Mutex::default(), _objects: objects });
        self.table().execs.insert(id, exec.clone());
        exec
    }

    pub(crate) fn exec(&self, handle: CUgraphExec) -> DriverResult<Arc<GraphExec>> {
        self.table()
            .execs
            .get(&(handle as u64))
            .cloned()
            .ok_or_else(|| gone("executable graph", handle as u64))
    }

    pub(crate) fn destroy_exec(&self, handle: CUgraphExec) -> DriverResult {
        let exec = self.table().execs.remove(&(handle as u64));
        exec.map(drop).ok_or_else(|| gone("executable graph", handle as u64))
    }
}

/// The program's own references to user objects. A handle is valid as long as the program or a graph holds a
/// reference.
impl Streams {
    pub(crate) fn add_object(
        &self,
        object: usize,
        destroy: unsafe extern "C" fn(*mut c_void),
        references: u32,
    ) -> u64 {
        let id = self.number();
        self.table().objects.insert(id, (Arc::new(UserObject { id, object, destroy }), references));
        id
    }

    pub(crate) fn object(&self, id: u64) -> DriverResult<Arc<UserObject>> {
        let table = self.table();
        let own = table.objects.get(&id).map(|(object, _)| object.clone());
        let of_graph = || table.graphs.values().find_map(|it| Some(it.objects().get(&id)?.0.clone()));
        own.or_else(of_graph).ok_or_else(|| gone("user object", id))
    }

    pub(crate) fn retain_object(&self, id: u64, count: u32) -> DriverResult {
        let object = self.object(id)?;
        let mut table = self.table();
        let (_, references) = table.objects.entry(id).or_insert((object, 0));
        *references = references.saturating_add(count);
        Ok(())
    }

    /// Returns the object if these were the program's last references, so that the caller can drop it where its
    /// destructor may run.
    pub(crate) fn release_object(&self, id: u64, count: u32) -> DriverResult<Option<Arc<UserObject>>> {
        let mut table = self.table();
        let (_, references) = table.objects.get_mut(&id).ok_or_else(|| gone("user object", id))?;
        *references = references.checked_sub(count).ok_or_else(|| {
            DriverError::invalid(format!("releasing {count} references of {references} to {id:#x}"))
        })?;
        Ok(if *references == 0 { table.objects.remove(&id).map(|o| o.0) } else { None })
    }
}

fn gone(what: &str, handle: u64) -> DriverError {
    DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{handle:#x} is no live {what}"))
}
