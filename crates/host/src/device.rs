//! A device that runs plans on the CPU, one dispatch after another, in any order that the plan's edges allow.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{HashMap, VecDeque};
use std::mem;

use lily_checkpoint::Bytes;
use lily_gpu::METAL_SOURCE;
use lily_gpu::device::{Buffer, Constant, Device, DeviceError, Identity, Limits, Range, Ticket, Tiles};
use lily_gpu::plan::{Dispatch, Plan};

use crate::compile::Compiler;
use crate::kernels::{Kernels, Run};

/// As every buffer of a GPU.
const ALIGNMENT: usize = 256;
/// What a kernel's widest loads want of weights in place.
const VECTOR_BYTES: usize = 16;

/// More have nothing to do: a dispatch of a small model has few threadgroups.
const MAX_WORKERS: usize = 16;

/// How a [`HostDevice`] runs.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// From which the order of dispatches, and in them that of threads, is drawn. Every submission gets other orders.
    pub seed: u64,
    /// OS threads that share the threadgroups of a dispatch.
    pub workers: u32,
    /// Whether the kernels of Metal 4's tensor operations are used.
    pub tensor_tiles: bool,
    /// Whether what the device is given waits until somebody waits for it, as late as a GPU may be; else it is done at once,
    /// as early as one may be.
    pub late: bool,
}

impl Options {
    /// Orders of this seed, on all processors, without tensor operations, at once.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let workers = std::thread::available_parallelism().map_or(1, |count| count.get().min(MAX_WORKERS) as u32);
        Self { seed, workers, tensor_tiles: false, late: false }
    }
}

/// The CPU as a device for tests: what is right here in every order of dispatches has all the edges it needs.
#[derive(Debug)]
pub struct HostDevice {
    options: Options,
    constants: Vec<u32>,
    buffers: HashMap<u32, Memory>,
    next_buffer: u32,
    submissions: u64,
    early: u64,
    /// What waits, in order.
    queue: VecDeque<Work>,
}

/// Something that the device was given to do.
#[derive(Debug)]
enum Work {
    Write(Range, Vec<u8>),
    Copy(Vec<(Range, Range)>),
    Clear(Vec<Range>),
    Submission(u64, Plan),
    Release(Buffer),
}

/// What a buffer is made of.
#[derive(Debug)]
enum Memory {
    /// Of exactly the buffer's size, so that AddressSanitizer sees its end.
    Own(Own),
    /// A tensor in place.
    Mapped(Bytes),
}

impl HostDevice {
    /// A device without memory yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            constants: Vec::new(),
            buffers: HashMap::new(),
            next_buffer: 0,
            submissions: 0,
            early: 0,
            queue: VecDeque::new(),
        }
    }

    /// Does it now, or when somebody waits for a submission after it.
    fn give(&mut self, work: Work) -> Result<(), DeviceError> {
        if self.options.late {
            self.queue.push_back(work);
            return Ok(());
        }
        self.run(work)
    }

    fn run(&mut self, work: Work) -> Result<(), DeviceError> {
        match work {
            Work::Write(to, bytes) => {
                let to = self.writable(Range { bytes: bytes.len() as u64, ..to })?;
                // SAFETY: `to` has room for `bytes`, which no buffer of this device overlaps.
                unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
            Work::Copy(ranges) => {
                for (from, to) in ranges {
                    let (from, bytes, to) = (self.pointer(from)?, from.bytes as usize, self.writable(to)?);
                    // SAFETY: both ranges are within buffers and have that size.
                    unsafe { to.copy_from(from, bytes) };
                }
            }
            Work::Clear(ranges) => {
                for range in ranges {
                    // SAFETY: the range is within a buffer.
                    unsafe { self.writable(range)?.write_bytes(0, range.bytes as usize) };
                }
            }
            Work::Submission(number, plan) => {
                let seed = self.options.seed.wrapping_mul(0x9e37_79b9).wrapping_add(number);
                for index in plan.order(seed) {
                    self.dispatch(&plan.dispatches[index], seed.wrapping_add(index as u64))?;
                }
            }
            Work::Release(buffer) => drop(self.buffers.remove(&buffer.id)),
        }
        Ok(())
    }

    /// How many there have been.
    #[must_use]
    pub fn submissions(&self) -> u64 {
        self.submissions
    }

    /// How many of them were given to a `late` device while it had not done the one before.
    #[must_use]
    pub fn early(&self) -> u64 {
        self.early
    }

    fn add(&mut self, memory: Memory, bytes: u64) -> Buffer {
        let id = self.next_buffer;
        self.next_buffer += 1;
        self.buffers.insert(id, memory);
        Buffer { id, bytes }
    }

    /// The first byte of a range, which lies within its buffer.
    fn pointer(&self, range: Range) -> Result<*mut u8, DeviceError> {
        let memory =
            self.buffers.get(&range.buffer.id).ok_or_else(|| self.failed(format!("{range:?} is not there")))?;
        let (start, size) = match memory {
            Memory::Own(own) => (own.start, own.layout.size()),
            Memory::Mapped(bytes) => (bytes.as_ptr().cast_mut(), bytes.len()),
        };
        let end = range.offset.checked_add(range.bytes);
        if end.is_none_or(|end| end > size as u64) {
            return Err(self.failed(format!("{range:?} is beyond the {size} bytes of its buffer")));
        }
        Ok(start.wrapping_add(range.offset as usize))
    }

    /// As [`pointer`](Self::pointer), where something is to be written.
    fn writable(&self, range: Range) -> Result<*mut u8, DeviceError> {
        match self.buffers.get(&range.buffer.id) {
            Some(Memory::Mapped(_)) => {
                Err(self.failed(format!("{range:?} is a tensor of the checkpoint, not to be written")))
            }
            _ => self.pointer(range),
        }
    }

    fn failed(&self, problem: String) -> DeviceError {
        DeviceError::Failed { name: self.name().to_owned(), problem }
    }

    fn dispatch(&self, dispatch: &Dispatch, seed: u64) -> Result<(), DeviceError> {
        let kernel = dispatch.kernel;
        let problem = |problem: String| DeviceError::Kernel { kernel: kernel.name.to_owned(), problem };
        if kernel.arguments.len() != dispatch.ranges.len() {
            return Err(problem(format!("{} ranges for {} buffers", dispatch.ranges.len(), kernel.arguments.len())));
        }
        let mut slots = Vec::new();
        for (argument, &range) in kernel.arguments.iter().zip(&dispatch.ranges) {
            let pointer = match argument.access {
                lily_gpu::kernel::Access::Read => self.pointer(range)?,
                lily_gpu::kernel::Access::Write => self.writable(range)?,
            };
            slots.push((argument.slot, pointer));
        }
        if dispatch.parameters.len() != kernel.parameters_size {
            return Err(problem(format!("{} bytes of parameters", dispatch.parameters.len())));
        }
        let run = Run {
            kernel: kernel.name,
            constants: &self.constants,
            slots: &slots,
            parameters: &dispatch.parameters,
            grid: dispatch.grid,
            threads: dispatch.threads,
            seed,
            workers: self.options.workers,
        };
        // SAFETY: each slot points to a range of a buffer that outlives the run, and what the kernel writes is memory
        // of this device's own. Nothing else touches it: `run` holds the device exclusively.
        unsafe { Kernels::for_tests().run(run) }.map_err(|error| problem(format!("{error}, at {}", dispatch.place)))
    }
}

impl Device for HostDevice {
    type Executable = Plan;

    fn name(&self) -> &str {
        "the CPU, in place of a GPU"
    }

    fn limits(&self) -> Limits {
        Limits { recommended_bytes: 1 << 40, buffer_bytes: 1 << 40 }
    }

    fn tiles(&self) -> Tiles {
        if self.options.tensor_tiles { Tiles::Tensor } else { Tiles::Simdgroup }
    }

    fn fingerprint(&self) -> String {
        let Compiler { program, flags } = Compiler::native();
        let constants: Vec<_> = self.constants.iter().map(|&bits| Constant::Uint(bits)).collect();
        let kernels = Identity {
            source: METAL_SOURCE,
            options: &flags.join(" "),
            constants: &constants,
            compiler: &program,
            device: self.name(),
        };
        format!("{}, kernels {}", self.name(), kernels.name())
    }

    fn specialise(&mut self, constants: &[Constant]) -> Result<(), DeviceError> {
        let bits = |constant: &Constant| match *constant {
            Constant::Uint(value) => value,
            Constant::Float(value) => value.to_bits(),
        };
        self.constants = constants.iter().map(bits).collect();
        Ok(())
    }

    fn allocate(&mut self, bytes: u64, what: &str) -> Result<Buffer, DeviceError> {
        let memory = Own::new(bytes as usize).ok_or_else(|| DeviceError::Memory {
            name: self.name().to_owned(),
            bytes,
            what: what.to_owned(),
            problem: "the allocator has no more".to_owned(),
        })?;
        Ok(self.add(Memory::Own(memory), bytes))
    }

    fn map(&mut self, tensors: &[Bytes]) -> Result<Vec<Range>, DeviceError> {
        let map = |tensor: &Bytes| {
            let size = tensor.len() as u64;
            if tensor.as_ptr().addr().is_multiple_of(VECTOR_BYTES) {
                return Ok(self.add(Memory::Mapped(tensor.clone()), size).all());
            }
            let buffer = self.allocate(size, "a tensor that is not aligned")?;
            self.write(buffer.all(), tensor)?;
            Ok(buffer.all())
        };
        tensors.iter().map(map).collect()
    }

    fn release(&mut self, buffer: Buffer) {
        let _done = self.give(Work::Release(buffer));
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Plan, DeviceError> {
        let kernels = Kernels::for_tests();
        match plan.dispatches.iter().find(|dispatch| !kernels.has(dispatch.kernel.name)) {
            Some(Dispatch { kernel, .. }) => Err(DeviceError::Kernel {
                kernel: kernel.name.to_owned(),
                problem: "the library of kernels does not have it".to_owned(),
            }),
            None => Ok(plan.clone()),
        }
    }

    fn write(&mut self, to: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.writable(Range { bytes: bytes.len() as u64, ..to })?;
        self.give(Work::Write(to, bytes.to_vec()))
    }

    fn copy(&mut self, ranges: &[(Range, Range)]) -> Result<(), DeviceError> {
        for &(from, to) in ranges {
            if from.bytes != to.bytes {
                return Err(self.failed(format!("a copy from {from:?} to {to:?}")));
            }
            self.pointer(from)?;
            self.writable(to)?;
        }
        self.give(Work::Copy(ranges.to_vec()))
    }

    fn clear(&mut self, ranges: &[Range]) -> Result<(), DeviceError> {
        ranges.iter().try_for_each(|&range| self.writable(range).map(|_| ()))?;
        self.give(Work::Clear(ranges.to_vec()))
    }

    fn submit(&mut self, plan: &Plan) -> Result<Ticket, DeviceError> {
        self.submissions += 1;
        self.early += u64::from(self.queue.iter().any(|work| matches!(work, Work::Submission(..))));
        self.give(Work::Submission(self.submissions, plan.clone()))?;
        Ok(Ticket(self.submissions))
    }

    /// Does what waits up to the submission, and nothing after it.
    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        let last = |work: &Work| matches!(work, Work::Submission(number, _) if *number == ticket.0);
        let Some(last) = self.queue.iter().position(last) else { return Ok(()) };
        let rest = self.queue.split_off(last + 1);
        mem::replace(&mut self.queue, rest).into_iter().try_for_each(|work| self.run(work))
    }

    fn read(&mut self, from: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.pointer(Range { bytes: bytes.len() as u64, ..from })?;
        // SAFETY: `from` has that many bytes, and `bytes` is no part of them.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
}

/// Memory that is given back when dropped.
#[derive(Debug)]
struct Own {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: nothing else knows the memory.
unsafe impl Send for Own {}

impl Own {
    /// `bytes` of them, full of NaNs so that what is read before it is written shows. `None` if there is no memory.
    fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()?;
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: it is as large.
        unsafe { start.write_bytes(0xff, layout.size()) };
        Some(Self { start, layout })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nothing points to it any more.
        unsafe { dealloc(self.start, self.layout) };
    }
}
