//! A library of compiled kernels, and how one is launched.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::OnceLock;
use std::{env, fmt};

use lily_msl::Access;

use crate::compile::{FOLDERS, KERNELS};

/// Why a kernel did not run, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The shared object could not be loaded.
    #[error("{path}: {source}")]
    Load {
        /// Its path.
        path: String,
        /// Why.
        source: libloading::Error,
    },
    /// The launch does not fit the kernel's signature, or the kernel did what Metal leaves undefined.
    #[error("{kernel}: {problem}")]
    Kernel {
        /// Its name.
        kernel: String,
        /// What is wrong; with the kernel's file and line if it began to run.
        problem: String,
    },
}

/// What is bound to a slot of a kernel.
pub enum Argument<'a> {
    /// Bytes that the kernel reads only.
    Read(&'a [u8]),
    /// Bytes that it may write.
    Write(&'a mut [u8]),
}

impl<'a> Argument<'a> {
    /// Elements that the kernel reads only.
    pub fn read<T: bytemuck::NoUninit>(elements: &'a [T]) -> Self {
        Self::Read(bytemuck::cast_slice(elements))
    }

    /// Elements that it may write.
    pub fn write<T: bytemuck::Pod>(elements: &'a mut [T]) -> Self {
        Self::Write(bytemuck::cast_slice_mut(elements))
    }
}

/// One launch of a kernel.
pub struct Launch<'a, 'b> {
    /// The kernel's name in the library: its `host_name` or the function's.
    pub kernel: &'a str,
    /// The bits of the function constants, by index.
    pub constants: &'a [u32],
    /// The buffers in order of the slots, without the parameter struct.
    pub arguments: &'a mut [Argument<'b>],
    /// The bytes of the parameter struct; empty if the kernel has none.
    pub parameters: &'a [u8],
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup, a multiple of 32.
    pub threads: u32,
    /// The order in which threadgroups and threads run: 0 from first to last, 1 from last to first, others at random.
    pub seed: u64,
    /// OS threads that share the threadgroups.
    pub workers: u32,
}

/// As in `runtime/host.h`.
#[repr(C)]
struct RawLaunch {
    kernel: *const c_void,
    buffers: *const *mut c_void,
    buffer_count: u32,
    grid: [u32; 3],
    threads: u32,
    workers: u32,
    constants: *const u32,
    constant_count: u32,
    seed: u64,
}

type KernelAt = unsafe extern "C" fn(u32) -> *const c_void;
type NameOf = unsafe extern "C" fn(*const c_void) -> *const c_char;
type RunLaunch = unsafe extern "C" fn(*const RawLaunch, *mut c_char, u64) -> i32;

unsafe extern "C" {
    fn lily_host_kernel(index: u32) -> *const c_void;
    fn lily_host_kernel_name(kernel: *const c_void) -> *const c_char;
    fn lily_host_launch(launch: *const RawLaunch, message: *mut c_char, capacity: u64) -> i32;
}

/// A kernel that the library holds.
struct Compiled {
    /// The runtime's record of it, which lives as long as the library.
    handle: *const c_void,
    signature: lily_msl::Kernel,
}

/// Compiled kernels.
pub struct Kernels {
    kernels: HashMap<String, Compiled>,
    run: RunLaunch,
    /// What the pointers point into; `None` for what is linked into this program.
    _library: Option<libloading::Library>,
}

// SAFETY: the handles point to constant records, and the runtime's functions may be called from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.kernels.keys()).finish()
    }
}

impl Kernels {
    /// Names the shared object that [`for_tests`](Self::for_tests) takes.
    pub const VARIABLE: &'static str = "LILY_HOST_KERNELS";

    /// The kernels linked into this program.
    ///
    /// # Panics
    /// If `kernels/` has changed into something that is no longer the dialect since it was compiled.
    #[must_use]
    pub fn linked() -> &'static Self {
        static LINKED: OnceLock<Kernels> = OnceLock::new();
        LINKED.get_or_init(|| {
            let library = sources().expect("the build script has read these sources");
            // SAFETY: the runtime's own functions.
            unsafe { Self::new(lily_host_kernel, lily_host_kernel_name, lily_host_launch, None, &library) }
        })
    }

    /// The kernels of the shared object that the environment variable [`VARIABLE`](Self::VARIABLE) names: another
    /// flavour, or a mutant. Without it those that are linked.
    ///
    /// # Panics
    /// If there is no such shared object.
    #[must_use]
    pub fn for_tests() -> &'static Self {
        static LOADED: OnceLock<Kernels> = OnceLock::new();
        match env::var_os(Self::VARIABLE) {
            None => Self::linked(),
            Some(path) => LOADED.get_or_init(|| {
                let library = sources().expect("the build script has read these sources");
                Self::load(Path::new(&path), &library).expect("the shared object of the kernels under test")
            }),
        }
    }

    /// The kernels of a shared object that [`Compiler::link`](crate::compile::Compiler::link) made of `library`.
    ///
    /// # Errors
    /// If it cannot be loaded.
    pub fn load(path: &Path, library: &lily_msl::Library) -> Result<Self, Error> {
        let failed = |source| Error::Load { path: path.display().to_string(), source };
        // SAFETY: the shared object's initialisers only fill its lists of kernels and constants.
        let object = unsafe { libloading::Library::new(path) }.map_err(failed)?;
        // SAFETY: these are the runtime's functions, with the types that `runtime/host.h` gives them.
        let (kernel, name, run) = unsafe {
            (
                *object.get::<KernelAt>(b"lily_host_kernel").map_err(failed)?,
                *object.get::<NameOf>(b"lily_host_kernel_name").map_err(failed)?,
                *object.get::<RunLaunch>(b"lily_host_launch").map_err(failed)?,
            )
        };
        // SAFETY: they belong to `object`, which the result keeps.
        Ok(unsafe { Self::new(kernel, name, run, Some(object), library) })
    }

    /// # Safety
    /// The functions are a runtime's, and valid as long as `object`.
    unsafe fn new(
        kernel: KernelAt,
        name: NameOf,
        run: RunLaunch,
        object: Option<libloading::Library>,
        library: &lily_msl::Library,
    ) -> Self {
        let mut kernels = HashMap::new();
        for index in 0.. {
            // SAFETY: by this function's contract.
            let handle = unsafe { kernel(index) };
            if handle.is_null() {
                break;
            }
            // SAFETY: as above; names are constant strings.
            let name = unsafe { CStr::from_ptr(name(handle)) }.to_string_lossy().into_owned();
            if let Some(signature) = library.kernels().iter().find(|kernel| kernel.name == name) {
                kernels.insert(name, Compiled { handle, signature: signature.clone() });
            }
        }
        Self { kernels, run, _library: object }
    }

    /// The kernels' names, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.kernels.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Whether the library has a kernel of that name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.kernels.contains_key(name)
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// [`Error::Kernel`] if what is bound does not fit the signature, or if threads diverge, or if threadgroup memory is
    /// exceeded. That a kernel stays within its buffers is what the AddressSanitizer flavour checks, not this function.
    pub fn launch(&self, launch: Launch<'_, '_>) -> Result<(), Error> {
        let error = |problem: String| Error::Kernel { kernel: launch.kernel.to_owned(), problem };
        let compiled = self.compiled(launch.kernel)?;
        check(&compiled.signature, &launch).map_err(error)?;
        let bound = compiled.signature.arguments.iter().zip(launch.arguments.iter_mut());
        let slots: Vec<_> = bound
            .map(|(argument, bound)| match bound {
                Argument::Read(bytes) => (argument.slot, bytes.as_ptr().cast_mut()),
                Argument::Write(bytes) => (argument.slot, bytes.as_mut_ptr()),
            })
            .collect();
        let Launch { kernel, constants, parameters, grid, threads, seed, workers, .. } = launch;
        let run = Run { kernel, constants, slots: &slots, parameters, grid, threads, seed, workers };
        // SAFETY: every buffer is borrowed until the launch ends, mutably where the signature has the kernel write.
        unsafe { self.run(run) }
    }

    fn compiled(&self, name: &str) -> Result<&Compiled, Error> {
        let missing = || Error::Kernel { kernel: name.to_owned(), problem: "there is no such kernel".to_owned() };
        self.kernels.get(name).ok_or_else(missing)
    }

    /// Runs a kernel on memory given by pointers.
    ///
    /// # Safety
    /// Each slot points to memory that lives until this returns, that holds all the kernel accesses there, and that
    /// nothing else accesses where the kernel writes.
    pub(crate) unsafe fn run(&self, run: Run<'_>) -> Result<(), Error> {
        let error = |problem: String| Error::Kernel { kernel: run.kernel.to_owned(), problem };
        let compiled = self.compiled(run.kernel)?;
        let mut buffers = vec![std::ptr::null_mut(); slots(&compiled.signature)];
        for &(slot, pointer) in run.slots {
            *buffers.get_mut(slot as usize).ok_or_else(|| error(format!("it has no slot {slot}")))? = pointer.cast();
        }
        // Parameter structs are of 4-byte fields; the copy is aligned for them and of exactly their size.
        let words = run.parameters.as_chunks::<4>().0;
        let mut parameters: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        if let Some((slot, _)) = &compiled.signature.parameters {
            buffers[*slot as usize] = parameters.as_mut_ptr().cast();
        }
        if let Some(slot) = buffers.iter().position(|pointer: &*mut c_void| pointer.is_null()) {
            return Err(error(format!("nothing is bound to slot {slot}")));
        }
        let raw = RawLaunch {
            kernel: compiled.handle,
            buffers: buffers.as_ptr(),
            buffer_count: buffers.len() as u32,
            grid: run.grid,
            threads: run.threads,
            workers: run.workers.max(1),
            constants: run.constants.as_ptr(),
            constant_count: run.constants.len() as u32,
            seed: run.seed,
        };
        let mut message = [0u8; 1024];
        // SAFETY: the handle is this library's, every slot of the kernel is bound, and the memory is as promised.
        let failed = unsafe { (self.run)(&raw, message.as_mut_ptr().cast(), message.len() as u64) };
        if failed == 0 {
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(&message).unwrap_or_default();
        Err(error(text.to_string_lossy().into_owned()))
    }
}

/// A launch whose buffers are pointers, by slot; see [`Launch`].
pub(crate) struct Run<'a> {
    pub(crate) kernel: &'a str,
    pub(crate) constants: &'a [u32],
    pub(crate) slots: &'a [(u32, *mut u8)],
    pub(crate) parameters: &'a [u8],
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) seed: u64,
    pub(crate) workers: u32,
}

/// The kernels' sources, parsed for their signatures.
fn sources() -> Result<lily_msl::Library, lily_msl::Error> {
    lily_msl::Library::parse_with(Path::new(KERNELS), FOLDERS)
}

/// One more than the last slot.
fn slots(signature: &lily_msl::Kernel) -> usize {
    let buffers = signature.arguments.iter().map(|argument| argument.slot + 1);
    let parameters = signature.parameters.iter().map(|(slot, _)| slot + 1);
    buffers.chain(parameters).max().unwrap_or(0) as usize
}

/// What of a launch does not fit the signature.
fn check(signature: &lily_msl::Kernel, launch: &Launch<'_, '_>) -> Result<(), String> {
    let (expected, bound) = (signature.arguments.len(), launch.arguments.len());
    if expected != bound {
        let names: Vec<_> = signature.arguments.iter().map(|argument| argument.name.as_str()).collect();
        return Err(format!("{bound} buffers are bound, but it has {expected}: {}", names.join(", ")));
    }
    for (argument, bound) in signature.arguments.iter().zip(launch.arguments.iter()) {
        let bytes = match bound {
            Argument::Read(_) if argument.access == Access::Write => {
                return Err(format!("it writes {}, which is bound to be read", argument.name));
            }
            Argument::Read(bytes) => bytes.len(),
            Argument::Write(bytes) => bytes.len(),
        };
        if !bytes.is_multiple_of(argument.element_bytes) {
            let (name, element, size) = (&argument.name, &argument.element, argument.element_bytes);
            return Err(format!("{name} has {bytes} bytes, which are not whole elements ({element}, {size} bytes)"));
        }
    }
    if launch.parameters.len() != signature.parameters_size {
        let (given, expected) = (launch.parameters.len(), signature.parameters_size);
        return Err(format!("parameters of {given} bytes, but its struct has {expected}"));
    }
    if launch.threads > signature.max_threads {
        return Err(format!("{} threads a threadgroup, but it allows {}", launch.threads, signature.max_threads));
    }
    Ok(())
}
