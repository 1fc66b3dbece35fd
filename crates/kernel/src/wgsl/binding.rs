//! What each buffer is declared as, which follows from how the kernel uses it.

use crate::Error;
use crate::ir::*;
use crate::types::{Elem, Scalar};

/// How a kernel uses one buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ArgUsage {
    /// Scalars of every access as bits 1, 2 and 4.
    lanes: u8,
    /// Read-modify-write, or a store of a part of a word.
    atomic: bool,
    /// Loaded or stored as a cooperative matrix.
    matrix: bool,
    loaded: bool,
    stored: bool,
}

/// What a kernel does, as far as declarations depend on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    /// By buffer.
    pub(super) args: Vec<ArgUsage>,
    /// Which workgroup arrays see read-modify-write.
    pub(super) shared_atomic: Vec<bool>,
    /// Whether there is a workgroup barrier.
    pub(super) barrier: bool,
}

impl Usage {
    /// Walks the statements once.
    pub(super) fn of(kernel: &Kernel) -> Result<Usage, Error> {
        let mut usage = Usage {
            args: vec![ArgUsage::default(); kernel.args.len()],
            shared_atomic: vec![false; kernel.shared.len()],
            ..Usage::default()
        };
        usage.block(kernel, &kernel.body)?;
        Ok(usage)
    }

    /// Whether invocations can pass values to each other through some buffer.
    pub(super) fn exchanges(&self) -> bool {
        self.args.iter().any(|a| a.loaded && a.stored)
    }

    fn block(&mut self, kernel: &Kernel, block: &Block) -> Result<(), Error> {
        for stmt in block {
            match stmt {
                Stmt::Let(value) => self.expr(kernel, *value)?,
                Stmt::Store { place: Storage::Arg(arg), value, .. } => {
                    let lanes = match def(kernel, *value)?.ty {
                        crate::Type::Vector(_, n) => n,
                        _ => 1,
                    };
                    let size = kernel.args.get(arg.index()).map_or(4, |a| a.elem.size());
                    let used = self.arg(kernel, *arg)?;
                    used.stored = true;
                    used.lanes |= lanes;
                    used.atomic |= u32::from(lanes) * size < 4;
                }
                Stmt::StoreMatrix { place: Storage::Arg(arg), .. } => {
                    let used = self.arg(kernel, *arg)?;
                    (used.stored, used.matrix) = (true, true);
                }
                Stmt::If { then, otherwise, .. } => {
                    self.block(kernel, then)?;
                    self.block(kernel, otherwise)?;
                }
                Stmt::For { body, .. } => self.block(kernel, body)?,
                Stmt::While { head, body, .. } => {
                    self.block(kernel, head)?;
                    self.block(kernel, body)?;
                }
                Stmt::Barrier => self.barrier = true,
                _ => {}
            }
        }
        Ok(())
    }

    fn expr(&mut self, kernel: &Kernel, value: Value) -> Result<(), Error> {
        match def(kernel, value)?.expr {
            Expr::Load { place: Storage::Arg(arg), lanes, .. } => {
                let used = self.arg(kernel, arg)?;
                used.loaded = true;
                used.lanes |= lanes;
            }
            Expr::LoadUniform { arg, .. } => self.arg(kernel, arg)?.lanes |= 1,
            Expr::MatrixLoad { place: Storage::Arg(arg), .. } => {
                let used = self.arg(kernel, arg)?;
                (used.loaded, used.matrix) = (true, true);
            }
            Expr::Atomic { place, .. } => match place {
                Storage::Arg(arg) => {
                    let used = self.arg(kernel, arg)?;
                    (used.loaded, used.stored, used.atomic) = (true, true, true);
                }
                Storage::Shared(shared) => match self.shared_atomic.get_mut(shared.index()) {
                    Some(atomic) => *atomic = true,
                    None => return Err(unknown(kernel, "shared array", shared.0)),
                },
            },
            _ => {}
        }
        Ok(())
    }

    fn arg(&mut self, kernel: &Kernel, arg: ArgId) -> Result<&mut ArgUsage, Error> {
        self.args.get_mut(arg.index()).ok_or_else(|| unknown(kernel, "buffer", arg.0))
    }
}

pub(super) fn def(kernel: &Kernel, value: Value) -> Result<&Def, Error> {
    kernel.values.get(value.index()).ok_or_else(|| unknown(kernel, "value", value.0))
}

pub(super) fn unknown(kernel: &Kernel, what: &str, number: u32) -> Error {
    Error::Invalid(format!("{}: there is no {what} {number}", kernel.name))
}

/// What a buffer is declared as: an array of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    /// The kernel's element type.
    pub(super) elem: Elem,
    /// What a cell is made of; narrow elements are packed several to a u32.
    pub(super) unit: Unit,
    /// Units of a cell: 1, 2 or 4.
    pub(super) width: u8,
    /// Whether cells are atomic.
    pub(super) atomic: bool,
}

/// What a cell of a buffer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// An element of this type.
    Scalar(Scalar),
    /// A u32 that holds two or four elements.
    Packed,
}

impl Binding {
    pub(super) fn new(elem: Elem, usage: &ArgUsage) -> Binding {
        let unit = match elem {
            // Cooperative matrices are loaded from memory of their own type only.
            Elem::F16 if usage.matrix => Unit::Scalar(Scalar::F16),
            _ if elem.size() < 4 => Unit::Packed,
            _ => Unit::Scalar(elem.scalar()),
        };
        let atomic = usage.atomic && unit != Unit::Scalar(Scalar::F16);
        let width = match unit {
            _ if atomic || usage.matrix => 1,
            // Vectors only where every access is one; a scalar access would have to pick from a vector.
            Unit::Scalar(_) if usage.lanes.is_power_of_two() => usage.lanes,
            Unit::Packed if elem.size() == 2 && usage.lanes == 4 => 2,
            _ => 1,
        };
        Binding { elem, unit, width, atomic }
    }

    /// Bytes of a cell.
    pub(super) fn cell_bytes(&self) -> u32 {
        let unit = match self.unit {
            Unit::Scalar(s) => s.bits() / 8,
            Unit::Packed => 4,
        };
        unit * u32::from(self.width)
    }

    /// Elements of a cell.
    pub(super) fn cell_elements(&self) -> u32 {
        self.cell_bytes() / self.elem.size()
    }
}
