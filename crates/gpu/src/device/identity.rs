//! What compiled kernels depend on, and so the bits that they compute.

#[cfg(any(target_os = "macos", feature = "cuda", test))]
use std::path::{Path, PathBuf};

use super::Constant;

/// Everything that compiled kernels depend on. What differs in any of it never shares a name, so what is found by its name suits:
/// a file of compiled kernels, or of snapshots ([`Device::fingerprint`](super::Device::fingerprint)).
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The kernels' source text.
    pub source: &'a str,
    /// How it is compiled: language version and mathematics, or a compiler's flags.
    pub options: &'a str,
    /// The model's shapes.
    pub constants: &'a [Constant],
    /// What compiles it, with its version: macOS with its build number, NVRTC.
    pub compiler: &'a str,
    /// The GPU's name and architecture, as far as the compiler asks for them.
    pub device: &'a str,
}

impl Identity<'_> {
    /// The same on every machine and for every version of Rust.
    #[must_use]
    pub fn name(&self) -> String {
        let mut hash = Fnv::new();
        for part in [self.source, self.options, self.compiler, self.device] {
            hash.add(&(part.len() as u64).to_le_bytes());
            hash.add(part.as_bytes());
        }
        for constant in self.constants {
            match constant {
                Constant::Uint(value) => hash.add(&[&[0], &value.to_le_bytes()[..]].concat()),
                Constant::Float(value) => hash.add(&[&[1], &value.to_le_bytes()[..]].concat()),
            }
        }
        format!("{:016x}", hash.0)
    }
}

/// Where compiled kernels of this name are kept below the user's folder of caches.
#[cfg(any(target_os = "macos", feature = "cuda", test))]
pub(super) fn path(caches: &Path, name: &str, ending: &str) -> PathBuf {
    caches.join("lily").join(format!("kernels-{name}.{ending}"))
}

/// FNV-1a with 64 bits, which std's hashers don't promise to be.
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
        compiler: "Version 15.3 (Build 24D60)",
        device: "Apple M1 applegpu_g13g",
    };

    #[test]
    fn the_name_is_the_same_everywhere() {
        let path = path(Path::new("/Users/me/Library/Caches"), &THIS.name(), "metalarchive");
        assert_eq!(path, Path::new("/Users/me/Library/Caches/lily/kernels-b481e8c8b670b894.metalarchive"));
    }

    #[test]
    fn each_part_changes_it() {
        let others = [
            Identity { source: "kernel ", ..THIS },
            Identity { options: "4.0 safe", ..THIS },
            Identity { constants: &[Constant::Uint(256), Constant::Float(1e-6)], ..THIS },
            Identity { constants: &[Constant::Uint(2048), Constant::Uint(1e-6f32.to_bits())], ..THIS },
            Identity { compiler: "Version 15.4 (Build 24E248)", ..THIS },
            Identity { device: "Apple M2 applegpu_g14g", ..THIS },
            // The same characters, divided otherwise.
            Identity { source: "kernel3", options: ".1 safe", ..THIS },
        ];
        let mut names: Vec<_> = others.iter().chain([&THIS]).map(Identity::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), others.len() + 1);
    }
}
