//! Matmuls by cooperative matrices, run by the interpreter and held against sums in f64.

use std::collections::HashMap;

use olivine_ir::op::{Arg, Binary, Instr, InstrOp, Region, ScalarOp};
use olivine_ir::{DType, Dim, Shape, TensorType, ValueId, half};
use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::{Elem, Fragments, Kernel, MatrixShape, MatrixSupport, Target as KernelTarget};
use olivine_program::{Addressing, DeviceCaps, DeviceKind};

use crate::matmul::coop::blocks;
use crate::matmul::coop::blocks::{CoopTile, OperandPath};
use crate::matmul::coop::form::MatrixForm;
use crate::matmul::epilogue::Destination;
use crate::matmul::problem::Problem;
use crate::matmul::{coop, split_k};
use crate::site::{Memory, Operand, Site, Target};

pub(crate) fn card() -> DeviceCaps {
    let shape = |operand| MatrixShape { operand, accumulator: Elem::F32, m: 16, n: 16, k: 16 };
    let target = KernelTarget {
        subgroup: Some(32),
        f16: true,
        exact_f16: true,
        f64: true,
        i64: true,
        i64_pairs: false,
        packed_dot: true,
        matrices: vec![shape(Elem::F16), shape(Elem::BF16)],
        max_invocations: 1024,
        shared_bytes: 49152,
        matrix_support: MatrixSupport::Full,
        fragments: Some(Fragments::Quads),
        warpgroups: false,
        int8_warpgroups: false,
        device_fences: false,
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
        processors: None,
        keeps_denormals: true,
        ptx: None,
    }
}

/// A device with square matrices of a side, held by so many lanes.
pub(crate) fn other(side: u32, lanes: u32, matrix_support: MatrixSupport) -> DeviceCaps {
    let shape = |operand| MatrixShape { operand, accumulator: Elem::F32, m: side, n: side, k: side };
    let mut caps = card();
    caps.target = KernelTarget {
        subgroup: Some(lanes),
        matrices: vec![shape(Elem::F16), shape(Elem::F32)],
        matrix_support,
        fragments: None,
        shared_bytes: 32768,
        ..caps.target
    };
    caps
}

/// Devices whose matrices are not those of a card: as Metal has them, as software devices do, and as WGSL has a card's.
pub(crate) fn others() -> [DeviceCaps; 3] {
    [(8, 32), (8, 8), (16, 32)].map(|(side, lanes)| other(side, lanes, MatrixSupport::Basic))
}

/// A small whole number that differs from its neighbours.
pub(crate) fn number(i: usize, skew: usize) -> f32 {
    ((i * 7 + i / 5 * 3 + skew) % 9) as f32 - 4.0
}

pub(crate) fn bits(dtype: DType, x: f32) -> Vec<u8> {
    match dtype {
        DType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        DType::F32 => x.to_le_bytes().to_vec(),
        _ => half::bf16::from_f32(x).to_le_bytes().to_vec(),
    }
}

/// An operand of two axes with these strides.
pub(crate) fn operand(dtype: DType, id: u32, dims: [usize; 2], strides: [i64; 2]) -> Operand {
    let ty = TensorType::new(dtype, Shape::new(&dims).unwrap());
    Operand {
        ty,
        strides: strides.iter().map(|s| (*s).into()).collect(),
        offset: Dim::ZERO,
        memory: Memory::Value(ValueId::new(id)),
        stored: false,
    }
}

/// What memory holds after all dispatches, interpreted; values are given from the first on.
pub(crate) fn run<const N: usize>(site: &Site<'_>, given: [Vec<u8>; N]) -> HashMap<Memory, Vec<u8>> {
    run_by(site, given, |kernel, groups, buffers, params| {
        olivine_kernel::validate(kernel, &site.caps.target).unwrap();
        let lanes = site.caps.target.subgroup.unwrap_or(32);
        interpret(kernel, lanes, groups, buffers, params, Device::EXACT).unwrap();
    })
}

/// The same, each dispatch run by `launch`.
pub(crate) fn run_by<const N: usize>(
    site: &Site<'_>,
    given: [Vec<u8>; N],
    launch: impl Fn(&Kernel, [u32; 3], &mut [Vec<u8>], &[u32]),
) -> HashMap<Memory, Vec<u8>> {
    let values = (0..).map(|id| Memory::Value(ValueId::new(id)));
    let mut memory: HashMap<Memory, Vec<u8>> = values.zip(given).collect();
    for emitted in &site.emitted {
        let mut buffers: Vec<Vec<u8>> = Vec::new();
        for arg in &emitted.bound.args {
            let fresh = || match arg {
                Memory::Scratch { bytes, .. } => vec![0xff; bytes.dim().specialize().unwrap()],
                Memory::LoadScratch { bytes, .. } => vec![0xff; *bytes as usize],
                Memory::Prepacked(i) => vec![0xff; site.prepacked[*i].bytes as usize],
                Memory::Constant(i) => site.constants[*i].now().data().as_bytes().to_vec(),
                other => panic!("{other:?}"),
            };
            buffers.push(memory.entry(*arg).or_insert_with(fresh).clone());
        }
        let params = emitted.bound.words();
        launch(&emitted.kernel, emitted.group_numbers(), &mut buffers, &params);
        for (arg, buffer) in emitted.bound.args.iter().zip(buffers) {
            memory.insert(*arg, buffer);
        }
    }
    memory
}

/// What becomes of the sums.
#[derive(Clone, Copy, Debug)]
enum End {
    Nothing,
    /// A bias and a residual are added.
    Added,
    /// A bias is added, and so many limits are set that the epilogue is written once.
    Long,
}

impl End {
    fn region(self) -> Option<Region> {
        let scalar = |op, a, b| Instr { op: InstrOp::Scalar(ScalarOp::Binary(op)), args: vec![a, b] };
        let splat = |x| Instr { op: InstrOp::Splat(DType::F16, x), args: Vec::new() };
        use Arg::{Input, Instr as Made};
        let add = |a, b| scalar(Binary::Add, a, b);
        let (inputs, instrs) = match self {
            End::Nothing => return None,
            End::Added => (3, vec![add(Input(0), Input(1)), add(Made(0), Input(2))]),
            End::Long => {
                let limits = [splat(-8.0), splat(9.0), splat(-5.0), add(Input(0), Input(1))];
                let held = [(Binary::Max, 0), (Binary::Min, 1), (Binary::Max, 2)];
                let held = (3..).zip(held).map(|(i, (op, limit))| scalar(op, Made(i), Made(limit)));
                (2, limits.into_iter().chain(held).collect())
            }
        };
        let last = instrs.len() - 1;
        Some(Region { inputs, instrs, outputs: vec![Made(last)] })
    }

    fn of(self, sum: f32, bias: f32, residual: f32) -> f32 {
        match self {
            End::Nothing => sum,
            End::Added => sum + bias + residual,
            End::Long => (sum + bias).clamp(-5.0, 9.0),
        }
    }
}

/// Runs `[m, k] · [k, n]`; B is column-major if `turned`.
fn check(dtype: DType, sizes: [usize; 3], turned: bool, blocks: CoopTile, splits: usize) {
    check_end(dtype, sizes, turned, blocks, splits, End::Nothing);
}

fn check_end(dtype: DType, sizes: [usize; 3], turned: bool, blocks: CoopTile, splits: usize, end: End) {
    check_on(&card(), dtype, sizes, turned, blocks, splits, end);
}

fn check_on(
    caps: &DeviceCaps,
    dtype: DType,
    [m, n, k]: [usize; 3],
    turned: bool,
    blocks: CoopTile,
    splits: usize,
    end: End,
) {
    let a = operand(dtype, 0, [m, k], [k as i64, 1]);
    let b_strides = if turned { [1, k as i64] } else { [n as i64, 1] };
    let b = operand(dtype, 1, [k, n], b_strides);
    let target = Target {
        ty: TensorType::new(dtype, Shape::new(&[m, n]).unwrap()),
        memory: Memory::Value(ValueId::new(2)),
    };
    let bias = operand(dtype, 3, [1, n], [n as i64, 1]);
    let residual = operand(dtype, 4, [m, n], [n as i64, 1]);
    let extras = match end {
        End::Nothing => vec![],
        End::Added => vec![bias, residual],
        End::Long => vec![bias],
    };
    let operands: Vec<Operand> = [a, b].into_iter().chain(extras.clone()).collect();
    let mut site = Site::new(caps, operands.clone(), vec![target.clone()]);
    let region = end.region();
    let problem = Problem::new(&operands, &target, region.as_ref()).unwrap();
    let parts = (splits > 1).then(|| site.scratch((m * n * splits * 4) as u64));
    let destination = parts.map_or(Destination::Target, Destination::Partials);
    coop::emit(&problem, blocks, splits, &destination, &mut site).unwrap();
    if let Some(parts) = parts {
        split_k::emit(&problem, parts, splits, &extras, &mut site).unwrap();
    }
    let fill = |count: usize, skew: usize| -> Vec<u8> {
        (0..count).flat_map(|i| bits(dtype, number(i, skew))).collect()
    };
    let size = dtype.size();
    let given = [fill(m * k, 0), fill(k * n, 5), vec![0xff; size * m * n], fill(n, 2), fill(m * n, 3)];
    let memory = run(&site, given);
    let found = &memory[&Memory::Value(ValueId::new(2))];
    for i in 0..m {
        for j in 0..n {
            let y = |l: usize| number(if turned { j * k + l } else { l * n + j }, 5);
            let sum: f32 = (0..k).map(|l| number(i * k + l, 0) * y(l)).sum();
            let want = end.of(sum, number(j, 2), number(i * n + j, 3));
            let at = size * (i * n + j);
            let what = format!("{blocks:?}, {end:?}: row {i}, column {j} of {m}x{n}x{k}");
            assert_eq!(found[at..at + size], bits(dtype, want), "{what}");
        }
    }
}

pub(crate) const SMALL: CoopTile = CoopTile {
    m: 64,
    n: 64,
    rows: 32,
    columns: 32,
    slices: 1,
    k_step: 32,
    carry: false,
    band: 8,
    ways: (OperandPath::Staged, OperandPath::Staged),
    ahead: 1,
    form: MatrixForm::CARD,
};

#[test]
fn matrices_of_other_forms_give_the_sums() {
    for caps in others() {
        for (dtype, elem) in [(DType::F16, Elem::F16), (DType::F32, Elem::F32)] {
            let Some(form) = MatrixForm::of(elem, &caps.target) else { continue };
            for (blocks, splits) in [
                (SMALL, 1),
                (CoopTile { m: 32, n: 32, rows: 16, columns: 16, ..SMALL }, 2),
                (CoopTile { m: 32, n: 32, slices: 2, ..SMALL }, 1),
                (CoopTile { m: 32, rows: 16, carry: true, ..SMALL }, 1),
            ] {
                let blocks = CoopTile { form, ..blocks };
                check_on(&caps, dtype, [72, 104, 96], false, blocks, splits, End::Nothing);
                check_on(&caps, dtype, [37, 45, 50], true, blocks, splits, End::Nothing);
                if dtype == DType::F16 {
                    check_on(&caps, dtype, [40, 72, 40], false, blocks, splits, End::Added);
                    check_on(&caps, dtype, [40, 72, 40], true, blocks, splits, End::Long);
                }
            }
        }
    }
    assert_eq!(MatrixForm::of(Elem::F32, &other(8, 8, MatrixSupport::Full).target), None);
}

#[test]
fn devices_with_matrices_of_other_forms_have_blocks_for_every_shape() {
    for caps in others() {
        assert_eq!(chosen([1024, 1024, 1024], false, &caps), "64x64/32x32x1/32/8/ss1 s1");
        assert_eq!(chosen([20, 20, 20], true, &caps), "32x32/16x16x1/32/8/ss1 s1");
        assert_eq!(chosen([64, 64, 4096], true, &caps), "32x32/16x16x1/32/8/ss1 s4");
    }
}

#[test]
fn blocks_of_every_form_give_the_sums() {
    let forms = [
        SMALL,
        CoopTile { k_step: 16, ..SMALL },
        CoopTile { k_step: 64, band: 2, ..SMALL },
        CoopTile { k_step: 16, carry: true, ..SMALL },
        CoopTile { carry: true, ..SMALL },
        CoopTile { m: 32, rows: 16, k_step: 64, carry: true, ..SMALL },
        CoopTile { m: 32, n: 32, slices: 2, ..SMALL },
        CoopTile { m: 32, n: 32, slices: 4, k_step: 64, ..SMALL },
        CoopTile { m: 32, n: 32, slices: 2, k_step: 64, carry: true, ..SMALL },
        CoopTile { m: 32, n: 96, rows: 32, columns: 48, k_step: 16, ..SMALL },
    ];
    for blocks in forms {
        check(DType::F16, [72, 104, 160], false, blocks, 1);
    }
    for dtype in [DType::F16, DType::BF16] {
        check(
            dtype,
            [72, 104, 100],
            false,
            CoopTile { ways: (OperandPath::Packed, OperandPath::Packed), ahead: 2, ..SMALL },
            1,
        );
        check(
            dtype,
            [72, 104, 100],
            false,
            CoopTile { ways: (OperandPath::Staged, OperandPath::Packed), ..SMALL },
            1,
        );
        let sliced = CoopTile { m: 32, n: 32, slices: 2, k_step: 64, ..SMALL };
        check(
            dtype,
            [72, 104, 100],
            false,
            CoopTile { ways: (OperandPath::Staged, OperandPath::Packed), ahead: 3, ..sliced },
            1,
        );
        check(
            dtype,
            [72, 104, 300],
            false,
            CoopTile { ways: (OperandPath::Packed, OperandPath::Packed), slices: 4, ..sliced },
            2,
        );
        check(
            dtype,
            [72, 104, 100],
            false,
            CoopTile { ways: (OperandPath::Staged, OperandPath::Packed), carry: true, ..SMALL },
            1,
        );
    }
    check(DType::F16, [64, 160, 64], false, CoopTile { n: 96, columns: 48, k_step: 64, ..SMALL }, 1);
    check(DType::F16, [40, 24, 200], true, SMALL, 2);
    check(DType::BF16, [33, 17, 50], false, CoopTile { carry: true, ..SMALL }, 1);
}

#[test]
fn what_comes_with_the_sums_is_loaded_before_them_or_beside_those_before() {
    let stored = CoopTile { ways: (OperandPath::Staged, OperandPath::Packed), ..SMALL };
    for blocks in [
        stored,
        CoopTile { n: 128, columns: 64, ..stored },
        CoopTile { m: 128, n: 128, rows: 64, columns: 64, ..stored },
        CoopTile { m: 32, n: 32, slices: 2, k_step: 64, ..stored },
        CoopTile { n: 128, columns: 64, k_step: 64, ..SMALL },
    ] {
        for end in [End::Added, End::Long] {
            check_end(DType::F16, [72, 104, 40], false, blocks, 1, end);
            check_end(DType::F16, [70, 101, 40], false, blocks, 1, end);
        }
    }
    check_end(DType::F16, [72, 104, 100], false, stored, 2, End::Added);
}

/// What a matmul of f16 gets, as text.
fn chosen([m, n, k]: [usize; 3], stored: bool, caps: &DeviceCaps) -> String {
    let a = operand(DType::F16, 0, [m, k], [k as i64, 1]);
    let b = Operand { stored, ..operand(DType::F16, 1, [k, n], [n as i64, 1]) };
    let ty = TensorType::new(DType::F16, Shape::new(&[m, n]).unwrap());
    let target = Target { ty, memory: Memory::Value(ValueId::new(2)) };
    let problem = Problem::new(&[a, b], &target, None).unwrap();
    let shape = crate::matmul::tests::shape([m, n, k, 1]);
    let of = |(blocks, splits): (CoopTile, usize)| format!("{blocks} s{splits}");
    let chosen = blocks::choose(&problem, &shape, caps, false).map(of).unwrap();
    let candidates: Vec<String> = blocks::candidates(&problem, &shape, caps).into_iter().map(of).collect();
    assert!(!candidates.is_empty(), "{chosen} alone");
    chosen
}

#[test]
fn operands_are_packed_where_it_pays_and_where_lanes_are_known_to_hold_each_element_once() {
    let caps = card();
    assert_eq!(chosen([4096, 4096, 4096], false, &caps), "128x128/64x64x1/32/16/pp1 s1");
    assert_eq!(chosen([4096, 3072, 768], true, &caps), "128x128/64x64x1/32/8/sp1 s1");
    assert_eq!(chosen([4096, 768, 768], true, &caps), "64x128/32x64x1/32/8/sp1 s1", "few large ones");
    assert_eq!(chosen([4096, 768, 768], false, &caps), "128x128/64x64x1/32/8/ss1 s1");
    let other = DeviceCaps { driver: "another".into(), ..card() };
    assert_eq!(chosen([4096, 4096, 4096], true, &other), "128x128/64x64x1/32/8/ss1 s1");
}

#[test]
fn small_matmuls_get_small_tiles_and_long_k_is_split() {
    let caps = card();
    assert_eq!(chosen([1024, 1024, 1024], false, &caps), "128x64/64x64x2/64/8/ss1 s1");
    assert_eq!(chosen([1024, 1024, 1024], true, &caps), "64x64/32x32x1/64/8/sp1 s1");
    assert_eq!(chosen([128, 3072, 768], false, &caps), "64x64/32x32x1/64/8/ss1 s1");
    assert_eq!(chosen([512, 512, 512], false, &caps), "32x64/32x32x4/128/8/ss1 s1");
    assert_eq!(chosen([128, 768, 768], false, &caps), "16x64/16x64x8/128/8/ss1 s1");
    assert_eq!(chosen([128, 768, 3072], true, &caps), "32x32/32x32x4/256/8/sp4 s1");
    assert_eq!(chosen([128, 3072, 768], true, &caps), "16x64/16x32x2/128/8/sp4 s1");
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
