//! Branches and loops: inner graphs are lowered once, with the graph around them, and run as executables of their own.

use std::sync::{Arc, Mutex, PoisonError};

use olivine_compile::{Compiled, at_load};
use olivine_ir::op::{If, Loop};
use olivine_ir::size::Bindings;
use olivine_ir::{SubGraph, TensorView};

use crate::arena::Buffer;
use crate::cost::{self, StepCost};
use crate::kernel::kernels;
use crate::operand::{Operand, Target};
use crate::{Error, Executable, Weights};

kernels! { |op, x, out, call|
    If => call.kernel.branches(call.node)?.run(x, out)?,
    Loop => call.kernel.repeated(call.node)?.run(x, out)?,
}

/// An inner graph, ready to run.
fn prepared(body: &SubGraph, checked: bool) -> Result<Executable, String> {
    let graph = body.graph().clone();
    let compiled = Compiled { at_load: at_load(&graph), graph, stages: Vec::new() };
    Executable::new(&compiled, Arc::new(Weights::new()), checked).map_err(|e| e.to_string())
}

/// A packed operand's elements.
pub(crate) fn view<'a>(x: &Operand<'a>) -> Result<TensorView<'a>, Error> {
    let start = x.offset.saturating_mul(x.ty.dtype.size());
    let bytes = x.bytes().get(start..start.saturating_add(x.ty.bytes())).unwrap_or_default();
    TensorView::from_bytes(x.ty, bytes).map_err(|e| Error::Compile(e.to_string()))
}

/// Whether the first byte of an operand of one bool is set.
fn is_set(view: &TensorView<'_>) -> bool {
    view.bytes().first().is_some_and(|b| *b != 0)
}

fn integer(view: &TensorView<'_>) -> i64 {
    let bytes = view.bytes().first_chunk().copied();
    bytes.map_or(0, i64::from_ne_bytes)
}

/// The two graphs of an `if`.
pub(crate) struct Branches {
    then: Executable,
    other: Executable,
}

impl Branches {
    pub(crate) fn new(op: &If, checked: bool) -> Result<Self, String> {
        Ok(Branches { then: prepared(&op.then_branch, checked)?, other: prepared(&op.else_branch, checked)? })
    }

    /// The same for other values of the open sizes, if there are such.
    pub(crate) fn for_sizes(&self, sizes: &Bindings) -> Result<Option<Self>, Error> {
        if !self.then.has_open_sizes() && !self.other.has_open_sizes() {
            return Ok(None);
        }
        Ok(Some(Branches { then: self.then.for_sizes(sizes)?, other: self.other.for_sizes(sizes)? }))
    }

    /// The work of the larger graph.
    pub(crate) fn work(&self) -> usize {
        self.then.work().max(self.other.work())
    }

    /// The steps of the larger graph. Which one a run takes is not known: the larger is right where it is taken, and where it
    /// is not, a device that could not run it in time is not chosen by mistake; a mean would be right for neither.
    pub(crate) fn costs(&self) -> Vec<StepCost> {
        if self.then.work() > self.other.work() { self.then.costs() } else { self.other.costs() }
    }

    pub(crate) fn run(&self, x: &[Operand<'_>], out: &mut [Target<'_>]) -> Result<(), Error> {
        let views = x.iter().map(view).collect::<Result<Vec<_>, _>>()?;
        let Some((condition, captures)) = views.split_first() else { return Ok(()) };
        let branch = if is_set(condition) { &self.then } else { &self.other };
        let mut targets: Vec<&mut [u8]> = out.iter_mut().map(|t| &mut *t.bytes).collect();
        branch.run(captures, &mut targets)
    }
}

/// The body of a loop, and memory of loops that have ended for those to come.
pub(crate) struct Repeated {
    body: Executable,
    carried: usize,
    max_iterations: Option<usize>,
    idle: Mutex<Vec<Frame>>,
}

/// What a loop holds beside its results: whether to go on, and the carried values of one iteration and of the next.
struct Frame {
    go_on: Buffer,
    now: Vec<Buffer>,
    next: Vec<Buffer>,
}

impl Repeated {
    pub(crate) fn new(op: &Loop, checked: bool) -> Result<Self, String> {
        let body = prepared(&op.body, checked)?;
        Ok(Repeated { body, carried: op.carried, max_iterations: op.max_iterations, idle: Mutex::default() })
    }

    /// The same for other values of the open sizes, if there are such.
    pub(crate) fn for_sizes(&self, sizes: &Bindings) -> Result<Option<Self>, Error> {
        if !self.body.has_open_sizes() {
            return Ok(None);
        }
        let (carried, max_iterations) = (self.carried, self.max_iterations);
        let body = self.body.for_sizes(sizes)?;
        Ok(Some(Repeated { body, carried, max_iterations, idle: Mutex::default() }))
    }

    /// The steps of an iteration.
    pub(crate) fn costs(&self) -> Vec<StepCost> {
        self.body.costs()
    }

    /// Iterations that it is taken to make, where `asked` is the number it is given, if that is known.
    pub(crate) fn iterations(&self, asked: Option<i64>) -> u64 {
        cost::iterations(asked, self.max_iterations)
    }

    fn frame(&self) -> Result<Frame, Error> {
        if let Some(frame) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(frame);
        }
        let carried = || {
            let types = self.body.outputs().iter().skip(1).take(self.carried);
            types.map(|(_, ty)| Buffer::new(ty.bytes())).collect::<Result<Vec<_>, _>>()
        };
        Ok(Frame { go_on: Buffer::new(1)?, now: carried()?, next: carried()? })
    }

    pub(crate) fn run(&self, x: &[Operand<'_>], out: &mut [Target<'_>]) -> Result<(), Error> {
        let mut frame = self.frame()?;
        let done = self.run_iterations(x, out, &mut frame);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
        done
    }

    fn run_iterations(
        &self,
        x: &[Operand<'_>],
        out: &mut [Target<'_>],
        frame: &mut Frame,
    ) -> Result<(), Error> {
        let views = x.iter().map(view).collect::<Result<Vec<_>, _>>()?;
        let [asked, begin, given @ ..] = views.as_slice() else { return Ok(()) };
        let (first, captures) = given.split_at(self.carried.min(given.len()));
        let (results, rest) = out.split_at_mut(self.carried);
        let Some((count, rows)) = rest.split_last_mut() else { return Ok(()) };
        for (now, view) in frame.now.iter_mut().zip(first) {
            now.bytes_mut().copy_from_slice(view.bytes());
        }
        let most = self.max_iterations.map_or(i64::MAX, |m| i64::try_from(m).unwrap_or(i64::MAX));
        let most = integer(asked).min(most);
        let mut going = is_set(begin);
        let mut iteration = 0i64;
        while going && iteration < most {
            self.run_iteration(iteration, first, captures, rows, frame)?;
            going = frame.go_on.bytes().first().is_some_and(|b| *b != 0);
            std::mem::swap(&mut frame.now, &mut frame.next);
            iteration += 1;
        }
        for (result, now) in results.iter_mut().zip(&frame.now) {
            result.bytes.copy_from_slice(now.bytes());
        }
        let row_types = self.body.outputs().iter().skip(1 + self.carried);
        for (row, (_, ty)) in rows.iter_mut().zip(row_types) {
            let written = (iteration as usize).saturating_mul(ty.bytes());
            row.bytes.get_mut(written..).unwrap_or_default().fill(0);
        }
        count.bytes.copy_from_slice(&iteration.to_ne_bytes());
        Ok(())
    }

    fn run_iteration(
        &self,
        iteration: i64,
        first: &[TensorView<'_>],
        captures: &[TensorView<'_>],
        rows: &mut [Target<'_>],
        frame: &mut Frame,
    ) -> Result<(), Error> {
        let number = [iteration];
        let wrong = |e: olivine_ir::Error| Error::Compile(e.to_string());
        let mut inputs = vec![TensorView::new([], &number).map_err(wrong)?];
        for (now, view) in frame.now.iter().zip(first) {
            inputs.push(TensorView::from_bytes(view.ty(), now.bytes()).map_err(wrong)?);
        }
        inputs.extend_from_slice(captures);
        let mut targets: Vec<&mut [u8]> = vec![frame.go_on.bytes_mut()];
        targets.extend(frame.next.iter_mut().map(Buffer::bytes_mut));
        let row_types = self.body.outputs().iter().skip(1 + self.carried);
        for (row, (_, ty)) in rows.iter_mut().zip(row_types) {
            let start = (iteration as usize).saturating_mul(ty.bytes());
            targets.push(row.bytes.get_mut(start..start.saturating_add(ty.bytes())).unwrap_or_default());
        }
        self.body.run(&inputs, &mut targets)
    }
}
