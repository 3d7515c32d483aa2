//! The device: plans made ready and run.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use lily_checkpoint::Bytes;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSRange, NSString};
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLComputeCommandEncoder, MTLComputePipelineState, MTLDevice,
    MTLResourceOptions, MTLSize,
};

use super::batches::batches;
use super::chip::Chip;
use super::library::{Library, Pipeline};
use super::memory::{Held, Memory};
use super::queue::Queue;
use crate::device::{Buffer, Constant, Device, DeviceError, Limits, Range, Ticket, Tiles};
use crate::plan::{Dispatch, Plan};

/// Buffers that a kernel can have, parameters included.
const SLOTS: u32 = 31;

/// What `setBytes` takes at most.
const MOST_PARAMETER_BYTES: usize = 4096;

/// Blits start and end at multiples of this.
const BLIT_ALIGNMENT: u64 = 4;

/// The GPU of a Mac.
pub struct MetalDevice {
    chip: Chip,
    name: String,
    library: Option<Library>,
    memory: Memory,
    queue: Queue,
    /// Buffers given back, until the submission that may use them last is complete.
    retired: Vec<(Ticket, Held)>,
}

// SAFETY: Metal's objects may be used from any thread, command buffers and encoders from one at a time. A device is only
// used through `&mut self`, encoders don't outlive a call, and `name`, `limits` and `read`'s memory need no ordering.
unsafe impl Send for MetalDevice {}

impl Drop for MetalDevice {
    /// The GPU may still run a step that nobody asked for, on buffers over mapped files that go with this device.
    fn drop(&mut self) {
        autoreleasepool(|_| self.queue.drain());
    }
}

/// A plan's command buffers, ready to be encoded.
pub struct MetalPlan {
    batches: Vec<Commands>,
}

// SAFETY: pipelines and strings are immutable and may be used and freed on any thread.
unsafe impl Send for MetalPlan {}

/// A command buffer.
struct Commands {
    /// Its kernels, for messages.
    what: Arc<str>,
    label: Retained<NSString>,
    stages: Vec<Vec<Launch>>,
}

/// A dispatch.
struct Launch {
    pipeline: Pipeline,
    /// With their slots.
    ranges: Vec<(Range, usize)>,
    parameters: Vec<u8>,
    parameters_slot: usize,
    grid: MTLSize,
    threads: MTLSize,
}

impl MetalDevice {
    /// The GPU of this Mac.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if there is none that the kernels can run on, or macOS is older than 15.
    pub fn open() -> Result<Self, DeviceError> {
        autoreleasepool(|_| {
            let chip = Chip::find()?;
            let queue = Queue::new(&chip)?;
            let memory = Memory::new(&chip, queue.queue().clone());
            Ok(Self { name: format!("{} (Metal)", chip.name), chip, library: None, memory, queue, retired: Vec::new() })
        })
    }

    /// What was refused with tensor operations, though this GPU has them: every kernel and Metal's text. `None` before
    /// [`specialise`](Device::specialise), and if nothing was.
    #[must_use]
    pub fn tensor_refusal(&self) -> Option<&DeviceError> {
        self.library.as_ref().and_then(Library::refusal)
    }

    fn failed(&self, problem: String) -> DeviceError {
        DeviceError::Failed { name: self.name.clone(), problem }
    }

    /// Frees what was given back and is not used any more.
    fn free(&mut self) {
        let completed = self.queue.completed();
        self.retired.retain(|(ticket, _)| *ticket > completed);
    }

    /// A range as a blit takes it.
    fn blit_range(&self, range: Range) -> Result<Range, DeviceError> {
        self.memory.buffer(range)?;
        if range.offset.is_multiple_of(BLIT_ALIGNMENT) && range.bytes.is_multiple_of(BLIT_ALIGNMENT) {
            return Ok(range);
        }
        Err(self.failed(format!("{range:?} does not start and end at multiples of {BLIT_ALIGNMENT} bytes")))
    }

    fn launch(&mut self, dispatch: &Dispatch) -> Result<Launch, DeviceError> {
        let kernel = dispatch.kernel;
        let refuse = |problem: String| DeviceError::Kernel { kernel: kernel.name.to_owned(), problem };
        let Some(library) = &mut self.library else {
            return Err(refuse("the model's shapes are not bound yet".into()));
        };
        let pipeline = library.pipeline(kernel)?;
        let most = pipeline.state.maxTotalThreadsPerThreadgroup();
        let threads = dispatch.threads as usize;
        if threads == 0 || threads > most {
            return Err(refuse(format!(
                "launched with {threads} threads in a threadgroup, this GPU runs at most {most}"
            )));
        }
        if let Some(required) = pipeline.threads
            && dispatch.threads != required
        {
            return Err(refuse(format!("launched with {threads} threads in a threadgroup, compiled for {required}")));
        }
        if dispatch.ranges.len() != kernel.arguments.len() || dispatch.parameters.len() != kernel.parameters_size {
            return Err(refuse(format!(
                "given {} buffers and {} bytes of parameters, it takes {} and {}",
                dispatch.ranges.len(),
                dispatch.parameters.len(),
                kernel.arguments.len(),
                kernel.parameters_size
            )));
        }
        let last = kernel.arguments.iter().map(|argument| argument.slot).max();
        let last = last.max((kernel.parameters_size > 0).then_some(kernel.parameters_slot));
        if last >= Some(SLOTS) || kernel.parameters_size > MOST_PARAMETER_BYTES {
            return Err(refuse(format!(
                "Metal has {SLOTS} buffer slots and {MOST_PARAMETER_BYTES} bytes of parameters"
            )));
        }
        let ranges = dispatch.ranges.iter().zip(kernel.arguments);
        let ranges = ranges.map(|(range, argument)| (*range, argument.slot as usize)).collect();
        let [width, height, depth] = dispatch.grid.map(|count| count as usize);
        Ok(Launch {
            pipeline,
            ranges,
            parameters: dispatch.parameters.clone(),
            parameters_slot: kernel.parameters_slot as usize,
            grid: MTLSize { width, height, depth },
            threads: MTLSize { width: threads, height: 1, depth: 1 },
        })
    }
}

impl Device for MetalDevice {
    type Executable = MetalPlan;

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.memory.limits()
    }

    fn tiles(&self) -> Tiles {
        let tensors = self.library.as_ref().map_or(self.chip.tensors, Library::tensors);
        if tensors { Tiles::Tensor } else { Tiles::Simdgroup }
    }

    /// macOS, whose version and build is in the kernels' name, is compiler and driver.
    fn fingerprint(&self) -> String {
        format!("{}, kernels {}", self.name, self.library.as_ref().map_or("", Library::name))
    }

    fn specialise(&mut self, constants: &[Constant]) -> Result<(), DeviceError> {
        let library = autoreleasepool(|_| Library::compile(&self.chip, constants))?;
        let path = match (library.tensors(), library.refusal()) {
            (true, _) => "tensor operations",
            (false, None) => "SIMD-group matrices",
            (false, Some(_)) => "SIMD-group matrices, as its tensor operations were refused",
        };
        self.name = format!("{} (Metal, {path})", self.chip.name);
        self.library = Some(library);
        Ok(())
    }

    fn allocate(&mut self, bytes: u64, what: &str) -> Result<Buffer, DeviceError> {
        autoreleasepool(|_| {
            self.free();
            self.memory.allocate(bytes, what)
        })
    }

    fn map(&mut self, tensors: &[Bytes]) -> Result<Vec<Range>, DeviceError> {
        autoreleasepool(|_| {
            let ranges = self.memory.map(tensors)?;
            self.memory.commit();
            Ok(ranges)
        })
    }

    fn release(&mut self, buffer: Buffer) {
        autoreleasepool(|_| {
            if let Some(held) = self.memory.take(buffer) {
                self.retired.push((self.queue.next(), held));
            }
            self.free();
        });
    }

    fn prepare(&mut self, plan: &Plan) -> Result<MetalPlan, DeviceError> {
        autoreleasepool(|_| {
            let mut commands = Vec::new();
            for batch in batches(&plan.stages, |dispatch| plan.dispatches[dispatch].cost) {
                let mut stages = Vec::with_capacity(batch.len());
                for stage in &batch {
                    let launches = stage.iter().map(|&dispatch| self.launch(&plan.dispatches[dispatch]));
                    stages.push(launches.collect::<Result<Vec<_>, _>>()?);
                }
                let what = describe(plan, &batch);
                commands.push(Commands { label: NSString::from_str(&what), what: what.into(), stages });
            }
            Ok(MetalPlan { batches: commands })
        })
    }

    fn write(&mut self, to: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        let size = bytes.len() as u64;
        if size > to.bytes {
            return Err(self.failed(format!("{size} bytes don't fit into {to:?}")));
        }
        if size == 0 {
            return Ok(());
        }
        autoreleasepool(|_| {
            if self.queue.is_idle() {
                self.queue.check()?;
                let target = self.memory.address(to)?;
                // SAFETY: `address` has checked that the range, of at least `size` bytes, is in a buffer of ours, and no
                // command buffer that could use it is under way.
                unsafe { target.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                return Ok(());
            }
            let to = self.blit_range(to.part(0, size))?;
            let source = NonNull::from(bytes).cast::<c_void>();
            // SAFETY: `source` points to `bytes.len()` bytes, which Metal copies at once.
            let staged = unsafe {
                self.chip.device.newBufferWithBytes_length_options(
                    source,
                    bytes.len(),
                    MTLResourceOptions::StorageModeShared,
                )
            };
            let staged = staged.ok_or_else(|| self.failed(format!("no memory left to stage {size} bytes")))?;
            let target = self.memory.buffer(to)?;
            self.queue.blit(|encoder| {
                // SAFETY: both ranges are within their buffers, which the command buffer retains.
                unsafe {
                    encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                        &staged,
                        0,
                        target,
                        to.offset as usize,
                        bytes.len(),
                    );
                }
            })
        })
    }

    fn copy(&mut self, ranges: &[(Range, Range)]) -> Result<(), DeviceError> {
        autoreleasepool(|_| {
            let mut copies = Vec::with_capacity(ranges.len());
            for &(from, to) in ranges {
                let (from, to) = (self.blit_range(from)?, self.blit_range(to)?);
                if from.bytes != to.bytes {
                    return Err(self.failed(format!("{from:?} is to be copied to {to:?}, which is not as large")));
                }
                if from.bytes > 0 {
                    copies.push((self.memory.buffer(from)?, from, self.memory.buffer(to)?, to));
                }
            }
            self.queue.blit(|encoder| {
                for (source, from, target, to) in copies {
                    // SAFETY: both ranges are within their buffers, which the command buffer retains.
                    unsafe {
                        encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                            source,
                            from.offset as usize,
                            target,
                            to.offset as usize,
                            from.bytes as usize,
                        );
                    }
                }
            })
        })
    }

    fn clear(&mut self, ranges: &[Range]) -> Result<(), DeviceError> {
        autoreleasepool(|_| {
            let mut fills = Vec::with_capacity(ranges.len());
            for &range in ranges.iter().filter(|range| range.bytes > 0) {
                let range = self.blit_range(range)?;
                fills.push((self.memory.buffer(range)?, range));
            }
            self.queue.blit(|encoder| {
                for (buffer, range) in fills {
                    encoder.fillBuffer_range_value(
                        buffer,
                        NSRange::new(range.offset as usize, range.bytes as usize),
                        0,
                    );
                }
            })
        })
    }

    fn submit(&mut self, executable: &MetalPlan) -> Result<Ticket, DeviceError> {
        autoreleasepool(|_| {
            self.queue.is_idle();
            self.queue.check()?;
            self.memory.commit();
            for Commands { what, label, stages } in &executable.batches {
                let memory = &self.memory;
                self.queue.compute(what, label, |encoder| encode(encoder, memory, stages))?;
            }
            Ok(self.queue.submitted())
        })
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        autoreleasepool(|_| {
            let outcome = self.queue.wait(ticket);
            self.free();
            outcome
        })
    }

    fn read(&mut self, from: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.queue.check()?;
        let from = match from.bytes.checked_sub(bytes.len() as u64) {
            Some(_) => from.part(0, bytes.len() as u64),
            None => return Err(self.failed(format!("{from:?} holds less than {} bytes", bytes.len()))),
        };
        let source = self.memory.address(from)?;
        // SAFETY: the range is within a buffer of ours; the caller has waited for what writes it.
        let source = unsafe { slice::from_raw_parts(source.as_ptr(), bytes.len()) };
        bytes.copy_from_slice(source);
        Ok(())
    }
}

/// Encodes the stages of a command buffer.
fn encode(
    encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>,
    memory: &Memory,
    stages: &[Vec<Launch>],
) -> Result<(), DeviceError> {
    for (index, stage) in stages.iter().enumerate() {
        if index > 0 {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
        for launch in stage {
            encoder.setComputePipelineState(&launch.pipeline.state);
            for &(range, slot) in &launch.ranges {
                let buffer = memory.buffer(range)?;
                // SAFETY: the offset is within the buffer, which the command buffer retains; the slot is one of the
                // kernel's, below 31, and the range's type is the argument's (`Slice`).
                unsafe { encoder.setBuffer_offset_atIndex(Some(buffer), range.offset as usize, slot) };
            }
            if !launch.parameters.is_empty() {
                let parameters = NonNull::from(&launch.parameters[..]).cast::<c_void>();
                // SAFETY: points to as many bytes, which Metal copies at once; the slot is the kernel's.
                unsafe {
                    encoder.setBytes_length_atIndex(parameters, launch.parameters.len(), launch.parameters_slot);
                }
            }
            encoder.dispatchThreadgroups_threadsPerThreadgroup(launch.grid, launch.threads);
        }
    }
    Ok(())
}

/// What a command buffer runs: its first dispatch and its last.
fn describe(plan: &Plan, batch: &[Vec<usize>]) -> String {
    let named = |index: &usize| {
        let Dispatch { kernel, place, .. } = &plan.dispatches[*index];
        format!("{} ({place})", kernel.name)
    };
    let mut dispatches = batch.iter().flatten();
    match (dispatches.next().map(named), dispatches.next_back().map(named)) {
        (Some(first), Some(last)) => format!("{first} to {last}"),
        (first, _) => first.unwrap_or_default(),
    }
}
