//! Kernels printed as PTX, the assembly text of NVIDIA's drivers.
//!
//! Buffers are 64-bit addresses. Addresses and run-time numbers are parameters of the entry point, one each, in the order
//! of the block that SPIR-V kernels read from push constants: a launch points into that block ([`ArgLayout`]).
//! Arithmetic names its rounding mode everywhere, so that the assembler contracts and flushes nothing. A subgroup is a
//! warp of 32 threads. Checked kernels are not printed.
//!
//! ```text
//!   mod      options, the printer's state, registers, values, builtins
//!   expr     arithmetic            convert  between types of registers and memory
//!   memory   buffers, shared       flow     statements
//!   warpgroup   Hopper's multiplies, copies, barriers and roles
//!   group    warps, atomics        matrix   cooperative matrices: fragments, mma      fragment  their memory, ldmatrix
//! ```

mod convert;
mod expr;
mod flow;
mod fragment;
mod group;
mod matrix;
mod memory;
mod warpgroup;

use std::collections::HashMap;
use std::fmt;
use std::fmt::Write;

use crate::Error;
use crate::ir::*;
use crate::layout::ArgLayout;
use crate::types::{MatrixType, Scalar, Type};

/// The generation of a card: 8.0 is Ampere, 8.9 Ada, 9.0 Hopper, 10.0 and above Blackwell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability {
    /// Before the point.
    pub major: u8,
    /// Behind it.
    pub minor: u8,
}

impl Capability {
    /// The oldest that kernels are printed for: bf16, and `mma` of all operand types.
    pub const AMPERE: Capability = Capability { major: 8, minor: 0 };
    /// Ada.
    pub const ADA: Capability = Capability { major: 8, minor: 9 };
    /// H100, H200.
    pub const HOPPER: Capability = Capability { major: 9, minor: 0 };
    /// B100, B200.
    pub const BLACKWELL: Capability = Capability { major: 10, minor: 0 };

    /// The oldest version of PTX that names the generation.
    const fn version(self) -> (u8, u8) {
        match (self.major, self.minor) {
            (0..=8, 0..=8) => (7, 4),
            (0..=9, _) => (7, 8),
            (10, _) => (8, 6),
            _ => (8, 8),
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What the printer needs to know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PtxOptions {
    /// The card's generation.
    pub capability: Capability,
}

/// The name of the entry point.
pub const ENTRY: &str = "main";

/// Threads of a warp.
pub const WARP: u32 = 32;

/// Bytes of parameters that every launch takes.
pub const MAX_PARAM_BYTES: u32 = 4096;

/// Bytes of workgroup memory that a module may declare.
pub const MAX_SHARED_BYTES: u32 = 48 << 10;

/// The text of a module whose entry point [`ENTRY`] is the kernel.
///
/// ```
/// use olivine_kernel::ptx::{Capability, PtxOptions, print};
/// use olivine_kernel::{Access, Builder, Elem, Target};
/// let k = Builder::new("fill", 64, &Target::plain());
/// k.arg("y", Elem::F32, Access::Write).store(k.local_index(), k.f32(1.0));
/// let text = print(&k.finish()?, &PtxOptions { capability: Capability::HOPPER })?;
/// assert!(text.contains(".target sm_90\n"));
/// # Ok::<(), olivine_kernel::Error>(())
/// ```
pub fn print(kernel: &Kernel, options: &PtxOptions) -> Result<String, Error> {
    let mut printer = Printer::new(kernel, options)?;
    printer.block(&kernel.body)?;
    Ok(printer.finish())
}

/// Where each parameter of the entry point is in the block of arguments, in order.
pub fn param_offsets(kernel: &Kernel) -> Vec<u32> {
    let layout = ArgLayout::new(kernel, MAX_PARAM_BYTES, false);
    let addresses = (0..kernel.args.len()).map(|i| layout.address_offset(i));
    addresses.chain((0..kernel.params.len()).map(|i| layout.param_offset(i))).collect()
}

/// The width of a register. Registers have no other type, so a bitcast is no instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Class {
    Predicate,
    B16,
    B32,
    B64,
}

impl Class {
    const ALL: [Class; 4] = [Class::Predicate, Class::B16, Class::B32, Class::B64];

    fn of(scalar: Scalar) -> Self {
        match scalar.bits() {
            1 => Class::Predicate,
            16 => Class::B16,
            32 => Class::B32,
            _ => Class::B64,
        }
    }

    /// The suffix of instructions that move bits.
    fn suffix(self) -> &'static str {
        match self {
            Class::Predicate => "pred",
            Class::B16 => "b16",
            Class::B32 => "b32",
            Class::B64 => "b64",
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Class::Predicate => "%p",
            Class::B16 => "%h",
            Class::B32 => "%r",
            Class::B64 => "%d",
        }
    }
}

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reg {
    class: Class,
    number: u32,
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.class.prefix(), self.number)
    }
}

/// Registers as a vector operand.
struct Braced<'a>(&'a [Reg]);

impl fmt::Display for Braced<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('{')?;
        for (i, reg) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{reg}")?;
        }
        f.write_char('}')
    }
}

struct Printer<'a> {
    kernel: &'a Kernel,
    options: &'a PtxOptions,
    /// The registers of every value that has some already: one of a scalar, several of a vector or of a matrix.
    values: Vec<Vec<Reg>>,
    vars: Vec<Vec<Reg>>,
    addresses: Vec<Option<Reg>>,
    constants: HashMap<(Class, u64), Reg>,
    /// The thread's number in its warp, once something asks for it.
    lane: Option<Reg>,
    /// Registers of every class.
    counts: HashMap<Class, u32>,
    labels: u32,
    /// The version of PTX whose instructions are used, where that is a later one than the generation asks for.
    version: (u8, u8),
    /// What is computed once, at the start; then the rest.
    prologue: String,
    code: String,
}

impl<'a> Printer<'a> {
    fn new(kernel: &'a Kernel, options: &'a PtxOptions) -> Result<Self, Error> {
        if kernel.foreign.is_some() {
            return Err(Error::Missing("PTX of a user's module".into()));
        }
        if options.capability < Capability::AMPERE {
            return Err(Error::Missing(format!("PTX for compute capability {}", options.capability)));
        }
        let limit = |what, needed: u32, limit: u32| {
            if needed > limit { Err(Error::Limit { what, needed, limit }) } else { Ok(()) }
        };
        let layout = ArgLayout::new(kernel, MAX_PARAM_BYTES, false);
        limit("bytes of a kernel's parameters", layout.bytes(), MAX_PARAM_BYTES)?;
        limit("bytes of workgroup memory", kernel.shared_bytes(), MAX_SHARED_BYTES)?;
        let mut printer = Printer {
            kernel,
            options,
            values: vec![Vec::new(); kernel.values.len()],
            vars: Vec::new(),
            addresses: vec![None; kernel.args.len()],
            constants: HashMap::new(),
            lane: None,
            counts: HashMap::new(),
            labels: 0,
            version: (0, 0),
            prologue: String::new(),
            code: String::new(),
        };
        for ty in &kernel.vars {
            let regs = printer.registers(*ty)?;
            printer.vars.push(regs);
        }
        Ok(printer)
    }

    fn finish(self) -> String {
        let mut text = String::new();
        let (capability, kernel) = (self.options.capability, self.kernel);
        let version = capability.version().max(self.version);
        // Hopper's own instructions are of no later generation, and of a later version of PTX.
        let own = kernel.has_warpgroups();
        let version = if own { version.max((8, 0)) } else { version };
        line(&mut text, format_args!(".version {}.{}", version.0, version.1));
        let suffix = if own { "a" } else { "" };
        line(&mut text, format_args!(".target sm_{}{}{suffix}", capability.major, capability.minor));
        line(&mut text, format_args!(".address_size 64\n"));
        line(&mut text, format_args!("// {}", printable(&kernel.name)));
        line(&mut text, format_args!(".visible .entry {ENTRY}("));
        let names = kernel.args.iter().map(|a| (".u64", &a.name));
        let names = names.chain(kernel.params.iter().map(|p| (".u32", &p.name)));
        let last = kernel.args.len() + kernel.params.len();
        for (i, (ty, name)) in (1..).zip(names) {
            let comma = if i == last { "" } else { "," };
            line(&mut text, format_args!("    .param {ty} p{}{comma} // {}", i - 1, printable(name)));
        }
        line(&mut text, format_args!(")"));
        line(&mut text, format_args!(".reqntid {}, 1, 1", kernel.group));
        if own {
            // So that registers are divided as roles count on.
            line(&mut text, format_args!(".minnctapersm 1"));
        }
        line(&mut text, format_args!("{{"));
        for class in Class::ALL {
            let count = self.counts.get(&class).copied().unwrap_or(0);
            if count > 0 {
                line(&mut text, format_args!("    .reg .{} {}<{count}>;", class.suffix(), class.prefix()));
            }
        }
        for (i, decl) in kernel.shared.iter().enumerate() {
            line(&mut text, format_args!("    .shared .align 16 .b8 s{i}[{}];", decl.bytes()));
        }
        text.push_str(&self.prologue);
        text.push_str(&self.code);
        text.push_str("    ret;\n}\n");
        text
    }

    // Instructions.

    /// A fresh register.
    fn reg(&mut self, class: Class) -> Reg {
        let count = self.counts.entry(class).or_insert(0);
        *count += 1;
        Reg { class, number: *count - 1 }
    }

    fn regs(&mut self, class: Class, count: usize) -> Vec<Reg> {
        (0..count).map(|_| self.reg(class)).collect()
    }

    /// The registers that a value of a type takes.
    fn registers(&mut self, ty: Type) -> Result<Vec<Reg>, Error> {
        Ok(match ty {
            Type::Scalar(s) => vec![self.reg(Class::of(s))],
            Type::Vector(s, n) => self.regs(Class::of(s), usize::from(n)),
            Type::Matrix(m) => {
                let count = matrix::Fragment::of(m)?.registers();
                self.regs(Class::B32, count)
            }
        })
    }

    /// An instruction.
    fn put(&mut self, instruction: fmt::Arguments<'_>) {
        line(&mut self.code, format_args!("    {instruction};"));
    }

    /// An instruction with a result in a fresh register.
    fn op(&mut self, name: impl fmt::Display, class: Class, operands: &[Reg]) -> Reg {
        let result = self.reg(class);
        let mut text = format!("    {name} {result}");
        for operand in operands {
            push(&mut text, format_args!(", {operand}"));
        }
        line(&mut self.code, format_args!("{text};"));
        result
    }

    /// An instruction on a register and a number of 32 bits.
    fn op_const(&mut self, name: impl fmt::Display, class: Class, a: Reg, number: u32) -> Reg {
        let result = self.reg(class);
        self.put(format_args!("{name} {result}, {a}, {number}"));
        result
    }

    /// Sets a register to another's value.
    fn copy(&mut self, to: Reg, from: Reg) {
        self.put(format_args!("mov.{} {to}, {from}", to.class.suffix()));
    }

    /// Writes instructions to the start, where everything sees their results.
    fn at_start<T>(&mut self, write: impl FnOnce(&mut Self) -> T) -> T {
        std::mem::swap(&mut self.code, &mut self.prologue);
        let result = write(self);
        std::mem::swap(&mut self.code, &mut self.prologue);
        result
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels - 1
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

    fn shared_decl(&self, shared: SharedId) -> Result<&'a SharedDecl, Error> {
        let missing = || Error::Invalid(format!("no shared array {}", shared.0));
        self.kernel.shared.get(shared.index()).ok_or_else(missing)
    }

    fn variable(&self, var: VarId) -> Result<Vec<Reg>, Error> {
        let missing = || Error::Invalid(format!("no variable {}", var.0));
        self.vars.get(var.index()).cloned().ok_or_else(missing)
    }

    fn scalar_of(&self, value: Value) -> Result<Scalar, Error> {
        let ty = self.def(value)?.ty;
        ty.scalar().ok_or_else(|| Error::Invalid(format!("%{} is a {ty}, not a number", value.0)))
    }

    fn matrix_of(&self, value: Value) -> Result<MatrixType, Error> {
        match self.def(value)?.ty {
            Type::Matrix(m) => Ok(m),
            other => Err(Error::Invalid(format!("{other} where a matrix is needed"))),
        }
    }

    /// A value's registers. Numbers, params and builtins come into being at their first use.
    fn value(&mut self, value: Value) -> Result<Vec<Reg>, Error> {
        let def = self.def(value)?;
        if let Some(known) = self.values.get(value.index()).filter(|v| !v.is_empty()) {
            return Ok(known.clone());
        }
        let reg = match &def.expr {
            Expr::Const(scalar, bits) => self.constant(Class::of(*scalar), *bits),
            Expr::Param(param) => self.param(*param)?,
            Expr::Builtin(builtin) => self.builtin(*builtin)?,
            _ => return Err(Error::Invalid(format!("%{} is used before it is computed", value.0))),
        };
        self.set(value, vec![reg]);
        Ok(vec![reg])
    }

    /// The register of a scalar.
    fn single(&mut self, value: Value) -> Result<Reg, Error> {
        match self.value(value)?.as_slice() {
            [one] => Ok(*one),
            _ => Err(Error::Invalid(format!("{} where a scalar is needed", self.def(value)?.ty))),
        }
    }

    fn set(&mut self, value: Value, regs: Vec<Reg>) {
        if let Some(slot) = self.values.get_mut(value.index()) {
            *slot = regs;
        }
    }

    /// A number in a register of its own, set at the start.
    fn constant(&mut self, class: Class, bits: u64) -> Reg {
        if let Some(known) = self.constants.get(&(class, bits)) {
            return *known;
        }
        let reg = self.at_start(|p| {
            let reg = p.reg(class);
            match class {
                Class::Predicate => p.put(format_args!("setp.ne.u32 {reg}, {bits}, 0")),
                _ => p.put(format_args!("mov.{} {reg}, {bits:#x}", class.suffix())),
            }
            reg
        });
        self.constants.insert((class, bits), reg);
        reg
    }

    fn word(&mut self, number: u32) -> Reg {
        self.constant(Class::B32, u64::from(number))
    }

    /// The value of a constant index.
    fn known_index(&self, value: Value) -> Result<Option<u64>, Error> {
        Ok(match self.def(value)?.expr {
            Expr::Const(Scalar::U32 | Scalar::U64, bits) => Some(bits),
            _ => None,
        })
    }

    fn param(&mut self, param: ParamId) -> Result<Reg, Error> {
        if param.index() >= self.kernel.params.len() {
            return Err(Error::Invalid(format!("no param {}", param.0)));
        }
        let at = self.kernel.args.len() + param.index();
        Ok(self.at_start(|p| {
            let reg = p.reg(Class::B32);
            p.put(format_args!("ld.param.u32 {reg}, [p{at}]"));
            reg
        }))
    }

    /// The address of a buffer.
    fn address_of(&mut self, arg: ArgId) -> Result<Reg, Error> {
        self.arg(arg)?;
        if let Some(Some(reg)) = self.addresses.get(arg.index()) {
            return Ok(*reg);
        }
        let reg = self.at_start(|p| {
            let reg = p.reg(Class::B64);
            p.put(format_args!("ld.param.u64 {reg}, [p{}]", arg.0));
            reg
        });
        if let Some(known) = self.addresses.get_mut(arg.index()) {
            *known = Some(reg);
        }
        Ok(reg)
    }

    fn builtin(&mut self, builtin: Builtin) -> Result<Reg, Error> {
        let axis = |d: u8| match d {
            0 => Ok("x"),
            1 => Ok("y"),
            2 => Ok("z"),
            d => Err(Error::Invalid(format!("dimension {d} of the grid"))),
        };
        let source = match builtin {
            Builtin::GroupId(d) => format!("%ctaid.{}", axis(d)?),
            Builtin::GroupCount(d) => format!("%nctaid.{}", axis(d)?),
            Builtin::LocalIndex | Builtin::SubgroupId => "%tid.x".into(),
            Builtin::Lane => return Ok(self.lane()),
        };
        Ok(self.at_start(|p| {
            let reg = p.reg(Class::B32);
            p.put(format_args!("mov.u32 {reg}, {source}"));
            match builtin {
                Builtin::SubgroupId => p.op_const("shr.u32", Class::B32, reg, WARP.ilog2()),
                _ => reg,
            }
        }))
    }

    /// The thread's number in its warp. Workgroups are one-dimensional, so warps follow the thread's index.
    fn lane(&mut self) -> Reg {
        if let Some(lane) = self.lane {
            return lane;
        }
        let lane = self.at_start(|p| {
            let reg = p.reg(Class::B32);
            p.put(format_args!("mov.u32 {reg}, %tid.x"));
            p.op_const("and.b32", Class::B32, reg, WARP - 1)
        });
        self.lane = Some(lane);
        lane
    }
}

/// Appends to a text. Writing to a string cannot fail.
fn push(text: &mut String, what: fmt::Arguments<'_>) {
    let _ = text.write_fmt(what);
}

fn line(text: &mut String, what: fmt::Arguments<'_>) {
    push(text, what);
    text.push('\n');
}

/// A name as a comment holds it.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '_' }).collect()
}

/// The suffix of arithmetic on a type.
fn suffix(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::Bool => "pred",
        Scalar::I32 => "s32",
        Scalar::U32 => "u32",
        Scalar::I64 => "s64",
        Scalar::U64 => "u64",
        Scalar::F16 => "f16",
        Scalar::F32 => "f32",
        Scalar::F64 => "f64",
    }
}
