//! Cooperative matrices that stay inside.

use super::Writer;
use super::memory::GRAIN;
use crate::Error;
use crate::ir::*;
use crate::types::{MatrixType, Scalar, Type};

impl Writer {
    /// Whether a matrix is inside its memory and aligned; checked runs report an access to a buffer that is not.
    pub(super) fn matrix_inside(
        &mut self,
        place: Storage,
        matrix: MatrixType,
        index: Value,
        layout: MatrixLayout,
    ) -> Result<Value, Error> {
        let scalar = self.scalar(index)?;
        // Elements of memory that are there, and the bytes of one.
        let (length, bytes) = match place {
            Storage::Arg(arg) => {
                let size = self.elem_size(arg)?;
                (self.padded_length(arg, scalar, size)?, size)
            }
            Storage::Shared(shared) => {
                let decl = self.shared_decl(shared)?;
                let (len, bytes) = (decl.len, decl.elem.size() * u32::from(decl.lanes));
                (self.constant(scalar, len.into()), bytes)
            }
        };
        let (runs, run) = match layout.column_major {
            true => (matrix.columns, matrix.rows),
            false => (matrix.rows, matrix.columns),
        };
        let run_bytes = run * matrix.elem.size();
        let stride = match scalar {
            Scalar::U32 => layout.stride,
            wide => self.let_(Expr::Convert(wide, layout.stride), Type::Scalar(wide)),
        };
        // Without a sum or product that could wrap: first whether one run fits, then how far apart they may be.
        let taken = self.constant(scalar, run_bytes.div_ceil(bytes).max(1).into());
        let mut fits = self.compare(CompareOp::Ge, length, taken);
        let mut room = self.op(BinaryOp::Sub, length, taken)?;
        if runs > 1 {
            let steps = self.constant(scalar, u64::from(runs) - 1);
            let most = self.op(BinaryOp::Div, room, steps)?;
            let near = self.compare(CompareOp::Le, stride, most);
            fits = self.op(BinaryOp::And, fits, near)?;
            let far = self.op(BinaryOp::Mul, stride, steps)?;
            room = self.op(BinaryOp::Sub, room, far)?;
        }
        let begins = self.compare(CompareOp::Le, index, room);
        fits = self.op(BinaryOp::And, fits, begins)?;
        // Rows (columns) are aligned to their own size, 16 bytes at most.
        let grain = run_bytes.clamp(1, GRAIN);
        let grain = (1 << grain.ilog2()) / bytes;
        if grain > 1 {
            let (mask, zero) = (self.constant(scalar, u64::from(grain) - 1), self.constant(scalar, 0));
            let both = self.op(BinaryOp::Or, index, stride)?;
            let off = self.op(BinaryOp::And, both, mask)?;
            let aligned = self.compare(CompareOp::Eq, off, zero);
            fits = self.op(BinaryOp::And, fits, aligned)?;
        }
        if let Storage::Arg(arg) = place {
            let (size, zero) = (self.length(arg, Scalar::U32)?, self.constant(Scalar::U32, 0));
            let first = self.narrowed(index)?;
            let past = self.op(BinaryOp::Max, first, size)?;
            let shown = self.select(fits, zero, past)?;
            self.block.push(Stmt::CheckAccess { arg, index: shown, size });
        }
        Ok(fits)
    }

    /// The elements of a buffer with those that its last bytes could hold.
    fn padded_length(&mut self, arg: ArgId, scalar: Scalar, size: u32) -> Result<Value, Error> {
        let length = self.length(arg, scalar)?;
        let grain = u64::from(GRAIN / size);
        if grain < 2 {
            return Ok(length);
        }
        let all = if scalar == Scalar::U64 { u64::MAX } else { u64::from(u32::MAX) };
        let (more, mask) = (self.constant(scalar, grain - 1), self.constant(scalar, all & !(grain - 1)));
        let sum = self.op(BinaryOp::Add, length, more)?;
        self.op(BinaryOp::And, sum, mask)
    }

    pub(super) fn store_matrix(
        &mut self,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
        value: Value,
    ) -> Result<(), Error> {
        let Type::Matrix(matrix) = self.def(value)?.ty else {
            return Err(Error::Invalid(format!("{}: %{} is no matrix", self.kernel.name, value.0)));
        };
        let inside = self.matrix_inside(place, matrix, index, layout)?;
        self.guarded(inside, |w| {
            w.block.push(Stmt::StoreMatrix { place, index, layout, value });
            Ok(())
        })
    }
}
