//! The device: buffers by number, one stream in which everything happens in order, one for what is read back.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute, CUdeviceptr};
use lily_checkpoint::Bytes;

use super::driver::{self, Context, Version, WARPGROUPS, check};
use super::graph::CudaPlan;
use super::launch::Launch;
use super::library::Library;
use super::memory::Memory;
use super::queue::{Event, Stream};
use super::staging::{Downloads, Uploads};
use crate::device::{Buffer, Constant, Device, DeviceError, Limits, Range, Ticket, Tiles};
use crate::plan::{Dispatch, Plan};

/// Of the memory that is free at the start, what the driver and its graphs keep for themselves.
const RESERVED: u64 = 512 << 20;

/// Of compute capability, the major number that has asynchronous copies and the products of the kernels.
const LEAST_CAPABILITY: i32 = 8;

/// How a [`CudaDevice`] runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which GPU, counted from 0.
    pub ordinal: usize,
    /// Runs a plan's dispatches one after another and waits for each, so that what goes wrong on the GPU is reported with
    /// the kernel's name. Slow.
    pub serial: bool,
    /// Lets a dispatch begin only when those before it are complete, which drivers before CUDA 12.3 do anyway.
    pub complete_edges: bool,
}

/// An NVIDIA GPU.
#[derive(Debug)]
pub struct CudaDevice {
    name: String,
    limits: Limits,
    architecture: String,
    tiles: Tiles,
    /// Whether a graph can let launches begin early.
    early_edges: bool,
    serial: bool,
    buffers: HashMap<u32, Memory>,
    next_buffer: u32,
    library: Option<Arc<Library>>,
    uploads: Uploads,
    downloads: Downloads,
    /// Behind each submission that nobody has waited for.
    running: VecDeque<(Ticket, Event)>,
    /// Events that stand nowhere.
    idle: Vec<Event>,
    submissions: u64,
    stream: Stream,
    context: Arc<Context>,
}

impl CudaDevice {
    /// A GPU with nothing on it yet.
    ///
    /// # Errors
    /// If there is no driver or no such GPU.
    pub fn open(options: Options) -> Result<Self, DeviceError> {
        Self::new(options).map_err(|problem| DeviceError::Failed { name: "CUDA".to_owned(), problem })
    }

    fn new(Options { ordinal, serial, complete_edges }: Options) -> Result<Self, String> {
        let context = Context::open(ordinal)?;
        let (architecture, free) = (context.architecture()?, context.free_bytes()?);
        let processors = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let major = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        if major < LEAST_CAPABILITY {
            return Err(format!("{} has compute capability {major}; {LEAST_CAPABILITY} is needed", context.name()?));
        }
        let usable = free.saturating_sub(RESERVED);
        let version = Version::current()?;
        Ok(Self {
            name: format!("{} (CUDA {version}, {processors} multiprocessors)", context.name()?),
            limits: Limits { recommended_bytes: usable, buffer_bytes: usable },
            tiles: if architecture == WARPGROUPS { Tiles::Warpgroup } else { Tiles::Simdgroup },
            architecture,
            early_edges: version >= Version::EARLY_EDGES && !complete_edges,
            serial,
            buffers: HashMap::new(),
            next_buffer: 0,
            library: None,
            uploads: Uploads::new(&context)?,
            downloads: Downloads::new(&context)?,
            running: VecDeque::new(),
            idle: Vec::new(),
            submissions: 0,
            stream: Stream::new(Arc::clone(&context))?,
            context,
        })
    }

    fn failed(&self, problem: impl Into<String>) -> DeviceError {
        DeviceError::Failed { name: self.name.clone(), problem: problem.into() }
    }

    fn enter(&self) -> Result<(), DeviceError> {
        self.context.enter().map_err(|problem| self.failed(problem))
    }

    /// Where a range begins.
    fn address(&self, range: Range) -> Result<CUdeviceptr, DeviceError> {
        let memory = self.buffers.get(&range.buffer.id);
        memory
            .and_then(|memory| memory.at(range.offset, range.bytes))
            .ok_or_else(|| self.failed(format!("{range:?} is not there")))
    }

    /// As a message of the driver, unless all is well.
    fn check(&self, result: sys::CUresult, call: &str) -> Result<(), DeviceError> {
        check(result, call).map_err(|problem| self.failed(problem))
    }

    fn launch(&self, library: &Library, dispatch: &Dispatch) -> Result<Launch, DeviceError> {
        let Dispatch { kernel, place, ranges, parameters, grid, threads, .. } = dispatch;
        let refused = |problem| DeviceError::Kernel { kernel: kernel.name.to_owned(), problem };
        if ranges.len() != kernel.arguments.len() || parameters.len() != kernel.parameters_size {
            let (buffers, bytes) = (ranges.len(), parameters.len());
            return Err(refused(format!("{buffers} buffers and {bytes} bytes of parameters are not its signature")));
        }
        Ok(Launch {
            kernel: kernel.name,
            place: place.clone(),
            function: library.function(kernel).map_err(refused)?,
            addresses: ranges.iter().map(|&range| self.address(range)).collect::<Result<_, _>>()?,
            parameters: parameters.clone(),
            grid: *grid,
            threads: *threads,
            shared_bytes: kernel.launch_bytes,
            begins_early: kernel.begins_early && self.early_edges,
        })
    }

    /// An event that stands nowhere.
    fn event(&mut self) -> Result<Event, DeviceError> {
        while self.running.front().is_some_and(|(_, event)| event.passed()) {
            self.idle.extend(self.running.pop_front().map(|(_, event)| event));
        }
        match self.idle.pop() {
            Some(event) => Ok(event),
            None => Event::new(Arc::clone(&self.context)).map_err(|problem| self.failed(problem)),
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Buffers and pinned memory go next; plans and copies under way use them.
        if self.context.enter().is_ok() {
            let _ = self.stream.wait();
        }
    }
}

impl Device for CudaDevice {
    type Executable = CudaPlan;

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn tiles(&self) -> Tiles {
        self.tiles
    }

    fn fingerprint(&self) -> String {
        let kernels = self.library.as_ref().map_or("", |library| library.name());
        format!("{}, driver {:?}, kernels {kernels}", self.name, driver::release())
    }

    fn specialise(&mut self, constants: &[Constant]) -> Result<(), DeviceError> {
        self.enter()?;
        let library = Library::of(&self.context, &self.architecture, constants, |problem| self.failed(problem))?;
        self.library = Some(library);
        Ok(())
    }

    fn allocate(&mut self, bytes: u64, what: &str) -> Result<Buffer, DeviceError> {
        self.enter()?;
        let memory = Memory::new(Arc::clone(&self.context), bytes).map_err(|problem| DeviceError::Memory {
            name: self.name.clone(),
            bytes,
            what: what.to_owned(),
            problem,
        })?;
        let id = self.next_buffer;
        self.next_buffer += 1;
        self.buffers.insert(id, memory);
        Ok(Buffer { id, bytes })
    }

    fn map(&mut self, tensors: &[Bytes]) -> Result<Vec<Range>, DeviceError> {
        let copy = |tensor: &Bytes| {
            let buffer = self.allocate(tensor.len() as u64, "a tensor of the checkpoint")?;
            self.write(buffer.all(), tensor)?;
            Ok(buffer.all())
        };
        tensors.iter().map(copy).collect()
    }

    fn release(&mut self, buffer: Buffer) {
        // The driver frees memory only once the GPU is idle, and copies on their way belong to the stream.
        if self.enter().is_ok() && self.stream.wait().is_ok() {
            self.buffers.remove(&buffer.id);
        }
    }

    fn prepare(&mut self, plan: &Plan) -> Result<CudaPlan, DeviceError> {
        self.enter()?;
        let library = self.library.clone().ok_or_else(|| self.failed("the kernels are not specialised yet"))?;
        let launches: Vec<Launch> =
            plan.dispatches.iter().map(|dispatch| self.launch(&library, dispatch)).collect::<Result<_, _>>()?;
        // A plan of nothing, a mark behind all before it, needs no graph.
        if self.serial || launches.is_empty() {
            return Ok(CudaPlan::serial(library, launches));
        }
        CudaPlan::graph(&self.context, library, &launches, &plan.edges, &self.stream)
    }

    fn write(&mut self, to: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.enter()?;
        let to = self.address(to.part(0, bytes.len() as u64))?;
        self.uploads.copy(&self.stream, to, bytes).map_err(|problem| self.failed(problem))
    }

    fn copy(&mut self, ranges: &[(Range, Range)]) -> Result<(), DeviceError> {
        self.enter()?;
        for &(from, to) in ranges {
            if from.bytes != to.bytes {
                return Err(self.failed(format!("a copy from {from:?} to {to:?}")));
            }
            let (to, from, bytes) = (self.address(to)?, self.address(from)?, from.bytes as usize);
            // SAFETY: both ranges are within buffers and have that size.
            let copied = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream.as_ptr()) };
            self.check(copied, "cuMemcpyDtoDAsync")?;
        }
        Ok(())
    }

    fn clear(&mut self, ranges: &[Range]) -> Result<(), DeviceError> {
        self.enter()?;
        for &range in ranges {
            let (start, bytes) = (self.address(range)?, range.bytes as usize);
            // SAFETY: the range is within a buffer.
            let cleared = unsafe { sys::cuMemsetD8Async(start, 0, bytes, self.stream.as_ptr()) };
            self.check(cleared, "cuMemsetD8Async")?;
        }
        Ok(())
    }

    fn submit(&mut self, plan: &CudaPlan) -> Result<Ticket, DeviceError> {
        self.enter()?;
        plan.start(&self.stream, &self.name)?;
        let event = self.event()?;
        event.record(&self.stream).map_err(|problem| self.failed(problem))?;
        self.submissions += 1;
        let ticket = Ticket(self.submissions);
        self.running.push_back((ticket, event));
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        self.enter()?;
        // One that is not there was waited for, or its event was taken again because it had passed.
        if let Some((_, event)) = self.running.iter().find(|(submitted, _)| *submitted == ticket) {
            event.wait().map_err(|problem| {
                let hint = if self.serial { "" } else { " (with LILY_CUDA_SERIAL=1 it tells in which kernel)" };
                self.failed(format!("a submitted plan failed: {problem}{hint}"))
            })?;
        }
        while self.running.front().is_some_and(|(submitted, _)| *submitted <= ticket) {
            self.idle.extend(self.running.pop_front().map(|(_, event)| event));
        }
        Ok(())
    }

    fn read(&mut self, from: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.enter()?;
        let from = self.address(from.part(0, bytes.len() as u64))?;
        self.downloads.copy(from, bytes).map_err(|problem| self.failed(problem))
    }
}
