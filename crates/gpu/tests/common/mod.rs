//! Programs run by the kernel interpreter: a backend of the table of cases that needs no device.

use olivine_cases::Backend;
use olivine_compile::{Options, compile};
use olivine_gpu::{Addressing, Content, DeviceCaps, DeviceKind, Dispatch, Program, Record, lower};
use olivine_ir::{Data, Graph, Tensor};
use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::ptx::{self, Capability, PtxOptions};
use olivine_kernel::{Elem, Fragments, Kernel, MatrixShape, MatrixSupport, Target};
use olivine_ptx::{Module, Order};

/// Lowers for a made-up device and interprets every dispatch.
pub(crate) struct Interpreter {
    name: String,
    caps: DeviceCaps,
    arithmetic: Device,
    /// Whether kernels are printed as PTX and emulated, instead of interpreted.
    ptx: Option<Order>,
    /// A configuration that the tuner's record has wherever it is a candidate.
    prefers: Option<&'static str>,
}

impl Interpreter {
    /// The plainest device.
    #[allow(dead_code, reason = "of use to some of the tests that share this module")]
    pub(crate) fn plain() -> Self {
        Interpreter::new("plain", Target::plain(), Device::EXACT)
    }

    /// A device with subgroups, wide registers and more workgroup memory.
    pub(crate) fn rich(subgroup: u32) -> Self {
        let target = Target {
            subgroup: Some(subgroup),
            f64: true,
            i64: true,
            shared_bytes: 49152,
            max_invocations: 1024,
            ..Target::plain()
        };
        Interpreter::new(&format!("subgroups of {subgroup}"), target, Device::ROUGH)
    }

    /// A device with subgroups of 32 and cooperative f16 matrices and of bytes.
    #[allow(dead_code, reason = "of use to some of the tests that share this module")]
    pub(crate) fn with_matrices() -> Self {
        let shape = |operand, accumulator, k| MatrixShape { operand, accumulator, m: 16, n: 16, k };
        let mut device = Interpreter::rich(32);
        device.name = "cooperative matrices".into();
        device.caps.target.f16 = true;
        device.caps.target.packed_dot = true;
        device.caps.target.matrices = vec![
            shape(Elem::F16, Elem::F32, 16),
            shape(Elem::BF16, Elem::F32, 16),
            shape(Elem::I8, Elem::I32, 32),
        ];
        device.caps.target.fragments = Some(Fragments::Quads);
        device
    }

    /// A device with the cooperative matrices that Apple's GPUs have through wgpu.
    #[allow(dead_code, reason = "of use to some of the tests that share this module")]
    pub(crate) fn metal() -> Self {
        let shape = |operand, accumulator| MatrixShape { operand, accumulator, m: 8, n: 8, k: 8 };
        let mut device = Interpreter::rich(32);
        device.name = "matrices of Metal".into();
        device.caps.target = Target {
            f16: true,
            f64: false,
            shared_bytes: 32768,
            matrices: vec![
                shape(Elem::F32, Elem::F32),
                shape(Elem::F16, Elem::F16),
                shape(Elem::F16, Elem::F32),
            ],
            matrix_support: MatrixSupport::Basic,
            ..device.caps.target
        };
        device
    }

    /// Matrices through PTX: a large NVIDIA card whose threads run in some order.
    #[allow(dead_code, reason = "of use to some of the tests that share this module")]
    pub(crate) fn ptx(order: Order) -> Self {
        let mut device = Interpreter::with_matrices();
        device.name = format!("PTX, {order:?}");
        device.ptx = Some(order);
        device
    }

    /// A card of Hopper with so many cores, whose kernels are interpreted, or emulated as PTX.
    #[allow(dead_code, reason = "of use to some of the tests that share this module")]
    pub(crate) fn hopper(cores: u32, ptx: Option<Order>) -> Self {
        let mut device = Interpreter::with_matrices();
        device.name = format!("{cores} cores with warpgroups, {ptx:?}");
        device.caps.target.warpgroups = true;
        device.caps.target.int8_warpgroups = true;
        device.caps.ptx = Some(Capability::HOPPER);
        device.caps.processors = Some(cores);
        device.ptx = ptx;
        device
    }

    /// The same device, with a record of the tuner that has a configuration wherever it is a candidate.
    #[allow(dead_code, reason = "of use to some of the tests that share this module")]
    pub(crate) fn preferring(mut self, config: &'static str) -> Self {
        self.prefers = Some(config);
        self
    }

    /// The same device, which orders stores between workgroups.
    #[allow(dead_code, reason = "of use to some of the tests that share this module")]
    pub(crate) fn with_fences(mut self) -> Self {
        self.caps.target.device_fences = true;
        self
    }

    /// The plainest device with less workgroup memory than any has.
    #[allow(dead_code, reason = "of use to some of the tests that share this module")]
    pub(crate) fn cramped(shared_bytes: u32) -> Self {
        Interpreter::new("cramped", Target { shared_bytes, ..Target::plain() }, Device::EXACT)
    }

    fn new(name: &str, target: Target, arithmetic: Device) -> Self {
        let caps = DeviceCaps {
            name: name.into(),
            driver: "interpreter".into(),
            kind: DeviceKind::Other,
            target,
            addressing: Addressing::Pointers,
            max_groups: [65535; 3],
            max_buffer_bytes: 1 << 32,
            memory_bytes: 1 << 34,
            processors: None,
            keeps_denormals: true,
            ptx: None,
        };
        Interpreter { name: name.into(), caps, arithmetic, ptx: None, prefers: None }
    }

    /// The program of a graph.
    pub(crate) fn lower(&self, graph: &Graph) -> Result<Program, String> {
        let options = Options::default();
        let compiled = compile(graph, &options).map_err(|e| e.to_string())?;
        let lowered = |record: &Record| lower(&compiled, &self.caps, record, &[]).map_err(|e| e.to_string());
        let mut record = Record::new();
        if let Some(config) = self.prefers {
            for decision in lowered(&record)?.decisions {
                if decision.candidates.iter().any(|candidate| candidate == config) {
                    record.set(decision.family, &decision.class, config);
                }
            }
        }
        lowered(&record)
    }

    fn dispatch(&self, program: &Program, d: &Dispatch, memory: &mut [Vec<u8>]) -> Result<(), String> {
        let kernel = program.kernel(d);
        let range = |slice: &olivine_gpu::Slice| slice.offset as usize..(slice.offset + slice.bytes) as usize;
        let mut buffers: Vec<Vec<u8>> =
            d.args.iter().map(|s| memory[s.buffer.0 as usize][range(s)].to_vec()).collect();
        let mut groups = d.groups;
        if let Some(at) = &d.indirect {
            let words = &memory[at.buffer.0 as usize][range(at)];
            let read: Vec<u32> = words.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
            if read.iter().all(|n| *n == 0) {
                return Ok(());
            }
            if read != d.groups {
                return Err(format!("{}: a gate says {read:?}, recorded were {:?}", kernel.name, d.groups));
            }
            groups = [read[0], read[1], read[2]];
        }
        let subgroup = self.caps.target.subgroup.unwrap_or(1);
        match self.ptx {
            None => interpret(kernel, subgroup, groups, &mut buffers, &d.params, self.arithmetic)
                .map_err(|e| e.to_string()),
            Some(order) => emulate(kernel, groups, &mut buffers, &d.params, order),
        }
        .map_err(|e| format!("{}: {e}", kernel.name))?;
        for ((slice, arg), buffer) in d.args.iter().zip(&kernel.args).zip(buffers) {
            if arg.access.writes() {
                memory[slice.buffer.0 as usize][range(slice)].copy_from_slice(&buffer);
            }
        }
        Ok(())
    }
}

/// Prints a kernel as PTX and runs that.
fn emulate(
    kernel: &Kernel,
    groups: [u32; 3],
    buffers: &mut [Vec<u8>],
    params: &[u32],
    order: Order,
) -> Result<(), String> {
    let text =
        ptx::print(kernel, &PtxOptions { capability: Capability::HOPPER }).map_err(|e| e.to_string())?;
    Module::parse(&text)?.run(groups, buffers, params, order)
}

impl Backend for Interpreter {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(
        &self,
        graph: &Graph,
        inputs: &[(String, Tensor)],
        params: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>, String> {
        let program = self.lower(graph)?;
        let find = |list: &[(String, Tensor)], name: &str| {
            list.iter()
                .find(|(n, _)| n == name)
                .map(|(_, t)| t.data().as_bytes().to_vec())
                .unwrap_or_default()
        };
        let mut memory: Vec<Vec<u8>> = Vec::new();
        for decl in &program.buffers {
            let mut bytes = match &decl.content {
                Content::Input(i) => find(inputs, &program.inputs[*i].name),
                Content::Param(name, _) => find(params, name),
                Content::Constant(tensor) | Content::Table(tensor) => tensor.data().as_bytes().to_vec(),
                _ => Vec::new(),
            };
            // What nobody wrote is NaN as a float and absurd as an index.
            bytes.resize(decl.bytes as usize, 0xff);
            memory.push(bytes);
        }
        for d in program.load.iter().chain(&program.run) {
            self.dispatch(&program, d, &mut memory)?;
        }
        let tensor = |port: &olivine_gpu::Port| {
            let bytes = &memory[port.buffer.0 as usize][..port.ty.bytes()];
            let data = Data::from_bytes(port.ty.dtype, bytes).map_err(|e| e.to_string())?;
            Tensor::of_type(port.ty, data).map_err(|e| e.to_string())
        };
        program.outputs.iter().map(tensor).collect()
    }
}
