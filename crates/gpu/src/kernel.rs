//! What the bindings generated from `kernels/*.metal` are made of.

use std::marker::PhantomData;

use crate::device::Range;

/// What a kernel does with a buffer, from the signature: `device const T*` is read, `device T*` read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only.
    Read,
    /// Reads and writes.
    Write,
}

/// A buffer argument of a kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct Argument {
    /// As in the source.
    pub name: &'static str,
    /// `[[buffer(slot)]]`
    pub slot: u32,
    /// From const-ness.
    pub access: Access,
    /// Element type, as in the source: `bfloat`.
    pub element: &'static str,
    /// Its size.
    pub element_bytes: usize,
}

/// A kernel of the library.
#[derive(Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name in the library: the function's, or the `host_name` of an instantiation.
    pub name: &'static str,
    /// The file it stands in: `project.metal`.
    pub file: &'static str,
    /// Its buffers in the order of their slots, without the parameter struct.
    pub arguments: &'static [Argument],
    /// The slot of the parameter struct, after all buffers. Meaningless if there is none.
    pub parameters_slot: u32,
    /// Bytes of the parameter struct, 0 if there is none.
    pub parameters_size: usize,
    /// `max_total_threads_per_threadgroup`, or 1024.
    pub max_threads: u32,
    /// Bytes of its threadgroup arrays.
    pub threadgroup_bytes: u32,
    /// Bytes of threadgroup storage that it is given at launch beside them: only to what is made for one kind of GPU.
    pub launch_bytes: u32,
    /// It waits for the dispatch before it itself, when it has begun on what no dispatch before it in its plan writes: only of
    /// what is made for one kind of GPU.
    pub begins_early: bool,
}

impl Kernel {
    /// SIMD-groups of a threadgroup that has all its threads.
    #[must_use]
    pub const fn simdgroups(&self) -> usize {
        self.max_threads as usize / 32
    }
}

/// A range of a buffer that holds elements of type `T`.
#[derive(Debug)]
pub struct Slice<T> {
    /// The bytes.
    pub range: Range,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for Slice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slice<T> {}

impl<T> Slice<T> {
    /// The elements of a range.
    ///
    /// # Panics
    /// If offset or size is not a multiple of an element's.
    #[must_use]
    pub fn new(range: Range) -> Self {
        let size = size_of::<T>() as u64;
        assert!(range.offset.is_multiple_of(align_of::<T>() as u64) && range.bytes.is_multiple_of(size), "{range:?}");
        Self { range, element: PhantomData }
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.range.bytes / size_of::<T>() as u64
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.bytes == 0
    }

    /// `count` elements from element `first` on.
    ///
    /// # Panics
    /// If they are not all within the slice.
    #[must_use]
    pub fn part(&self, first: u64, count: u64) -> Self {
        let size = size_of::<T>() as u64;
        Self::new(self.range.part(first * size, count * size))
    }
}
