//! A packed weight: its operands, what a kernel declares of them, and runs of its elements.

use olivine_ir::op::Scaling;
use olivine_ir::{BlockFormat, DType, Dim, Tensor};
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Shared, Val};

use crate::launch::{Launch, bytes};
use crate::math;
use crate::packed::decode::{self, Bare, Group, Quants, Request, Size, Table};
use crate::packed::planes::Planes;
use crate::packed::pool::Pool;
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
    /// Its blocks field by field, if they were brought to that form at load.
    planes: Option<Planes>,
    /// Whether elements are to be integers.
    integers: bool,
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
        if w.ty.bytes() >= u32::MAX as usize - 4096 {
            return Err(format!("a packed weight of more than 4 GiB, {}", w.ty));
        }
        let scales = operands.first().filter(|_| scaling.block > 0).cloned();
        let zero = operands.get(1).filter(|_| scaling.zero).cloned();
        if matches!(code, Code::Blocks(_)) && scales.is_some() {
            return Err(format!("scales beside those inside of {}", w.ty));
        }
        let planes = match code {
            Code::Blocks(format) => Planes::at_load(format, w, site)?,
            Code::Bare(_) => None,
        };
        Ok(Weight { w: w.clone(), scales, zero, scaling, code, k, planes, integers: false, table: None })
    }

    /// The same weight as integers or as floats, before kernels need to decode it.
    pub(crate) fn of_integers(&self, integers: bool) -> Self {
        Weight { integers, ..self.clone() }
    }

    /// The same weight with what kernels need to decode it, as integers or as floats.
    pub(crate) fn decoded_as(mut self, integers: bool, site: &mut Site<'_>) -> Result<Self, String> {
        let table = match self.code {
            Code::Blocks(format) => decode::table(format, integers),
            Code::Bare(_) => None,
        };
        self = self.of_integers(integers);
        self.table = match table {
            Some(words) => {
                let tensor = Tensor::new([words.len()], words).map_err(|e| e.to_string())?;
                Some(site.constant(tensor))
            }
            None => None,
        };
        Ok(self)
    }

    /// The run of whole words of four integers that a kernel should take; `None` if elements are floats or K and the
    /// blocks of scales are no multiples of it.
    pub(crate) fn integer_run(&self) -> Option<u32> {
        match self.code {
            Code::Blocks(format) if decode::has_strided_runs(format) => Some(64),
            Code::Blocks(format) => Some(decode::longest_run(format)),
            Code::Bare(bare) if bare.is_integer() => {
                let divides = |n: usize, run: u32| n.is_multiple_of(run as usize);
                let fits = |run: &u32| {
                    divides(self.k, *run) && (self.scaling.block == 0 || divides(self.scaling.block, *run))
                };
                [32, 16].into_iter().find(fits)
            }
            Code::Bare(_) => None,
        }
    }

    /// The shortest run that kernels may take.
    pub(crate) fn shortest_run(&self) -> u32 {
        if self.integers { 8.max(4 * self.turns()) } else { 8 }
    }

    /// Words that a run takes in registers when it is loaded, about.
    pub(crate) fn run_words(&self, run: u32) -> u32 {
        match self.code {
            Code::Blocks(format) => {
                let bits = 8 * format.bytes() as u32 / format.elements() as u32;
                let header = if format.elements() > 64 { 4 } else { 1 };
                (run * bits).div_ceil(32) + header
            }
            Code::Bare(bare) => run * bare.bits() / 32 + 1,
        }
    }

    /// Whether kernels can decode runs of so many elements together.
    pub(crate) fn has_run(&self, run: u32) -> bool {
        match self.code {
            Code::Blocks(format) => decode::has_run(format, run),
            Code::Bare(_) => true,
        }
    }

    /// Whether runs of so many elements are strided.
    pub(crate) fn is_strided(&self, run: u32) -> bool {
        matches!(self.code, Code::Blocks(format) if run == 64 && decode::has_strided_runs(format))
    }

    /// How many words of four integers take turns: see [`Bare::turns`].
    pub(crate) fn turns(&self) -> u32 {
        match self.code {
            Code::Blocks(_) => 1,
            Code::Bare(bare) => bare.turns(),
        }
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

    /// The longest run that becomes matrices.
    pub(crate) fn longest_matrix_run(&self) -> u32 {
        match self.code {
            Code::Blocks(format) if decode::has_strided_runs(format) => 64,
            _ => self.longest_run(),
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
    pub(crate) fn bytes(&self) -> Dim {
        [Some(&self.w), self.scales.as_ref(), self.zero.as_ref()]
            .into_iter()
            .flatten()
            .map(|o| bytes(&o.ty))
            .sum()
    }

    /// The same weight, which takes the table of another where both decode by the same.
    pub(crate) fn with_table_of(mut self, other: &Weight) -> Self {
        if (self.code, self.integers) == (other.code, other.integers) {
            self.table = other.table;
        }
        self
    }

    /// How many buffers a kernel binds that reads it.
    pub(crate) fn buffers(&self) -> usize {
        let beside = [&self.scales, &self.zero].into_iter().flatten().count();
        1 + beside + usize::from(self.table_words() > 0)
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
        let (per_row, memory) = match self.code {
            Code::Blocks(format) => (row_bytes / format.bytes(), self.planes.as_ref().map(|p| p.memory)),
            Code::Bare(_) => (row_bytes, None),
        };
        DeclaredWeight {
            code: self.code,
            words: l.bind("w", Elem::U32, Access::Read, memory.unwrap_or(self.w.memory)),
            per_row: l.size("row", per_row),
            planes: self.planes.as_ref().map(|planes| planes.declare(l)),
            integers: self.integers,
            replicas: 1,
            row_align: 1 << align.trailing_zeros(),
            last: matches!(self.code, Code::Bare(_))
                .then(|| l.size("last_word", total.div_ceil(4).max(1) - 1)),
            k_size: matches!(self.code, Code::Bare(_)).then(|| l.size("w_k", self.k)),
            k: self.k,
            scales,
            table: self.table.map(|memory| l.common_read("table", Elem::U32, memory)),
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

    /// Whether a kernel can read another weight in the same way.
    pub(crate) fn is_twin(&self, other: &Weight) -> bool {
        let alone = |weight: &Weight| weight.scales.is_none() && weight.zero.is_none();
        self.w.ty == other.w.ty && self.code == other.code && alone(self) && alone(other)
    }

    /// Words of an entry of that table.
    pub(crate) fn entry_words(&self) -> u32 {
        match self.code {
            Code::Blocks(format) => decode::entry_words(format),
            Code::Bare(_) => 1,
        }
    }

    /// Words of the table that kernels may keep in workgroup memory.
    pub(crate) fn table_words(&self) -> u32 {
        match self.code {
            Code::Blocks(format) => {
                decode::table(format, self.integers).map_or(0, |words| words.len() as u32)
            }
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
    /// Blocks of a row, or bytes.
    per_row: Val<'k>,
    /// Where each field of all blocks begins, where they are apart.
    planes: Option<Vec<(u32, Val<'k>)>>,
    integers: bool,
    /// Copies of the table in workgroup memory, entry by entry, for lanes to take turns.
    replicas: u32,
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
    fn words(&self, entry: Val<'k>, count: u8) -> Vec<Val<'k>> {
        match (self.shared, self.table) {
            (Some(shared), _) if self.replicas > 1 => {
                let copy = entry.builder().local_index() % self.replicas;
                shared.load_vec(entry * self.replicas + copy)
            }
            (Some(shared), _) => shared.load_vec(entry),
            (None, Some(table)) => table.load_vec(entry * u32::from(count), count),
            (None, None) => vec![entry; count as usize],
        }
    }

    fn integers(&self) -> bool {
        self.integers
    }
}

/// Words of a table that is small enough for a copy to every bank of workgroup memory.
pub(crate) const SMALL_TABLE: u32 = 256;

impl<'k> DeclaredWeight<'k> {
    /// Copies the table of so many words to workgroup memory, several times, entry by entry: lanes that look up different
    /// entries of one copy would wait for each other. The whole workgroup must come here together.
    pub(crate) fn share_table(&mut self, k: &'k Builder, pool: &Pool<'k>, words: u32, copies: u32) {
        let Some(table) = self.table.filter(|_| words > 0) else { return };
        let each = match self.code {
            Code::Blocks(format) => decode::entry_words(format),
            Code::Bare(_) => 1,
        };
        let shared = pool.take("table", Elem::U32, each as u8, words / each * copies);
        k.for_(k.local_index(), k.u32(words / each), k.u32(k.group()), |i| {
            let entry = table.load_vec(i * each, each as u8);
            // Neighbouring lanes write to different banks.
            for copy in 0..copies {
                shared.store_vec(i * copies + (i + copy) % copies, &entry);
            }
        });
        k.barrier();
        (self.shared, self.replicas) = (Some(shared), copies);
    }

    /// The same for another weight of the same type, which has no scales beside it.
    pub(crate) fn for_twin(&self, l: &Launch<'k>, weight: &Weight) -> Self {
        let memory = weight.planes.as_ref().map_or(weight.w.memory, |planes| planes.memory);
        DeclaredWeight {
            words: l.bind("twin", Elem::U32, Access::Read, memory),
            planes: self.planes.clone(),
            scales: None,
            ..*self
        }
    }

    /// The same weight, which finds its table where another does.
    pub(crate) fn with_table_of(self, other: &Self) -> Self {
        DeclaredWeight { shared: other.shared, replicas: other.replicas, ..self }
    }

    /// Its bytes, as words.
    pub(crate) fn buffer(&self) -> Buf<'k> {
        self.words
    }

    /// How many words [`DeclaredWeight::load`] returns.
    pub(crate) fn loads(&self, count: u32) -> usize {
        let at = self.per_row.builder().u32(0);
        let words = |r: &Request<'k>| match r.size {
            Size::Words(words) if self.align(r) < 4 => words as usize + 1,
            Size::Words(words) => words as usize,
            Size::Half | Size::Byte => 1,
        };
        self.requests(at, count).iter().map(words).sum()
    }

    /// The block that a row begins with, or the byte.
    pub(crate) fn row(&self, row: Val<'k>) -> Val<'k> {
        row * self.per_row
    }

    /// Which block of its row an element is in, and where in the block.
    fn place(&self, k_offset: Val<'k>) -> (Val<'k>, Val<'k>) {
        match self.code {
            Code::Blocks(format) => {
                let elements = format.elements() as u32;
                (k_offset / elements, k_offset % elements)
            }
            Code::Bare(_) => (k_offset.builder().u32(0), k_offset),
        }
    }

    /// The first byte of a request: of a block, or of the row that begins at byte `block`.
    fn address(&self, block: Val<'k>, request: &Request<'k>) -> Val<'k> {
        let field = request.field;
        match (self.code, &self.planes) {
            (Code::Blocks(_), Some(planes)) => {
                let start = planes.iter().find(|(start, _)| *start == field.start);
                let first = block * field.bytes + request.at;
                start.map_or(first, |(_, start)| first + *start)
            }
            (Code::Blocks(format), None) => block * format.bytes() as u32 + request.at + field.start,
            (Code::Bare(_), _) => block + request.at,
        }
    }

    /// What the address of a request is a multiple of, at most 16.
    fn align(&self, request: &Request<'k>) -> u32 {
        let bits = match (self.code, &self.planes) {
            (Code::Blocks(_), Some(_)) => request.field.bytes,
            (Code::Blocks(format), None) => request.field.start | format.bytes() as u32,
            (Code::Bare(_), _) => self.row_align,
        };
        1 << (bits | request.align | 16).trailing_zeros()
    }

    /// How many elements of a run share a scale, and whether more than products with them is summed.
    pub(crate) fn groups(&self, run: u32) -> (u32, bool) {
        use BlockFormat::{IQ1_M, IQ1_S, Q2_K, Q4_1, Q4_K, Q5_1, Q5_K};
        match (self.code, &self.scales) {
            (Code::Blocks(format), _) => (
                decode::group(format, run),
                matches!(format, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K | IQ1_S | IQ1_M),
            ),
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

    /// Loads what a run needs: `row` is what [`DeclaredWeight::row`] said, `k_offset` the first element.
    pub(crate) fn load(&self, row: Val<'k>, k_offset: Val<'k>, count: u32) -> Loaded<'k> {
        let (block, at) = self.place(k_offset);
        let block = row + block;
        Loaded(self.requests(at, count).iter().flat_map(|r| self.fetch(self.address(block, r), r)).collect())
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
            // Addresses of neighbours differ by constants then, which no wrapping can break.
            first = first.convert(Scalar::U64);
        }
        let Size::Words(count) = request.size else { return vec![self.words.load(self.word(first))] };
        let align = self.align(request);
        let lanes = match align {
            16.. if count.is_multiple_of(4) => 4,
            8.. if count.is_multiple_of(2) => 2,
            _ => 1,
        };
        if align < 4 {
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
            Size::Words(count) if self.align(request) >= 4 => {
                (words[..count as usize].to_vec(), count as usize)
            }
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

    /// The elements of a run from what was loaded for it. `row` is what [`DeclaredWeight::row`] said of the row `index`.
    pub(crate) fn decode(
        &self,
        loaded: &Loaded<'k>,
        (row, index): (Val<'k>, Val<'k>),
        k_offset: Val<'k>,
        count: u32,
    ) -> Vec<Group<'k>> {
        let (block, at) = self.place(k_offset);
        let block = row + block;
        let mut rest = loaded.0.as_slice();
        let mut read = Vec::new();
        for request in self.requests(at, count) {
            let (words, used) = self.aligned(self.address(block, &request), &request, rest);
            rest = &rest[used..];
            read.push(words);
        }
        match self.code {
            Code::Blocks(format) => decode::decode(format, &read, at, count, Some(self)),
            Code::Bare(bare) => self.scaled(bare, &read[0], count, index, k_offset),
        }
    }

    /// Elements with the scales and zero points of their row.
    fn scaled(
        &self,
        bare: Bare,
        words: &[Val<'k>],
        count: u32,
        row: Val<'k>,
        k_offset: Val<'k>,
    ) -> Vec<Group<'k>> {
        let Some(scales) = &self.scales else {
            let q = self.bare(bare, words, count, k_offset, count).pop();
            let q = q.unwrap_or(Quants::Floats(Vec::new()));
            return vec![Group { q, unit: bare.unit(), zero: None, scale: None, add: None }];
        };
        let each = if scales.one { count } else { gcd(scales.block, count) };
        (0u32..)
            .zip(self.bare(bare, words, count, k_offset, each))
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
                Group { q, unit: bare.unit(), zero, scale: Some(scale), add: None }
            })
            .collect()
    }

    /// A run's elements, so many at a time.
    fn bare(
        &self,
        bare: Bare,
        words: &[Val<'k>],
        count: u32,
        k_offset: Val<'k>,
        each: u32,
    ) -> Vec<Quants<'k>> {
        if self.integers {
            let stored = (each * bare.bits() / 32) as usize;
            return words.chunks(stored.max(1)).map(|words| bare.integers(words)).collect();
        }
        let mut q = bare.decode(words, count);
        // What is past the end may be anything.
        if let Some(end) = self.k_size.filter(|_| !self.k.is_multiple_of(count as usize)) {
            for (i, q) in (0u32..).zip(&mut q) {
                *q = (k_offset + i).lt(end).select(*q, q.like(0.0));
            }
        }
        q.chunks(each as usize).map(|q| Quants::Floats(q.to_vec())).collect()
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

impl<'k> DeclaredWeight<'k> {
    /// Decodes a run of a row from `k_offset` on and stores it from element `to` on. Columns past the last are left out: how
    /// many there are is given as a number and as the kernel knows it.
    pub(crate) fn store_run(
        &self,
        (row, k_offset, run): (Val<'k>, Val<'k>, u32),
        (out, to): (Buf<'k>, Val<'k>),
        (columns, columns_of): (usize, Val<'k>),
    ) {
        let start = self.row(row);
        let loaded = self.load(start, k_offset, run);
        let values = self.values(&loaded, (start, row), k_offset, run);
        if columns.is_multiple_of(run as usize) {
            for (i, four) in values.chunks(4).enumerate() {
                out.store_vec(to + 4 * i, four);
            }
            return;
        }
        for (i, value) in (0u32..).zip(values) {
            let inside: Val<'k> = (k_offset + i).lt(columns_of);
            row.builder().if_(inside, || out.store(to + i, value));
        }
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
