//! The aarch64 instructions that the standard library has no stable name for yet.

use std::arch::aarch64::{int8x16_t, int32x4_t};
use std::arch::asm;

/// Adds to each lane the dot product of the four bytes of `a` and of `b` that lie there.
///
/// # Safety
/// The processor has `dotprod`, and the function that this is inlined into enables it.
#[inline(always)]
pub(crate) unsafe fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes the named registers only; the instruction exists by the caller's promise.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sums, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// `a` and `b` are two rows of eight bytes each. Adds the dot products of a's first row with b's first and second, then of
/// a's second row with both.
///
/// # Safety
/// The processor has `i8mm`, and the function that this is inlined into enables it.
#[inline(always)]
pub(crate) unsafe fn smmla(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes the named registers only; the instruction exists by the caller's promise.
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sums, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}
