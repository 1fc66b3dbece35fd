//! Devices that need not be here, and programs that are lowered for them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

use olivine_compile::{Options, compile};
use olivine_gpu::lower;
use olivine_ir::size::Bindings;
use olivine_ir::size::guards::{self, GuardSet};
use olivine_ir::{Graph, Shape};
use olivine_kernel::ptx::Capability;
use olivine_kernel::{Elem, Fragments, MatrixShape, Target};
use olivine_program::{Addressing, Content, DeviceCaps, DeviceKind, Dispatch, Program, Record, Slice};

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
        ptx: None,
    }
}

/// The same where kernels are launched as PTX, with the warpgroups that only PTX has.
#[allow(dead_code, reason = "of use to some of the tests that share this module")]
pub(crate) fn h200_ptx() -> DeviceCaps {
    let mut caps = h200();
    caps.name = "a large card, as PTX".into();
    caps.target.warpgroups = true;
    caps.target.int8_warpgroups = true;
    caps.target.packed_dot = true;
    caps.ptx = Some(Capability::HOPPER);
    caps
}

/// The same without cooperative matrices.
#[allow(dead_code, reason = "of use to some of the tests that share this module")]
pub(crate) fn plain_card() -> DeviceCaps {
    let mut caps = h200();
    caps.name = "a card without matrices".into();
    caps.target.matrices.clear();
    caps.target.fragments = None;
    caps
}

pub(crate) fn lowered(graph: &Graph, caps: &DeviceCaps) -> Program {
    lower(&compile(graph, &Options::default()).unwrap(), caps, &Record::new(), &[]).unwrap()
}

/// What two programs differ in, if they do not dispatch the same kernels with the same numbers.
pub(crate) fn difference(open: &Program, fixed: &Program) -> Option<String> {
    let names = |program: &Program| -> Vec<String> {
        program.run.iter().map(|d| program.kernel(d).name.clone()).collect()
    };
    if names(open) != names(fixed) {
        return Some(format!("{:?} instead of {:?}", names(open), names(fixed)));
    }
    let different = |(a, b): (&Dispatch, &Dispatch)| {
        let bytes = |d: &Dispatch| d.args.iter().map(|arg| arg.bytes).collect::<Vec<u64>>();
        // Tables that the host computes are constants for fixed sizes.
        let constant = |program: &Program, arg: &Slice| match &program.buffers[arg.buffer.0 as usize].content
        {
            Content::Constant(tensor) | Content::Table(tensor) => Some(tensor.bytes().to_vec()),
            _ => None,
        };
        let constants = |program: &Program, d: &Dispatch| -> Vec<Option<Vec<u8>>> {
            d.args.iter().map(|arg| constant(program, arg)).collect()
        };
        let kernel = open.kernel(a);
        let what = match () {
            () if kernel != fixed.kernel(b) => "other code".to_string(),
            () if a.params != b.params => {
                format!("{:?} instead of {:?} for {:?}", a.params, b.params, kernel.params)
            }
            () if a.groups != b.groups => format!("{:?} workgroups instead of {:?}", a.groups, b.groups),
            () if constants(open, a) != constants(fixed, b) => "other tables".to_string(),
            () if bytes(a) != bytes(b) => format!("{:?} bytes instead of {:?}", bytes(a), bytes(b)),
            () => return None,
        };
        Some(format!("{} of {}: {what}", kernel.name, a.node))
    };
    open.run.iter().zip(&fixed.run).find_map(different)
}

/// Mesa's software driver.
#[allow(dead_code, reason = "of use to some of the tests that share this module")]
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
    #[allow(dead_code, reason = "of use to some of the tests that share this module")]
    pub(crate) fn last_guards(&self) -> String {
        let guards = self.plans.last().map(|(guards, _)| guards);
        let lines = guards.into_iter().flat_map(|guards| guards.iter().map(|guard| format!("{guard:?}")));
        lines.collect::<Vec<_>>().join("\n")
    }
}
