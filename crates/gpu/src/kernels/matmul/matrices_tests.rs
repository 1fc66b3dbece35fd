//! Products by cooperative matrices, run by the interpreter and held against sums in f64.

use std::collections::HashMap;

use olivine_ir::{DType, Shape, TensorType, ValueId, half};
use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::{Elem, MatrixShape, Target as KernelTarget};

use super::blocks::{self, Blocks, Way};
use super::choice;
use super::finish::Sink;
use super::matrices;
use super::problem::Problem;
use super::split;
use crate::caps::{Addressing, DeviceCaps, DeviceKind};
use crate::lower::site::{Memory, Operand, Site, Target};

fn card() -> DeviceCaps {
    let shape = |factor| MatrixShape { factor, accumulator: Elem::F32, m: 16, n: 16, k: 16 };
    let target = KernelTarget {
        subgroup: Some(32),
        f16: true,
        f64: true,
        i64: true,
        packed_dot: true,
        matrices: vec![shape(Elem::F16), shape(Elem::BF16)],
        max_invocations: 1024,
        shared_bytes: 49152,
        fragments: None,
    };
    DeviceCaps {
        name: "a device".into(),
        driver: "NVIDIA".into(),
        kind: DeviceKind::Discrete,
        target,
        addressing: Addressing::Pointers,
        max_groups: [65535; 3],
        max_buffer_bytes: 1 << 32,
        memory_bytes: 1 << 34,
        tuning: std::sync::Arc::default(),
    }
}

/// A small whole number that differs from its neighbours.
fn number(i: usize, skew: usize) -> f32 {
    ((i * 7 + i / 5 * 3 + skew) % 9) as f32 - 4.0
}

fn bits(dtype: DType, x: f32) -> [u8; 2] {
    match dtype {
        DType::F16 => half::f16::from_f32(x).to_le_bytes(),
        _ => half::bf16::from_f32(x).to_le_bytes(),
    }
}

/// An operand of two axes that lies as `strides` say.
fn operand(dtype: DType, id: u32, dims: [usize; 2], strides: [i64; 2]) -> Operand {
    let ty = TensorType::new(dtype, Shape::new(&dims).unwrap());
    Operand { ty, strides: strides.to_vec(), offset: 0, memory: Memory::Value(ValueId(id)), stored: false }
}

/// Runs `[m, k] · [k, n]`; B lies by columns if `turned`.
fn check(dtype: DType, [m, n, k]: [usize; 3], turned: bool, blocks: Blocks, splits: usize) {
    let caps = card();
    let a = operand(dtype, 0, [m, k], [k as i64, 1]);
    let b_strides = if turned { [1, k as i64] } else { [n as i64, 1] };
    let b = operand(dtype, 1, [k, n], b_strides);
    let target = Target {
        ty: TensorType::new(dtype, Shape::new(&[m, n]).unwrap()),
        memory: Memory::Value(ValueId(2)),
    };
    let mut site = Site::new(&caps, vec![a.clone(), b.clone()], vec![target.clone()]);
    let problem = Problem::new(&[a, b], &target, None).unwrap();
    let parts = (splits > 1).then(|| site.scratch((m * n * splits * 4) as u64));
    let sink = parts.map_or(Sink::Target, Sink::Parts);
    matrices::emit(&problem, blocks, splits, &sink, &mut site).unwrap();
    if let Some(parts) = parts {
        split::emit(&problem, parts, splits, &[], &mut site).unwrap();
    }
    let fill = |count: usize, skew: usize| -> Vec<u8> {
        (0..count).flat_map(|i| bits(dtype, number(i, skew))).collect()
    };
    let mut memory: HashMap<Memory, Vec<u8>> = HashMap::new();
    memory.insert(Memory::Value(ValueId(0)), fill(m * k, 0));
    memory.insert(Memory::Value(ValueId(1)), fill(k * n, 5));
    memory.insert(Memory::Value(ValueId(2)), vec![0xff; 2 * m * n]);
    for emitted in &site.emitted {
        let mut buffers: Vec<Vec<u8>> = Vec::new();
        for arg in &emitted.bound.args {
            let fresh = || match arg {
                Memory::Scratch { bytes, .. } => vec![0xff; *bytes as usize],
                other => panic!("{other:?}"),
            };
            buffers.push(memory.entry(*arg).or_insert_with(fresh).clone());
        }
        let params = &emitted.bound.params;
        interpret(&emitted.kernel, 32, emitted.groups, &mut buffers, params, Device::EXACT).unwrap();
        for (arg, buffer) in emitted.bound.args.iter().zip(buffers) {
            memory.insert(*arg, buffer);
        }
    }
    let found = &memory[&Memory::Value(ValueId(2))];
    for i in 0..m {
        for j in 0..n {
            let y = |l: usize| number(if turned { j * k + l } else { l * n + j }, 5);
            let sum: f32 = (0..k).map(|l| number(i * k + l, 0) * y(l)).sum();
            let at = 2 * (i * n + j);
            assert_eq!(found[at..at + 2], bits(dtype, sum), "{blocks:?}: row {i}, column {j} of {m}x{n}x{k}");
        }
    }
}

const SMALL: Blocks = Blocks {
    m: 64,
    n: 64,
    rows: 32,
    columns: 32,
    slices: 1,
    depth: 32,
    carry: false,
    band: 8,
    ways: (Way::Panel, Way::Panel),
    ahead: 1,
};

#[test]
fn blocks_of_every_form_give_the_sums() {
    let forms = [
        SMALL,
        Blocks { depth: 16, ..SMALL },
        Blocks { depth: 64, band: 2, ..SMALL },
        Blocks { depth: 16, carry: true, ..SMALL },
        Blocks { carry: true, ..SMALL },
        Blocks { m: 32, rows: 16, depth: 64, carry: true, ..SMALL },
        Blocks { m: 32, n: 32, slices: 2, ..SMALL },
        Blocks { m: 32, n: 32, slices: 4, depth: 64, ..SMALL },
        Blocks { m: 32, n: 32, slices: 2, depth: 64, carry: true, ..SMALL },
        Blocks { m: 32, n: 96, rows: 32, columns: 48, depth: 16, ..SMALL },
    ];
    for blocks in forms {
        check(DType::F16, [72, 104, 160], false, blocks, 1);
    }
    for dtype in [DType::F16, DType::BF16] {
        check(
            dtype,
            [72, 104, 100],
            false,
            Blocks { ways: (Way::Packed, Way::Packed), ahead: 2, ..SMALL },
            1,
        );
        check(dtype, [72, 104, 100], false, Blocks { ways: (Way::Panel, Way::Packed), ..SMALL }, 1);
        let sliced = Blocks { m: 32, n: 32, slices: 2, depth: 64, ..SMALL };
        check(
            dtype,
            [72, 104, 100],
            false,
            Blocks { ways: (Way::Panel, Way::Packed), ahead: 3, ..sliced },
            1,
        );
        check(
            dtype,
            [72, 104, 300],
            false,
            Blocks { ways: (Way::Packed, Way::Packed), slices: 4, ..sliced },
            2,
        );
        check(
            dtype,
            [72, 104, 100],
            false,
            Blocks { ways: (Way::Panel, Way::Packed), carry: true, ..SMALL },
            1,
        );
    }
    check(DType::F16, [64, 160, 64], false, Blocks { n: 96, columns: 48, depth: 64, ..SMALL }, 1);
    check(DType::F16, [40, 24, 200], true, SMALL, 2);
    check(DType::BF16, [33, 17, 50], false, Blocks { carry: true, ..SMALL }, 1);
}

/// What a product of halves gets, as text.
fn chosen([m, n, k]: [usize; 3], stored: bool, caps: &DeviceCaps) -> String {
    let a = operand(DType::F16, 0, [m, k], [k as i64, 1]);
    let b = Operand { stored, ..operand(DType::F16, 1, [k, n], [n as i64, 1]) };
    let ty = TensorType::new(DType::F16, Shape::new(&[m, n]).unwrap());
    let target = Target { ty, memory: Memory::Value(ValueId(2)) };
    let problem = Problem::new(&[a, b], &target, None).unwrap();
    let shape = choice::Shape { m, n, k, batches: 1 };
    let of = |(blocks, splits): (Blocks, usize)| format!("{blocks} s{splits}");
    let chosen = blocks::choose(&problem, &shape, caps).map(of).unwrap();
    let candidates: Vec<String> = blocks::candidates(&problem, &shape, caps).into_iter().map(of).collect();
    assert!(!candidates.is_empty(), "{chosen} alone");
    chosen
}

#[test]
fn factors_are_packed_where_it_pays_and_where_lanes_are_known_to_hold_each_element_once() {
    let caps = card();
    assert_eq!(chosen([4096, 4096, 4096], false, &caps), "128x128/64x64x1/32/16/pp1 s1");
    assert_eq!(chosen([4096, 768, 768], true, &caps), "128x128/64x64x1/32/8/sp1 s1");
    assert_eq!(chosen([4096, 768, 768], false, &caps), "128x128/64x64x1/32/8/ss1 s1");
    let other = DeviceCaps { driver: "another".into(), ..card() };
    assert_eq!(chosen([4096, 4096, 4096], true, &other), "128x128/64x64x1/32/8/ss1 s1");
}

#[test]
fn small_products_get_small_blocks_and_long_sums_of_few_of_them_parts() {
    let caps = card();
    assert_eq!(chosen([1024, 1024, 1024], false, &caps), "128x64/64x64x2/64/8/ss1 s1");
    assert_eq!(chosen([1024, 1024, 1024], true, &caps), "64x64/32x32x1/64/8/sp1 s1");
    assert_eq!(chosen([128, 3072, 768], false, &caps), "64x64/32x32x1/64/8/ss1 s1");
    assert_eq!(chosen([512, 512, 512], false, &caps), "32x64/32x32x4/128/8/ss1 s1");
    assert_eq!(chosen([128, 768, 768], false, &caps), "16x64/16x64x8/128/8/ss1 s1");
    assert_eq!(chosen([128, 768, 3072], true, &caps), "32x32/32x32x4/128/8/sp1 s1");
    assert_eq!(chosen([64, 64, 4096], false, &caps), "32x32/32x32x4/128/8/ss1 s4");
}

#[test]
fn the_least_of_devices_with_matrices_has_room_for_some_blocks() {
    let mut caps = card();
    caps.target.max_invocations = 128;
    caps.target.shared_bytes = 16384;
    for sizes in [[4096, 4096, 4096], [1024, 1024, 1024], [128, 768, 3072], [20, 20, 20]] {
        chosen(sizes, false, &caps);
    }
}
