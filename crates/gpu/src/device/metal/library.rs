//! The kernels, compiled for this GPU and this model.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDataType, MTLDevice,
    MTLFunctionConstantValues, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode,
    MTLPipelineOption, MTLSize,
};
use tracing::{debug, warn};

use super::archive::Archive;
use super::chip::Chip;
use crate::device::{Constant, DeviceError, Identity};
use crate::kernel::Kernel;
use crate::{METAL_SOURCE, kernels};

/// A compiled kernel.
#[derive(Clone)]
pub(super) struct Pipeline {
    pub(super) state: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    /// The threads that each of its threadgroups must have, where it was compiled for that.
    pub(super) threads: Option<u32>,
}

/// What a SIMD-group has on every Apple GPU, and what the kernels are written for.
const LANES: usize = 32;

/// Ends the names of kernels that use tensor operations.
const TENSOR_SUFFIX: &str = "_tensor";

/// The library of kernels.
pub(super) struct Library {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    library: Retained<ProtocolObject<dyn MTLLibrary>>,
    constants: Retained<MTLFunctionConstantValues>,
    /// Whether the kernels that use tensor operations are in it.
    tensors: bool,
    /// Why not, on a chip that has them.
    refusal: Option<DeviceError>,
    /// Stands for all that the compiled kernels depend on.
    name: String,
    archive: Archive,
    pipelines: HashMap<&'static str, Pipeline>,
}

impl Library {
    /// Compiles the source text and every kernel: with tensor operations if the chip has them, and without if it has not or
    /// if anything is refused with them.
    pub(super) fn compile(chip: &Chip, constants: &[Constant]) -> Result<Self, DeviceError> {
        if !chip.tensors {
            return Self::compile_as(chip, constants, false);
        }
        Self::compile_as(chip, constants, true).or_else(|error| {
            warn!("no tensor operations on {}: {error}", chip.name);
            Ok(Self { refusal: Some(error), ..Self::compile_as(chip, constants, false)? })
        })
    }

    fn compile_as(chip: &Chip, constants: &[Constant], tensors: bool) -> Result<Self, DeviceError> {
        let mut library = Self::compile_text(chip, constants, tensors)?;
        let wanted = kernels::ALL.iter().filter(|kernel| tensors || !kernel.name.ends_with(TENSOR_SUFFIX));
        let refusals: Vec<String> =
            wanted.filter_map(|kernel| library.pipeline(kernel).err()).map(|error| error.to_string()).collect();
        library.archive.save();
        if refusals.is_empty() {
            return Ok(library);
        }
        Err(DeviceError::Failed { name: chip.name.clone(), problem: refusals.join("\n") })
    }

    fn compile_text(chip: &Chip, constants: &[Constant], tensors: bool) -> Result<Self, DeviceError> {
        let options = MTLCompileOptions::new();
        // Never left to the default, which follows the SDK that the program was linked with.
        options.setLanguageVersion(match tensors {
            true => MTLLanguageVersion::Version4_0,
            false => MTLLanguageVersion::Version3_1,
        });
        // Results stay those of the source, and sin and cos hold beyond one turn; docs/metal.md says more.
        options.setMathMode(MTLMathMode::Safe);
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
        let library = chip
            .device
            .newLibraryWithSource_options_error(&NSString::from_str(METAL_SOURCE), Some(&options))
            .map_err(|error| DeviceError::Failed {
                name: chip.name.clone(),
                problem: format!("its compiler refuses the kernels:\n{}", error.localizedDescription()),
            })?;
        let identity = Identity {
            source: METAL_SOURCE,
            options: if tensors { "4.0 safe precise" } else { "3.1 safe precise" },
            constants,
            compiler: &chip.system,
            device: &format!("{} {}", chip.name, chip.architecture),
        };
        let name = identity.name();
        Ok(Self {
            archive: Archive::open(&chip.device, &name),
            name,
            device: chip.device.clone(),
            library,
            constants: values(constants),
            tensors,
            refusal: None,
            pipelines: HashMap::new(),
        })
    }

    /// Whether the kernels that use tensor operations can run.
    pub(super) fn tensors(&self) -> bool {
        self.tensors
    }

    /// Why they cannot, if the chip has such operations.
    pub(super) fn refusal(&self) -> Option<&DeviceError> {
        self.refusal.as_ref()
    }

    /// That of its [`Identity`].
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A kernel.
    pub(super) fn pipeline(&mut self, kernel: &'static Kernel) -> Result<Pipeline, DeviceError> {
        if let Some(pipeline) = self.pipelines.get(kernel.name) {
            return Ok(pipeline.clone());
        }
        let threads = kernel.name.ends_with(TENSOR_SUFFIX).then_some(kernel.max_threads);
        let pipeline = self.make(kernel, threads)?;
        self.pipelines.insert(kernel.name, pipeline.clone());
        Ok(pipeline)
    }

    /// Compiles a function, or takes it from the archive. `threads` are those of each threadgroup that will ever be
    /// launched, which tensor operations need to know.
    fn make(&mut self, kernel: &Kernel, threads: Option<u32>) -> Result<Pipeline, DeviceError> {
        let refused = |problem: String| DeviceError::Kernel { kernel: kernel.name.to_owned(), problem };
        let name = NSString::from_str(kernel.name);
        let function = self
            .library
            .newFunctionWithName_constantValues_error(&name, &self.constants)
            .map_err(|error| refused(format!("not in the library: {}", error.localizedDescription())))?;
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setLabel(Some(&name));
        descriptor.setComputeFunction(Some(&function));
        if let Some(threads) = threads {
            descriptor.setRequiredThreadsPerThreadgroup(MTLSize { width: threads as usize, height: 1, depth: 1 });
        }
        let build = |options| {
            let state = self.device.newComputePipelineStateWithDescriptor_options_reflection_error(
                &descriptor,
                options,
                None,
            )?;
            Ok::<_, Retained<NSError>>(Pipeline { state, threads })
        };
        let archived = self.archive.offer(&descriptor).then(|| build(MTLPipelineOption::FailOnBinaryArchiveMiss));
        if let Some(Ok(pipeline)) = archived {
            return self.check(kernel, pipeline).map_err(refused);
        }
        debug!("compiling {name}");
        self.archive.add(&descriptor);
        let pipeline = build(MTLPipelineOption::None)
            .map_err(|error| refused(format!("no pipeline: {}", error.localizedDescription())))?;
        self.check(kernel, pipeline).map_err(refused)
    }

    fn check(&self, kernel: &Kernel, pipeline: Pipeline) -> Result<Pipeline, String> {
        let (wanted, most) = (kernel.max_threads, pipeline.state.maxTotalThreadsPerThreadgroup());
        if most < wanted as usize {
            return Err(format!("launched with {wanted} threads in a threadgroup, this GPU runs at most {most}"));
        }
        let lanes = pipeline.state.threadExecutionWidth();
        if lanes != LANES {
            return Err(format!("this GPU runs it with SIMD-groups of {lanes} threads, it is written for {LANES}"));
        }
        let used = pipeline.state.staticThreadgroupMemoryLength();
        let most = self.device.maxThreadgroupMemoryLength();
        if used > most {
            return Err(format!("it takes {used} bytes of threadgroup memory, this GPU has {most}"));
        }
        Ok(pipeline)
    }
}

/// Function constants by their index.
fn values(constants: &[Constant]) -> Retained<MTLFunctionConstantValues> {
    let values = MTLFunctionConstantValues::new();
    for (index, constant) in constants.iter().enumerate() {
        let (value, kind): (NonNull<c_void>, _) = match constant {
            Constant::Uint(value) => (NonNull::from(value).cast(), MTLDataType::UInt),
            Constant::Float(value) => (NonNull::from(value).cast(), MTLDataType::Float),
        };
        // SAFETY: `value` points to a live value of the size that `kind` has; Metal copies it and grows to the index.
        unsafe { values.setConstantValue_type_atIndex(value, kind, index) };
    }
    values
}
