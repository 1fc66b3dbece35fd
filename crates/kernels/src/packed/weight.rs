//! A packed weight: its operands, what a kernel declares of them, and runs of its elements.

use olivine_ir::op::Scaling;
use olivine_ir::{BlockFormat, DType, Tensor};
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Shared, Val};

use crate::launch::{Launch, bytes};
use crate::math;
use crate::packed::decode::{self, Bare, Group, Request, Size, Table};
use crate::site::{Memory, Operand, Site};

/// What the bytes of a weight are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    /// Blocks with their scales inside.
    Blocks(BlockFormat),
    /// Single elements.
    Bare(Bare),
}

/// A weight `[.., N, K]` and its scales and zero points.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) w: Operand,
    scales: Option<Operand>,
    zero: Option<Operand>,
    scaling: Scaling,
    code: Code,
    /// K, which may be less than the columns that are stored.
    k: usize,
    table: Option<Memory>,
}

impl Weight {
    /// A weight of which K columns count; `operands` are its scales and zero points.
    pub(crate) fn new(
        w: &Operand,
        operands: &[Operand],
        scaling: Scaling,
        k: usize,
        site: &mut Site<'_>,
    ) -> Result<Self, String> {
        let code = match (Bare::of(&w.ty), w.ty.packed) {
            (Some(bare), _) => Code::Bare(bare),
            (None, Some(format)) => Code::Blocks(format),
            (None, None) => return Err(format!("{} is no packed weight", w.ty)),
        };
        // Kernels count a weight's bytes in 32 bits.
        if w.ty.bytes() > u32::MAX as usize {
            return Err(format!("a packed weight of more than 4 GiB, {}", w.ty));
        }
        let scales = operands.first().filter(|_| scaling.block > 0).cloned();
        let zero = operands.get(1).filter(|_| scaling.zero).cloned();
        if matches!(code, Code::Blocks(_)) && scales.is_some() {
            return Err(format!("scales beside those inside of {}", w.ty));
        }
        let table = match code {
            Code::Blocks(format) => decode::table(format),
            Code::Bare(_) => None,
        };
        let table = match table {
            Some(words) => {
                let tensor = Tensor::new([words.len()], words).map_err(|e| e.to_string())?;
                Some(site.constant(tensor))
            }
            None => None,
        };
        Ok(Weight { w: w.clone(), scales, zero, scaling, code, k, table })
    }

    /// The longest run that is a good one for a kernel.
    pub(crate) fn longest_run(&self) -> u32 {
        match self.code {
            Code::Blocks(format) => decode::longest_run(format),
            Code::Bare(_) => {
                let fits =
                    |run: &u32| self.scaling.block == 0 || self.scaling.block.is_multiple_of(*run as usize);
                [32, 16].into_iter().find(fits).unwrap_or(8)
            }
        }
    }

    /// The run that a GEMV should take if nothing was measured: long ones decode scales less often, short ones of blocks at
    /// odd addresses load neighbouring words.
    pub(crate) fn preferred_run(&self) -> u32 {
        match self.code {
            Code::Blocks(BlockFormat::Q8_0 | BlockFormat::Q8_1 | BlockFormat::Q8_K | BlockFormat::Q6_K) => 8,
            Code::Blocks(_) => self.longest_run(),
            // 16 bytes.
            Code::Bare(bare) => self.longest_run().min(128 / bare.bits()).max(8),
        }
    }

    /// The name of what is stored, for classes of shapes.
    pub(crate) fn name(&self) -> String {
        match self.code {
            Code::Blocks(format) => format.name().into(),
            Code::Bare(bare) => format!("{:?}-{}", bare.0, self.scaling.block).to_lowercase(),
        }
    }

    /// Bytes of all operands.
    pub(crate) fn bytes(&self) -> u64 {
        [Some(&self.w), self.scales.as_ref(), self.zero.as_ref()]
            .into_iter()
            .flatten()
            .map(|o| bytes(&o.ty))
            .sum()
    }

    /// Declares it to a kernel.
    pub(crate) fn declare<'k>(&self, l: &Launch<'k>) -> DeclaredWeight<'k> {
        let row = |operand: &Operand| operand.dims().last().copied().unwrap_or(1);
        let row_bytes = row(&self.w) * self.w.ty.dtype.size();
        let align = row_bytes | 16;
        let scales = self.scales.as_ref().map(|s| {
            let blocks = row(s);
            let per_row = if blocks == 1 { l.k().u32(1) } else { l.size("scale_blocks", blocks) };
            Scales {
                buffer: l.read("scales", s),
                per_row,
                block: self.scaling.block as u32,
                one: blocks == 1,
                zero: self.zero.as_ref().map(|zero| self.declare_zero(l, zero)),
                offset: self.scaling.offset as f32,
            }
        });
        let total = self.w.ty.bytes();
        DeclaredWeight {
            code: self.code,
            words: l.bind("w", Elem::U32, Access::Read, self.w.memory),
            row_bytes: l.size("row_bytes", row_bytes),
            row_align: 1 << align.trailing_zeros(),
            last: matches!(self.code, Code::Bare(_))
                .then(|| l.size("last_word", total.div_ceil(4).max(1) - 1)),
            k_size: matches!(self.code, Code::Bare(_)).then(|| l.size("w_k", self.k)),
            k: self.k,
            scales,
            table: self.table.map(|memory| l.bind("table", Elem::U32, Access::Read, memory)),
            shared: None,
        }
    }

    fn declare_zero<'k>(&self, l: &Launch<'k>, zero: &Operand) -> ZeroPoints<'k> {
        let per_row = l.size("zero_row", zero.dims().last().copied().unwrap_or(1));
        match (zero.ty.packed, self.code) {
            (Some(_), Code::Bare(bare)) => ZeroPoints {
                buffer: l.bind("zero", Elem::U8, Access::Read, zero.memory),
                per_row,
                packed: Some(bare),
            },
            _ => ZeroPoints {
                buffer: l.bind("zero", zero_elem(zero.ty.dtype), Access::Read, zero.memory),
                per_row,
                packed: None,
            },
        }
    }

    /// Words of the table that kernels may keep in workgroup memory.
    pub(crate) fn table_words(&self) -> u32 {
        match self.code {
            Code::Blocks(format) => decode::table(format).map_or(0, |words| words.len() as u32),
            Code::Bare(_) => 0,
        }
    }
}

fn zero_elem(dtype: DType) -> Elem {
    math::elem(dtype)
}

struct ZeroPoints<'k> {
    buffer: Buf<'k>,
    per_row: Val<'k>,
    packed: Option<Bare>,
}

struct Scales<'k> {
    buffer: Buf<'k>,
    per_row: Val<'k>,
    /// Elements that share one.
    block: u32,
    /// Whether a row has one for all.
    one: bool,
    zero: Option<ZeroPoints<'k>>,
    offset: f32,
}

/// A weight that a kernel reads.
pub(crate) struct DeclaredWeight<'k> {
    code: Code,
    words: Buf<'k>,
    row_bytes: Val<'k>,
    /// What the address of a row is a multiple of, at most 16.
    row_align: u32,
    /// The last word, where a run may end behind it.
    last: Option<Val<'k>>,
    /// K of elements without blocks.
    k_size: Option<Val<'k>>,
    k: usize,
    scales: Option<Scales<'k>>,
    table: Option<Buf<'k>>,
    shared: Option<Shared<'k>>,
}

/// What was loaded for a run.
pub(crate) struct Loaded<'k>(pub(crate) Vec<Val<'k>>);

impl<'k> Table<'k> for DeclaredWeight<'k> {
    fn words(&self, index: Val<'k>, count: u8) -> Vec<Val<'k>> {
        match (self.shared, self.table) {
            (Some(shared), _) => (0..u32::from(count)).map(|i| shared.load(index + i)).collect(),
            (None, Some(table)) => table.load_vec(index, count),
            (None, None) => vec![index; count as usize],
        }
    }
}

impl<'k> DeclaredWeight<'k> {
    /// Copies the table of so many words to workgroup memory. The whole workgroup must come here together.
    pub(crate) fn share_table(&mut self, k: &'k Builder, words: u32) {
        let Some(table) = self.table.filter(|_| words > 0) else { return };
        let shared = k.shared(Elem::U32, 1, words);
        k.for_(k.local_index(), k.u32(words), k.u32(k.group()), |i| shared.store(i, table.load(i)));
        k.barrier();
        self.shared = Some(shared);
    }

    /// Its bytes, as words.
    pub(crate) fn buffer(&self) -> Buf<'k> {
        self.words
    }

    /// How many words [`DeclaredWeight::load`] returns.
    pub(crate) fn loads(&self, count: u32) -> usize {
        let at = self.row_bytes.builder().u32(0);
        let words = |r: &Request<'k>| match r.size {
            Size::Words(words) if r.align < 4 => words as usize + 1,
            Size::Words(words) => words as usize,
            Size::Half | Size::Byte => 1,
        };
        self.requests(at, count).iter().map(words).sum()
    }

    /// The byte that a row begins at.
    pub(crate) fn row(&self, row: Val<'k>) -> Val<'k> {
        row * self.row_bytes
    }

    /// Where the block of an element is in its row, and where the element is in the block.
    fn place(&self, k_offset: Val<'k>) -> (Val<'k>, Val<'k>) {
        match self.code {
            Code::Blocks(format) => {
                let (elements, size) = (format.elements() as u32, format.bytes() as u32);
                (k_offset / elements * size, k_offset % elements)
            }
            Code::Bare(_) => (k_offset.builder().u32(0), k_offset),
        }
    }

    /// How many elements of a run share a scale, and whether more than products with them is summed.
    pub(crate) fn groups(&self, run: u32) -> (u32, bool) {
        use BlockFormat::{IQ1_M, IQ1_S, Q2_K, Q4_1, Q4_K, Q5_1, Q5_K};
        match (self.code, &self.scales) {
            (Code::Blocks(format), _) => {
                (run.min(32), matches!(format, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K | IQ1_S | IQ1_M))
            }
            (Code::Bare(_), None) => (run, false),
            (Code::Bare(_), Some(scales)) => {
                let each = if scales.one { run } else { gcd(scales.block, run) };
                (each, scales.zero.is_some() || scales.offset != 0.0)
            }
        }
    }

    fn requests(&self, at: Val<'k>, count: u32) -> Vec<Request<'k>> {
        match self.code {
            Code::Blocks(format) => decode::requests(format, at, count),
            Code::Bare(bare) => vec![bare.request(at, count, self.row_align)],
        }
    }

    /// Loads what a run needs: `row` is the byte that the row begins at, `k_offset` the first element.
    pub(crate) fn load(&self, row: Val<'k>, k_offset: Val<'k>, count: u32) -> Loaded<'k> {
        let (block, at) = self.place(k_offset);
        let base = row + block;
        Loaded(self.requests(at, count).iter().flat_map(|r| self.fetch(base + r.at, r)).collect())
    }

    /// Elements in so many words.
    fn longest(&self, words: u32) -> usize {
        match self.code {
            Code::Bare(bare) => (32 / bare.bits() * words) as usize,
            Code::Blocks(format) => format.elements(),
        }
    }

    fn word(&self, index: Val<'k>) -> Val<'k> {
        self.last.map_or(index, |last| index.min(last))
    }

    /// The aligned words that bytes are in.
    fn fetch(&self, byte: Val<'k>, request: &Request<'k>) -> Vec<Val<'k>> {
        let mut first = byte >> 2;
        if self.last.is_none() && byte.builder().target().i64 {
            // Addresses of neighbours differ by constants then, which no wrapping can spoil.
            first = first.convert(Scalar::U64);
        }
        let Size::Words(count) = request.size else { return vec![self.words.load(self.word(first))] };
        let lanes = match request.align {
            16.. if count.is_multiple_of(4) => 4,
            8.. if count.is_multiple_of(2) => 2,
            _ => 1,
        };
        if request.align < 4 {
            // The word that the last byte is in may be the one before.
            let words = (0..count).map(|i| self.words.load(self.word(first + i)));
            let last = self.words.load(self.word((byte + (4 * count - 1)) >> 2));
            return words.chain([last]).collect();
        }
        // Whole vectors end where rows do, unless rows end inside of a run.
        if self.last.is_some() && !self.k.is_multiple_of(self.longest(count)) {
            return (0..count).map(|i| self.words.load(self.word(first + i))).collect();
        }
        (0..count).step_by(lanes as usize).flat_map(|i| self.words.load_vec(first + i, lanes)).collect()
    }

    /// The bytes from the aligned words that they are in, and how many of these there were.
    fn aligned(&self, byte: Val<'k>, request: &Request<'k>, words: &[Val<'k>]) -> (Vec<Val<'k>>, usize) {
        let shift = (byte & 3u32) << 3;
        match request.size {
            Size::Half => (vec![words[0] >> shift], 1),
            Size::Byte => (vec![(words[0] >> shift) & 0xffu32], 1),
            Size::Words(count) if request.align >= 4 => (words[..count as usize].to_vec(), count as usize),
            Size::Words(count) => {
                let count = count as usize;
                let pair = |w: &[Val<'k>]| {
                    if byte.builder().target().i64 {
                        return (w[0].join(w[1]) >> shift.convert(Scalar::U64)).convert(Scalar::U32);
                    }
                    // In two steps: no shift is by 32 bits.
                    (w[0] >> shift) | ((w[1] << 1) << (shift ^ 31u32))
                };
                (words[..count + 1].windows(2).map(pair).collect(), count + 1)
            }
        }
    }

    /// The elements of a run from what was loaded for it. `row` and `index` are the first byte and the number of the row.
    pub(crate) fn decode(
        &self,
        loaded: &Loaded<'k>,
        (row, index): (Val<'k>, Val<'k>),
        k_offset: Val<'k>,
        count: u32,
    ) -> Vec<Group<'k>> {
        let (block, at) = self.place(k_offset);
        let base = row + block;
        let mut rest = loaded.0.as_slice();
        let mut read = Vec::new();
        for request in self.requests(at, count) {
            let (words, used) = self.aligned(base + request.at, &request, rest);
            rest = &rest[used..];
            read.push(words);
        }
        match self.code {
            Code::Blocks(format) => decode::decode(format, &read, at, count, Some(self)),
            Code::Bare(bare) => self.scaled(bare, bare.decode(&read[0], count), index, k_offset),
        }
    }

    /// Elements with the scales and zero points of their row.
    fn scaled(&self, bare: Bare, q: Vec<Val<'k>>, row: Val<'k>, k_offset: Val<'k>) -> Vec<Group<'k>> {
        let unit = bare.unit();
        let count = q.len() as u32;
        // What is past the end may be anything.
        let end = self.k_size.filter(|_| !self.k.is_multiple_of(count as usize));
        let q: Vec<Val<'k>> = match end {
            Some(end) => {
                (0u32..).zip(q).map(|(i, q)| (k_offset + i).lt(end).select(q, q.like(0.0))).collect()
            }
            None => q,
        };
        let Some(scales) = &self.scales else {
            return vec![Group { q, unit, zero: None, scale: None, add: None }];
        };
        let each = if scales.one { count } else { gcd(scales.block, count) };
        (0u32..)
            .zip(q.chunks(each as usize))
            .map(|(i, q)| {
                let k_offset = k_offset + i * each;
                let block = match scales.one {
                    true => row.builder().u32(0),
                    false => (k_offset / scales.block).min(scales.per_row - 1u32),
                };
                let scale = scales.buffer.load(row * scales.per_row + block);
                let zero = match &scales.zero {
                    Some(zero) => Some(zero.at(row, block)),
                    None => (scales.offset != 0.0).then(|| scale.like(f64::from(scales.offset))),
                };
                Group { q: q.to_vec(), unit, zero, scale: Some(scale), add: None }
            })
            .collect()
    }

    /// The elements of a run as floats.
    pub(crate) fn values(
        &self,
        loaded: &Loaded<'k>,
        row: (Val<'k>, Val<'k>),
        k_offset: Val<'k>,
        count: u32,
    ) -> Vec<Val<'k>> {
        self.decode(loaded, row, k_offset, count).iter().flat_map(Group::values).collect()
    }
}

impl<'k> ZeroPoints<'k> {
    /// The zero point of a block of a row.
    fn at(&self, row: Val<'k>, block: Val<'k>) -> Val<'k> {
        let Some(bare) = self.packed else {
            return self.buffer.load(row * self.per_row + block).convert(Scalar::F32);
        };
        let per_byte = 8 / bare.bits();
        let byte = self.buffer.load(row * self.per_row + block / per_byte);
        let word = byte >> (block % per_byte * bare.bits());
        let zero = bare.decode(&[word], 1)[0];
        if bare.unit() == 1.0 { zero } else { zero * bare.unit() }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
