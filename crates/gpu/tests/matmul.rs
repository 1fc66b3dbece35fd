//! Which kernels matmuls and convolutions become, and that every kernel is valid in every printed form.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::io::Write;
use std::process::{Command, Stdio};

use olivine_compile::{Options, compile};
use olivine_gpu::{Addressing, DeviceCaps, DeviceKind, Record, lower};
use olivine_ir::op::{Arg, Binary, Conv, Instr, InstrOp, MatMul, Region, ScalarOp, Unary, Window};
use olivine_ir::{DType, Graph, ValueId};
use olivine_kernel::spirv::{self, SpirvOptions};
use olivine_kernel::wgsl::{self, Dialect, WgslOptions};
use olivine_kernel::{Elem, Kernel, MatrixShape, MatrixSupport, Target};

fn caps(kind: DeviceKind, target: Target) -> DeviceCaps {
    DeviceCaps {
        name: "a device".into(),
        driver: "a driver".into(),
        kind,
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

/// A card with everything but cooperative matrices.
fn card() -> DeviceCaps {
    let target = Target {
        subgroup: Some(32),
        f16: true,
        exact_f16: false,
        f64: true,
        i64: true,
        i64_pairs: false,
        packed_dot: true,
        matrices: Vec::new(),
        matrix_support: MatrixSupport::Full,
        fragments: None,
        warpgroups: false,
        int8_warpgroups: false,
        device_fences: false,
        max_invocations: 1024,
        shared_bytes: 49152,
    };
    caps(DeviceKind::Discrete, target)
}

fn plain() -> DeviceCaps {
    caps(DeviceKind::Other, Target::plain())
}

#[test]
fn f16_is_multiplied_by_cooperative_matrices_where_there_are_any() {
    let mut with = card();
    let shape = |operand| MatrixShape { operand, accumulator: Elem::F32, m: 16, n: 16, k: 16 };
    with.target.matrices = vec![shape(Elem::F16), shape(Elem::BF16)];
    let names = |caps: &DeviceCaps, dtype: DType, a: [usize; 2], b: [usize; 2], turned: bool| {
        let mut g = Graph::new("product");
        let x = g.input("x", dtype, a).unwrap();
        let mut w = g.input("w", dtype, b).unwrap();
        if turned {
            w = g.transpose(w, &[1, 0]).unwrap();
        }
        let y = g.matmul(x, w).unwrap();
        g.output("y", y).unwrap();
        let program = lower(&compile(&g, &Options::default()).unwrap(), caps, &Record::new(), &[]).unwrap();
        program.run.iter().map(|d| program.kernel(d).name.clone()).collect::<Vec<_>>()
    };
    for dtype in [DType::F16, DType::BF16] {
        // Whole slots, single elements, depths that end inside a step; both ways a operand may lie.
        for (a, b, turned) in [
            ([256, 64], [64, 256], false),
            ([21, 40], [40, 24], false),
            ([300, 33], [33, 17], false),
            ([40, 96], [200, 96], true),
            ([16, 31], [19, 31], true),
        ] {
            assert_eq!(names(&with, dtype, a, b, turned), ["matmul_coop"], "{dtype} {a:?} {b:?}");
            assert!(!names(&card(), dtype, a, b, turned).contains(&"matmul_coop".to_string()));
        }
    }
    assert_eq!(names(&with, DType::F32, [256, 64], [64, 256], false), ["matmul_tiled"]);
    assert_eq!(names(&with, DType::F16, [4, 64], [64, 256], false), ["matmul_gemv_axpy"]);
    assert_eq!(
        names(&with, DType::F16, [64, 4096], [4096, 64], false),
        ["matmul_coop", "matmul_split_k_sum"]
    );
}

/// What `spirv-val` finds wrong; an empty string when nothing is.
fn complaint(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut child = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.3", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("spirv-val: {e}; it comes with `apt install spirv-tools`"));
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        return String::new();
    }
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn check(kernel: &Kernel, dialect: Dialect) {
    for checked in [false, true] {
        let options = SpirvOptions {
            addressing: spirv::Addressing::Pointers { push_bytes: 128 },
            f16_registers: true,
            checked,
            ..SpirvOptions::default()
        };
        let words = spirv::print(kernel, &options).unwrap();
        assert_eq!(complaint(&words), "", "{}", kernel.name);
        let module = wgsl::print(kernel, &WgslOptions { dialect, checked }).unwrap();
        let parsed = naga::front::wgsl::parse_str(&module.source)
            .unwrap_or_else(|e| panic!("{}\n{}", module.source, e.emit_to_string(&module.source)));
        let mut validator = naga::valid::Validator::new(
            naga::valid::ValidationFlags::all(),
            naga::valid::Capabilities::all(),
        );
        validator
            .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
            .subgroup_operations(naga::valid::SubgroupOperationSet::all());
        validator
            .validate(&parsed)
            .unwrap_or_else(|e| panic!("{}\n{}", module.source, e.emit_to_string(&module.source)));
    }
}

/// Lowers a graph of one product and checks its kernels; gives their names.
fn kernels(
    caps: &DeviceCaps,
    build: impl FnOnce(&mut Graph) -> Result<ValueId, olivine_ir::Error>,
) -> Vec<String> {
    let mut graph = Graph::new("product");
    let out = build(&mut graph).unwrap();
    graph.output("y", out).unwrap();
    let compiled = compile(&graph, &Options::default()).unwrap();
    let program = lower(&compiled, caps, &Record::new(), &[]).unwrap();
    let dialect = if caps.target.subgroup.is_some() { Dialect::Native } else { Dialect::Plain };
    program.kernels.iter().for_each(|k| check(k, dialect));
    program.run.iter().map(|d| program.kernel(d).name.clone()).collect()
}

/// gelu(product) + x, or product + x.
fn epilogue(heavy: bool) -> Region {
    let scalar = |op, args: &[Arg]| Instr { op: InstrOp::Scalar(op), args: args.to_vec() };
    let mut instrs = Vec::new();
    let mut product = Arg::Input(0);
    if heavy {
        instrs.push(scalar(ScalarOp::Unary(Unary::Gelu), &[product]));
        product = Arg::Instr(0);
    }
    instrs.push(scalar(ScalarOp::Binary(Binary::Add), &[product, Arg::Input(1)]));
    let last = Arg::Instr(instrs.len() - 1);
    Region { inputs: 2, instrs, outputs: vec![last] }
}

#[test]
fn every_kernel_is_valid_spirv_and_wgsl() {
    for (caps, dtypes) in [
        (card(), &[DType::F32, DType::BF16, DType::F64, DType::I8, DType::I64][..]),
        (plain(), &[DType::F32, DType::F16, DType::U8]),
    ] {
        for dtype in dtypes {
            for (m, k, n) in [(2048, 64, 2048), (70, 33, 500), (40, 1000, 36), (1, 4096, 64), (30, 9, 2)] {
                for turn in [false, true] {
                    for heavy in [false, true].into_iter().filter(|h| !h || *dtype == DType::F32) {
                        kernels(&caps, |g| {
                            let a = g.input("a", *dtype, [m, k])?;
                            let b = if turn {
                                let b = g.input("b", *dtype, [n, k])?;
                                g.transpose(b, &[1, 0])?
                            } else {
                                g.input("b", *dtype, [k, n])?
                            };
                            let c = g.input("c", *dtype, [n])?;
                            g.add1(MatMul { epilogue: Some(epilogue(heavy)) }, &[a, b, c])
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn rows_of_few_or_many_experts_are_valid_kernels() {
    for (caps, dtype) in [(card(), DType::BF16), (plain(), DType::F32)] {
        for (rows, expected) in
            [(4, &["matmul_gemv_axpy"][..]), (100, &["grouped_matmul_sort", "grouped_matmul_tiled"])]
        {
            let names = kernels(&caps, |g| {
                let x = g.input("x", dtype, [rows, 24])?;
                let w = g.input("w", dtype, [8, 24, 40])?;
                let ids = g.input("ids", DType::I64, [rows])?;
                g.grouped_matmul(x, w, ids)
            });
            assert_eq!(names, expected);
        }
    }
}

#[test]
fn sums_are_split_and_summed_in_two_dispatches_and_empty_ones_need_one() {
    let product = |m: usize, k: usize, n: usize| {
        kernels(&card(), |g| {
            let (a, b) = (g.input("a", DType::F32, [m, k])?, g.input("b", DType::F32, [k, n])?);
            g.matmul(a, b)
        })
    };
    assert_eq!(product(64, 2048, 64), ["matmul_tiled", "matmul_split_k_sum"]);
    assert_eq!(product(3, 0, 4), ["matmul_split_k_sum"]);
    assert_eq!(product(0, 3, 4), Vec::<String>::new());
}

#[test]
fn batches_become_rows_where_rhs_is_shared() {
    let one = |a: &[usize], b: &[usize]| {
        let mut graph = Graph::new("product");
        let x = graph.input("a", DType::F32, a).unwrap();
        let y = graph.input("b", DType::F32, b).unwrap();
        let out = graph.matmul(x, y).unwrap();
        graph.output("y", out).unwrap();
        let compiled = compile(&graph, &Options::default()).unwrap();
        lower(&compiled, &card(), &Record::new(), &[]).unwrap().run[0].params[..3].to_vec()
    };
    assert_eq!(one(&[4, 25, 64], &[64, 48]), [100, 48, 64]);
    assert_eq!(one(&[4, 25, 64], &[4, 64, 48]), [25, 48, 64]);
    // Rows of one become rows of all.
    assert_eq!(one(&[6, 1, 64], &[64, 48]), [6, 48, 64]);
}

#[test]
fn every_convolution_is_valid_spirv_and_wgsl() {
    let same = |kernel: usize, stride| Window::same(2, stride, kernel / 2);
    for (caps, dtypes) in [(card(), &[DType::F32, DType::F64][..]), (plain(), &[DType::F32, DType::BF16])] {
        for dtype in dtypes {
            // Images, channels, side; filters, kernel, stride; groups.
            for (x, w, groups, expected) in [
                ([8, 6, 56], [64, 3, 1], 1, &["conv_tiled"][..]),
                ([8, 6, 56], [200, 3, 1], 1, &["conv_tiled"]),
                ([1, 160, 9], [40, 3, 1], 1, &["conv_tiled", "matmul_split_k_sum"]),
                ([8, 6, 90], [16, 17, 1], 1, &["conv_tiled"]),
                ([8, 6, 200], [3, 3, 2], 1, &["conv_direct"]),
                ([8, 6, 40], [64, 1, 1], 1, &["matmul_tiled"]),
                ([8, 64, 80], [64, 3, 2], 64, &["conv_depthwise"]),
            ] {
                let ([images, channels, side], [filters, kernel, stride]) = (x, w);
                for heavy in [false, true].into_iter().filter(|h| !h || *dtype == DType::F32) {
                    let names = kernels(&caps, |g| {
                        let x = g.input("x", *dtype, [images, channels, side, side])?;
                        let w = g.input("w", *dtype, [filters, channels / groups, kernel, kernel])?;
                        let (bias, extra) = (g.input("bias", *dtype, [filters])?, g.input("c", *dtype, [1])?);
                        let epilogue = Some(epilogue(heavy));
                        let op = Conv { window: same(kernel, stride), groups, bias: true, epilogue };
                        g.add1(op, &[x, w, bias, extra])
                    });
                    assert_eq!(names, expected, "{x:?} {w:?} {dtype}");
                }
            }
            let names = kernels(&caps, |g| {
                let x = g.input("x", *dtype, [4, 32, 20, 20])?;
                let w = g.input("w", *dtype, [32, 64, 4, 4])?;
                g.conv_transpose(x, w, None, Window::same(2, 2, 1), 1, &[0, 0])
            });
            assert_eq!(names, ["conv_tiled"]);
        }
    }
}

#[test]
fn another_size_of_image_uses_the_same_kernels() {
    let of_side = |side: usize| {
        let mut graph = Graph::new("convolutions");
        let x = graph.input("x", DType::F32, [8, 16, side, side]).unwrap();
        let (w, d) =
            (graph.input("w", DType::F32, [64, 16, 3, 3]), graph.input("d", DType::F32, [64, 1, 3, 3]));
        let y = graph.conv(x, w.unwrap(), None, Window::same(2, 1, 1), 1).unwrap();
        let y = graph.conv(y, d.unwrap(), None, Window::same(2, 1, 1), 64).unwrap();
        let y = graph.im2col(y, &[2, 2], Window::unit(2)).unwrap();
        graph.output("y", y).unwrap();
        let program =
            lower(&compile(&graph, &Options::default()).unwrap(), &card(), &Record::new(), &[]).unwrap();
        program.run.iter().map(|d| program.kernel(d).content_hash()).collect::<Vec<_>>()
    };
    assert_eq!(of_side(104), of_side(112));
}

#[test]
fn every_candidate_is_a_kernel_that_the_device_can_hold() {
    let mut with = card();
    let shape = |operand| MatrixShape { operand, accumulator: Elem::F32, m: 16, n: 16, k: 16 };
    with.target.matrices = vec![shape(Elem::F16)];
    let mut seen = std::collections::HashSet::new();
    for (dtype, m, n, k) in [
        (DType::F16, 512, 256, 1024),
        (DType::F16, 40, 72, 100),
        (DType::F32, 512, 256, 1024),
        (DType::F32, 3, 256, 5000),
        (DType::F64, 100, 100, 300),
    ] {
        let product = |tuning: &Record| {
            let mut g = Graph::new("product");
            let (x, w) = (g.input("x", dtype, [m, k]).unwrap(), g.input("w", dtype, [k, n]).unwrap());
            let y = g.matmul(x, w).unwrap();
            g.output("y", y).unwrap();
            lower(&compile(&g, &Options::default()).unwrap(), &with, tuning, &[]).unwrap()
        };
        let [made] = product(&Record::new()).decisions.try_into().unwrap();
        assert!(made.candidates.len() >= 2 && made.candidates.contains(&made.default), "{made:?}");
        for candidate in &made.candidates {
            let mut record = Record::default();
            record.set(made.family, &made.class, candidate);
            let program = product(&record);
            assert_eq!(&program.decisions[0].chosen, candidate);
            for kernel in &program.kernels {
                assert!(kernel.group <= 1024, "{candidate}");
                // Installed validators may not know cooperative matrices; ours has seen them.
                let by_matrices = ["matmul_coop", "matmul_stream_k"].contains(&kernel.name.as_str());
                if !by_matrices && seen.insert(kernel.content_hash()) {
                    let options = SpirvOptions {
                        addressing: spirv::Addressing::Pointers { push_bytes: 128 },
                        f16_registers: true,
                        ..SpirvOptions::default()
                    };
                    assert_eq!(complaint(&spirv::print(kernel, &options).unwrap()), "", "{candidate}");
                }
            }
        }
    }
}
