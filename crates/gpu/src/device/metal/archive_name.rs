//! The name of the file that holds compiled kernels.

use std::path::{Path, PathBuf};

use crate::device::Constant;

/// Everything that compiled code depends on. What differs in any of it never shares a file, so a file found by its name
/// suits, and a new version of macOS or of Lily begins a new one.
pub(super) struct Identity<'a> {
    /// The kernels' source text.
    pub(super) source: &'a str,
    /// How it is compiled: language version and mathematics.
    pub(super) options: &'a str,
    /// The model's shapes.
    pub(super) constants: &'a [Constant],
    /// macOS with its build number.
    pub(super) system: &'a str,
    /// The GPU's name and architecture.
    pub(super) device: &'a str,
}

impl Identity<'_> {
    /// The archive's path below the user's folder of caches.
    pub(super) fn path(&self, caches: &Path) -> PathBuf {
        let mut hash = Fnv::new();
        for part in [self.source, self.options, self.system, self.device] {
            hash.add(&(part.len() as u64).to_le_bytes());
            hash.add(part.as_bytes());
        }
        for constant in self.constants {
            match constant {
                Constant::Uint(value) => hash.add(&[&[0], &value.to_le_bytes()[..]].concat()),
                Constant::Float(value) => hash.add(&[&[1], &value.to_le_bytes()[..]].concat()),
            }
        }
        caches.join("lily").join(format!("kernels-{:016x}.metalarchive", hash.0))
    }
}

/// FNV-1a with 64 bits: the same on every machine and for every version of Rust, which std's hashers don't promise.
struct Fnv(u64);

impl Fnv {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: Identity<'_> = Identity {
        source: "kernel",
        options: "3.1 safe",
        constants: &[Constant::Uint(2048), Constant::Float(1e-6)],
        system: "Version 15.3 (Build 24D60)",
        device: "Apple M1 applegpu_g13g",
    };

    #[test]
    fn the_name_is_the_same_everywhere() {
        let path = THIS.path(Path::new("/Users/me/Library/Caches"));
        assert_eq!(path, Path::new("/Users/me/Library/Caches/lily/kernels-b481e8c8b670b894.metalarchive"));
    }

    #[test]
    fn each_part_changes_it() {
        let others = [
            Identity { source: "kernel ", ..THIS },
            Identity { options: "4.0 safe", ..THIS },
            Identity { constants: &[Constant::Uint(256), Constant::Float(1e-6)], ..THIS },
            Identity { constants: &[Constant::Uint(2048), Constant::Uint(1e-6f32.to_bits())], ..THIS },
            Identity { system: "Version 15.4 (Build 24E248)", ..THIS },
            Identity { device: "Apple M2 applegpu_g14g", ..THIS },
            // The same characters, divided otherwise.
            Identity { source: "kernel3", options: ".1 safe", ..THIS },
        ];
        let mut names: Vec<_> = others.iter().chain([&THIS]).map(|identity| identity.path(Path::new(""))).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), others.len() + 1);
    }
}
