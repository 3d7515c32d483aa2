//! Which instruction set the kernels use.

use std::fmt;

/// Instruction sets the kernels are written for. All of them give the same bits; they differ in speed only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// Plain Rust, for every machine: the specification of the others.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C (Haswell, Zen and later).
    Avx2,
    /// x86-64 with AVX-512 (F, BW, VL) and VNNI besides (Ice Lake, Zen 4 and later).
    Avx512Vnni,
}

impl Simd {
    /// Every variant, slowest first.
    const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512Vnni];

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
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512Vnni => false,
        }
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512Vnni => "avx512-vnni",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_last_available() {
        let available = Simd::available();
        assert_eq!(available.first(), Some(&Simd::Scalar));
        assert_eq!(available.last(), Some(&Simd::best()));
    }
}
