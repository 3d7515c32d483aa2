//! Elementary functions, made of operations that are the same bits in a scalar and in a vector register, so that a loop
//! over them may be vectorised for any instruction set. Additions and products only, never fused: on a machine without
//! FMA a fused one would be a call.

/// eˣ to about 1 ulp; subnormal results are rounded, too large ones are infinite, NaN stays NaN.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2, so eˣ = 2ⁿ·eʳ; eʳ by its Taylor polynomial of degree 7, whose remainder is below
/// r⁸/8! < 6·10⁻⁹.
#[inline]
#[must_use]
pub(crate) fn exp(x: f32) -> f32 {
    /// Added to a small number it leaves the nearest integer in the mantissa's low bits: 1.5·2²³.
    const ROUNDER: f32 = 12_582_912.0;
    /// The leading 12 bits of ln 2: n·LN_2_HIGH is exact for |n| < 2¹².
    const LN_2_HIGH: f32 = 0.693_115_23;
    /// ln 2 − LN_2_HIGH.
    const LN_2_LOW: f32 = 3.194_618_3e-5;
    // Beyond these the result is 0 or infinite. Comparisons, not min and max: NaN must pass.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };

    let rounded = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = (rounded.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let whole = rounded - ROUNDER;
    let r = (x - whole * LN_2_HIGH) - whole * LN_2_LOW;

    let mut tail = 1.0 / 5040.0;
    for factorial in [720.0, 120.0, 24.0, 6.0, 2.0] {
        tail = tail * r + 1.0 / factorial;
    }
    let e = 1.0 + (r + r * r * tail);
    // 2ⁿ in two factors, because n runs from −150 to 128: only the last product rounds.
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32).wrapping_shl(23));
    e * power(half) * power(n.wrapping_sub(half))
}

/// 1 / (1 + e⁻ˣ).
#[inline]
#[must_use]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x · sigmoid(x).
#[inline]
#[must_use]
pub(crate) fn silu(x: f32) -> f32 {
    // Below −200 the sigmoid is 0, and −∞ · 0 would be NaN.
    let x = if x < -200.0 { -200.0 } else { x };
    x * sigmoid(x)
}

/// ln(1 + eˣ), as max(x, 0) + ln(1 + e^−|x|), which neither overflows nor cancels.
///
/// ln(1 + u) = 2·artanh(s) = 2(s + s³/3 + s⁵/5 + …) with s = u/(2 + u) ≤ 1/3; what follows the term in s¹⁷ is below 10⁻⁹ of it.
#[inline]
#[must_use]
pub(crate) fn softplus(x: f32) -> f32 {
    let u = exp(-x.abs());
    let s = u / (2.0 + u);
    let square = s * s;
    let mut tail = 2.0 / 17.0;
    for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        tail = tail * square + 2.0 / odd;
    }
    let log = 2.0 * s + s * square * tail;
    (if x > 0.0 { x } else { 0.0 }) + log
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 1,009th float of each sign, and the special ones.
    fn floats() -> impl Iterator<Item = f32> {
        let magnitudes = (0..=f32::INFINITY.to_bits()).step_by(1009).chain([f32::INFINITY.to_bits()]);
        magnitudes.flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
    }

    /// How far `got` is from `exact`, in units of the last place of an f32 near it.
    fn ulps(got: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        if got == nearest {
            return 0.0;
        }
        let spacing = f64::from(nearest.abs().next_up()) - f64::from(nearest.abs());
        (f64::from(got) - exact).abs() / spacing
    }

    fn worst(function: fn(f32) -> f32, exact: fn(f64) -> f64) -> (f64, f32) {
        let error = |x: f32| (ulps(function(x), exact(f64::from(x))), x);
        floats().map(error).fold((0.0, 0.0), |worst, this| if this.0 > worst.0 { this } else { worst })
    }

    #[test]
    fn exp_is_near_everywhere() {
        let (error, at) = worst(exp, f64::exp);
        assert!(error <= 1.5, "{error} ulp at {at}");
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!([exp(0.0), exp(-0.0)], [1.0, 1.0]);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sigmoid_is_near_everywhere_but_where_it_is_subnormal() {
        for x in floats().filter(|&x| x > -87.0) {
            let error = ulps(sigmoid(x), 1.0 / (1.0 + (-f64::from(x)).exp()));
            assert!(error <= 3.0, "{error} ulp at {x}");
        }
        assert!(floats().filter(|&x| x <= -87.0).all(|x| (0.0..=2e-38).contains(&sigmoid(x))));
        assert_eq!([sigmoid(f32::INFINITY), sigmoid(0.0), sigmoid(f32::NEG_INFINITY)], [1.0, 0.5, 0.0]);
        assert!(sigmoid(f32::NAN).is_nan());
    }

    #[test]
    fn silu_is_near_everywhere_but_where_it_is_subnormal() {
        for x in floats().filter(|&x| x > -87.0) {
            let error = ulps(silu(x), f64::from(x) / (1.0 + (-f64::from(x)).exp()));
            assert!(error <= 4.0, "{error} ulp at {x}");
        }
        assert!(floats().filter(|&x| x <= -87.0).all(|x| (-2e-36..=0.0).contains(&silu(x))));
        assert_eq!(silu(f32::INFINITY), f32::INFINITY);
        assert_eq!(silu(f32::NEG_INFINITY), 0.0);
        assert!(silu(f32::NAN).is_nan());
    }

    #[test]
    fn softplus_is_near_everywhere() {
        let (error, at) = worst(softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p());
        assert!(error <= 4.0, "{error} ulp at {at}");
        assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
        assert_eq!(softplus(f32::NEG_INFINITY), 0.0);
        assert!(softplus(f32::NAN).is_nan());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn vectors_get_the_bits_of_scalars() {
        /// One loop a function, which is what the compiler turns into vectors.
        #[target_feature(enable = "avx2,fma")]
        fn vectorised(x: &[f32], [exps, sigmoids, silus, softpluses]: &mut [Vec<f32>; 4]) {
            x.iter().zip(exps).for_each(|(x, out)| *out = exp(*x));
            x.iter().zip(sigmoids).for_each(|(x, out)| *out = sigmoid(*x));
            x.iter().zip(silus).for_each(|(x, out)| *out = silu(*x));
            x.iter().zip(softpluses).for_each(|(x, out)| *out = softplus(*x));
        }
        if !crate::simd::Simd::Avx2.is_available() {
            return;
        }
        let x: Vec<f32> = floats().collect();
        let mut outs: [Vec<f32>; 4] = std::array::from_fn(|_| vec![0.0; x.len()]);
        // SAFETY: the machine has AVX2 and FMA.
        unsafe { vectorised(&x, &mut outs) };
        for (i, &x) in x.iter().enumerate() {
            let one = std::hint::black_box(x);
            let expected = [exp(one), sigmoid(one), silu(one), softplus(one)];
            assert_eq!(expected.map(f32::to_bits), [0, 1, 2, 3].map(|f| outs[f][i].to_bits()), "at {x}");
        }
    }
}
