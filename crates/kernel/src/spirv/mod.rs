//! Kernels printed as SPIR-V, in one of two ways to reach buffers ([`Addressing`]).
//!
//! By pointers, SPIR-V 1.6 for Vulkan 1.3: buffers are 64-bit addresses, and an access is `address + index * size`,
//! made a pointer. The addresses, and the run-time numbers, are in one block ([`ArgLayout`]) in the push constants, or
//! in memory that these point to.
//!
//! By bindings, SPIR-V 1.3 for Vulkan 1.1 and the features that wgpu enables: buffers are descriptors ([`Interface`]),
//! seen as an array of every type that they are accessed as.
//!
//! ```text
//!   mod      options, the printer's state, types, values, builtins
//!   module   sections, types, constants
//!   args     addresses, lengths and params by pointers      binding  the same by bindings
//!   expr     arithmetic            half     f16 and bf16 as bits
//!   memory   buffers, shared       check    bounds and reports of checked kernels
//!   flow     statements            group    subgroups, atomics        matrix   cooperative matrices
//!   disassemble   the words as text
//! ```

mod args;
mod binding;
mod check;
mod disassemble;
mod expr;
mod flow;
mod group;
mod half;
mod matrix;
mod memory;
mod module;

use std::collections::HashMap;

use rspirv::spirv::{BuiltIn, Capability, Decoration, ExecutionMode, GlslStd450Op, Op, StorageClass};

pub use disassemble::disassemble;

use self::module::{Id, Module, put};
use crate::Error;
use crate::interface::{Interface, ParamsLocation};
use crate::ir::*;
use crate::layout::ArgLayout;
use crate::types::{Scalar, Type};

/// What a device promises about floats of one width (`VkPhysicalDeviceFloatControlsProperties`). Where its modes are
/// not independent between widths, promise only what may be asked for together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FloatControls {
    /// Results can be asked to be rounded to nearest even (`shaderRoundingModeRTEFloat*`).
    pub rounding_rte: bool,
    /// Signed zeros, infinities and NaN can be asked to be kept (`shaderSignedZeroInfNanPreserveFloat*`).
    pub preserve_nan: bool,
    /// Subnormal numbers can be asked to be kept (`shaderDenormPreserveFloat*`). Devices may pay for it in divisions
    /// and functions of f32.
    pub denorm_preserve: bool,
}

/// How kernels reach their buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// By 64-bit address, laid out by [`ArgLayout`].
    Pointers {
        /// Bytes of push constants.
        push_bytes: u32,
    },
    /// By bindings, described by [`Interface::new`] of the kernel. Nothing is asked of the device that wgpu does not
    /// enable: no memory model but GLSL's except with cooperative matrices, no 8-bit types, no subgroup operations on
    /// types that are not 32 bits wide.
    Bindings {
        /// Bytes of push constants that the params may take.
        immediate_bytes: u32,
        /// Whether elements of 16 bits can be accessed by themselves (`storageBuffer16BitAccess`).
        storage16: bool,
    },
}

impl Default for Addressing {
    /// By address, with the push constants that every device has.
    fn default() -> Self {
        Addressing::Pointers { push_bytes: 128 }
    }
}

/// What the printer needs to know of a device and a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpirvOptions {
    /// How buffers are reached.
    pub addressing: Addressing,
    /// Whether every access is checked against its buffer, and violations are reported.
    pub checked: bool,
    /// Whether 16-bit floats can be computed with (`shaderFloat16`).
    pub f16_registers: bool,
    /// The controls of f16, asked for in kernels that compute with it.
    pub float16: FloatControls,
    /// The controls of f32.
    pub float32: FloatControls,
    /// The controls of f64, asked for in kernels that compute with it.
    pub float64: FloatControls,
}

impl SpirvOptions {
    /// Whether the device's own conversions between f16 and f32 are exact: rounded to nearest even, subnormal numbers
    /// kept. Otherwise the printer writes them out with integers.
    fn converts_f16(&self) -> bool {
        self.f16_registers && self.float16.rounding_rte && self.float16.denorm_preserve
    }
}

/// The words of a module whose entry point `main` is the kernel.
///
/// ```
/// use olivine_kernel::spirv::{SpirvOptions, print};
/// use olivine_kernel::{Access, Builder, Elem, Target};
/// let k = Builder::new("fill", 64, &Target::plain());
/// k.arg("y", Elem::F32, Access::Write).store(k.local_index(), k.f32(1.0));
/// let words = print(&k.finish()?, &SpirvOptions::default())?;
/// assert_eq!(words[0], 0x0723_0203);
/// # Ok::<(), olivine_kernel::Error>(())
/// ```
pub fn print(kernel: &Kernel, options: &SpirvOptions) -> Result<Vec<u32>, Error> {
    let mut printer = Printer::new(kernel, options)?;
    printer.block(&kernel.body)?;
    Ok(printer.finish())
}

/// [`Addressing`] for one kernel.
#[derive(Clone, Copy)]
enum Reach {
    Pointers(ArgLayout),
    Bindings {
        params: Option<ParamsLocation>,
        /// The report's binding, in checked kernels.
        report: Option<u32>,
        storage16: bool,
    },
}

struct Printer<'a> {
    m: Module,
    kernel: &'a Kernel,
    options: &'a SpirvOptions,
    reach: Reach,
    /// The id of every value that has one already.
    values: Vec<Option<Id>>,
    vars: Vec<Id>,
    shared: Vec<Id>,
    addresses: Vec<Option<Id>>,
    lengths: Vec<Option<Id>>,
    /// The variable of the push constants or of the uniform buffer of params, once something is read from it.
    push: Option<Id>,
    /// The address of the block where it is in memory, once something is read from it.
    block_address: Option<Id>,
    /// The variables of bindings by number and type of element.
    views: HashMap<(u32, Id), Id>,
    /// The function that writes reports, with its first operands: the report's address, where it is reached by one, and
    /// the dispatch's number.
    report: Option<(Id, Vec<Id>)>,
    /// Whether invocations may hand each other data through buffers that the kernel reads and writes: barriers then
    /// order the accesses to these too.
    communicates: bool,
    /// Variables, which must come first; then what is computed once; then the rest.
    variables: Vec<u32>,
    prologue: Vec<u32>,
    code: Vec<u32>,
    /// The label of the first block, and of the one being written.
    entry: Id,
    label: Id,
}

impl<'a> Printer<'a> {
    fn new(kernel: &'a Kernel, options: &'a SpirvOptions) -> Result<Self, Error> {
        let reach = match options.addressing {
            Addressing::Pointers { push_bytes } => {
                Reach::Pointers(ArgLayout::new(kernel, push_bytes, options.checked))
            }
            Addressing::Bindings { immediate_bytes, storage16 } => {
                let interface = Interface::new(kernel, immediate_bytes, options.checked);
                Reach::Bindings { params: interface.params, report: interface.report_binding(), storage16 }
            }
        };
        let logical = matches!(reach, Reach::Bindings { .. });
        // Cooperative matrices want Vulkan's memory model, and bring it along where wgpu enables them.
        let types = kernel.values.iter().map(|d| d.ty).chain(kernel.vars.iter().copied());
        let matrices = types.into_iter().any(|ty| matches!(ty, Type::Matrix(_)));
        let mut m = Module::new(logical, matrices || !logical);
        m.mode(ExecutionMode::LocalSize, &[kernel.group, 1, 1]);
        let main = m.main;
        m.name(main, &kernel.name);
        let label = m.id();
        let mut printer = Printer {
            m,
            kernel,
            options,
            reach,
            values: vec![None; kernel.values.len()],
            vars: Vec::new(),
            shared: Vec::new(),
            addresses: vec![None; kernel.args.len()],
            lengths: vec![None; kernel.args.len()],
            push: None,
            block_address: None,
            views: HashMap::new(),
            report: None,
            communicates: has_barrier(&kernel.body)
                && kernel.args.iter().any(|a| a.access == Access::ReadWrite),
            variables: Vec::new(),
            prologue: Vec::new(),
            code: Vec::new(),
            entry: label,
            label,
        };
        if let Some(param) =
            kernel.params.iter().find(|p| !matches!(p.scalar, Scalar::U32 | Scalar::I32 | Scalar::F32))
        {
            return Err(Error::Invalid(format!("param {} is of {}", param.name, param.scalar)));
        }
        for ty in &kernel.vars {
            let ty = printer.ty(*ty)?;
            let var = printer.local(ty);
            printer.vars.push(var);
        }
        for decl in &kernel.shared {
            let element = printer.shared_type(decl)?;
            let array = printer.m.array(element, decl.len);
            let var = printer.m.variable(StorageClass::Workgroup, array);
            printer.shared.push(var);
        }
        Ok(printer)
    }

    fn finish(mut self) -> Vec<u32> {
        put(&mut self.code, Op::Return, &[]);
        let mut modes = vec![(32, self.options.float32)];
        if self.m.has(Capability::Float16) {
            modes.push((16, self.options.float16));
        }
        if self.m.has(Capability::Float64) {
            modes.push((64, self.options.float64));
        }
        for (bits, controls) in modes {
            let asked = [
                (controls.rounding_rte, Capability::RoundingModeRTE, ExecutionMode::RoundingModeRTE),
                (
                    controls.preserve_nan,
                    Capability::SignedZeroInfNanPreserve,
                    ExecutionMode::SignedZeroInfNanPreserve,
                ),
                (controls.denorm_preserve, Capability::DenormPreserve, ExecutionMode::DenormPreserve),
            ];
            for (_, capability, mode) in asked.into_iter().filter(|(offered, ..)| *offered) {
                self.m.before_core("SPV_KHR_float_controls");
                self.m.capability(capability);
                self.m.mode(mode, &[bits]);
            }
        }
        let mut body = Vec::with_capacity(self.variables.len() + self.prologue.len() + self.code.len() + 2);
        put(&mut body, Op::Label, &[self.entry]);
        body.extend_from_slice(&self.variables);
        body.extend_from_slice(&self.prologue);
        body.extend_from_slice(&self.code);
        self.m.finish(&body)
    }

    /// Whether buffers are bindings: logical addressing, and the memory model of GLSL.
    fn is_logical(&self) -> bool {
        matches!(self.reach, Reach::Bindings { .. })
    }

    // Instructions.

    /// An instruction with a result.
    fn op(&mut self, op: Op, ty: Id, operands: &[u32]) -> Id {
        let id = self.m.id();
        let length = operands.len() as u32 + 3;
        self.code.extend([(length << 16) | op as u32, ty, id]);
        self.code.extend_from_slice(operands);
        id
    }

    /// An instruction without one.
    fn act(&mut self, op: Op, operands: &[u32]) {
        put(&mut self.code, op, operands);
    }

    /// An instruction of `GLSL.std.450`.
    fn glsl(&mut self, op: GlslStd450Op, ty: Id, operands: &[u32]) -> Id {
        let mut words = vec![self.m.glsl, op as u32];
        words.extend_from_slice(operands);
        self.op(Op::ExtInst, ty, &words)
    }

    /// An instruction on floats that must not be merged with its neighbours.
    fn exact(&mut self, op: Op, ty: Id, operands: &[u32]) -> Id {
        let id = self.op(op, ty, operands);
        self.m.decorate(id, Decoration::NoContraction, &[]);
        id
    }

    /// Writes instructions to the start of the function, where every block sees their results.
    fn at_start<T>(&mut self, write: impl FnOnce(&mut Self) -> T) -> T {
        std::mem::swap(&mut self.code, &mut self.prologue);
        let result = write(self);
        std::mem::swap(&mut self.code, &mut self.prologue);
        result
    }

    /// A variable of the invocation.
    fn local(&mut self, ty: Id) -> Id {
        let pointer = self.m.pointer(StorageClass::Function, ty);
        let id = self.m.id();
        put(&mut self.variables, Op::Variable, &[pointer, id, StorageClass::Function as u32]);
        id
    }

    /// Begins a block.
    fn begin(&mut self, label: Id) {
        self.act(Op::Label, &[label]);
        self.label = label;
    }

    // Types.

    fn scalar(&mut self, scalar: Scalar) -> Id {
        match scalar {
            Scalar::Bool => self.m.bool(),
            Scalar::I32 => self.m.int(32),
            Scalar::U32 => self.m.uint(32),
            Scalar::I64 => self.m.int(64),
            Scalar::U64 => self.m.uint(64),
            Scalar::F16 => self.m.float(16),
            Scalar::F32 => self.m.float(32),
            Scalar::F64 => self.m.float(64),
        }
    }

    fn vector(&mut self, scalar: Scalar, lanes: u8) -> Id {
        let component = self.scalar(scalar);
        self.m.vector(component, u32::from(lanes))
    }

    fn ty(&mut self, ty: Type) -> Result<Id, Error> {
        match ty {
            Type::Scalar(s) => Ok(self.scalar(s)),
            Type::Vector(s, n) if (2..=4).contains(&n) => Ok(self.vector(s, n)),
            Type::Vector(s, n) => Err(Error::Invalid(format!("a vector of {n} {s}"))),
            Type::Matrix(m) => self.matrix_type(m),
        }
    }

    fn number(&mut self, scalar: Scalar, bits: u64) -> Id {
        let ty = self.scalar(scalar);
        match scalar.bits() {
            1 if bits == 0 => self.m.constant(Op::ConstantFalse, ty, &[]),
            1 => self.m.constant(Op::ConstantTrue, ty, &[]),
            64 => self.m.constant(Op::Constant, ty, &[bits as u32, (bits >> 32) as u32]),
            _ => self.m.constant(Op::Constant, ty, &[bits as u32]),
        }
    }

    // Values.

    fn def(&self, value: Value) -> Result<&'a Def, Error> {
        let missing = || Error::Invalid(format!("no value %{}", value.0));
        self.kernel.values.get(value.index()).ok_or_else(missing)
    }

    fn arg(&self, arg: ArgId) -> Result<&'a ArgDecl, Error> {
        let missing = || Error::Invalid(format!("no buffer {}", arg.0));
        self.kernel.args.get(arg.index()).ok_or_else(missing)
    }

    /// The scalar type of a value that is a scalar or a vector.
    fn scalar_of(&self, value: Value) -> Result<Scalar, Error> {
        let ty = self.def(value)?.ty;
        ty.scalar().ok_or_else(|| Error::Invalid(format!("%{} is a {ty}, not a number", value.0)))
    }

    /// A value's id. Numbers, params and builtins come into being at their first use.
    fn value(&mut self, value: Value) -> Result<Id, Error> {
        let def = self.def(value)?;
        if let Some(Some(id)) = self.values.get(value.index()) {
            return Ok(*id);
        }
        let id = match &def.expr {
            Expr::Const(scalar, bits) => self.number(*scalar, *bits),
            Expr::Param(param) => self.param(*param)?,
            Expr::Builtin(builtin) => self.builtin(*builtin)?,
            _ => return Err(Error::Invalid(format!("%{} is used before it is computed", value.0))),
        };
        self.set(value, id);
        Ok(id)
    }

    fn set(&mut self, value: Value, id: Id) {
        if let Some(slot) = self.values.get_mut(value.index()) {
            *slot = Some(id);
        }
    }

    fn builtin(&mut self, builtin: Builtin) -> Result<Id, Error> {
        let u32_ty = self.m.uint(32);
        let (input, dimension) = match builtin {
            Builtin::GroupId(d) => (BuiltIn::WorkgroupId, Some(d)),
            Builtin::GroupCount(d) => (BuiltIn::NumWorkgroups, Some(d)),
            Builtin::LocalIndex => (BuiltIn::LocalInvocationIndex, None),
            Builtin::Lane => (BuiltIn::SubgroupLocalInvocationId, None),
            Builtin::SubgroupId => (BuiltIn::SubgroupId, None),
        };
        if matches!(builtin, Builtin::Lane | Builtin::SubgroupId) {
            self.m.capability(Capability::GroupNonUniform);
        }
        match dimension {
            Some(d) if d < 3 => {
                let u32x3 = self.m.vector(u32_ty, 3);
                let variable = self.m.input(input, u32x3);
                Ok(self.at_start(|p| {
                    let all = p.op(Op::Load, u32x3, &[variable]);
                    p.op(Op::CompositeExtract, u32_ty, &[all, u32::from(d)])
                }))
            }
            Some(d) => Err(Error::Invalid(format!("dimension {d} of the grid"))),
            None => {
                let variable = self.m.input(input, u32_ty);
                Ok(self.at_start(|p| p.op(Op::Load, u32_ty, &[variable])))
            }
        }
    }
}

/// Whether invocations wait for each other somewhere.
fn has_barrier(block: &Block) -> bool {
    block.iter().any(|stmt| match stmt {
        Stmt::Barrier | Stmt::SubgroupBarrier | Stmt::DeviceFence => true,
        // Refused when it is printed.
        Stmt::Warpgroup(_) => false,
        Stmt::If { then, otherwise, .. } => has_barrier(then) || has_barrier(otherwise),
        Stmt::For { body, .. } => has_barrier(body),
        Stmt::While { head, body, .. } => has_barrier(head) || has_barrier(body),
        _ => false,
    })
}
