//! Vector registers, one type per instruction set, for kernels that are written with explicit vectors.
//!
//! ```text
//!   Vector: loads, stores and arithmetic ─┬─ x86.rs: AVX-512, AVX2 and SSE2
//!                                         └─ Plain:  four elements, for whatever the build target has
//! ```
//!
//! All methods are `#[inline(always)]`: their callers enable the instruction set.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::{Add, Mul};

use half::{bf16, f16};

use super::BASE_FMA;
use crate::operand::Number;

/// f32 or f64, which lanes hold.
pub(crate) trait Lane: Number + Add<Output = Self> + Mul<Output = Self> {
    /// `self · a + b`, fused where that is one instruction.
    fn multiply_add<const FMA: bool>(self, a: Self, b: Self) -> Self;
    /// An f32 as this type, exactly.
    fn widened(x: f32) -> Self;
}

macro_rules! lane {
    ($($t:ty),*) => {$(
        impl Lane for $t {
            #[inline(always)]
            fn multiply_add<const FMA: bool>(self, a: Self, b: Self) -> Self {
                if FMA { self.mul_add(a, b) } else { self * a + b }
            }
            #[inline(always)]
            fn widened(x: f32) -> Self {
                x.into()
            }
        }
    )*};
}
lane!(f32, f64);

/// The most lanes of any vector.
const MOST_LANES: usize = 16;

/// A vector register.
///
/// # Safety
/// Methods may only be called where the processor has the type's instruction set; pointers must be valid for what a
/// method says it reads or writes.
pub(crate) trait Vector: Copy {
    /// What a lane holds.
    type Elem: Lane;
    /// How many lanes.
    const N: usize;
    /// Whether there are 32 such registers, not 16.
    const MANY: bool;
    /// All lanes alike.
    unsafe fn splat(x: Self::Elem) -> Self;
    /// Reads `N` elements.
    unsafe fn load(from: *const Self::Elem) -> Self;
    /// Reads `count` elements, fewer than `N`; the other lanes are zero.
    #[inline(always)]
    unsafe fn load_first(from: *const Self::Elem, count: usize) -> Self {
        // Safety: the caller's promise; there are `N` zeros or more.
        unsafe {
            let mut all = [Self::Elem::ZERO; MOST_LANES];
            std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), count);
            Self::load(all.as_ptr())
        }
    }
    /// Reads `N` f16 elements.
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // Safety: the caller's promise.
        unsafe { load_widened(|i| from.add(i).read_unaligned().to_f32_const()) }
    }
    /// Reads `N` bf16 elements.
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // Safety: the caller's promise.
        unsafe { load_widened(|i| from.add(i).read_unaligned().to_f32_const()) }
    }
    /// Writes `N` elements.
    unsafe fn store(self, to: *mut Self::Elem);
    /// Writes the first `count` lanes, fewer than `N`.
    #[inline(always)]
    unsafe fn store_first(self, to: *mut Self::Elem, count: usize) {
        // Safety: the caller's promise; there is room for `N` elements or more.
        unsafe {
            let mut all = [Self::Elem::ZERO; MOST_LANES];
            self.store(all.as_mut_ptr());
            std::ptr::copy_nonoverlapping(all.as_ptr(), to, count);
        }
    }
    /// `self · a + b`.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// Lane by lane sum.
    unsafe fn add(self, other: Self) -> Self;
    /// Lane by lane `self · other`.
    unsafe fn mul(self, other: Self) -> Self;
    /// The larger; `self` where that is NaN.
    unsafe fn at_least(self, low: Self) -> Self;
    /// The smaller; `self` where that is NaN.
    unsafe fn at_most(self, high: Self) -> Self;
    /// The sum of all lanes.
    unsafe fn sum(self) -> Self::Elem;
}

/// A vector of `N` elements that become f32 first.
#[inline(always)]
unsafe fn load_widened<L: Vector>(element: impl Fn(usize) -> f32) -> L {
    let mut all = [L::Elem::ZERO; MOST_LANES];
    for (i, to) in all.iter_mut().enumerate().take(L::N) {
        *to = L::Elem::widened(element(i));
    }
    // Safety: there are `N` elements or more; the rest is the caller's promise.
    unsafe { L::load(all.as_ptr()) }
}

/// Has memory brought into the second-level cache that will be read soon; any address will do.
#[inline(always)]
pub(crate) fn prefetch_l2<T>(from: *const T) {
    // Safety: part of x86-64, and never a fault.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(from.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = from;
}

/// Has memory brought into the first-level cache that will be read soon; any address will do.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch_l1<T>(from: *const T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // Safety: part of x86-64, and never a fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
}

/// An element in memory that becomes f32 in a register.
///
/// # Safety
/// As [`Vector`].
pub(crate) trait Stored: Copy + Send + Sync {
    /// Reads `L::N` elements.
    unsafe fn load<L: Vector<Elem = f32>>(from: *const Self) -> L;
    /// Reads `count` elements, fewer than `L::N`; the other lanes are zero.
    unsafe fn load_first<L: Vector<Elem = f32>>(from: *const Self, count: usize) -> L;
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<L: Vector<Elem = f32>>(from: *const Self) -> L {
        // Safety: the caller's promise.
        unsafe { L::load(from) }
    }
    #[inline(always)]
    unsafe fn load_first<L: Vector<Elem = f32>>(from: *const Self, count: usize) -> L {
        // Safety: the caller's promise.
        unsafe { L::load_first(from, count) }
    }
}

macro_rules! stored {
    ($($type:ty: $load:ident;)*) => {$(
        impl Stored for $type {
            #[inline(always)]
            unsafe fn load<L: Vector<Elem = f32>>(from: *const Self) -> L {
                // Safety: the caller's promise.
                unsafe { L::$load(from) }
            }
            #[inline(always)]
            unsafe fn load_first<L: Vector<Elem = f32>>(from: *const Self, count: usize) -> L {
                // Safety: the caller's promise; there are `N` zeros or more.
                unsafe {
                    let mut all = [<$type>::ZERO; MOST_LANES];
                    std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), count);
                    L::$load(all.as_ptr())
                }
            }
        }
    )*};
}
stored! {
    f16: load_f16;
    bf16: load_bf16;
}

/// Four elements, for whatever instructions the build target has.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Plain<T>(pub(crate) [T; 4]);

impl<T: Lane> Vector for Plain<T> {
    type Elem = T;
    const N: usize = 4;
    const MANY: bool = cfg!(target_arch = "aarch64");
    #[inline(always)]
    unsafe fn splat(x: T) -> Self {
        Plain([x; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // Safety: the caller's promise.
        Plain(unsafe { from.cast::<[T; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // Safety: the caller's promise.
        unsafe { to.cast::<[T; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut T, count: usize) {
        let mut i = 0;
        while i < count {
            // Safety: the caller's promise.
            unsafe { *to.add(i) = self.0[i] };
            i += 1;
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        let [x, y, z, w] = self.0;
        Plain([
            x.multiply_add::<BASE_FMA>(a.0[0], b.0[0]),
            y.multiply_add::<BASE_FMA>(a.0[1], b.0[1]),
            z.multiply_add::<BASE_FMA>(a.0[2], b.0[2]),
            w.multiply_add::<BASE_FMA>(a.0[3], b.0[3]),
        ])
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Plain([a + e, b + f, c + g, d + h])
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Plain([a * e, b * f, c * g, d * h])
    }
    #[inline(always)]
    unsafe fn at_least(self, low: Self) -> Self {
        let pick = |x: T, low: T| if low > x { low } else { x };
        let ([a, b, c, d], [e, f, g, h]) = (self.0, low.0);
        Plain([pick(a, e), pick(b, f), pick(c, g), pick(d, h)])
    }
    #[inline(always)]
    unsafe fn at_most(self, high: Self) -> Self {
        let pick = |x: T, high: T| if high < x { high } else { x };
        let ([a, b, c, d], [e, f, g, h]) = (self.0, high.0);
        Plain([pick(a, e), pick(b, f), pick(c, g), pick(d, h)])
    }
    #[inline(always)]
    unsafe fn sum(self) -> T {
        let [a, b, c, d] = self.0;
        (a + c) + (b + d)
    }
}
