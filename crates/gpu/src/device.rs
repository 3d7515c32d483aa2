//! What a plan needs from a machine: memory, and something that runs dispatches in the order of their edges.
//!
//! A device has one queue. [`Device::write`], [`Device::copy`], [`Device::clear`] and [`Device::submit`] take effect in
//! the order of the calls, each as if all before it were complete; none of them waits. Only [`Device::wait`] does.

#[cfg(feature = "cuda")]
pub mod cuda;
mod identity;
#[cfg(any(target_os = "macos", test))]
pub mod metal;

use std::fmt;

use lily_checkpoint::Bytes;

use crate::plan::Plan;

pub use identity::Identity;

/// Memory of a device. A handle: the device that gave it out holds the memory until [`Device::release`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// The device's own number of it.
    pub id: u32,
    /// Its size.
    pub bytes: u64,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer {} ({} bytes)", self.id, self.bytes)
    }
}

impl Buffer {
    /// The whole of it.
    #[must_use]
    pub const fn all(self) -> Range {
        Range { buffer: self, offset: 0, bytes: self.bytes }
    }
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The buffer.
    pub buffer: Buffer,
    /// Bytes before the part.
    pub offset: u64,
    /// Bytes of the part; `offset + bytes` is within the buffer.
    pub bytes: u64,
}

impl Range {
    /// A part of this part.
    ///
    /// # Panics
    /// If it is not within this part.
    #[must_use]
    pub fn part(self, offset: u64, bytes: u64) -> Self {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset} of {self:?}");
        Self { offset: self.offset + offset, bytes, ..self }
    }

    /// Whether the two share a byte.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.buffer.id == other.buffer.id
            && self.offset < other.offset + other.bytes
            && other.offset < self.offset + self.bytes
    }
}

/// The value of a function constant of `kernels/model.h`; its index is its place in the list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Constant {
    /// `uint`
    Uint(u32),
    /// `float`
    Float(f32),
}

/// The number of a submission, counted up from 1. Submissions end in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What products are made of. They round differently, so a device takes one of them for all steps of many rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tiles {
    /// SIMD-group matrices: what every device has.
    #[default]
    Simdgroup,
    /// Metal 4's tensor operations: the kernels whose names end in `_tensor`.
    Tensor,
    /// Hopper's warpgroups: the kernels whose names end in `_warpgroup`, and in few-row steps those that begin early.
    Warpgroup,
}

/// How much memory a device should be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all buffers, mapped weights included, with which it still runs at full speed.
    pub recommended_bytes: u64,
    /// Bytes of the largest buffer.
    pub buffer_bytes: u64,
}

/// Why a device could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A kernel cannot be compiled, launched or run to its end.
    #[error("kernel {kernel}: {problem}")]
    Kernel {
        /// Its name in the library.
        kernel: String,
        /// What the device says, where it says where.
        problem: String,
    },
    /// There is no memory left, or none that large.
    #[error("{name} cannot hold {bytes} bytes more for {what}: {problem}")]
    Memory {
        /// [`Device::name`].
        name: String,
        /// Bytes asked for.
        bytes: u64,
        /// What they were for.
        what: String,
        /// What the device says.
        problem: String,
    },
    /// The device or its driver is unusable, or refused a command.
    #[error("{name}: {problem}")]
    Failed {
        /// [`Device::name`].
        name: String,
        /// What it says.
        problem: String,
    },
}

/// Something that runs plans. Dropping it waits for those under way: they use memory that goes with it.
pub trait Device: Send + 'static {
    /// A plan made ready to run, any number of times; it does not keep the plan.
    type Executable: Send + 'static;

    /// For people: `Apple M4 Max (Metal 4, 40 cores)`.
    fn name(&self) -> &str;

    /// How much it should be given.
    fn limits(&self) -> Limits;

    /// What products are best made of here.
    fn tiles(&self) -> Tiles;

    /// Names whatever the bits of a plan depend on beside the plan: the kernels' text and shapes and what compiled them
    /// ([`Identity`]), the GPU, its driver or system. Another process with the same name computes the same bits; what may not has
    /// another. Asked for after [`specialise`](Self::specialise).
    fn fingerprint(&self) -> String;

    /// Binds the model's shapes, and compiles what can be: a kernel that is refused should be known before anything is served.
    /// Called once, before the first [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// If the library of kernels, or one of them, cannot be made for them.
    fn specialise(&mut self, constants: &[Constant]) -> Result<(), DeviceError>;

    /// New memory, of undefined content, aligned to 256 bytes. `what` is for error messages and debuggers.
    ///
    /// # Errors
    /// [`DeviceError::Memory`].
    fn allocate(&mut self, bytes: u64, what: &str) -> Result<Buffer, DeviceError>;

    /// Makes checkpoint tensors readable by kernels: in place where the device can, else as copies. All tensors come
    /// in one call, so that a device may take whole files. Each result has exactly the tensor's bytes, at an offset that
    /// is a multiple of 16; what the file has less aligned is copied. Kernels never write to them.
    ///
    /// # Errors
    /// [`DeviceError::Memory`].
    fn map(&mut self, tensors: &[Bytes]) -> Result<Vec<Range>, DeviceError>;

    /// Gives memory back once everything submitted so far has run. The handle is not used again.
    fn release(&mut self, buffer: Buffer);

    /// Compiles the plan's kernels and encodes what can be encoded ahead.
    ///
    /// # Errors
    /// [`DeviceError::Kernel`] if a kernel is refused.
    fn prepare(&mut self, plan: &Plan) -> Result<Self::Executable, DeviceError>;

    /// Stores bytes at the front of a range: before everything submitted later, after everything submitted before. Meant for
    /// the records of a step, which are 16 bytes a row, 60 a draw and 16 an adjustment of one (mostly a few, 2 MiB at most), for
    /// tables, once at load, and for snapshots from disk.
    ///
    /// # Errors
    /// If the device failed, now or in an earlier submission.
    fn write(&mut self, to: Range, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies ranges of equal size, `(from, to)`; no `to` overlaps another range of the call.
    ///
    /// # Errors
    /// If the device failed, now or in an earlier submission.
    fn copy(&mut self, ranges: &[(Range, Range)]) -> Result<(), DeviceError>;

    /// Fills ranges with zeros.
    ///
    /// # Errors
    /// If the device failed, now or in an earlier submission.
    fn clear(&mut self, ranges: &[Range]) -> Result<(), DeviceError>;

    /// Starts a run of the plan after everything submitted before.
    ///
    /// # Errors
    /// If the device failed, now or in an earlier submission.
    fn submit(&mut self, executable: &Self::Executable) -> Result<Ticket, DeviceError>;

    /// Waits until a submission, and so every one before it, has run.
    ///
    /// # Errors
    /// If one of them failed; the message names the kernel where the device knows it.
    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError>;

    /// Reads a range. The caller has waited for whatever writes it last; submissions still running may be reading it,
    /// none is writing it. Copies and writes made by [`write`](Self::write), [`copy`](Self::copy) and
    /// [`clear`](Self::clear) after that wait count as submissions: the range is none of theirs.
    ///
    /// # Errors
    /// If the device failed.
    fn read(&mut self, from: Range, bytes: &mut [u8]) -> Result<(), DeviceError>;
}
