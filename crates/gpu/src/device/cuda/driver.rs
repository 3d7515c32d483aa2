//! One GPU's context, and what the driver's answers mean.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use std::{fmt, fs, ptr};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUresult};

/// The architecture that has warpgroups' products, with all that is its own.
pub(super) const WARPGROUPS: &str = "sm_90a";

/// GPUs that the driver shows; 0 if there is no driver.
#[must_use]
pub fn count() -> usize {
    let mut count = 0;
    // SAFETY: the functions are called only where the driver's library is found, and `count` outlives its call.
    let found = unsafe {
        sys::is_culib_present()
            && check(sys::cuInit(0), "cuInit").is_ok()
            && check(sys::cuDeviceGetCount(&raw mut count), "cuDeviceGetCount").is_ok()
    };
    if found { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// What went wrong, if something did.
pub(super) fn check(result: CUresult, call: &str) -> Result<(), String> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text: *const c_char = ptr::null();
    // SAFETY: `text` outlives the call; what it then points to is static.
    let known = unsafe { sys::cuGetErrorString(result, &raw mut text) };
    if known != CUresult::CUDA_SUCCESS || text.is_null() {
        return Err(format!("{call}: {result:?}"));
    }
    // SAFETY: the driver's own text, which ends in a zero.
    let text = unsafe { CStr::from_ptr(text) };
    Err(format!("{call}: {}", text.to_string_lossy()))
}

/// A GPU's primary context, kept as long as something on that GPU is.
#[derive(Debug)]
pub(super) struct Context {
    device: CUdevice,
    context: CUcontext,
}

// SAFETY: the driver's objects may be used from any thread; `enter` makes the context a thread's own.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of the `ordinal`-th GPU.
    pub(super) fn open(ordinal: usize) -> Result<Arc<Self>, String> {
        let found = count();
        if found == 0 {
            return Err("no NVIDIA GPU with a working driver (libcuda.so.1) is there".to_owned());
        }
        if ordinal >= found {
            return Err(format!("there is no GPU {ordinal}, only {found}, counted from 0"));
        }
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: `count` found the driver; the results outlive the calls.
        unsafe {
            check(sys::cuDeviceGet(&raw mut device, ordinal as c_int), "cuDeviceGet")?;
            check(sys::cuDevicePrimaryCtxRetain(&raw mut context, device), "cuDevicePrimaryCtxRetain")?;
        }
        let context = Self { device, context };
        context.enter()?;
        Ok(Arc::new(context))
    }

    /// Makes it the calling thread's.
    pub(super) fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is retained.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "cuCtxSetCurrent")
    }

    /// The GPU's name.
    pub(super) fn name(&self) -> Result<String, String> {
        let mut name = [0; 128];
        // SAFETY: the driver writes at most as many bytes as it is told.
        check(unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, self.device) }, "cuDeviceGetName")?;
        let bytes: Vec<u8> = name.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A number of the GPU.
    pub(super) fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, String> {
        let mut value = 0;
        // SAFETY: `value` outlives the call.
        check(unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, self.device) }, "cuDeviceGetAttribute")?;
        Ok(value)
    }

    /// What NVRTC calls its machine code: `sm_90`.
    pub(super) fn architecture(&self) -> Result<String, String> {
        let major = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        // Warpgroups are of this one architecture, and code that has them runs on no later one.
        Ok(if (major, minor) == (9, 0) { WARPGROUPS.to_owned() } else { format!("sm_{major}{minor}") })
    }

    /// Bytes of its memory that nothing holds. The context is the thread's.
    pub(super) fn free_bytes(&self) -> Result<u64, String> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both outlive the call.
        check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) }, "cuMemGetInfo")?;
        Ok(free as u64)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`; all that was made in it holds it, and so is gone.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// The CUDA version of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(c_int);

impl Version {
    /// The first whose graphs have edges that let a launch begin before another is complete.
    pub(super) const EARLY_EDGES: Self = Self(12030);

    /// The driver's.
    pub(super) fn current() -> Result<Self, String> {
        let mut version = 0;
        // SAFETY: `version` outlives the call.
        check(unsafe { sys::cuDriverGetVersion(&raw mut version) }, "cuDriverGetVersion")?;
        Ok(Self(version))
    }
}

/// The driver's own release and build, of which many have one CUDA version; nothing where the system does not tell.
pub(super) fn release() -> String {
    let text = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}
