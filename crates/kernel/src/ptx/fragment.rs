//! Cooperative matrices in memory: `ldmatrix` where it can, otherwise words, or elements where a line is not contiguous.
//!
//! Vulkan asks that rows (columns) in memory begin at multiples of 16 bytes, or of their own size if that is less; so words
//! and `ldmatrix` find their alignment.

use super::matrix::Fragment;
use super::memory::Address;
use super::{Braced, Class, Printer, Reg};
use crate::Error;
use crate::ir::*;
use crate::types::{MatrixType, Scalar, Type};

/// A matrix in memory.
struct MatrixMemory {
    /// Of the first element.
    base: Reg,
    /// Bytes from one row, or column, to the next.
    stride: Reg,
    /// The class of both.
    class: Class,
    /// Whether lines are contiguous, instead of what crosses them.
    contiguous: bool,
}

impl Printer<'_> {
    pub(super) fn matrix_load(
        &mut self,
        ty: MatrixType,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
    ) -> Result<Vec<Reg>, Error> {
        let fragment = Fragment::of(ty)?;
        let at = self.matrix_place(fragment, place, index, layout)?;
        let regs = self.regs(Class::B32, fragment.registers());
        let size = fragment.elem.size();
        if at.class == Class::B32 && (size == 2 || size == 1 && at.contiguous) {
            self.load_matrix(fragment, &at, &regs);
            return Ok(regs);
        }
        let first = self.lane_address(fragment, &at);
        for (i, part) in (0u32..).zip(regs.chunks(fragment.width())) {
            let (block, run) = (i / fragment.runs, i % fragment.runs);
            if at.contiguous {
                let address = self.step(first, &at, 8 * block, 4 * fragment.word * size * run);
                self.access("ld", address, part, None);
                continue;
            }
            let elements = self.cross(fragment, &at, first, block, run);
            match (elements.as_slice(), part) {
                ([a, b], [x, y]) => {
                    self.access("ld", *a, &[*x], None);
                    self.access("ld", *b, &[*y], None);
                }
                (elements, [word]) => self.load_word(elements, *word),
                _ => return Err(Error::Invalid("a matrix with a word of no elements".into())),
            }
        }
        Ok(regs)
    }

    pub(super) fn matrix_store(
        &mut self,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
        value: Value,
    ) -> Result<(), Error> {
        let fragment = Fragment::of(self.matrix_of(value)?)?;
        let regs = self.value(value)?;
        let at = self.matrix_place(fragment, place, index, layout)?;
        let (first, size) = (self.lane_address(fragment, &at), fragment.elem.size());
        for (i, part) in (0u32..).zip(regs.chunks(fragment.width())) {
            let (block, run) = (i / fragment.runs, i % fragment.runs);
            if at.contiguous {
                let address = self.step(first, &at, 8 * block, 4 * fragment.word * size * run);
                self.access("st", address, part, None);
                continue;
            }
            let elements = self.cross(fragment, &at, first, block, run);
            match (elements.as_slice(), part) {
                ([a, b], [x, y]) => {
                    self.access("st", *a, &[*x], None);
                    self.access("st", *b, &[*y], None);
                }
                (elements, [word]) => self.store_word(elements, *word),
                _ => return Err(Error::Invalid("a matrix with a word of no elements".into())),
            }
        }
        Ok(())
    }

    /// Address and stride in bytes. The storage may hold elements of another size, in which both count.
    fn matrix_place(
        &mut self,
        fragment: Fragment,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
    ) -> Result<MatrixMemory, Error> {
        let contiguous = fragment.by_rows != layout.column_major;
        let stride = self.single(layout.stride)?;
        let wide = match self.def(layout.stride)?.ty {
            Type::Scalar(Scalar::U32) => false,
            Type::Scalar(Scalar::U64) => true,
            other => return Err(Error::Invalid(format!("a stride of {other}"))),
        };
        match place {
            Storage::Shared(shared) => {
                let decl = self.shared_decl(shared)?;
                let held = decl.elem.size() * u32::from(decl.lanes);
                let stride = if wide { self.convert(Scalar::U64, Scalar::U32, stride) } else { stride };
                let base = self.shared_address(shared, index, None)?;
                let base = self.address_register(base);
                let stride = self.op_const("mul.lo.u32", Class::B32, stride, held);
                Ok(MatrixMemory { base, stride, class: Class::B32, contiguous })
            }
            Storage::Arg(arg) => {
                let held = self.arg(arg)?.elem.size();
                let base = self.arg_address(arg, index)?;
                let base = self.address_register(base);
                let stride = match wide {
                    true => self.op_const("mul.lo.u64", Class::B64, stride, held),
                    false => self.op_const("mul.wide.u32", Class::B64, stride, held),
                };
                Ok(MatrixMemory { base, stride, class: Class::B64, contiguous })
            }
        }
    }

    pub(super) fn address_register(&mut self, address: Address) -> Reg {
        match address {
            Address::Global(reg, 0) | Address::Shared(reg, 0) => reg,
            Address::Global(reg, offset) => self.op_const("add.u64", Class::B64, reg, offset),
            Address::Shared(reg, offset) => self.op_const("add.u32", Class::B32, reg, offset),
            Address::Array(id, offset) => {
                let base = self.shared_base(id);
                if offset == 0 { base } else { self.op_const("add.u32", Class::B32, base, offset) }
            }
        }
    }

    /// `base + count · stride`, with a count of 32 bits.
    fn strides(&mut self, at: &MatrixMemory, base: Reg, count: Reg) -> Reg {
        match at.class {
            Class::B64 => {
                let wide = self.convert(Scalar::U32, Scalar::U64, count);
                self.op("mad.lo.u64", Class::B64, &[wide, at.stride, base])
            }
            _ => self.op("mad.lo.u32", Class::B32, &[count, at.stride, base]),
        }
    }

    /// `base + bytes`, with a number of bytes of 32 bits.
    fn further(&mut self, at: &MatrixMemory, base: Reg, bytes: Reg) -> Reg {
        match at.class {
            Class::B64 => {
                let wide = self.convert(Scalar::U32, Scalar::U64, bytes);
                self.op("add.u64", Class::B64, &[base, wide])
            }
            _ => self.op("add.u32", Class::B32, &[base, bytes]),
        }
    }

    /// The lane's first element.
    fn lane_address(&mut self, fragment: Fragment, at: &MatrixMemory) -> Reg {
        let lane = self.lane();
        let line = self.op_const("shr.u32", Class::B32, lane, 2);
        let quarter = self.op_const("and.b32", Class::B32, lane, 3);
        let along = self.op_const("mul.lo.u32", Class::B32, quarter, fragment.word);
        let size = fragment.elem.size();
        let (strides, bytes) = if at.contiguous { (line, along) } else { (along, line) };
        let bytes = self.op_const("mul.lo.u32", Class::B32, bytes, size);
        let base = self.strides(at, at.base, strides);
        self.further(at, base, bytes)
    }

    /// So many strides, and then bytes, from an address.
    fn step(&mut self, first: Reg, at: &MatrixMemory, strides: u32, bytes: u32) -> Address {
        let mut base = first;
        if strides > 0 {
            let count = self.word(strides);
            base = self.strides(at, first, count);
        }
        match at.class {
            Class::B64 => Address::Global(base, bytes),
            _ => Address::Shared(base, bytes),
        }
    }

    /// The elements of a word whose line is not contiguous: one stride apart.
    fn cross(
        &mut self,
        fragment: Fragment,
        at: &MatrixMemory,
        first: Reg,
        block: u32,
        run: u32,
    ) -> Vec<Address> {
        let along = 4 * fragment.word * run;
        (0..fragment.word)
            .map(|i| self.step(first, at, along + i, 8 * block * fragment.elem.size()))
            .collect()
    }

    /// One or two words, or a part of one.
    fn access(&mut self, name: &str, address: Address, regs: &[Reg], narrow: Option<&str>) {
        let (space, ty) = (address.space(), narrow.unwrap_or("b32"));
        let (vector, regs) = match regs {
            [one] => ("", one.to_string()),
            more => (".v2", Braced(more).to_string()),
        };
        match name {
            "ld" => self.put(format_args!("ld.{space}{vector}.{ty} {regs}, {address}")),
            _ => self.put(format_args!("st.{space}{vector}.{ty} {address}, {regs}")),
        }
    }

    /// A word of two or four elements that are apart in memory.
    fn load_word(&mut self, elements: &[Address], word: Reg) {
        if let [low, high] = elements {
            let halves = [self.reg(Class::B16), self.reg(Class::B16)];
            self.access("ld", *low, &halves[..1], Some("b16"));
            self.access("ld", *high, &halves[1..], Some("b16"));
            self.put(format_args!("mov.b32 {word}, {{{}, {}}}", halves[0], halves[1]));
            return;
        }
        let bytes: Vec<Reg> = elements
            .iter()
            .map(|address| {
                let byte = self.reg(Class::B32);
                self.access("ld", *address, &[byte], Some("u8"));
                byte
            })
            .collect();
        let mut sum = self.word(0);
        for (i, byte) in (0u32..).zip(bytes) {
            let placed = self.op_const("shl.b32", Class::B32, byte, 8 * i);
            sum = self.op("or.b32", Class::B32, &[sum, placed]);
        }
        self.copy(word, sum);
    }

    fn store_word(&mut self, elements: &[Address], word: Reg) {
        if let [low, high] = elements {
            let halves = self.unpack_b16(word);
            self.access("st", *low, &halves[..1], Some("b16"));
            self.access("st", *high, &halves[1..], Some("b16"));
            return;
        }
        for (i, address) in (0u32..).zip(elements) {
            let byte = self.op_const("shr.u32", Class::B32, word, 8 * i);
            self.access("st", *address, &[byte], Some("b8"));
        }
    }

    /// By `ldmatrix`: every lane names a row of 16 bytes of one of up to four blocks of 8 by 8 half words.
    fn load_matrix(&mut self, fragment: Fragment, at: &MatrixMemory, regs: &[Reg]) {
        let lane = self.lane();
        let count = regs.len() as u32;
        let row = self.op_const("and.b32", Class::B32, lane, 7);
        let number = self.op_const("shr.u32", Class::B32, lane, 3);
        // Lanes past the last block repeat the first.
        let number = self.op_const("and.b32", Class::B32, number, count - 1);
        let block = self.op_const("shr.u32", Class::B32, number, fragment.runs.ilog2());
        let run = self.op_const("and.b32", Class::B32, number, fragment.runs - 1);
        let (above, beside) = if at.contiguous { (block, run) } else { (run, block) };
        let strides = self.reg(Class::B32);
        self.put(format_args!("mad.lo.u32 {strides}, {above}, 8, {row}"));
        let bytes = self.op_const("shl.b32", Class::B32, beside, 4);
        let base = self.strides(at, at.base, strides);
        let address = self.further(at, base, bytes);
        let trans = if at.contiguous { "" } else { ".trans" };
        self.put(format_args!(
            "ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {}, [{address}]",
            Braced(regs)
        ));
    }
}
