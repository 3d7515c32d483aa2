//! Source for Metal itself.

use super::{joined, system_includes};
use crate::library::Library;
use crate::tree::File;

impl Library {
    /// The whole library as one text, for a compiler that can't look for headers. Lines are those of the files.
    pub fn metal_source(&self) -> String {
        let files: Vec<&File> = self.trees().iter().collect();
        system_includes(&files) + &joined(&files, |_, _| {})
    }
}
