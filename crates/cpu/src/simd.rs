//! Which instruction set the kernels use.

use std::fmt;
use std::str::FromStr;

/// Instruction sets the kernels are written for. All of them give the same bits; they differ in speed only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// Plain Rust, for every machine: the specification of the others.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C (Haswell, Zen and later).
    Avx2,
    /// x86-64 with AVX-512 (F, BW, VL) and VNNI besides (Ice Lake, Zen 4 and later).
    Avx512Vnni,
    /// Every aarch64.
    Neon,
    /// aarch64 with `sdot` (Apple's M1, Neoverse N1 and later).
    NeonDotprod,
    /// aarch64 with `smmla` besides (Apple's M2, Neoverse V1 and N2 and later).
    NeonI8mm,
}

impl Simd {
    /// Every variant, of each architecture the slowest first.
    const ALL: [Self; 6] = [Self::Scalar, Self::Avx2, Self::Avx512Vnni, Self::Neon, Self::NeonDotprod, Self::NeonI8mm];

    /// The fastest this machine has.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|simd| simd.is_available()).unwrap_or(Self::Scalar)
    }

    /// All this machine has, slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|simd| simd.is_available()).collect()
    }

    /// Whether this machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => Self::NeonDotprod.is_available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            // Those of other architectures.
            _ => false,
        }
    }
}

/// By the names that [`Display`](fmt::Display) gives; one that this machine lacks is refused.
impl FromStr for Simd {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let available = Self::available();
        available.iter().copied().find(|simd| simd.to_string() == name).ok_or_else(|| {
            let names: Vec<String> = available.iter().map(Self::to_string).collect();
            format!("{name} is not among what this machine has: {}", names.join(", "))
        })
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Neon => "neon",
            Self::NeonDotprod => "neon-dotprod",
            Self::NeonI8mm => "neon-i8mm",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_last_available() {
        let available = Simd::available();
        let names: Vec<String> = available.iter().map(ToString::to_string).collect();
        println!("instruction sets: {}", names.join(" "));
        assert_eq!(available.first(), Some(&Simd::Scalar));
        assert_eq!(available.last(), Some(&Simd::best()));
    }

    #[test]
    fn names_are_read_back() {
        for simd in Simd::available() {
            assert_eq!(simd.to_string().parse(), Ok(simd));
        }
        assert!("sse2".parse::<Simd>().unwrap_err().contains("scalar"));
    }
}
