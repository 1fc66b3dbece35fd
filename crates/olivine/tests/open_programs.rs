//! GPU programs with open sizes, on devices that need not be here: evaluated for any sizes, a program is the one that
//! those sizes are lowered to, and few kernels serve all sizes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::collections::HashSet;
use std::sync::Arc;

use olivine::internals::compile::{Options, compile};
use olivine::internals::gpu::{Addressing, DeviceCaps, DeviceKind, Program, Record, lower};
use olivine::internals::ir::open_symbol;
use olivine::internals::ir::size::Bindings;
use olivine::internals::ir::size::guards::{self, GuardSet};
use olivine::internals::kernel::ptx::Capability;
use olivine::internals::kernel::{Elem, Fragments, Kernel, MatrixShape, Target};
use olivine::internals::models::Encoder;
use olivine::ir::{DType, Graph, Shape};

mod graphs;

/// A large NVIDIA card.
fn h200() -> DeviceCaps {
    let shape = |operand, accumulator, k| MatrixShape { operand, accumulator, m: 16, n: 16, k };
    let target = Target {
        subgroup: Some(32),
        f16: true,
        f64: true,
        i64: true,
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

/// The same without cooperative matrices.
fn plain_card() -> DeviceCaps {
    let mut caps = h200();
    caps.name = "a card without matrices".into();
    caps.target.matrices.clear();
    caps.target.fragments = None;
    caps
}

/// The same where kernels are launched as PTX, with the warpgroups that only PTX has.
fn h200_ptx() -> DeviceCaps {
    let mut caps = h200();
    caps.name = "a large card, as PTX".into();
    caps.target.warpgroups = true;
    caps.ptx = Some(Capability::HOPPER);
    caps
}

fn lowered(graph: &Graph, caps: &DeviceCaps) -> Program {
    lower(&compile(graph, &Options::default()).unwrap(), caps, &Record::new(), &[]).unwrap()
}

/// Fails unless two programs dispatch the same kernels with the same numbers.
fn same(open: &Program, fixed: &Program, what: &str) {
    let names = |program: &Program| -> Vec<String> {
        program.run.iter().map(|d| program.kernel(d).name.clone()).collect()
    };
    assert_eq!(names(open), names(fixed), "{what}");
    for (i, (a, b)) in open.run.iter().zip(&fixed.run).enumerate() {
        let what = format!("{what}: dispatch {i}, {} of {}", open.kernel(a).name, a.node);
        assert!(open.kernel(a) == fixed.kernel(b), "{what}: other code");
        assert_eq!(a.params, b.params, "{what}: {:?}", open.kernel(a).params);
        assert_eq!(a.groups, b.groups, "{what}");
        let places = |d: &olivine::internals::gpu::Dispatch| -> Vec<u64> {
            d.args.iter().map(|arg| arg.bytes).collect()
        };
        assert_eq!(places(a), places(b), "{what}");
    }
}

/// Batches and lengths of an encoder.
const BATCHES: usize = 32;
const LENGTHS: usize = 512;

/// Lowers an encoder for all sizes, a plan for each class of them, and returns plans and kernels.
fn encoder_of_all_sizes(dtype: DType, caps: &DeviceCaps) -> (usize, HashSet<Arc<Kernel>>) {
    let encoder = Encoder { layers: 2, dtype, ..Encoder::bert_base(1, 128) };
    let graph = encoder.graph().unwrap();
    let (batch_size, sequence_size) = (open_symbol("batch").unwrap(), open_symbol("sequence").unwrap());
    let mut plans: Vec<(GuardSet, Program)> = Vec::new();
    let mut kernels = HashSet::new();
    let mut random = 7u64;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((random >> 33) % n) as usize
    };
    for (batch, sequence) in (1..=BATCHES).flat_map(|batch| (1..=LENGTHS).map(move |length| (batch, length)))
    {
        let shapes = [("x", Shape::new(&[batch, sequence, encoder.hidden]).unwrap())];
        let mut values = Bindings::new();
        values.bind(batch_size, batch as i64).unwrap();
        values.bind(sequence_size, sequence as i64).unwrap();
        let known = plans.iter().position(|(guards, _)| guards.holds(&values));
        let at = known.unwrap_or_else(|| {
            let (program, guards) =
                guards::record(|| lowered(&graph.specialise_symbolic(&shapes).unwrap(), caps));
            kernels.extend(program.kernels.iter().cloned());
            plans.push((guards, program));
            plans.len() - 1
        });
        // Each plan where it is made, a sample of the others, and the corners; strides over axes of one position are any.
        let corner = [1, BATCHES].contains(&batch) && [1, LENGTHS].contains(&sequence);
        let compared = known.is_none() || corner || below(200) == 0;
        if compared && sequence > 1 {
            let fixed = lowered(&graph.specialise(&shapes).unwrap(), caps);
            let open = plans[at].1.for_sizes(&values).unwrap();
            same(&open, &fixed, &format!("{dtype} on {}, batch {batch}, sequence {sequence}", caps.name));
        }
    }
    if plans.len() > MOST_PLANS {
        let show = |guards: &GuardSet| guards.iter().map(|g| format!("{g:?}")).collect::<Vec<_>>().join("\n");
        panic!(
            "{dtype} on {}: {} plans, such as\n{}",
            caps.name,
            plans.len(),
            show(&plans[plans.len() - 1].0)
        );
    }
    (plans.len(), kernels)
}

/// Plans that all sizes may need together.
const MOST_PLANS: usize = 130;

#[test]
fn sixty_kernels_serve_bert_at_every_batch_and_length() {
    let devices = [
        (DType::F32, h200()),
        (DType::F16, h200()),
        (DType::F32, h200_ptx()),
        (DType::F16, h200_ptx()),
        (DType::F32, plain_card()),
    ];
    for (dtype, caps) in devices {
        let (plans, kernels) = encoder_of_all_sizes(dtype, &caps);
        let mut names: Vec<&str> = kernels.iter().map(|k| k.name.as_str()).collect();
        names.sort_unstable();
        println!("{dtype} on {}: {plans} plans, {} kernels: {names:?}", caps.name, kernels.len());
        assert!(kernels.len() <= 60, "{dtype} on {}: {} kernels: {names:?}", caps.name, kernels.len());
    }
}

#[test]
fn convolutions_and_reductions_of_any_sizes_are_lowered_as_their_fixed_twins_are() {
    for (dtype, caps) in [(DType::F32, h200()), (DType::F32, plain_card()), (DType::F16, h200())] {
        let graph = graphs::vision(dtype, [1, 64, 64], true).unwrap();
        let symbols = ["n", "h", "w"].map(|name| open_symbol(name).unwrap());
        let mut plans: Vec<(GuardSet, Program)> = Vec::new();
        let mut random = 5u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((random >> 33) % n) as usize
        };
        for i in 0..60 {
            let side = |step: usize| if i % 2 == 0 { 32 * step } else { 5 * step + 1 };
            let (n, h, w) = (1 + below(3), side(1 + below(12)), side(1 + below(20)));
            let shapes = [("x", Shape::new(&[n, 3, h, w]).unwrap())];
            let mut values = Bindings::new();
            for (symbol, value) in symbols.iter().zip([n, h, w]) {
                values.bind(*symbol, value as i64).unwrap();
            }
            let known = plans.iter().position(|(guards, _)| guards.holds(&values));
            let at = known.unwrap_or_else(|| {
                let (program, guards) =
                    guards::record(|| lowered(&graph.specialise_symbolic(&shapes).unwrap(), &caps));
                plans.push((guards, program));
                plans.len() - 1
            });
            let fixed = lowered(&graph.specialise(&shapes).unwrap(), &caps);
            let open = plans[at].1.for_sizes(&values).unwrap();
            same(&open, &fixed, &format!("{dtype}, n {n}, h {h}, w {w}"));
        }
        println!("{dtype}: {} plans", plans.len());
    }
}
