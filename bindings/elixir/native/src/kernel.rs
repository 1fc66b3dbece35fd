//! Immediate operations on buffers: Olivine's kernels, or a caller's module.

use olivine_array::{Buffer, SpvModule};
use rustler::{Env, NifResult, Term};

use crate::call::{Errors, Failure, code, done, size};
use crate::resource::buffer;
use crate::spv::Kernel;

/// `out[i] = a[i] op b[i]`.
#[rustler::nif(schedule = "DirtyIo")]
fn apply_binary<'a>(
    env: Env<'a>,
    out: Term<'a>,
    a: Term<'a>,
    b: Term<'a>,
    n: Term<'a>,
    op: Term<'a>,
    spv: Term<'a>,
) -> NifResult<Term<'a>> {
    done(env, Errors::Contract, || {
        let (out, a, b) = (buffer(out)?, buffer(a)?, buffer(b)?);
        let (n, op) = (size("n", n)?, code(op)?);
        match Kernel::of(spv)? {
            Kernel::Builtin(dtype) => Ok(out.context().binary(&out, &a, &b, n, op, dtype)?),
            kernel => {
                let call = ModuleCall::new(&kernel, &[(&a, &[n]), (&b, &[n]), (&out, &[n])])?;
                call.with_op(op)?.run_over(&[n], &[n])
            }
        }
    })
}

/// `out[i] = op(a[i])`.
#[rustler::nif(schedule = "DirtyIo")]
fn apply_unary<'a>(
    env: Env<'a>,
    out: Term<'a>,
    a: Term<'a>,
    n: Term<'a>,
    op: Term<'a>,
    spv: Term<'a>,
) -> NifResult<Term<'a>> {
    done(env, Errors::Contract, || {
        let (out, a) = (buffer(out)?, buffer(a)?);
        let (n, op) = (size("n", n)?, code(op)?);
        match Kernel::of(spv)? {
            Kernel::Builtin(dtype) => Ok(out.context().unary(&out, &a, n, op, dtype)?),
            kernel => {
                let call = ModuleCall::new(&kernel, &[(&a, &[n]), (&out, &[n])])?;
                call.with_op(op)?.run_over(&[n], &[n])
            }
        }
    })
}

/// `out[m, n] = a[m, k] · b[k, n]`.
#[rustler::nif(schedule = "DirtyIo")]
fn matmul<'a>(
    env: Env<'a>,
    out: Term<'a>,
    a: Term<'a>,
    b: Term<'a>,
    m: Term<'a>,
    n: Term<'a>,
    k: Term<'a>,
    spv: Term<'a>,
) -> NifResult<Term<'a>> {
    done(env, Errors::Contract, || {
        let (out, a, b) = (buffer(out)?, buffer(a)?, buffer(b)?);
        let (m, n, k) = (size("m", m)?, size("n", n)?, size("k", k)?);
        match Kernel::of(spv)? {
            Kernel::Builtin(dtype) => Ok(out.context().matmul(&out, &a, &b, m, n, k, dtype)?),
            kernel => {
                let call = ModuleCall::new(&kernel, &[(&a, &[m, k]), (&b, &[k, n]), (&out, &[m, n])])?;
                call.run_over(&[m, n, k], &[n, m])
            }
        }
    })
}

/// Reduces the middle axis.
#[rustler::nif(schedule = "DirtyIo")]
fn reduce_axis<'a>(
    env: Env<'a>,
    out: Term<'a>,
    a: Term<'a>,
    outer: Term<'a>,
    reduce: Term<'a>,
    inner: Term<'a>,
    op: Term<'a>,
    spv: Term<'a>,
) -> NifResult<Term<'a>> {
    done(env, Errors::Contract, || {
        let (out, a) = (buffer(out)?, buffer(a)?);
        let (outer, reduce, inner) =
            (size("outer", outer)?, size("reduce_size", reduce)?, size("inner", inner)?);
        let op = code(op)?;
        match Kernel::of(spv)? {
            Kernel::Builtin(dtype) => Ok(out.context().reduce(&out, &a, outer, reduce, inner, op, dtype)?),
            kernel => {
                let call =
                    ModuleCall::new(&kernel, &[(&a, &[outer, reduce, inner]), (&out, &[outer, inner])])?;
                // Both sizes were checked to fit the output's bytes.
                call.run_over(&[outer, reduce, inner, op as usize], &[outer * inner])
            }
        }
    })
}

/// The transpose of a matrix.
#[rustler::nif(schedule = "DirtyIo")]
fn transpose_2d<'a>(
    env: Env<'a>,
    out: Term<'a>,
    a: Term<'a>,
    m: Term<'a>,
    n: Term<'a>,
    spv: Term<'a>,
) -> NifResult<Term<'a>> {
    done(env, Errors::Contract, || {
        let (out, a) = (buffer(out)?, buffer(a)?);
        let (m, n) = (size("m", m)?, size("n", n)?);
        match Kernel::of(spv)? {
            Kernel::Builtin(dtype) => Ok(out.context().transpose_2d(&out, &a, m, n, dtype)?),
            kernel => {
                let call = ModuleCall::new(&kernel, &[(&a, &[m, n]), (&out, &[m, n])])?;
                call.run_over(&[m, n], &[n, m])
            }
        }
    })
}

/// A caller's module and the buffers of its bindings.
struct ModuleCall<'a> {
    module: SpvModule,
    buffers: Vec<&'a Buffer>,
}

impl<'a> ModuleCall<'a> {
    /// Checks the module, and that buffers hold at least four bytes for each of so many elements.
    fn new(kernel: &Kernel, operands: &[(&'a Buffer, &[usize])]) -> Result<Self, Failure> {
        let Kernel::Module(bytes) = kernel else { return Err(Failure::bad("a density is for chains")) };
        let Some((first, _)) = operands.first() else { return Err(Failure::bad("a module without buffers")) };
        let module = first.context().module(bytes)?;
        for (buffer, sizes) in operands {
            let count = sizes.iter().try_fold(4usize, |bytes, size| bytes.checked_mul(*size));
            if count.is_none_or(|bytes| bytes > buffer.byte_size()) {
                return Err(Failure::mismatch(format!("{sizes:?} elements in {} bytes", buffer.byte_size())));
            }
        }
        Ok(ModuleCall { module, buffers: operands.iter().map(|(buffer, _)| *buffer).collect() })
    }

    /// Sets specialisation constant 0. A module without it has one operation, which is number 0.
    fn with_op(self, op: u32) -> Result<Self, Failure> {
        if op == 0 && !self.module.has_op() {
            return Ok(self);
        }
        Ok(ModuleCall { module: self.module.with_op(op)?, ..self })
    }

    /// Dispatches a workgroup for each tile of an extent of up to three axes; nothing where the extent is empty.
    fn run_over(self, push: &[usize], extent: &[usize]) -> Result<(), Failure> {
        let word = |size: &usize| {
            u32::try_from(*size)
                .map_err(|_| Failure::bad(format!("{size} does not fit a push constant of 32 bits")))
        };
        let push = push.iter().map(word).collect::<Result<Vec<_>, _>>()?;
        if push.len() * 4 != self.module.push_bytes() {
            let (given, wanted) = (push.len() * 4, self.module.push_bytes());
            return Err(Failure::bad(format!(
                "the call has {given} bytes of push constants, the module {wanted}"
            )));
        }
        let push: Vec<u8> = push.iter().flat_map(|word| word.to_le_bytes()).collect();
        let local = self.module.workgroup();
        let mut groups = [1u32; 3];
        for (axis, size) in extent.iter().enumerate().take(3) {
            groups[axis] = word(size)?.div_ceil(local[axis].max(1));
        }
        if groups.contains(&0) {
            return Ok(());
        }
        match self.buffers.first() {
            Some(first) => Ok(first.context().dispatch_spv(&self.buffers, &push, groups, &self.module)?),
            None => Ok(()),
        }
    }
}
