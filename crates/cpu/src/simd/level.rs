//! Which instruction set the vector loops use.

use std::sync::atomic::{AtomicU8, Ordering};

/// An instruction set that vector loops are compiled for, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Vectors {
    /// What every processor of the build target has.
    Base = 1,
    /// AVX2 with fused multiply-add.
    Avx2 = 2,
    /// AVX-512 (F, BW, DQ, VL).
    Avx512 = 3,
}

/// The set in use; 0 before the first look.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// Keeps vector loops of the whole process to an instruction set, so that every path can be tried on one machine.
/// A set that this processor lacks is not used; the answer is the one that is.
pub fn limit_vectors(most: Vectors) -> Vectors {
    let chosen = detect().min(most);
    // Unit tests share a process: one that limits itself must not change what another compares.
    #[cfg(test)]
    LIMIT.set(Some(chosen));
    #[cfg(not(test))]
    CHOSEN.store(chosen as u8, Ordering::Relaxed);
    chosen
}

#[cfg(test)]
thread_local! {
    /// The limit of a unit test, on the thread that it or its tasks run on.
    static LIMIT: std::cell::Cell<Option<Vectors>> = const { std::cell::Cell::new(None) };
}

/// A task that is run within the limit of the thread that calls this.
#[cfg(test)]
pub(crate) fn limited_as_here(task: &(dyn Fn(usize) + Sync), run: impl FnOnce(&(dyn Fn(usize) + Sync))) {
    let limit = LIMIT.get();
    run(&|number| {
        let before = LIMIT.replace(limit);
        task(number);
        LIMIT.set(before);
    });
}

/// The instruction set to use, looked up once.
#[inline]
pub(crate) fn vectors() -> Vectors {
    #[cfg(test)]
    if let Some(limit) = LIMIT.get() {
        return limit;
    }
    match CHOSEN.load(Ordering::Relaxed) {
        3 => Vectors::Avx512,
        2 => Vectors::Avx2,
        1 => Vectors::Base,
        _ => {
            let detected = detect();
            CHOSEN.store(detected as u8, Ordering::Relaxed);
            detected
        }
    }
}

/// Whether the processor has AVX-512 and also multiplies and adds bytes by fours (VNNI), whatever the set in use.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn has_dot_products() -> bool {
    is_x86_feature_detected!("avx512vnni") && detect() == Vectors::Avx512
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Vectors {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Vectors::Avx512,
        (true, false) => Vectors::Avx2,
        _ => Vectors::Base,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Vectors {
    Vectors::Base
}
