//! Matrix products on a Vulkan device, against the oracle: the table's, and shapes around every edge of the tiles.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use olivine::internals::OptionsExt as _;
use olivine::internals::gpu::Mask;
use olivine::{Device, PipelineCache, SessionOptions};
use olivine_cases::{Bound, Case, Rng, SessionBackend, check, normal, run_table, sum_of, table, whole};
use olivine_ir::DType::{self, *};
use olivine_ir::op::{Arg, Binary, Instr, InstrOp, MatMul, Region, ScalarOp, Unary};

const NO_SUBGROUPS: Mask = Mask { subgroups: true, f16: false, matrices: true };

fn open(name: &str, without: Mask, checked: bool) -> SessionBackend {
    let options = SessionOptions::new().pipeline_cache(PipelineCache::Off).without(without).checked(checked);
    SessionBackend::new(name, Device::Vulkan, options)
        .expect("a device; `apt-get install mesa-vulkan-drivers`")
}

fn all_pass(vulkan: &SessionBackend, cases: &[Case], filter: &str) {
    let report = run_table(vulkan, cases, filter, 2);
    assert!(report.passed() > 0, "no case is called {filter}");
    assert_eq!(report.passed(), report.results.len(), "{report}");
}

#[test]
fn matmuls_of_the_table_pass() {
    let vulkan = open("vulkan", Mask::default(), false);
    for filter in ["matmul", "/grouped/", "lora"] {
        all_pass(&vulkan, &table(), filter);
    }
}

#[test]
fn matmuls_of_the_table_pass_without_subgroups_in_checked_mode() {
    let vulkan = open("vulkan, checked, no subgroups", NO_SUBGROUPS, true);
    for filter in ["/grouped/mixed", "/matmul/batch"] {
        all_pass(&vulkan, &table(), filter);
    }
}

#[test]
fn an_expert_out_of_range_is_named_in_checked_mode() {
    let vulkan = open("vulkan, checked", Mask::default(), true);
    for rows in [4, 40] {
        let case = Case::new("experts", "experts/unknown", F32, normal(), sum_of(8), move |g| {
            let (x, w) = (g.x([rows, 8])?, g.x([3, 8, 20])?);
            let ids: Vec<i64> = (0..rows as i64).map(|i| if i == 2 { -5 } else { i % 3 }).collect();
            let ids = g.ints(I64, [rows], &ids)?;
            g.grouped_matmul(x, w, ids)
        });
        let outcome = check(&case, &vulkan).to_string();
        assert!(outcome.contains("index -5 at position 2 is out of range for size 3"), "{outcome}");
    }
}

/// relu(product · scale + rest), `scale` and `rest` of any shape that broadcasts.
fn epilogue(heavy: bool) -> Region {
    let scalar = |op, args: &[Arg]| Instr { op: InstrOp::Scalar(op), args: args.to_vec() };
    let mut instrs = vec![
        scalar(ScalarOp::Binary(Binary::Mul), &[Arg::Input(0), Arg::Input(1)]),
        scalar(ScalarOp::Binary(Binary::Add), &[Arg::Instr(0), Arg::Input(2)]),
        scalar(ScalarOp::Unary(Unary::Relu), &[Arg::Instr(1)]),
    ];
    if heavy {
        instrs.push(scalar(ScalarOp::Unary(Unary::Floor), &[Arg::Instr(2)]));
    }
    let last = Arg::Instr(instrs.len() - 1);
    Region { inputs: 3, instrs, outputs: vec![last] }
}

/// A product of random sizes, layouts, batches and epilogues; whole numbers make every sum exact.
fn random_matmul(seed: u64) -> Case {
    let mut rng = Rng::named(&format!("product {seed}"));
    let mut pick = |options: &[usize]| options[rng.below(options.len())];
    let edge = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 36, 63, 64, 65, 96, 100, 127, 128, 129, 130];
    let (m, n, k) = (pick(&edge), pick(&edge), pick(&edge));
    let k = if seed.is_multiple_of(7) { k * 11 } else { k };
    let batch: &[usize] = [&[][..], &[][..], &[3], &[2, 3], &[2, 1, 2]][pick(&[0, 1, 2, 3, 4])];
    let (drop_a, drop_b) = (pick(&[0, 1]) == 0, pick(&[0, 1]) == 0);
    let (turn_a, turn_b) = (pick(&[0, 1]) == 0, pick(&[0, 1]) == 0);
    let (reverse, with_epilogue, heavy) = (pick(&[0, 1, 2]) == 0, pick(&[0, 1]) == 0, pick(&[0, 1]) == 0);
    let dtype = [F32, F32, F32, F16, I32, U8][pick(&[0, 1, 2, 3, 4, 5])];
    let (scale, rest) = (pick(&[0, 1, 2]), pick(&[0, 1, 2, 3]));
    let name = format!("product/{seed}-{m}x{k}x{n}-{batch:?}-{dtype}-{turn_a}{turn_b}{with_epilogue}");
    let batch = batch.to_vec();
    let exact = whole(-2, 2);
    Case::new("product", name, dtype, exact, Bound::Exact, move |g| {
        let dims = |batched: bool, rows: usize, columns: usize| -> Vec<usize> {
            let batch = if batched { batch.as_slice() } else { &[] };
            batch.iter().copied().chain([rows, columns]).collect()
        };
        let mut factor = |batched: bool, turned: bool, rows: usize, columns: usize| {
            let shape = if turned { dims(batched, columns, rows) } else { dims(batched, rows, columns) };
            let rank = shape.len();
            let mut x = g.x(shape.as_slice())?;
            if turned {
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(rank - 1, rank - 2);
                x = g.transpose(x, &order)?;
            }
            Ok::<_, olivine_ir::Error>(x)
        };
        // Both may not lose their batches: the epilogue's operands then have none to broadcast to.
        let mut a = factor(!drop_a, turn_a, m, k)?;
        let b = factor(!drop_b || drop_a, turn_b, k, n)?;
        if reverse && k > 1 {
            let axis = if drop_a { 1 } else { batch.len() as isize + 1 };
            a = g.slice(a, axis, k as i64 - 1, -(k as i64) - 1, -1)?;
        }
        if !with_epilogue {
            return g.add1(MatMul { epilogue: None }, &[a, b]);
        }
        let scale: Vec<usize> = [vec![], vec![n], vec![m, 1]][scale].clone();
        let rest: Vec<usize> = [vec![1], vec![n], dims(true, m, n), dims(true, 1, n)][rest].clone();
        let (scale, rest) = (g.x(scale.as_slice())?, g.x(rest.as_slice())?);
        g.add1(MatMul { epilogue: Some(epilogue(heavy && dtype.is_float())) }, &[a, b, scale, rest])
    })
}

#[test]
fn random_matmuls_are_exact() {
    let vulkan = open("vulkan", Mask::default(), false);
    let cases: Vec<Case> = (0..150).map(random_matmul).collect();
    all_pass(&vulkan, &cases, "product");
}

#[test]
fn random_matmuls_stay_in_bounds_without_subgroups() {
    let vulkan = open("vulkan, checked, no subgroups", NO_SUBGROUPS, true);
    let cases: Vec<Case> = (150..160).map(random_matmul).collect();
    all_pass(&vulkan, &cases, "product");
}

fn matmul(dtype: DType, m: usize, k: usize, n: usize, turned: bool) -> Case {
    let name = format!("large/{m}x{k}x{n}-{dtype}-{turned}");
    let (fill, bound) = if dtype == F32 { (whole(-8, 8), Bound::Exact) } else { (normal(), sum_of(k)) };
    Case::new("large", name, dtype, fill, bound, move |g| {
        let x = g.x([m, k])?;
        if turned {
            let w = g.x([n, k])?;
            return g.matmul_nt(x, w);
        }
        let w = g.x([k, n])?;
        g.matmul(x, w)
    })
}

#[test]
fn every_kernel_meets_its_shapes() {
    let vulkan = open("vulkan", Mask::default(), false);
    let shapes =
        [(300, 70, 500), (513, 33, 260), (384, 64, 640), (70, 1500, 70), (1, 3000, 200), (5, 9000, 3)];
    for (m, k, n) in shapes {
        for turned in [false, true] {
            for dtype in [F32, BF16, F64] {
                let case = matmul(dtype, m, k, n, turned);
                let outcome = check(&case, &vulkan);
                assert!(outcome.passed(), "{}: {outcome}", case.name);
            }
        }
    }
}

#[test]
fn many_rows_go_to_many_experts() {
    let vulkan = open("vulkan", Mask::default(), false);
    for (rows, count, depth, n) in [(17, 3, 8, 12), (200, 5, 33, 70), (130, 40, 16, 4), (500, 1, 20, 65)] {
        for dtype in [F32, F16] {
            let name = format!("experts/{rows}-{count}-{depth}-{n}-{dtype}");
            let case = Case::new("experts", name, dtype, whole(-4, 4), Bound::Exact, move |g| {
                let (x, w) = (g.x([rows, depth])?, g.x([count, depth, n])?);
                // Some ids are past the last expert.
                let ids: Vec<i64> = (0..rows as i64).map(|i| (i * 7 + i / 5) % (count as i64 + 1)).collect();
                let ids = g.ints(I32, [rows], &ids)?;
                g.grouped_matmul(x, w, ids)
            });
            let outcome = check(&case, &vulkan);
            assert!(outcome.passed(), "{}: {outcome}", case.name);
        }
    }
}
