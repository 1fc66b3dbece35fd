//! Accesses to buffers and workgroup arrays.

use std::fmt;

use super::{Braced, Class, Printer, Reg};
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, Scalar, Type};

/// Offsets that stand behind a register inside brackets.
const MAX_OFFSET: u64 = i32::MAX as u64;

/// Where an access is.
#[derive(Clone, Copy)]
pub(super) enum Address {
    /// In a buffer: a register of 64 bits and an offset.
    Global(Reg, u32),
    /// In a workgroup array: a register of 32 bits and an offset.
    Shared(Reg, u32),
    /// At an offset in a workgroup array.
    Array(SharedId, u32),
}

impl Address {
    /// The state space of an access.
    pub(super) fn space(self) -> &'static str {
        match self {
            Address::Global(..) => "global",
            Address::Shared(..) | Address::Array(..) => "shared",
        }
    }

    /// So many bytes further on.
    pub(super) fn plus(self, bytes: u32) -> Self {
        match self {
            Address::Global(reg, offset) => Address::Global(reg, offset + bytes),
            Address::Shared(reg, offset) => Address::Shared(reg, offset + bytes),
            Address::Array(id, offset) => Address::Array(id, offset + bytes),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Global(reg, 0) | Address::Shared(reg, 0) => write!(f, "[{reg}]"),
            Address::Global(reg, offset) | Address::Shared(reg, offset) => write!(f, "[{reg}+{offset}]"),
            Address::Array(id, offset) => write!(f, "[s{}+{offset}]", id.0),
        }
    }
}

/// An access is of 1, 2 or 4 elements: others have no alignment of their own size.
fn whole(elem: Elem, lanes: u8) -> Result<(), Error> {
    match lanes {
        1 | 2 | 4 => Ok(()),
        _ => Err(Error::Invalid(format!("an access to {lanes} {elem}"))),
    }
}

impl Printer<'_> {
    /// An element of a buffer.
    pub(super) fn arg_address(&mut self, arg: ArgId, index: Value) -> Result<Address, Error> {
        let (base, size) = (self.address_of(arg)?, self.arg(arg)?.elem.size());
        if let Some(i) = self.known_index(index)? {
            let offset = i.wrapping_mul(u64::from(size));
            if offset <= MAX_OFFSET {
                return Ok(Address::Global(base, offset as u32));
            }
            let offset = self.constant(Class::B64, offset);
            return Ok(Address::Global(self.op("add.u64", Class::B64, &[base, offset]), 0));
        }
        let register = self.single(index)?;
        let at = self.reg(Class::B64);
        match self.def(index)?.ty {
            Type::Scalar(Scalar::U64) => {
                self.put(format_args!("mad.lo.u64 {at}, {register}, {size}, {base}"));
            }
            Type::Scalar(Scalar::U32) => {
                self.put(format_args!("mad.wide.u32 {at}, {register}, {size}, {base}"));
            }
            other => return Err(Error::Invalid(format!("an index of {other}"))),
        }
        Ok(Address::Global(at, 0))
    }

    /// An element of a workgroup array, or one scalar of it.
    pub(super) fn shared_address(
        &mut self,
        shared: SharedId,
        index: Value,
        lane: Option<u8>,
    ) -> Result<Address, Error> {
        let decl = self.shared_decl(shared)?;
        if self.def(index)?.ty != Type::Scalar(Scalar::U32) {
            return Err(Error::Invalid(format!("a shared index of {}", self.def(index)?.ty)));
        }
        let lane = lane.unwrap_or(0);
        if lane >= decl.lanes {
            return Err(Error::Invalid(format!("lane {lane} of a shared element of {}", decl.lanes)));
        }
        let (scalar, size) = (decl.elem.size(), decl.elem.size() * u32::from(decl.lanes));
        let offset = scalar * u32::from(lane);
        if let Some(i) = self.known_index(index)?
            && i < u64::from(decl.len)
        {
            return Ok(Address::Array(shared, i as u32 * size + offset));
        }
        let (base, index) = (self.shared_base(shared), self.single(index)?);
        let at = self.reg(Class::B32);
        self.put(format_args!("mad.lo.u32 {at}, {index}, {size}, {base}"));
        Ok(Address::Shared(at, offset))
    }

    /// The address of a workgroup array.
    pub(super) fn shared_base(&mut self, shared: SharedId) -> Reg {
        let base = self.reg(Class::B32);
        self.put(format_args!("mov.u32 {base}, s{}", shared.0));
        base
    }

    /// Loads elements, 16 bytes at a time.
    fn load_at(&mut self, address: Address, elem: Elem, lanes: u8, hint: &str) -> Vec<Reg> {
        let (class, ty) = Self::loaded(elem);
        let raw = self.regs(class, usize::from(lanes));
        for (address, part) in pieces(address, elem, &raw) {
            let vector = vector_suffix(part.len());
            match part {
                [one] => self.put(format_args!("ld.{}{hint}.{ty} {one}, {address}", address.space())),
                part => {
                    let space = address.space();
                    self.put(format_args!("ld.{space}{hint}{vector}.{ty} {}, {address}", Braced(part)));
                }
            }
        }
        raw.into_iter().map(|raw| self.widen(elem, raw)).collect()
    }

    fn store_at(&mut self, address: Address, elem: Elem, values: &[Reg], hint: &str) {
        let raw: Vec<Reg> = values.iter().map(|v| self.narrow(elem, *v)).collect();
        // A store cuts off what is above the element, whatever its sign.
        let ty = format!("b{}", 8 * elem.size());
        for (address, part) in pieces(address, elem, &raw) {
            let vector = vector_suffix(part.len());
            match part {
                [one] => self.put(format_args!("st.{}{hint}.{ty} {address}, {one}", address.space())),
                part => {
                    let space = address.space();
                    self.put(format_args!("st.{space}{hint}{vector}.{ty} {address}, {}", Braced(part)));
                }
            }
        }
    }

    pub(super) fn load_arg(&mut self, arg: ArgId, index: Value, lanes: u8) -> Result<Vec<Reg>, Error> {
        let (elem, streaming) = (self.arg(arg)?.elem, self.arg(arg)?.streaming);
        whole(elem, lanes)?;
        let address = self.arg_address(arg, index)?;
        Ok(self.load_at(address, elem, lanes, if streaming { ".L1::no_allocate.L2::128B" } else { "" }))
    }

    pub(super) fn load_shared(
        &mut self,
        shared: SharedId,
        index: Value,
        lane: Option<u8>,
    ) -> Result<Vec<Reg>, Error> {
        let decl = self.shared_decl(shared)?;
        let address = self.shared_address(shared, index, lane)?;
        let lanes = if lane.is_some() { 1 } else { decl.lanes };
        whole(decl.elem, lanes)?;
        Ok(self.load_at(address, decl.elem, lanes, ""))
    }

    pub(super) fn store_arg(&mut self, arg: ArgId, index: Value, value: Value) -> Result<(), Error> {
        let (elem, streaming) = (self.arg(arg)?.elem, self.arg(arg)?.streaming);
        let values = self.stored(value, elem, None)?;
        let address = self.arg_address(arg, index)?;
        self.store_at(address, elem, &values, if streaming { ".cs" } else { "" });
        Ok(())
    }

    pub(super) fn store_shared(
        &mut self,
        shared: SharedId,
        index: Value,
        lane: Option<u8>,
        value: Value,
    ) -> Result<(), Error> {
        let decl = self.shared_decl(shared)?;
        let values = self.stored(value, decl.elem, Some(if lane.is_some() { 1 } else { decl.lanes }))?;
        let address = self.shared_address(shared, index, lane)?;
        self.store_at(address, decl.elem, &values, "");
        Ok(())
    }

    /// The registers of a value that is stored as so many elements.
    fn stored(&mut self, value: Value, elem: Elem, lanes: Option<u8>) -> Result<Vec<Reg>, Error> {
        let ty = self.def(value)?.ty;
        let found = match ty {
            Type::Scalar(s) => (s, 1),
            Type::Vector(s, n) => (s, n),
            Type::Matrix(_) => return Err(Error::Invalid(format!("{ty} stored as {elem}"))),
        };
        whole(elem, found.1)?;
        if found.0 != elem.scalar() || lanes.is_some_and(|n| n != found.1) {
            return Err(Error::Invalid(format!("{ty} stored as {elem}")));
        }
        self.value(value)
    }
}

fn vector_suffix(count: usize) -> &'static str {
    match count {
        2 => ".v2",
        4 => ".v4",
        _ => "",
    }
}

/// The accesses of at most 16 bytes that an access to some elements takes.
fn pieces(address: Address, elem: Elem, regs: &[Reg]) -> impl Iterator<Item = (Address, &[Reg])> {
    let (size, most) = (elem.size(), (16 / elem.size() as usize).max(1));
    (0u32..).zip(regs.chunks(most)).map(move |(i, part)| (address.plus(i * most as u32 * size), part))
}
