//! Cooperative matrices prove themselves before anything relies on them: drivers have been silently wrong.
//!
//! The first program of a process that multiplies matrices of some shape on some device runs a tiny matmul of that
//! shape first, whose result is known. Operands that are transposed or swapped, an accumulator that is ignored, another order
//! of elements, another sign and zeros all change it. A shape that fails is left out of what lowering may use.

mod matmul;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use olivine_kernel::{Expr, Kernel, MatrixShape, MatrixSupport, Type};
use olivine_program::{Addressing, DeviceCaps, Driver, Error, Program};

/// The outcome of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The device and its driver.
    pub device: String,
    /// The matrix shape.
    pub shape: MatrixShape,
    /// What was wrong, if anything was.
    pub problem: Option<String>,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: cooperative matrices {}", self.device, name(self.shape))?;
        match &self.problem {
            None => write!(f, " are right"),
            Some(problem) => write!(f, " are not used: {problem}"),
        }
    }
}

/// A shape in words: `f16 16x8x16 into f32`.
fn name(shape: MatrixShape) -> String {
    let MatrixShape { operand, accumulator, m, n, k } = shape;
    format!("{operand} {m}x{n}x{k} into {accumulator}")
}

/// Findings of this process, by device.
static FINDINGS: Mutex<BTreeMap<String, Vec<Finding>>> = Mutex::new(BTreeMap::new());

/// The device as findings name it; kernels reach it in different words through different drivers.
fn device(caps: &DeviceCaps) -> String {
    let way = match caps.addressing {
        Addressing::Pointers if caps.ptx.is_some() => ", as PTX",
        Addressing::Pointers => "",
        Addressing::Bindings { .. } if caps.target.matrix_support == MatrixSupport::Basic => " as WGSL",
        Addressing::Bindings { .. } => " by bindings",
    };
    format!("{} ({}{way})", caps.name, caps.driver)
}

fn known(device: &str) -> Vec<Finding> {
    FINDINGS.lock().unwrap_or_else(PoisonError::into_inner).get(device).cloned().unwrap_or_default()
}

fn keep(finding: Finding) {
    let mut all = FINDINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let of_device = all.entry(finding.device.clone()).or_default();
    if !of_device.iter().any(|f| f.shape == finding.shape) {
        if finding.problem.is_some() {
            tracing::warn!("{finding}");
        }
        of_device.push(finding);
    }
}

/// Tries every matrix shape that a device offers and that was not tried before.
pub fn try_matrices<D: Driver>(driver: &Arc<D>) -> Result<Vec<Finding>, Error> {
    driver.caps().target.matrices.clone().into_iter().map(|shape| try_shape(driver, shape)).collect()
}

/// Lowers with `lower` for a device as it has proved to be: a program that multiplies matrices of a shape for the first
/// time waits for the shape's trial, and is lowered again without it where that goes wrong.
pub fn proven<D: Driver>(
    driver: &Arc<D>,
    lower: impl Fn(&DeviceCaps) -> Result<Program, Error>,
) -> Result<Program, Error> {
    let mut caps = driver.caps().clone();
    let device = device(&caps);
    let wrong = |shape: &MatrixShape| {
        known(&device).iter().any(|finding| finding.shape == *shape && finding.problem.is_some())
    };
    loop {
        caps.target.matrices.retain(|shape| !wrong(shape));
        let program = lower(&caps)?;
        let used: HashSet<MatrixShape> = program.kernels.iter().flat_map(|k| shapes(k)).collect();
        let mut all_right = true;
        for shape in caps.target.matrices.iter().copied().filter(|shape| used.contains(shape)) {
            all_right &= try_shape(driver, shape)?.problem.is_none();
        }
        if all_right {
            return Ok(program);
        }
    }
}

/// The matrix shapes that a kernel multiplies.
fn shapes(kernel: &Kernel) -> impl Iterator<Item = MatrixShape> + '_ {
    kernel.values.iter().filter_map(|def| {
        let Expr::MatrixMulAdd(a, b, c) = def.expr else { return None };
        match (kernel.ty(a), kernel.ty(b), kernel.ty(c)) {
            (Type::Matrix(a), Type::Matrix(b), Type::Matrix(c)) => Some(MatrixShape {
                operand: a.elem,
                accumulator: c.elem,
                m: a.rows,
                n: b.columns,
                k: a.columns,
            }),
            _ => None,
        }
    })
}

/// What is known of a shape, or the outcome of its trial.
fn try_shape<D: Driver>(driver: &Arc<D>, shape: MatrixShape) -> Result<Finding, Error> {
    let device = device(driver.caps());
    if let Some(finding) = known(&device).into_iter().find(|f| f.shape == shape) {
        return Ok(finding);
    }
    let problem = match matmul::run(driver, shape) {
        Ok(problem) => problem,
        // These errors say nothing about the shape: the next run would meet them too.
        Err(lost @ (Error::DeviceLost { .. } | Error::OutOfMemory { .. })) => return Err(lost),
        Err(refused) => Some(refused.to_string()),
    };
    let finding = Finding { device, shape, problem };
    keep(finding.clone());
    Ok(finding)
}
