//! Vector loops: plain Rust over slices, compiled once per instruction set and chosen at run time.
//!
//! A [`Kernel`] is an always-inlined body. [`run`] calls it from a function that enables wide registers, so that the
//! compiler vectorises the inlined loops for them; no intrinsics are needed for arithmetic.

#[cfg(target_arch = "x86_64")]
mod f16c;
pub(crate) mod half;
mod level;
pub(crate) mod math;
mod stream;
pub(crate) mod vector;

#[cfg(target_arch = "x86_64")]
pub(crate) use level::has_dot_products;
#[cfg(test)]
pub(crate) use level::limited_as_here;
pub(crate) use level::vectors;
pub use level::{Vectors, limit_vectors};
pub use math::erf_f64 as erf;
pub(crate) use stream::{STREAM_FROM, stream_copy, stream_fence};

/// A loop to be compiled for several instruction sets.
///
/// `run` and everything it calls must be `#[inline(always)]`, or the wide registers stay unused.
pub(crate) trait Kernel {
    /// What the loop gives.
    type Output;
    /// Whether more than the build target's own instructions are worth the code; f32 loops are, most others are not.
    const WIDE: bool = true;
    /// The body; `FMA` says that [`f32::mul_add`] is one instruction.
    fn run<const FMA: bool>(self) -> Self::Output;
}

/// Whether the build target itself has fused multiply-add.
pub(crate) const BASE_FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

/// Runs a kernel compiled for the widest instruction set this CPU has.
#[inline]
pub(crate) fn run<K: Kernel>(kernel: K) -> K::Output {
    if const { !K::WIDE } {
        return kernel.run::<BASE_FMA>();
    }
    match vectors() {
        // Safety: `vectors` has seen these features on this CPU.
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx512 => unsafe { run_avx512(kernel) },
        // Safety: as above.
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => unsafe { run_avx2(kernel) },
        _ => kernel.run::<BASE_FMA>(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<true>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<true>()
}

/// a·b + c; fused where that is one instruction.
#[inline(always)]
pub(crate) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// A function of one number, for [`map1`].
pub(crate) trait Fn1<T, U>: Copy {
    /// As [`Kernel::WIDE`].
    const WIDE: bool = true;
    /// The function's value.
    fn call<const FMA: bool>(self, x: T) -> U;
}

/// A function of two numbers, for [`map2`].
pub(crate) trait Fn2<T, U>: Copy {
    /// As [`Kernel::WIDE`].
    const WIDE: bool = true;
    /// The function's value.
    fn call<const FMA: bool>(self, a: T, b: T) -> U;
}

/// `out[i] = f(x[i])`.
pub(crate) fn map1<T: Copy, U, F: Fn1<T, U>>(f: F, x: &[T], out: &mut [U]) {
    struct Map<'a, T, U, F>(F, &'a [T], &'a mut [U]);
    impl<T: Copy, U, F: Fn1<T, U>> Kernel for Map<'_, T, U, F> {
        type Output = ();
        const WIDE: bool = F::WIDE;
        #[inline(always)]
        fn run<const FMA: bool>(self) {
            for (o, x) in self.2.iter_mut().zip(self.1) {
                *o = self.0.call::<FMA>(*x);
            }
        }
    }
    run(Map(f, x, out));
}

/// `out[i] = f(a[i], b[i])`.
pub(crate) fn map2<T: Copy, U, F: Fn2<T, U>>(f: F, a: &[T], b: &[T], out: &mut [U]) {
    struct Map<'a, T, U, F>(F, &'a [T], &'a [T], &'a mut [U]);
    impl<T: Copy, U, F: Fn2<T, U>> Kernel for Map<'_, T, U, F> {
        type Output = ();
        const WIDE: bool = F::WIDE;
        #[inline(always)]
        fn run<const FMA: bool>(self) {
            for ((o, a), b) in self.3.iter_mut().zip(self.1).zip(self.2) {
                *o = self.0.call::<FMA>(*a, *b);
            }
        }
    }
    run(Map(f, a, b, out));
}
