//! Plans made ready to run.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraph, CUgraphDependencyType, CUgraphEdgeData, CUgraphExec, CUgraphNode};

use super::driver::{Context, check};
use super::launch::Launch;
use super::library::Library;
use super::queue::Stream;
use crate::device::DeviceError;

/// A plan that a [`CudaDevice`](super::CudaDevice) can run.
#[derive(Debug)]
pub struct CudaPlan {
    run: Run,
    /// Has the functions.
    _library: Arc<Library>,
}

#[derive(Debug)]
enum Run {
    /// The whole plan, whose nodes the GPU orders by its edges.
    Graph(Graph),
    /// One launch after another.
    Serial(Vec<Launch>),
}

impl CudaPlan {
    /// All launches as one graph in which they wait for each other as `edges` say, `(earlier, later)` with
    /// earlier < later.
    pub(super) fn graph(
        context: &Arc<Context>,
        library: Arc<Library>,
        launches: &[Launch],
        edges: &[(usize, usize)],
        stream: &Stream,
    ) -> Result<Self, DeviceError> {
        Ok(Self { run: Run::Graph(Graph::new(context, launches, edges, stream)?), _library: library })
    }

    /// The launches to be run in their order, with a wait after each.
    pub(super) const fn serial(library: Arc<Library>, launches: Vec<Launch>) -> Self {
        Self { run: Run::Serial(launches), _library: library }
    }

    /// Puts a run into the stream.
    pub(super) fn start(&self, stream: &Stream, name: &str) -> Result<(), DeviceError> {
        match &self.run {
            Run::Graph(graph) => {
                // SAFETY: the graph is instantiated in the stream's context.
                let launched = unsafe { sys::cuGraphLaunch(graph.executable, stream.as_ptr()) };
                check(launched, "cuGraphLaunch")
                    .map_err(|problem| DeviceError::Failed { name: name.to_owned(), problem })
            }
            Run::Serial(launches) => launches.iter().try_for_each(|launch| launch.run(stream)),
        }
    }
}

#[derive(Debug)]
struct Graph {
    executable: CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: the driver's objects may be used from any thread.
unsafe impl Send for Graph {}

impl Graph {
    fn new(
        context: &Arc<Context>,
        launches: &[Launch],
        edges: &[(usize, usize)],
        stream: &Stream,
    ) -> Result<Self, DeviceError> {
        let failed = |problem| DeviceError::Failed { name: "CUDA".to_owned(), problem };
        let mut waits_for = vec![Vec::new(); launches.len()];
        edges.iter().for_each(|&(earlier, later)| waits_for[later].push(earlier));

        let mut graph = Template(ptr::null_mut());
        // SAFETY: `graph` outlives the call.
        check(unsafe { sys::cuGraphCreate(&raw mut graph.0, 0) }, "cuGraphCreate").map_err(failed)?;
        let mut nodes: Vec<CUgraphNode> = Vec::with_capacity(launches.len());
        for (launch, earlier) in launches.iter().zip(&waits_for) {
            let dependencies: Vec<CUgraphNode> = earlier.iter().map(|&earlier| nodes[earlier]).collect();
            let early = (launch.begins_early && dependencies.len() == 1).then(|| dependencies[0]);
            let complete: &[CUgraphNode] = if early.is_some() { &[] } else { &dependencies };
            let mut node = ptr::null_mut();
            let added = launch.describe(|parameters| {
                let (from, count) = (complete.as_ptr(), complete.len());
                // SAFETY: the parameters fit the kernel's signature, the driver copies them, and the nodes are of this graph.
                unsafe { sys::cuGraphAddKernelNode_v2(&raw mut node, graph.0, from, count, parameters) }
            });
            check(added, "cuGraphAddKernelNode").map_err(|problem| launch.failed(&problem))?;
            if let Some(earlier) = early {
                begin_during(graph.0, earlier, node).map_err(|problem| launch.failed(&problem))?;
            }
            nodes.push(node);
        }
        let mut executable = ptr::null_mut();
        // SAFETY: the graph is whole. Its executable is independent of it.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, graph.0, 0) };
        check(made, "cuGraphInstantiate").map_err(failed)?;
        let graph = Self { executable, context: Arc::clone(context) };
        // SAFETY: the executable and the stream are of one context.
        check(unsafe { sys::cuGraphUpload(executable, stream.as_ptr()) }, "cuGraphUpload").map_err(failed)?;
        Ok(graph)
    }
}

/// Lets a launch that waits itself begin when all blocks of another have let it or ended. What its own wait ends with is what an
/// ordinary edge means: all before is complete, as each of those has waited too.
fn begin_during(graph: CUgraph, earlier: CUgraphNode, later: CUgraphNode) -> Result<(), String> {
    /// When all blocks have let the later ones begin.
    const PROGRAMMATIC_PORT: u8 = 1;
    let kind = CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8;
    let edge = CUgraphEdgeData { from_port: PROGRAMMATIC_PORT, to_port: 0, type_: kind, reserved: [0; 5] };
    // SAFETY: both nodes are of this graph, and what is pointed to outlives the call.
    let ordered =
        unsafe { sys::cuGraphAddDependencies_v2(graph, &raw const earlier, &raw const later, &raw const edge, 1) };
    check(ordered, "cuGraphAddDependencies")
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `new`; the driver lets a run finish.
            let _ = unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
    }
}

/// What executables are made of.
struct Template(CUgraph);

impl Drop for Template {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by `cuGraphCreate`, and nothing else has it.
            let _ = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}
