//! Custom operations: the same numbers from a CPU function, a kernel in our language, SPIR-V and WGSL; and refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::sync::Arc;

use olivine::PipelineCache;
use olivine::custom::{
    Attr, Attrs, CodeLaunch, CpuFunction, CustomOp, Foreign, GpuKernel, SpirvModule, WgslModule,
};
use olivine::internals::OptionsExt as _;
use olivine::internals::kernel::spirv::{Addressing, SpirvOptions, print};
use olivine::internals::kernel::{Access, Builder, Elem, Scalar, Target};
use olivine::ir::TensorType;
use olivine::prelude::*;

fn open(device: &str, options: SessionOptions) -> Session {
    let options = options.pipeline_cache(PipelineCache::Off);
    Session::with_options(device.parse().unwrap(), options)
        .expect("a device; `apt-get install mesa-vulkan-drivers`")
}

/// `y = x · by + z`, in f32; the parts that compute it are the caller's.
fn rule() -> CustomOp {
    CustomOp::new("acme.scale_add", |attrs, operands| match operands {
        [x, z] if x == z && x.dtype == DType::F32 => attrs.get::<f64>("by").map(|_| vec![*x]),
        _ => Err("takes two f32 operands of one shape".into()),
    })
}

fn function() -> CpuFunction {
    CpuFunction::new(|attrs, operands, results| {
        let by = attrs.get::<f64>("by")? as f32;
        let [x, z] = [0, 1].map(|i| operands[i].as_slice::<f32>().unwrap());
        let y = results[0].as_mut_slice::<f32>().map_err(|e| e.to_string())?;
        for (i, y) in y.iter_mut().enumerate() {
            *y = x[i] * by + z[i];
        }
        Ok(())
    })
}

fn written() -> GpuKernel {
    GpuKernel::written(|call| {
        let by = call.attrs().get::<f64>("by")? as f32;
        let n = call.operands()[0].shape.numel();
        let group = call.group_size(128);
        // In two steps, through scratch memory, as a larger operation would.
        let between = call.scratch(4 * n as u64);
        let groups = n.div_ceil(group as usize) as u64;
        call.dispatch("scale", group, groups, (n as u64, 8 * n as u64), |args| {
            let x = args.operand(0)?;
            let t = args.scratch("t", Elem::F32, Access::Write, between);
            let (n, by) = (args.size("n", n), args.f32("by", by));
            let i = args.index();
            args.k().if_(i.lt(n), || t.store(i, x.load(i) * by));
            Ok(())
        })?;
        call.dispatch("add", group, groups, (n as u64, 12 * n as u64), |args| {
            let t = args.scratch("t", Elem::F32, Access::Read, between);
            let (z, y) = (args.operand(1)?, args.result(0)?);
            let n = args.size("n", n);
            let i = args.index();
            args.k().if_(i.lt(n), || y.store(i, t.load(i) + z.load(i)));
            Ok(())
        })
    })
}

/// The kernel as a module, as another compiler might have made it.
fn module(addressing: Addressing) -> SpirvModule {
    let k = Builder::new("foreign", 64, &Target { i64: true, ..Target::plain() });
    let [x, z] = ["x", "z"].map(|name| k.arg(name, Elem::F32, Access::Read));
    let y = k.arg("y", Elem::F32, Access::Write);
    let (n, by) = (k.param("n", Scalar::U32), k.param("by", Scalar::F32));
    let i = k.group_id(0) * 64 + k.local_index();
    k.if_(i.lt(n), || y.store(i, x.load(i) * by + z.load(i)));
    let words = print(&k.finish().unwrap(), &SpirvOptions { addressing, ..SpirvOptions::default() }).unwrap();
    SpirvModule::new(words, "main").unwrap()
}

const WGSL: &str = "
struct Params { n: u32, by: f32 }
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> z: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;
@compute @workgroup_size(64)
fn scale_add(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < p.n) { y[id.x] = x[id.x] * p.by + z[id.x]; }
}
";

fn code(foreign: Foreign) -> GpuKernel {
    let launch = |attrs: &Attrs, operands: &[TensorType], _: &[TensorType]| {
        let n = operands[0].shape.numel() as u32;
        let by = attrs.get::<f64>("by")? as f32;
        Ok(CodeLaunch { groups: [n.div_ceil(64), 1, 1], params: vec![n, by.to_bits()] })
    };
    // Safety: every module here reads and writes elements below its first param, which all operands and the result have.
    unsafe { GpuKernel::code(foreign, launch) }
}

/// The same numbers without bounds.
fn unchecked() -> GpuKernel {
    // Safety: `i` is below the number of elements of all three.
    unsafe {
        GpuKernel::written_unchecked(|call| {
            let by = call.attrs().get::<f64>("by")? as f32;
            let n = call.operands()[0].shape.numel();
            let group = call.group_size(128);
            call.dispatch("unchecked", group, n.div_ceil(group as usize) as u64, (0, 0), |args| {
                let (x, z, y) = (args.operand(0)?, args.operand(1)?, args.result(0)?);
                let (n, by, i) = (args.size("n", n), args.f32("by", by), args.index());
                args.k().if_(i.lt(n), || y.store(i, x.load(i) * by + z.load(i)));
                Ok(())
            })
        })
    }
}

fn pointers() -> Foreign {
    Foreign { pointers: Some(module(Addressing::Pointers { push_bytes: 128 })), ..Foreign::default() }
}

fn bindings() -> Foreign {
    let addressing = Addressing::Bindings { immediate_bytes: 128, storage16: false };
    Foreign { bindings: Some(module(addressing)), ..Foreign::default() }
}

fn wgsl() -> Foreign {
    let module = WgslModule { source: WGSL.into(), entry: "scale_add".into() };
    Foreign { wgsl: Some(module), ..Foreign::default() }
}

/// `exp(op(xᵀ, z)) · 1`, so that the operation has neighbours and a strided operand.
fn graph(op: &Arc<CustomOp>) -> Graph {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [4, 100]).unwrap();
    let z = g.input("z", DType::F32, [100, 4]).unwrap();
    let turned = g.transpose(x, &[1, 0]).unwrap();
    let attrs = Attrs(vec![("by".into(), Attr::Float(2.0))]);
    let y = g.custom(op, attrs, &[turned, z]).unwrap();
    let y = g.neg(y[0]).unwrap();
    g.output("y", y).unwrap();
    g
}

fn inputs() -> (Tensor, Tensor, Vec<f64>) {
    let x: Vec<f32> = (0..400).map(|i| i as f32 - 200.0).collect();
    let z: Vec<f32> = (0..400).map(|i| (i % 13) as f32).collect();
    let expected = (0..400).map(|i| -f64::from(x[(i % 4) * 100 + i / 4] * 2.0 + z[i])).collect();
    (Tensor::new([4, 100], x).unwrap(), Tensor::new([100, 4], z).unwrap(), expected)
}

fn gives_the_same(session: &Session, op: CustomOp, what: &str) {
    let run = session.compile(&graph(&Arc::new(op))).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (x, z, expected) = inputs();
    let out = run.run([("x", &x), ("z", &z)]).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(out.get("y").unwrap().to_f64(), expected, "{what} on {}", session.device_name());
}

fn refusal(session: &Session, op: CustomOp) -> Error {
    match session.compile(&graph(&Arc::new(op))) {
        Ok(_) => panic!("accepted on {}", session.device_name()),
        Err(e) => e,
    }
}

#[test]
fn a_function_and_every_kind_of_kernel_give_the_same() {
    gives_the_same(&open("cpu", SessionOptions::default()), rule().with(function()), "function");
    for checked in [false, true] {
        let session = |device: &str| open(device, SessionOptions::new().checked(checked));
        let (vulkan, wgpu) = (session("vulkan"), session("wgpu"));
        gives_the_same(&vulkan, rule().with(written()), "kernel");
        gives_the_same(&wgpu, rule().with(written()), "kernel");
        gives_the_same(&vulkan, rule().with(unchecked()), "kernel without bounds");
        gives_the_same(&wgpu, rule().with(unchecked()), "kernel without bounds");
        gives_the_same(&vulkan, rule().with(code(pointers())), "SPIR-V with pointers");
        gives_the_same(&wgpu, rule().with(code(bindings())), "SPIR-V with bindings");
        gives_the_same(&wgpu, rule().with(code(wgsl())), "WGSL");
    }
    let browser = open("wgpu", SessionOptions::new().browser_dialect(true));
    gives_the_same(&browser, rule().with(written()), "kernel");
    gives_the_same(&browser, rule().with(code(wgsl())), "WGSL");
}

#[test]
fn an_operation_without_a_part_for_the_device_is_refused_by_name() {
    for device in ["cpu", "vulkan", "wgpu"] {
        let session = open(device, SessionOptions::default());
        let other = if device == "cpu" { rule().with(written()) } else { rule().with(function()) };
        let problem = refusal(&session, other).to_string();
        assert!(problem.contains("acme.scale_add"), "{problem}");
    }
    let vulkan = open("vulkan", SessionOptions::default());
    let problem = refusal(&vulkan, rule().with(code(bindings())));
    assert!(matches!(&problem, Error::Gpu(olivine::internals::gpu::Error::Unsupported { .. })), "{problem}");
    assert!(problem.to_string().contains("by address"), "{problem}");
    let browser = open("wgpu", SessionOptions::new().browser_dialect(true));
    let problem = refusal(&browser, rule().with(code(bindings())));
    assert!(matches!(&problem, Error::Gpu(olivine::internals::gpu::Error::Unsupported { .. })), "{problem}");
}

#[test]
fn errors_and_panics_of_the_user_are_errors_of_the_run() {
    let session = open("cpu", SessionOptions::default());
    let fails = CpuFunction::new(|_, _, _| Err("no more paper".into()));
    let panics = CpuFunction::new(|_, _, _| panic!("out of ink"));
    for (part, why) in [(fails, "no more paper"), (panics, "it panicked: out of ink")] {
        let run = session.compile(&graph(&Arc::new(rule().with(part)))).unwrap();
        let (x, z, _) = inputs();
        let problem = run.run([("x", &x), ("z", &z)]).err().unwrap();
        assert!(matches!(&problem, Error::Cpu(olivine::internals::cpu::Error::Custom { .. })), "{problem}");
        assert!(problem.to_string().contains(why), "{problem}");
    }
    let vulkan = open("vulkan", SessionOptions::default());
    let problem = refusal(&vulkan, rule().with(GpuKernel::written(|_| panic!("out of ink")))).to_string();
    assert!(problem.contains("its GPU part panicked"), "{problem}");
    let unbound =
        GpuKernel::written(|call| call.dispatch("wrong", 32, 1, (0, 0), |args| args.operand(7).map(drop)));
    assert!(refusal(&vulkan, rule().with(unbound)).to_string().contains("no operand 7"));
}

#[test]
fn a_custom_operation_runs_inside_a_loop() {
    let op = Arc::new(rule().with(function()).with(written()));
    let mut body = Graph::new("b");
    body.input("trip", DType::I64, []).unwrap();
    let x = body.input("x", DType::F32, [3]).unwrap();
    let attrs = Attrs(vec![("by".into(), Attr::Float(1.0))]);
    let y = body.custom(&op, attrs, &[x, x]).unwrap();
    let go = body.constant(Tensor::scalar(true));
    body.output("go", go).unwrap();
    body.output("y", y[0]).unwrap();
    let mut g = Graph::new("g");
    let trips = g.input("trips", DType::I64, []).unwrap();
    let x = g.input("x", DType::F32, [3]).unwrap();
    let begin = g.constant(Tensor::scalar(true));
    let y = g.loop_(trips, begin, &[x], &[], Some(8), body).unwrap();
    g.output("y", y[0]).unwrap();
    for device in ["cpu", "vulkan", "wgpu"] {
        let run = open(device, SessionOptions::default()).compile(&g).unwrap();
        let (trips, x) = (Tensor::scalar(5i64), Tensor::new([3], vec![1.0f32, 2.0, 3.0]).unwrap());
        let out = run.run([("trips", &trips), ("x", &x)]).unwrap();
        assert_eq!(out.get("y").unwrap().to_f64(), [32.0, 64.0, 96.0], "{device}");
    }
}
