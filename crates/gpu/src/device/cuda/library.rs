//! The kernels as machine code for one GPU and one model.

use std::ffi::{CString, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs, process, ptr};

use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute, CUmodule};
use cudarc::nvrtc::sys as nvrtc;

use super::driver::{Context, check};
use crate::device::{Constant, DeviceError, Identity, identity};
use crate::kernel::Kernel;
use crate::kernels::FUNCTION_CONSTANTS;

/// All of `kernels/` as one text that NVRTC compiles.
const SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.cu"));

/// Compiles the kernels for a GPU that need not be here, `sm_90` say, and a model's shapes. What was compiled before is read
/// from `lily/` in the user's folder of caches, where a new result is kept if that can be written.
///
/// # Errors
/// If NVRTC is not there or refuses.
pub fn compile(architecture: &str, constants: &[Constant]) -> Result<Vec<u8>, DeviceError> {
    let recipe = Recipe::new(architecture, constants, compiler_version());
    if let Some(code) = recipe.kept().as_deref().and_then(read) {
        return Ok(code);
    }
    recipe.make()
}

/// How NVRTC compiles the kernels.
struct Recipe {
    flags: Vec<String>,
    /// Stands for all that the result depends on.
    name: String,
}

impl Recipe {
    fn new(architecture: &str, constants: &[Constant], compiler: Option<[c_int; 2]>) -> Self {
        let flags = flags(architecture, constants);
        let (options, compiler) = (flags.join(" "), format!("NVRTC {compiler:?}"));
        let identity =
            Identity { source: SOURCE, options: &options, constants, compiler: &compiler, device: architecture };
        let name = identity.name();
        Self { flags, name }
    }

    /// Where the result is kept, if anywhere.
    fn kept(&self) -> Option<PathBuf> {
        let caches = folder_of_caches(|name| env::var_os(name).map(PathBuf::from));
        caches.map(|caches| identity::path(&caches, &self.name, "cubin"))
    }

    fn make(&self) -> Result<Vec<u8>, DeviceError> {
        let code =
            run_nvrtc(&self.flags).map_err(|problem| DeviceError::Failed { name: "NVRTC".to_owned(), problem })?;
        if let Some(path) = self.kept() {
            // Only time is lost if it cannot be kept.
            let _ = keep(&path, &code);
        }
        Ok(code)
    }
}

/// What is kept there, if that is the whole of it.
fn read(path: &Path) -> Option<Vec<u8>> {
    let code = fs::read(path).ok()?;
    if !is_whole(&code) {
        tracing::warn!("{} is damaged: the kernels are compiled again", path.display());
        return None;
    }
    Some(code)
}

/// Whether an ELF image of 64 bits has both its tables, which machine code for NVIDIA's GPUs has at its end. The driver is told no
/// length and would read on.
fn is_whole(code: &[u8]) -> bool {
    let number = |at: usize, bytes: usize| {
        let part = code.get(at..at + bytes)?;
        Some(part.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte)))
    };
    let table_ends = |offset, entry, count| {
        let (offset, entry, count) = (number(offset, 8)?, number(entry, 2)?, number(count, 2)?);
        (count > 0).then(|| offset.saturating_add(entry * count))
    };
    let ends = [table_ends(32, 54, 56), table_ends(40, 58, 60)];
    code.starts_with(b"\x7fELF") && ends.iter().all(|end| end.is_some_and(|end| end <= code.len() as u64))
}

/// Whether NVRTC, which compiles the kernels, is there.
#[must_use]
pub fn has_compiler() -> bool {
    // SAFETY: it only looks for the library.
    unsafe { nvrtc::is_culib_present() }
}

fn flags(architecture: &str, constants: &[Constant]) -> Vec<String> {
    let mut flags = vec![
        format!("--gpu-architecture={architecture}"),
        "--std=c++20".to_owned(),
        "--device-as-default-execution-space".to_owned(),
        // Tensor operations are Metal's.
        "-D__METAL_VERSION__=310".to_owned(),
    ];
    flags.extend(FUNCTION_CONSTANTS.iter().zip(constants).map(|(name, constant)| match constant {
        Constant::Uint(value) => format!("-DLILY_{name}={value}u"),
        Constant::Float(value) => format!("-DLILY_{name}={value:e}f"),
    }));
    flags
}

fn folder_of_caches(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    variable("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
}

/// NVRTC's, major and minor; without NVRTC nothing.
fn compiler_version() -> Option<[c_int; 2]> {
    let [mut major, mut minor] = [0; 2];
    // SAFETY: the library is there, and writes two numbers.
    let told = has_compiler().then(|| unsafe { nvrtc::nvrtcVersion(&raw mut major, &raw mut minor) });
    told.filter(|told| *told == nvrtc::nvrtcResult::NVRTC_SUCCESS).map(|_| [major, minor])
}

/// Under another name first, so that no one reads half of it.
fn keep(path: &Path, code: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let partial = path.with_extension(format!("{}.partial", process::id()));
    fs::write(&partial, code).and_then(|()| fs::rename(&partial, path)).inspect_err(|_| {
        let _ = fs::remove_file(&partial);
    })
}

fn run_nvrtc(flags: &[String]) -> Result<Vec<u8>, String> {
    if !has_compiler() {
        return Err(
            "libnvrtc.so is not found: it comes with the CUDA toolkit or with `pip install nvidia-cuda-nvrtc`, and \
                    LD_LIBRARY_PATH has to name its folder"
                .to_owned(),
        );
    }
    let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
    let (source, name) = (text(SOURCE)?, text("kernels.cu")?);
    let flags = flags.iter().map(|flag| text(flag)).collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<_> = flags.iter().map(|flag| flag.as_ptr()).collect();
    let mut program = ptr::null_mut();
    // SAFETY: the texts end in zeros and outlive the call; there are no headers.
    let created = unsafe {
        nvrtc::nvrtcCreateProgram(&raw mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null())
    };
    said(created, "nvrtcCreateProgram")?;
    let mut program = Program(program);
    // SAFETY: as many texts as told, which outlive the call.
    let compiled = unsafe { nvrtc::nvrtcCompileProgram(program.0, pointers.len() as c_int, pointers.as_ptr()) };
    said(compiled, "nvrtcCompileProgram").map_err(|problem| format!("{problem}\n{}", program.log()))?;
    let mut size = 0;
    // SAFETY: the program is compiled; `code` has the size that NVRTC asks for.
    unsafe {
        said(nvrtc::nvrtcGetCUBINSize(program.0, &raw mut size), "nvrtcGetCUBINSize")?;
        let mut code = vec![0u8; size];
        said(nvrtc::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()), "nvrtcGetCUBIN")?;
        Ok(code)
    }
}

fn said(result: nvrtc::nvrtcResult, call: &str) -> Result<(), String> {
    if result == nvrtc::nvrtcResult::NVRTC_SUCCESS { Ok(()) } else { Err(format!("{call}: {result:?}")) }
}

struct Program(nvrtc::nvrtcProgram);

impl Program {
    /// What the compiler says.
    fn log(&mut self) -> String {
        let mut size = 0;
        // SAFETY: the program is there; `log` has the size that NVRTC asks for.
        unsafe {
            if said(nvrtc::nvrtcGetProgramLogSize(self.0, &raw mut size), "").is_err() {
                return String::new();
            }
            let mut log = vec![0u8; size];
            let _ = nvrtc::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast());
            String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned()
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `nvrtcCreateProgram`, and nothing else has it.
        let _ = unsafe { nvrtc::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

/// The kernels on the GPU.
#[derive(Debug)]
pub(super) struct Library {
    module: CUmodule,
    name: String,
    context: Arc<Context>,
}

// SAFETY: the driver's objects may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above; nothing changes it.
unsafe impl Sync for Library {}

impl Library {
    /// Brings the kernels to the GPU, whose context is the thread's. Code that was kept and does not load is compiled again.
    pub(super) fn of(
        context: &Arc<Context>,
        architecture: &str,
        constants: &[Constant],
        failed: impl Fn(String) -> DeviceError,
    ) -> Result<Arc<Self>, DeviceError> {
        let recipe = Recipe::new(architecture, constants, compiler_version());
        let load = |code: &[u8]| Self::load(Arc::clone(context), code, recipe.name.clone());
        if let Some((path, code)) = recipe.kept().and_then(|path| read(&path).map(|code| (path, code))) {
            match load(&code) {
                Ok(library) => return Ok(library),
                Err(problem) => {
                    tracing::warn!("{}: {problem}: the kernels are compiled again", path.display());
                    let _ = fs::remove_file(path);
                }
            }
        }
        load(&recipe.make()?).map_err(failed)
    }

    /// Brings machine code to the GPU.
    fn load(context: Arc<Context>, code: &[u8], name: String) -> Result<Arc<Self>, String> {
        let mut module = ptr::null_mut();
        // SAFETY: the code is an ELF image, which says its own length.
        check(unsafe { sys::cuModuleLoadData(&raw mut module, code.as_ptr().cast()) }, "cuModuleLoadData")?;
        Ok(Arc::new(Self { module, name, context }))
    }

    /// Stands for the kernels' text and shapes, the GPU's architecture and NVRTC's version.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A kernel, ready to be given what storage it is launched with.
    pub(super) fn function(&self, kernel: &Kernel) -> Result<CUfunction, String> {
        let name = CString::new(format!("lily_{}", kernel.name)).map_err(|error| error.to_string())?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name outlives the call.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, self.module, name.as_ptr()) };
        check(found, "cuModuleGetFunction")?;
        if kernel.launch_bytes > 0 {
            let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is of this module.
            let allowed = unsafe { sys::cuFuncSetAttribute(function, most, kernel.launch_bytes as c_int) };
            check(allowed, "cuFuncSetAttribute")?;
        }
        if kernel.begins_early {
            // A multiprocessor runs it beside the one before only if it is divided up alike for both: all storage for threadgroups.
            let divided = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: the function is of this module.
            check(unsafe { sys::cuFuncSetAttribute(function, divided, 100) }, "cuFuncSetAttribute")?;
        }
        Ok(function)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: whatever runs its functions holds it.
            let _ = unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHES: &str = "/caches";

    #[test]
    fn code_is_found_again_only_for_the_same_gpu_shapes_and_compiler() {
        let name = |architecture: &str, hidden: u32, version| {
            Recipe::new(architecture, &[Constant::Uint(hidden)], version).name
        };
        let named = || {
            [("sm_90", 256, [13, 0]), ("sm_90", 2048, [13, 0]), ("sm_100", 256, [13, 0]), ("sm_90", 256, [12, 9])]
                .map(|(architecture, hidden, version)| name(architecture, hidden, Some(version)))
        };
        let mut names = named().to_vec();
        names.push(name("sm_90", 256, None));
        assert_eq!(names[..4], named());
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 5, "{names:?}");
    }

    #[test]
    fn damaged_code_is_not_taken() {
        // Two entries of 56 bytes at 64, two of 64 at 176.
        let mut code = vec![0; 304];
        code[..4].copy_from_slice(b"\x7fELF");
        (code[32], code[54], code[56]) = (64, 56, 2);
        (code[40], code[58], code[60]) = (176, 64, 2);
        assert!(is_whole(&code));
        for short in [0, 3, 40, 64, 180, 303] {
            assert!(!is_whole(&code[..short]), "{short}");
        }
        assert!(!is_whole(&[0; 304]), "a file whose bytes never reached the disk");
    }

    #[test]
    fn constants_are_literals_of_their_type() {
        let flags = flags("sm_90", &[Constant::Uint(7), Constant::Float(1e-6), Constant::Float(1e7)]);
        assert_eq!(
            flags[4..].iter().map(|flag| flag.split_once('=').unwrap().1).collect::<Vec<_>>(),
            ["7u", "1e-6f", "1e7f"]
        );
    }

    #[test]
    fn a_relative_folder_of_caches_is_passed_over() {
        let folder = |xdg: &'static str| {
            folder_of_caches(move |name| {
                (name == "HOME" || !xdg.is_empty()).then(|| if name == "HOME" { "/home" } else { xdg }.into())
            })
        };
        assert_eq!(folder(CACHES), Some(CACHES.into()));
        assert_eq!(folder("caches"), Some("/home/.cache".into()));
        assert_eq!(folder(""), Some("/home/.cache".into()));
    }
}
