//! A device that need not be here: lowering reads plain data.

use olivine::internals::gpu::{Addressing, DeviceCaps, DeviceKind};
use olivine::internals::kernel::{Elem, Fragments, MatrixShape, Target};

/// A large NVIDIA card.
pub(crate) fn h200() -> DeviceCaps {
    let shape = |operand, accumulator, k| MatrixShape { operand, accumulator, m: 16, n: 16, k };
    let target = Target {
        subgroup: Some(32),
        f16: true,
        f64: true,
        i64: true,
        packed_dot: true,
        device_fences: true,
        shared_bytes: 48 << 10,
        max_invocations: 1024,
        matrices: vec![shape(Elem::F16, Elem::F32, 16), shape(Elem::BF16, Elem::F32, 16)],
        fragments: Some(Fragments::Quads),
        ..Target::plain()
    };
    DeviceCaps {
        name: "a large card".into(),
        driver: "NVIDIA".into(),
        kind: DeviceKind::Discrete,
        target,
        addressing: Addressing::Pointers,
        max_groups: [65535; 3],
        max_buffer_bytes: 1 << 32,
        memory_bytes: 1 << 34,
        processors: Some(132),
        keeps_denormals: true,
        ptx: None,
    }
}
