//! Compiled kernels kept on disk, so that only the first start compiles.
//!
//! Nothing here is an error: without the file, or with one that cannot be used, the kernels are compiled.

use std::path::PathBuf;
use std::{fs, io, process, slice};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSURL};
use objc2_metal::{MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLDevice};
use tracing::warn;

use crate::device::identity;

/// The file and what is in it.
pub(super) struct Archive {
    /// None if there is no home folder to keep it in.
    path: Option<PathBuf>,
    archive: Option<Retained<ProtocolObject<dyn MTLBinaryArchive>>>,
    /// Whether it holds more than the file.
    grown: bool,
}

impl Archive {
    /// Opens the file of kernels of this name in the user's folder of caches, or begins a new one.
    pub(super) fn open(device: &ProtocolObject<dyn MTLDevice>, name: &str) -> Self {
        let caches = std::env::home_dir().map(|home| home.join("Library/Caches"));
        Self::open_at(device, caches.map(|caches| identity::path(&caches, name, "metalarchive")))
    }

    fn open_at(device: &ProtocolObject<dyn MTLDevice>, path: Option<PathBuf>) -> Self {
        let from = |url: Option<&NSURL>| {
            let descriptor = MTLBinaryArchiveDescriptor::new();
            descriptor.setUrl(url);
            device.newBinaryArchiveWithDescriptor_error(&descriptor)
        };
        let existing = path.as_ref().filter(|path| path.exists()).and_then(|path| {
            let url = NSURL::from_file_path(path)?;
            let opened = from(Some(&url));
            opened.inspect_err(|error| warn!("{} is unusable and replaced: {}", path.display(), text(error))).ok()
        });
        let archive = existing.or_else(|| {
            let fresh = path.as_ref().map(|_| from(None))?;
            fresh.inspect_err(|error| warn!("compiled kernels cannot be kept: {}", text(error))).ok()
        });
        Self { path, archive, grown: false }
    }

    /// Lets a pipeline look itself up here; false if there is no archive.
    pub(super) fn offer(&self, descriptor: &MTLComputePipelineDescriptor) -> bool {
        let Some(archive) = &self.archive else { return false };
        descriptor.setBinaryArchives(Some(&NSArray::from_retained_slice(slice::from_ref(archive))));
        true
    }

    /// Compiles a kernel into the archive. If that fails, making its pipeline fails too and says why.
    pub(super) fn add(&mut self, descriptor: &MTLComputePipelineDescriptor) {
        if let Some(archive) = &self.archive {
            self.grown |= archive.addComputePipelineFunctionsWithDescriptor_error(descriptor).is_ok();
        }
    }

    /// Writes the file if anything was added: under another name first, so that it is never half there.
    pub(super) fn save(&mut self) {
        let (Some(archive), Some(path), true) = (&self.archive, &self.path, self.grown) else { return };
        self.grown = false;
        let draft = path.with_extension(format!("{}.draft", process::id()));
        let write = || -> Result<(), String> {
            let io = |error: io::Error| error.to_string();
            fs::create_dir_all(path.parent().unwrap_or(path)).map_err(io)?;
            let url = NSURL::from_file_path(&draft).ok_or("not a path")?;
            archive.serializeToURL_error(&url).map_err(|error| text(&error))?;
            fs::rename(&draft, path).map_err(io)
        };
        if let Err(problem) = write() {
            warn!("the compiled kernels are not kept in {}: {problem}", path.display());
            let _ = fs::remove_file(&draft);
        }
    }
}

fn text(error: &NSError) -> String {
    error.localizedDescription().to_string()
}

#[cfg(test)]
mod tests {
    use objc2_foundation::ns_string;
    use objc2_metal::{MTLCreateSystemDefaultDevice, MTLLibrary, MTLPipelineOption};

    use super::*;

    const SOURCE: &str = "kernel void one(device uint* x [[buffer(0)]]) { x[0] = 1; }";

    /// Whether a kernel is in the archive.
    fn has(
        archive: &Archive,
        device: &ProtocolObject<dyn MTLDevice>,
        descriptor: &MTLComputePipelineDescriptor,
    ) -> bool {
        let options = MTLPipelineOption::FailOnBinaryArchiveMiss;
        archive.offer(descriptor)
            && device.newComputePipelineStateWithDescriptor_options_reflection_error(descriptor, options, None).is_ok()
    }

    #[test]
    fn what_is_compiled_once_is_found_again_and_a_broken_file_is_replaced() {
        let Some(device) = MTLCreateSystemDefaultDevice() else { return };
        let library = device.newLibraryWithSource_options_error(&objc2_foundation::NSString::from_str(SOURCE), None);
        let function = library.unwrap().newFunctionWithName(ns_string!("one")).unwrap();
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setComputeFunction(Some(&function));

        let folder = std::env::temp_dir().join(format!("lily-archive-{}", process::id()));
        let path = folder.join("lily/kernels.metalarchive");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, b"not an archive").unwrap();
        let mut archive = Archive::open_at(&device, Some(path.clone()));
        assert!(!has(&archive, &device, &descriptor));
        archive.add(&descriptor);
        archive.save();

        let again = Archive::open_at(&device, Some(path.clone()));
        assert!(has(&again, &device, &descriptor));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "drafts are left");
        fs::remove_dir_all(folder).unwrap();
    }
}
