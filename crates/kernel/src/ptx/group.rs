//! Among threads: operations of a warp, and atomics.

use super::{Class, Printer, Reg, WARP, suffix};
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, Scalar, Type};

/// All lanes of a warp.
const ALL: &str = "0xffffffff";

impl Printer<'_> {
    pub(super) fn subgroup(&mut self, op: SubgroupOp, a: Value, other: Option<Value>) -> Result<Reg, Error> {
        let scalar = self.scalar_of(a)?;
        let wrong = || Error::Invalid(format!("subgroup {op:?} of {scalar}"));
        let a = self.single(a)?;
        match op {
            SubgroupOp::Any | SubgroupOp::All => {
                if scalar != Scalar::Bool {
                    return Err(wrong());
                }
                let (name, result) =
                    (if op == SubgroupOp::Any { "any" } else { "all" }, self.reg(Class::Predicate));
                self.put(format_args!("vote.sync.{name}.pred {result}, {a}, {ALL}"));
                Ok(result)
            }
            _ if scalar == Scalar::Bool => Err(wrong()),
            SubgroupOp::Shuffle | SubgroupOp::ShuffleXor => {
                let lane = self.single(other.ok_or_else(wrong)?)?;
                let mode = if op == SubgroupOp::Shuffle { "idx" } else { "bfly" };
                Ok(self.shuffle(mode, a, &lane.to_string()))
            }
            SubgroupOp::Add => self.reduce(BinaryOp::Add, scalar, a),
            SubgroupOp::Min => self.reduce(BinaryOp::Min, scalar, a),
            SubgroupOp::Max => self.reduce(BinaryOp::Max, scalar, a),
            SubgroupOp::InclusiveAdd => self.scan(scalar, a),
            SubgroupOp::ExclusiveAdd => {
                let sums = self.scan(scalar, a)?;
                let before = self.shuffle("up", sums, "1");
                // Minus zero changes no float that it is added to.
                let nothing = if scalar.is_float() { 1 << (scalar.bits() - 1) } else { 0 };
                let (first, zero) = (self.reaches(1), self.constant(Class::of(scalar), nothing));
                Ok(self.select(first, before, zero))
            }
        }
    }

    /// The value of another lane, in words of 32 bits.
    fn shuffle(&mut self, mode: &str, a: Reg, lane: &str) -> Reg {
        // Lanes past the end give their own value; of `up` the segment begins at 0.
        let clamp = if mode == "up" { 0 } else { WARP - 1 };
        let word = |p: &mut Self, word: Reg| {
            let result = p.reg(Class::B32);
            p.put(format_args!("shfl.sync.{mode}.b32 {result}, {word}, {lane}, {clamp:#x}, {ALL}"));
            result
        };
        match a.class {
            Class::B16 => {
                let wide = self.pack_b16(a, a);
                let moved = word(self, wide);
                self.unpack_b16(moved)[0]
            }
            Class::B64 => {
                let parts = [self.reg(Class::B32), self.reg(Class::B32)];
                self.put(format_args!("mov.b64 {{{}, {}}}, {a}", parts[0], parts[1]));
                let [low, high] = parts.map(|part| word(self, part));
                let result = self.reg(Class::B64);
                self.put(format_args!("mov.b64 {result}, {{{low}, {high}}}"));
                result
            }
            _ => word(self, a),
        }
    }

    /// The same for all lanes: integers by one instruction, others by a butterfly, whose sums are the same bits in all.
    fn reduce(&mut self, op: BinaryOp, scalar: Scalar, a: Reg) -> Result<Reg, Error> {
        if matches!(scalar, Scalar::U32 | Scalar::I32) {
            let name = match op {
                BinaryOp::Min => "min",
                BinaryOp::Max => "max",
                _ => "add",
            };
            let result = self.reg(Class::B32);
            self.put(format_args!("redux.sync.{name}.{} {result}, {a}, {ALL}", suffix(scalar)));
            return Ok(result);
        }
        let mut sum = a;
        for bit in (0..WARP.ilog2()).rev() {
            let other = self.shuffle("bfly", sum, &(1 << bit).to_string());
            sum = self.binary(op, scalar, sum, other)?;
        }
        Ok(sum)
    }

    /// Sums over the lanes up to and with each.
    fn scan(&mut self, scalar: Scalar, a: Reg) -> Result<Reg, Error> {
        let mut sum = a;
        for bit in 0..WARP.ilog2() {
            let below = self.shuffle("up", sum, &(1 << bit).to_string());
            let more = self.binary(BinaryOp::Add, scalar, below, sum)?;
            let reaches = self.reaches(1 << bit);
            sum = self.select(reaches, more, sum);
        }
        Ok(sum)
    }

    /// Whether there is a lane so far below.
    fn reaches(&mut self, distance: u32) -> Reg {
        let lane = self.lane();
        self.op_const("setp.ge.u32", Class::Predicate, lane, distance)
    }

    pub(super) fn atomic(
        &mut self,
        place: Storage,
        index: Value,
        op: AtomicOp,
        value: Value,
        comparand: Option<Value>,
    ) -> Result<Reg, Error> {
        let (elem, address) = match place {
            Storage::Arg(arg) => (self.arg(arg)?.elem, self.arg_address(arg, index)?),
            Storage::Shared(shared) => {
                let decl = self.shared_decl(shared)?;
                if decl.lanes != 1 {
                    return Err(Error::Invalid("an atomic operation on a shared array of vectors".into()));
                }
                (decl.elem, self.shared_address(shared, index, None)?)
            }
        };
        if !matches!(elem, Elem::U32 | Elem::I32) || self.def(value)?.ty != Type::Scalar(elem.scalar()) {
            return Err(Error::Invalid(format!("an atomic operation on {elem}")));
        }
        let (value, s) = (self.single(value)?, suffix(elem.scalar()));
        let name = match op {
            // Two's complement: the signed sum has the same bits.
            AtomicOp::Add => "add.u32".to_string(),
            AtomicOp::Min => format!("min.{s}"),
            AtomicOp::Max => format!("max.{s}"),
            AtomicOp::And => "and.b32".into(),
            AtomicOp::Or => "or.b32".into(),
            AtomicOp::Xor => "xor.b32".into(),
            AtomicOp::Exchange => "exch.b32".into(),
            AtomicOp::CompareExchange => "cas.b32".into(),
        };
        let (space, before) = (address.space(), self.reg(Class::B32));
        match (op, comparand) {
            (AtomicOp::CompareExchange, Some(comparand)) => {
                let comparand = self.single(comparand)?;
                self.put(format_args!("atom.{space}.{name} {before}, {address}, {comparand}, {value}"));
            }
            (AtomicOp::CompareExchange, None) => {
                return Err(Error::Invalid("a compare-exchange without a comparand".into()));
            }
            _ => self.put(format_args!("atom.{space}.{name} {before}, {address}, {value}")),
        }
        Ok(before)
    }
}
