//! Kernels as WGSL: buffers are bindings, run-time numbers are immediates or a uniform buffer
//! ([`Interface`]). All storage is `read_write`.
//!
//! Elements narrower than 32 bits are packed in `u32`: loads unpack, stores of whole words pack, and stores of parts
//! of a word clear and set their bits by atomics, so that neighbours in the word stay whole. f32 is rounded to f16 and
//! bf16 by integer arithmetic, because the built-in packing rounds as it likes.
//!
//! The plain dialect holds 64-bit integers as pairs of words (`pairs.rs`).
//!
//! WGSL lets a compiler rearrange sums and products. Where a kernel forbids it ([`Expr::Opaque`]) the bits pass through
//! an exclusive or with a last param that is always zero, which no compiler knows.

mod binding;
mod expr;
mod helper;
mod literal;
mod memory;
mod pairs;
mod stmt;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::Error;
use crate::interface::{BindingKind, Interface, ParamsLocation};
use crate::ir::*;
use crate::types::{Elem, MatrixType, MatrixUse, Scalar, Type};

use binding::{Binding, Usage};
use helper::Helper;

/// Which WGSL is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Native wgpu: immediates, subgroups, 64-bit registers, cooperative matrices.
    Native,
    /// Browsers: params in a uniform buffer, no subgroups, 64-bit integers as pairs of words, barriers that pass the
    /// strictest uniformity analysis.
    Plain,
}

/// How a kernel is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WgslOptions {
    /// Which WGSL.
    pub dialect: Dialect,
    /// Whether every access is checked and the first violation reported.
    pub checked: bool,
}

/// A printed kernel and what a driver must know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The text; its entry point is [`Interface::ENTRY`].
    pub source: String,
    /// What is bound.
    pub interface: Interface,
}

/// Prints a validated kernel.
///
/// [`Error::Missing`] says what the dialect does not have, [`Error::Invalid`] that the kernel is not a valid one.
pub fn print(kernel: &Kernel, options: &WgslOptions) -> Result<Module, Error> {
    let usage = Usage::of(kernel)?;
    let mut printer = Printer::new(kernel, *options, usage)?;
    printer.block(&kernel.body)?;
    printer.module()
}

/// A kernel being printed: the body comes first and determines the declarations above it.
struct Printer<'k> {
    kernel: &'k Kernel,
    options: WgslOptions,
    usage: Usage,
    args: Vec<Binding>,
    /// Names of args and params.
    arg_names: Vec<String>,
    param_names: Vec<String>,
    helpers: BTreeSet<Helper>,
    /// Scalar types that uniform loads pass through workgroup memory.
    uniform: BTreeSet<Scalar>,
    builtins: BTreeSet<&'static str>,
    /// Whether every subgroup barrier is reached by the whole workgroup, once it is known.
    barriers_reach_all: Option<bool>,
    body: String,
    depth: usize,
    /// Number of the next name that no value has.
    fresh: u32,
}

impl<'k> Printer<'k> {
    fn new(kernel: &'k Kernel, options: WgslOptions, usage: Usage) -> Result<Self, Error> {
        let args = kernel.args.iter().zip(&usage.args).map(|(arg, u)| Binding::new(arg.elem, u));
        let name = |prefix: char, i: usize, name: &str| {
            let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
            format!("{prefix}{i}_{}", plain.collect::<String>().trim_end_matches('_'))
        };
        let printer = Printer {
            kernel,
            options,
            args: args.collect(),
            usage,
            arg_names: kernel.args.iter().enumerate().map(|(i, a)| name('a', i, &a.name)).collect(),
            param_names: kernel.params.iter().enumerate().map(|(i, p)| name('p', i, &p.name)).collect(),
            helpers: BTreeSet::new(),
            uniform: BTreeSet::new(),
            builtins: BTreeSet::new(),
            barriers_reach_all: None,
            body: String::new(),
            depth: 1,
            fresh: 0,
        };
        printer.check_dialect()?;
        Ok(printer)
    }

    /// Refuses the types that the dialect does not have, wherever they stand.
    fn check_dialect(&self) -> Result<(), Error> {
        let kernel = self.kernel;
        let types = kernel.values.iter().map(|d| d.ty).chain(kernel.vars.iter().copied());
        let scalars = types.clone().filter_map(Type::scalar);
        let elems = kernel.args.iter().map(|a| a.elem).chain(kernel.shared.iter().map(|s| s.elem));
        if self.options.dialect == Dialect::Plain
            && let Some(wide) = scalars.chain(elems.map(Elem::scalar)).find(|s| *s == Scalar::F64)
        {
            return Err(Error::Missing(format!("{wide} in plain WGSL, which `{}` uses", kernel.name)));
        }
        for ty in types {
            if let Type::Matrix(m) = ty {
                self.matrix_type(m)?;
            }
        }
        for s in &kernel.shared {
            if s.elem.size() < 4 && s.elem != Elem::F16 {
                return Err(Error::Invalid(format!("{}: a shared array of {}", kernel.name, s.elem)));
            }
        }
        Ok(())
    }

    fn invalid<T>(&self, problem: impl std::fmt::Display) -> Result<T, Error> {
        Err(Error::Invalid(format!("{}: {problem}", self.kernel.name)))
    }

    fn missing<T>(&self, what: impl std::fmt::Display) -> Result<T, Error> {
        Err(Error::Missing(format!("{what} in WGSL, which `{}` uses", self.kernel.name)))
    }

    fn type_name(&self, ty: Type) -> Result<String, Error> {
        match ty {
            Type::Scalar(s) => Ok(self.scalar_name(s).to_owned()),
            Type::Vector(s, n) => Ok(self.vector_name(s, n)),
            Type::Matrix(m) => self.matrix_type(m),
        }
    }

    fn matrix_type(&self, m: MatrixType) -> Result<String, Error> {
        let role = match m.role {
            MatrixUse::A => 'A',
            MatrixUse::B => 'B',
            MatrixUse::Accumulator => 'C',
        };
        let square = m.rows == m.columns && matches!(m.rows, 8 | 16);
        if self.options.dialect == Dialect::Plain || !square || !matches!(m.elem, Elem::F16 | Elem::F32) {
            return self.missing(format_args!("cooperative matrix {}", Type::Matrix(m)));
        }
        Ok(format!("coop_mat{0}x{0}<{1}, {role}>", m.rows, m.elem))
    }

    /// A line of the body.
    fn line(&mut self, text: impl std::fmt::Display) {
        for _ in 0..self.depth {
            self.body.push_str("    ");
        }
        let _ = writeln!(self.body, "{text}");
    }

    /// A name that no value has.
    fn name(&mut self) -> String {
        self.fresh += 1;
        format!("t{}", self.fresh - 1)
    }

    fn helper(&mut self, helper: Helper) -> &'static str {
        self.helpers.insert(helper);
        helper.name()
    }

    /// Everything above the body, the body, and the interface for the driver.
    fn module(mut self) -> Result<Module, Error> {
        let interface = self.interface();
        let mut out = String::new();
        if self.uses_f16() {
            out.push_str("enable f16;\n");
        }
        if self.kernel.values.iter().any(|d| matches!(d.ty, Type::Matrix(_))) {
            out.push_str("enable wgpu_cooperative_matrix;\n");
            // naga takes whatever comes from a `read_write` buffer for different in each invocation. The validator knows
            // better, and lets matrices stand only where whole subgroups come by.
            out.push_str("diagnostic(off, derivative_uniformity);\n");
        }
        let _ = writeln!(out, "// {}", self.kernel.name.replace(|c: char| c.is_control(), " "));
        for (i, (binding, name)) in self.args.iter().zip(&self.arg_names).enumerate() {
            let cell = self.cell_type(binding);
            let _ = writeln!(out, "@group(0) @binding({i}) var<storage, read_write> {name}: array<{cell}>;");
        }
        if let Some(place) = interface.params {
            self.declare_params(&mut out, place);
        }
        if let Some(n) = interface.report_binding() {
            let _ =
                writeln!(out, "@group(0) @binding({n}) var<storage, read_write> report: array<atomic<u32>>;");
        }
        for (i, shared) in self.kernel.shared.iter().enumerate() {
            let atomic = self.usage.shared_atomic.get(i).copied().unwrap_or(false);
            let cell = match shared.lanes {
                1 if atomic => format!("atomic<{}>", shared.elem),
                1 if self.is_pair(shared.elem.scalar()) => pairs::PAIR.to_owned(),
                n if self.is_pair(shared.elem.scalar()) => self.vector_name(shared.elem.scalar(), n),
                1 => shared.elem.name().to_owned(),
                n => format!("vec{n}<{}>", shared.elem),
            };
            let _ = writeln!(out, "var<workgroup> s{i}: array<{cell}, {}>;", shared.len);
        }
        for scalar in &self.uniform {
            let _ = writeln!(out, "var<workgroup> uniform_{scalar}: {};", self.scalar_name(*scalar));
        }
        for helper in Helper::with_needs(&self.helpers) {
            let _ = write!(out, "\n{}", helper.source());
        }
        let vars = self.vars()?;
        let consts = self.consts();
        let _ = write!(out, "\n@compute @workgroup_size({})\nfn {}(", self.kernel.group, Interface::ENTRY);
        let builtins: Vec<_> = self.builtins.iter().copied().collect();
        out.push_str(&builtins.join(", "));
        out.push_str(") {\n");
        out.push_str(&consts);
        out.push_str(&vars);
        out.push_str(&self.body);
        out.push_str("}\n");
        Ok(Module { source: out, interface })
    }

    fn has_opaque(&self) -> bool {
        self.kernel.values.iter().any(|d| matches!(d.expr, Expr::Opaque(_)))
    }

    fn uses_f16(&self) -> bool {
        let kernel = self.kernel;
        let types = kernel.values.iter().map(|d| d.ty).chain(kernel.vars.iter().copied());
        let half = |ty| match ty {
            Type::Scalar(s) | Type::Vector(s, _) => s == Scalar::F16,
            Type::Matrix(m) => m.elem == Elem::F16,
        };
        kernel.shared.iter().any(|s| s.elem == Elem::F16) || types.into_iter().any(half)
    }

    fn interface(&self) -> Interface {
        let immediate_bytes = match self.options.dialect {
            Dialect::Native => Interface::MAX_IMMEDIATE_BYTES,
            Dialect::Plain => 0,
        };
        let mut interface = Interface::new(self.kernel, immediate_bytes, self.options.checked);
        for decl in &mut interface.bindings {
            if let BindingKind::Arg(arg) = decl.kind
                && let Some(binding) = self.args.get(arg.index())
            {
                decl.min_bytes = binding.cell_bytes();
            }
        }
        interface
    }

    fn declare_params(&self, out: &mut String, place: ParamsLocation) {
        out.push_str("struct Params {\n");
        if self.options.checked {
            out.push_str("    dispatch: u32,\n");
        }
        for (name, param) in self.param_names.iter().zip(&self.kernel.params) {
            let _ = writeln!(out, "    {name}: {},", param.scalar);
        }
        if self.has_opaque() {
            out.push_str("    zero: u32,\n");
        }
        out.push_str("}\n");
        let _ = match place {
            ParamsLocation::Uniform { binding, .. } => {
                writeln!(out, "@group(0) @binding({binding}) var<uniform> params: Params;")
            }
            ParamsLocation::Immediate { .. } => writeln!(out, "var<immediate> params: Params;"),
        };
    }

    fn vars(&self) -> Result<String, Error> {
        let mut out = String::new();
        for (i, ty) in self.kernel.vars.iter().enumerate() {
            let _ = writeln!(out, "    var x{i}: {};", self.type_name(*ty)?);
        }
        Ok(out)
    }

    /// Numbers that have no literal, made from their bits. A `let` is no constant expression, in which infinities and
    /// NaN would be errors.
    fn consts(&mut self) -> String {
        let mut out = String::new();
        for (i, def) in self.kernel.values.iter().enumerate() {
            if let Expr::Const(scalar, bits) = def.expr
                && literal::literal(scalar, bits).is_none()
            {
                out.push_str(&literal::by_bits(i, scalar, bits));
            }
        }
        out
    }
}
