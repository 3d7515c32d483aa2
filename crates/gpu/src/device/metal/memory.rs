//! Buffers: what is allocated, what lies in mapped files, and what is kept in memory.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lily_checkpoint::Bytes;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLAllocation, MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor, MTLResource,
    MTLResourceOptions,
};
use tracing::{debug, warn};

use super::chip::Chip;
use super::mapping::{Layout, Place, Span, Window, layout};
use super::residency::Sets;
use crate::device::{Buffer, DeviceError, Limits, Range};

/// A page, on every Mac with an Apple GPU.
const PAGE: usize = 16384;

/// The GPU and the CPU share the memory, so all of it is shared storage: a private copy would gain nothing.
const SHARED: MTLResourceOptions = MTLResourceOptions::StorageModeShared;

pub(super) type MetalBuffer = Retained<ProtocolObject<dyn MTLBuffer>>;

/// A buffer of ours.
pub(super) struct Held {
    buffer: MetalBuffer,
    bytes: u64,
    set: Option<usize>,
    /// Keeps the file mapped that it lies in. After `buffer`, so that it is dropped after it.
    _files: Vec<Bytes>,
}

/// All buffers of a device.
pub(super) struct Memory {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    name: String,
    limits: Limits,
    held: HashMap<u32, Held>,
    /// Numbers are given once only: a plan that outlives a buffer finds none, never another.
    next: u32,
    used: u64,
    sets: Sets,
    residency: Vec<Retained<ProtocolObject<dyn MTLResidencySet>>>,
    /// Sets that were changed and are not committed yet.
    changed: Vec<usize>,
}

impl Memory {
    pub(super) fn new(chip: &Chip, queue: Retained<ProtocolObject<dyn MTLCommandQueue>>) -> Self {
        let limits = chip.limits();
        Self {
            device: chip.device.clone(),
            queue,
            name: chip.name.clone(),
            limits,
            held: HashMap::new(),
            next: 0,
            used: 0,
            sets: Sets::new(limits.recommended_bytes),
            residency: Vec::new(),
            changed: Vec::new(),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// The buffer of a range that is wholly within it.
    pub(super) fn buffer(&self, range: Range) -> Result<&MetalBuffer, DeviceError> {
        let held = self
            .held
            .get(&range.buffer.id)
            .filter(|held| range.offset.checked_add(range.bytes).is_some_and(|end| end <= held.bytes));
        held.map(|held| &held.buffer).ok_or_else(|| DeviceError::Failed {
            name: self.name.clone(),
            problem: format!("{range:?} is not, or no longer, in its memory"),
        })
    }

    /// The address of a range.
    pub(super) fn address(&self, range: Range) -> Result<NonNull<u8>, DeviceError> {
        let buffer = self.buffer(range)?;
        // SAFETY: `buffer` has checked that the offset is within the buffer, whose shared storage is mapped as a whole.
        Ok(unsafe { buffer.contents().cast::<u8>().add(range.offset as usize) })
    }

    /// A new buffer.
    pub(super) fn allocate(&mut self, bytes: u64, what: &str) -> Result<Buffer, DeviceError> {
        self.check(bytes, what)?;
        let buffer = self.device.newBufferWithLength_options(bytes.max(1) as usize, SHARED).ok_or_else(|| {
            let problem = format!("Metal has no memory left, {} bytes are in use", self.device.currentAllocatedSize());
            self.refuse(bytes, what, problem)
        })?;
        buffer.setLabel(Some(&NSString::from_str(what)));
        Ok(self.hold(buffer, bytes, Vec::new()))
    }

    /// Refuses what the device should not be given.
    fn check(&self, bytes: u64, what: &str) -> Result<(), DeviceError> {
        let Limits { recommended_bytes, buffer_bytes } = self.limits;
        if bytes > buffer_bytes {
            return Err(self.refuse(bytes, what, format!("a buffer may have {buffer_bytes} bytes at most")));
        }
        if self.used + bytes > recommended_bytes {
            let problem = format!(
                "{} bytes of the {recommended_bytes} that macOS recommends for the GPU are in use; take a shorter context, \
                 fewer sequences, or raise the recommendation (sudo sysctl iogpu.wired_limit_mb=MIB)",
                self.used
            );
            return Err(self.refuse(bytes, what, problem));
        }
        Ok(())
    }

    fn refuse(&self, bytes: u64, what: &str, problem: String) -> DeviceError {
        DeviceError::Memory { name: self.name.clone(), bytes, what: what.to_owned(), problem }
    }

    fn hold(&mut self, buffer: MetalBuffer, bytes: u64, files: Vec<Bytes>) -> Buffer {
        let id = self.next;
        self.next += 1;
        self.used += bytes;
        let set = self.sets.add(bytes);
        if set == self.residency.len() {
            match self.device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()) {
                Ok(set) => {
                    self.queue.addResidencySet(&set);
                    self.residency.push(set);
                }
                Err(error) => warn!("memory is not kept resident: {}", error.localizedDescription()),
            }
        }
        let set = self.residency.get(set).map(|residency| {
            residency.addAllocation(allocation(&buffer));
            self.changed.push(set);
            set
        });
        self.held.insert(id, Held { buffer, bytes, set, _files: files });
        Buffer { id, bytes }
    }

    /// Takes a buffer out; the caller keeps it until nothing uses it any more.
    pub(super) fn take(&mut self, buffer: Buffer) -> Option<Held> {
        let held = self.held.remove(&buffer.id)?;
        self.used -= held.bytes;
        if let Some(set) = held.set {
            self.sets.remove(set, held.bytes);
            self.residency[set].removeAllocation(allocation(&held.buffer));
            self.changed.push(set);
        }
        Some(held)
    }

    /// Makes changes to the residency sets known, before a submission.
    pub(super) fn commit(&mut self) {
        self.changed.sort_unstable();
        self.changed.dedup();
        for set in self.changed.drain(..) {
            self.residency[set].commit();
            self.residency[set].requestResidency();
        }
    }

    /// Buffers that hold these bytes: the files themselves where that is possible, else copies.
    pub(super) fn map(&mut self, tensors: &[Bytes]) -> Result<Vec<Range>, DeviceError> {
        let spans: Vec<Span> = tensors
            .iter()
            .map(|bytes| Span { address: bytes.as_ptr() as usize, bytes: bytes.len(), mapped: bytes.is_mapped() })
            .collect();
        let largest = self.limits.buffer_bytes as usize;
        let in_place = layout(&spans, PAGE, largest, true);
        let wrapped: Option<Vec<_>> = in_place.windows.iter().map(|window| self.wrap(*window)).collect();
        let (layout, wrapped) = match wrapped {
            Some(wrapped) => (in_place, wrapped),
            None => {
                warn!("{} does not take mapped files: the weights are copied", self.name);
                (layout(&spans, PAGE, largest, false), Vec::new())
            }
        };

        let mut windows = Vec::new();
        for (index, (buffer, window)) in wrapped.into_iter().zip(&layout.windows).enumerate() {
            self.check(window.bytes as u64, "weights")?;
            let within = |place: &Place| matches!(place, Place::InFile { window, .. } if *window == index);
            let files = tensors.iter().zip(&layout.places).filter(|(_, place)| within(place));
            let files = files.map(|(tensor, _)| tensor.clone()).collect();
            windows.push(self.hold(buffer, window.bytes as u64, files));
        }
        let arenas: Vec<Buffer> =
            layout.arenas.iter().map(|&bytes| self.allocate(bytes as u64, "weights")).collect::<Result<_, _>>()?;
        let ranges: Vec<Range> = tensors
            .iter()
            .zip(&layout.places)
            .map(|(tensor, place)| match *place {
                Place::InFile { window, offset } => windows[window].all().part(offset as u64, tensor.len() as u64),
                Place::Copied { arena, offset } => arenas[arena].all().part(offset as u64, tensor.len() as u64),
            })
            .collect();
        self.fill(tensors, &layout, &ranges)?;
        Ok(ranges)
    }

    /// A buffer over pages of mapped files.
    fn wrap(&self, window: Window) -> Option<MetalBuffer> {
        let pointer = NonNull::new(window.address as *mut _)?;
        // SAFETY: the pages are mapped (`layout` takes only pages that hold a byte of a mapped tensor) and stay so, as
        // the buffer is held together with the `Bytes` that map them. Metal frees nothing, there being no deallocator.
        // The mapping is read-only; kernels take weights as `device const`, so nothing writes to it.
        unsafe { self.device.newBufferWithBytesNoCopy_length_options_deallocator(pointer, window.bytes, SHARED, None) }
    }

    /// Copies what is not used in place, with several threads: most of the time is spent reading the disk.
    fn fill(&self, tensors: &[Bytes], layout: &Layout, ranges: &[Range]) -> Result<(), DeviceError> {
        struct Target(NonNull<u8>);
        // SAFETY: each target is written by one thread only.
        unsafe impl Send for Target {}
        // SAFETY: as above; shared references to a target only read the pointer itself.
        unsafe impl Sync for Target {}

        let mut copies = Vec::new();
        for ((tensor, place), range) in tensors.iter().zip(&layout.places).zip(ranges) {
            if matches!(place, Place::Copied { .. }) {
                copies.push((tensor, Target(self.address(*range)?)));
            }
        }
        let bytes: usize = copies.iter().map(|(tensor, _)| tensor.len()).sum();
        debug!("{} of {} tensors are copied, {bytes} bytes", copies.len(), tensors.len());
        let next = AtomicUsize::new(0);
        let threads = thread::available_parallelism().map_or(1, |count| count.get()).min(8);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some((tensor, target)) = copies.get(next.fetch_add(1, Ordering::Relaxed)) {
                        // SAFETY: the target is the start of a range of `tensor.len()` bytes of an arena allocated
                        // above, no two ranges overlap (`layout`), and the counter gives each to one thread.
                        unsafe { target.0.as_ptr().copy_from_nonoverlapping(tensor.as_ptr(), tensor.len()) };
                    }
                });
            }
        });
        Ok(())
    }
}

/// A buffer as a residency set takes it.
fn allocation(buffer: &MetalBuffer) -> &ProtocolObject<dyn MTLAllocation> {
    let buffer: &ProtocolObject<dyn MTLBuffer> = buffer;
    ProtocolObject::from_ref(buffer)
}
