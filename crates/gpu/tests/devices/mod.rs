//! Devices that need not be here, and programs that are lowered for them.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "a part is enough for each test")]

use olivine_compile::{Options, compile};
use olivine_gpu::lower;
use olivine_program::{Addressing, DeviceCaps, DeviceKind, Program, Record};
use olivine_kernel::{Elem, Fragments, MatrixShape, Target};
use olivine_ir::size::Bindings;
use olivine_ir::size::guards::{self, GuardSet};
use olivine_ir::{Graph, Shape};

/// A large NVIDIA card.
pub(crate) fn h200() -> DeviceCaps {
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
    }
}

/// The same without cooperative matrices.
pub(crate) fn plain_card() -> DeviceCaps {
    let mut caps = h200();
    caps.target.matrices.clear();
    caps.target.fragments = None;
    caps
}

pub(crate) fn lowered(graph: &Graph, caps: &DeviceCaps) -> Program {
    lower(&compile(graph, &Options::default()).unwrap(), caps, &Record::new(), &[]).unwrap()
}

/// Fails unless two programs dispatch the same kernels with the same numbers.
pub(crate) fn same(open: &Program, fixed: &Program, what: &str) {
    let names = |program: &Program| -> Vec<String> {
        program.run.iter().map(|d| program.kernel(d).name.clone()).collect()
    };
    assert_eq!(names(open), names(fixed), "{what}");
    for (i, (a, b)) in open.run.iter().zip(&fixed.run).enumerate() {
        let what = format!("{what}: dispatch {i}, {} of {}", open.kernel(a).name, a.node);
        assert!(open.kernel(a) == fixed.kernel(b), "{what}: other code");
        assert_eq!(a.params, b.params, "{what}: {:?}", open.kernel(a).params);
        assert_eq!(a.groups, b.groups, "{what}");
        let places = |d: &olivine_program::Dispatch| -> Vec<u64> {
            d.args.iter().map(|arg| arg.bytes).collect()
        };
        assert_eq!(places(a), places(b), "{what}");
    }
}

/// Mesa's software driver.
pub(crate) fn software() -> DeviceCaps {
    let mut caps = plain_card();
    caps.name = "a software device".into();
    caps.driver = "llvmpipe".into();
    caps.kind = DeviceKind::Cpu;
    caps.target.subgroup = Some(8);
    caps.target.shared_bytes = 32 << 10;
    caps.processors = None;
    caps
}

/// Plans of a graph, one for each class of sizes.
pub(crate) struct Plans<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) caps: &'a DeviceCaps,
    pub(crate) plans: Vec<(GuardSet, Program)>,
}

impl<'a> Plans<'a> {
    pub(crate) fn new(graph: &'a Graph, caps: &'a DeviceCaps) -> Self {
        Plans { graph, caps, plans: Vec::new() }
    }

    /// The program for some sizes, by a plan that is there or by a new one.
    pub(crate) fn program(&mut self, shapes: &[(&str, Shape)], values: &Bindings) -> Program {
        let known = self.plans.iter().position(|(guards, _)| guards.holds(values));
        let at = known.unwrap_or_else(|| {
            let (program, guards) =
                guards::record(|| lowered(&self.graph.specialise_symbolic(shapes).unwrap(), self.caps));
            assert!(guards.holds(values), "guards do not hold for the sizes that they were made for");
            self.plans.push((guards, program));
            self.plans.len() - 1
        });
        self.plans[at].1.for_sizes(values).unwrap()
    }

    /// What the last plan assumes.
    pub(crate) fn last_guards(&self) -> String {
        let guards = self.plans.last().map(|(guards, _)| guards);
        let lines = guards.into_iter().flat_map(|guards| guards.iter().map(|guard| format!("{guard:?}")));
        lines.collect::<Vec<_>>().join("\n")
    }
}
