//! Loads, stores and atomics.

use super::binding::{Binding, Unit, unknown};
use super::helper::Helper;
use super::{Dialect, Printer};
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, MatrixType, Scalar, Type};

/// A storage and an index in it, ready to be accessed.
struct Spot {
    /// Name of the array.
    name: String,
    /// The index as the kernel counts.
    index: String,
}

impl Printer<'_> {
    /// The WGSL type of a buffer's cell.
    pub(super) fn cell_type(&self, binding: &Binding) -> String {
        let unit = match binding.unit {
            Unit::Scalar(s) => s,
            Unit::Packed => Scalar::U32,
        };
        match binding.width {
            1 if binding.atomic => format!("atomic<{unit}>"),
            1 => self.scalar_name(unit).to_owned(),
            n => self.vector_name(unit, n),
        }
    }

    /// A part of a vector.
    pub(super) fn part(&self, vector: &str, scalar: Scalar, lane: u8) -> Result<String, Error> {
        let component = self.component(lane)?;
        Ok(if self.is_pair(scalar) { format!("{vector}[{lane}]") } else { format!("{vector}.{component}") })
    }

    fn binding(&self, arg: ArgId) -> Result<(Binding, String), Error> {
        match (self.args.get(arg.index()), self.arg_names.get(arg.index())) {
            (Some(binding), Some(name)) => Ok((*binding, name.clone())),
            _ => Err(unknown(self.kernel, "buffer", arg.0)),
        }
    }

    fn shared(&self, shared: SharedId) -> Result<(SharedDecl, bool), Error> {
        match (self.kernel.shared.get(shared.index()), self.usage.shared_atomic.get(shared.index())) {
            (Some(decl), Some(atomic)) => Ok((decl.clone(), *atomic)),
            _ => Err(unknown(self.kernel, "shared array", shared.0)),
        }
    }

    /// An index as u32; in checked modules one that has not lost its upper half.
    fn index(&mut self, index: Value) -> Result<String, Error> {
        let text = self.value(index)?;
        Ok(match self.def(index)?.ty {
            Type::Scalar(Scalar::U64) if self.is_pair(Scalar::U64) && self.options.checked => {
                format!("select(0xffffffffu, {text}.x, {text}.y == 0u)")
            }
            Type::Scalar(Scalar::U64) if self.is_pair(Scalar::U64) => format!("{text}.x"),
            Type::Scalar(Scalar::U64) if self.options.checked => {
                format!("select(0xffffffffu, u32({text}), {text} <= 4294967295lu)")
            }
            Type::Scalar(Scalar::U64) => format!("u32({text})"),
            _ => text,
        })
    }

    /// Arguments of the checking functions for `count` elements from `index` on.
    fn check(&self, arg: ArgId, index: &str, count: &str) -> Result<String, Error> {
        let (binding, name) = self.binding(arg)?;
        let size = match binding.cell_elements() {
            1 => format!("arrayLength(&{name})"),
            n => format!("arrayLength(&{name}) * {n}u"),
        };
        Ok(format!("({}u, {index}, {count}, {size})", arg.0))
    }

    /// Where to load; in checked modules the index is inside, and reported if it was not.
    fn load_spot(&mut self, arg: ArgId, index: Value, count: &str) -> Result<Spot, Error> {
        let (_, name) = self.binding(arg)?;
        let mut index = self.index(index)?;
        if self.options.checked {
            let arguments = self.check(arg, &index, count)?;
            let bound = self.helper(Helper::Bound);
            let temporary = self.name();
            self.line(format_args!("let {temporary} = {bound}{arguments};"));
            index = temporary;
        }
        Ok(Spot { name, index })
    }

    /// Where to store; in checked modules opens an `if` that [`Printer::close_spot`] closes.
    fn store_spot(&mut self, arg: ArgId, index: Value, count: &str) -> Result<Spot, Error> {
        let (_, name) = self.binding(arg)?;
        let index = self.index(index)?;
        if self.options.checked {
            let arguments = self.check(arg, &index, count)?;
            let inside = self.helper(Helper::Inside);
            self.line(format_args!("if ({inside}{arguments}) {{"));
            self.depth += 1;
        }
        Ok(Spot { name, index })
    }

    fn close_spot(&mut self) {
        if self.options.checked {
            self.depth -= 1;
            self.line("}");
        }
    }

    pub(super) fn load(&mut self, place: Storage, index: Value, lanes: u8) -> Result<String, Error> {
        match place {
            Storage::Arg(arg) => {
                let spot = self.load_spot(arg, index, &format!("{lanes}u"))?;
                let (binding, _) = self.binding(arg)?;
                self.load_arg(&binding, &spot, lanes)
            }
            Storage::Shared(shared) => {
                let (decl, atomic) = self.shared(shared)?;
                let index = self.index(index)?;
                let cell = format!("s{}[{index}]", shared.0);
                Ok(match (decl.elem, decl.lanes) {
                    _ if atomic => format!("atomicLoad(&{cell})"),
                    (Elem::F16, 1) => format!("f32({cell})"),
                    (Elem::F16, n) => format!("vec{n}<f32>({cell})"),
                    _ => cell,
                })
            }
        }
    }

    fn load_arg(&mut self, binding: &Binding, spot: &Spot, lanes: u8) -> Result<String, Error> {
        let Spot { name, index } = spot;
        let scalar = match binding.unit {
            Unit::Packed => return self.load_packed(binding, spot, lanes),
            Unit::Scalar(scalar) => scalar,
        };
        let widen = |cell: String| if scalar == Scalar::F16 { format!("f32({cell})") } else { cell };
        Ok(match (binding.width, lanes) {
            (1, 1) if binding.atomic => format!("atomicLoad(&{name}[{index}])"),
            (1, 1) => widen(format!("{name}[{index}]")),
            (1, n) => {
                let cell = |i: u8| {
                    let at = if i == 0 { index.clone() } else { format!("{index} + {i}u") };
                    let cell = format!("{name}[{at}]");
                    if binding.atomic { format!("atomicLoad(&{cell})") } else { widen(cell) }
                };
                let cells: Vec<String> = (0..n).map(cell).collect();
                format!("{}({})", self.vector_name(binding.elem.scalar(), n), cells.join(", "))
            }
            (n, _) => format!("{name}[{index} >> {}u]", n.trailing_zeros()),
        })
    }

    /// Elements that are packed several to a word.
    fn load_packed(&mut self, binding: &Binding, spot: &Spot, lanes: u8) -> Result<String, Error> {
        let Spot { name, index } = spot;
        let elem = binding.elem;
        let (per_word, bits) = (4 / elem.size(), 8 * elem.size());
        let shift = per_word.trailing_zeros();
        let bytes = u32::from(lanes) * elem.size();
        let word = |at: String| {
            if binding.atomic { format!("atomicLoad(&{name}[{at}])") } else { format!("{name}[{at}]") }
        };
        let temporary = self.name();
        let mut parts = Vec::new();
        if bytes < 4 {
            let text = word(format!("{index} >> {shift}u"));
            let offset = format!("(({index} & {}u) * {bits}u)", per_word - 1);
            self.line(format_args!("let {temporary} = {text} >> {offset};"));
            parts.extend((0..u32::from(lanes)).map(|i| unpack(elem, &temporary, i * bits)));
        } else if binding.width == 2 {
            self.line(format_args!("let {temporary} = {name}[{index} >> 2u];"));
            for component in ["x", "y"] {
                let word = format!("{temporary}.{component}");
                parts.extend((0..per_word).map(|i| unpack(elem, &word, i * bits)));
            }
        } else {
            for i in 0..bytes / 4 {
                let at = format!("({index} >> {shift}u) + {i}u");
                let text = word(if i == 0 { format!("{index} >> {shift}u") } else { at });
                self.line(format_args!("let {temporary}_{i} = {text};"));
                let word = format!("{temporary}_{i}");
                parts.extend((0..per_word).map(|i| unpack(elem, &word, i * bits)));
            }
        }
        Ok(match parts.as_slice() {
            [one] => one.clone(),
            many => format!("vec{}<{}>({})", many.len(), elem.scalar(), many.join(", ")),
        })
    }

    pub(super) fn load_lane(&mut self, shared: SharedId, index: Value, lane: u8) -> Result<String, Error> {
        let (decl, _) = self.shared(shared)?;
        if decl.lanes == 1 {
            return self.load(Storage::Shared(shared), index, 1);
        }
        let index = self.index(index)?;
        let cell = self.part(&format!("s{}[{index}]", shared.0), decl.elem.scalar(), lane)?;
        Ok(if decl.elem == Elem::F16 { format!("f32({cell})") } else { cell })
    }

    /// Where a strict uniformity analysis watches barriers, the value passes through workgroup memory, because a load
    /// from a `read_write` buffer is never uniform to it.
    pub(super) fn load_uniform(&mut self, arg: ArgId, index: Value) -> Result<String, Error> {
        let direct = self.options.dialect == Dialect::Native || !self.usage.barrier;
        let (binding, _) = self.binding(arg)?;
        if direct {
            let spot = self.load_spot(arg, index, "1u")?;
            return self.load_arg(&binding, &spot, 1);
        }
        let scalar = binding.elem.scalar();
        self.uniform.insert(scalar);
        self.builtins.insert("@builtin(local_invocation_index) local_index: u32");
        self.line("if (local_index == 0u) {");
        self.depth += 1;
        let spot = self.load_spot(arg, index, "1u")?;
        let value = self.load_arg(&binding, &spot, 1)?;
        self.line(format_args!("uniform_{scalar} = {value};"));
        self.depth -= 1;
        self.line("}");
        Ok(format!("workgroupUniformLoad(&uniform_{scalar})"))
    }

    pub(super) fn store(&mut self, place: Storage, index: Value, value: Value) -> Result<(), Error> {
        let lanes = match self.def(value)?.ty {
            Type::Vector(_, n) => n,
            _ => 1,
        };
        let text = self.value(value)?;
        match place {
            Storage::Arg(arg) => {
                let (binding, _) = self.binding(arg)?;
                let spot = self.store_spot(arg, index, &format!("{lanes}u"))?;
                self.store_arg(&binding, &spot, &text, lanes)?;
                self.close_spot();
            }
            Storage::Shared(shared) => {
                let (decl, atomic) = self.shared(shared)?;
                let index = self.index(index)?;
                let cell = format!("s{}[{index}]", shared.0);
                match (decl.elem, decl.lanes) {
                    _ if atomic => self.line(format_args!("atomicStore(&{cell}, {text});")),
                    (Elem::F16, 1) => self.line(format_args!("{cell} = f16({text});")),
                    (Elem::F16, n) => self.line(format_args!("{cell} = vec{n}<f16>({text});")),
                    _ => self.line(format_args!("{cell} = {text};")),
                }
            }
        }
        Ok(())
    }

    fn store_arg(&mut self, binding: &Binding, spot: &Spot, value: &str, lanes: u8) -> Result<(), Error> {
        let Spot { name, index } = spot;
        let scalar = match binding.unit {
            Unit::Packed => return self.store_packed(binding, spot, value, lanes),
            Unit::Scalar(scalar) => scalar,
        };
        if binding.width > 1 {
            let shift = binding.width.trailing_zeros();
            self.line(format_args!("{name}[{index} >> {shift}u] = {value};"));
            return Ok(());
        }
        for i in 0..lanes {
            let at = if i == 0 { index.clone() } else { format!("{index} + {i}u") };
            let mut part = if lanes == 1 { value.to_owned() } else { self.part(value, scalar, i)? };
            if scalar == Scalar::F16 {
                // Rounded first, so that the conversion has nothing left to round.
                part = format!("f16(unpack2x16float({}({part})).x)", self.helper(Helper::Half));
            }
            if binding.atomic {
                self.line(format_args!("atomicStore(&{name}[{at}], {part});"));
            } else {
                self.line(format_args!("{name}[{at}] = {part};"));
            }
        }
        Ok(())
    }

    fn store_packed(&mut self, binding: &Binding, spot: &Spot, value: &str, lanes: u8) -> Result<(), Error> {
        let Spot { name, index } = spot;
        let elem = binding.elem;
        let (per_word, bits) = (4 / elem.size(), 8 * elem.size());
        let shift = per_word.trailing_zeros();
        let mut packed = Vec::with_capacity(usize::from(lanes));
        for i in 0..lanes {
            let part = if lanes == 1 { value.to_owned() } else { format!("{value}.{}", self.component(i)?) };
            packed.push(self.pack(elem, &part));
        }
        let mut words: Vec<String> =
            packed.chunks(per_word as usize).map(|chunk| join(chunk, bits)).collect();
        let bytes = u32::from(lanes) * elem.size();
        if bytes < 4 {
            let (at, offset) = (self.name(), self.name());
            let mask = (1u32 << (8 * bytes)) - 1;
            let word = words.pop().unwrap_or_default();
            self.line(format_args!("let {at} = {index} >> {shift}u;"));
            self.line(format_args!("let {offset} = ({index} & {}u) * {bits}u;", per_word - 1));
            self.line(format_args!("atomicAnd(&{name}[{at}], ~(0x{mask:x}u << {offset}));"));
            self.line(format_args!("atomicOr(&{name}[{at}], ({word}) << {offset});"));
        } else if binding.width == 2 {
            self.line(format_args!("{name}[{index} >> 2u] = vec2<u32>({});", words.join(", ")));
        } else {
            for (i, word) in words.iter().enumerate() {
                let at = if i == 0 {
                    format!("{index} >> {shift}u")
                } else {
                    format!("({index} >> {shift}u) + {i}u")
                };
                if binding.atomic {
                    self.line(format_args!("atomicStore(&{name}[{at}], {word});"));
                } else {
                    self.line(format_args!("{name}[{at}] = {word};"));
                }
            }
        }
        Ok(())
    }

    /// A register value as the low bits of a word whose other bits are zero.
    fn pack(&mut self, elem: Elem, value: &str) -> String {
        match elem {
            Elem::F16 => format!("{}({value})", self.helper(Helper::Half)),
            Elem::BF16 => format!("{}({value})", self.helper(Helper::Brain)),
            Elem::I8 => format!("(bitcast<u32>({value}) & 0xffu)"),
            Elem::I16 => format!("(bitcast<u32>({value}) & 0xffffu)"),
            Elem::U8 => format!("({value} & 0xffu)"),
            Elem::U16 => format!("({value} & 0xffffu)"),
            Elem::Bool => format!("select(0u, 1u, {value})"),
            _ => value.to_owned(),
        }
    }

    pub(super) fn store_lane(
        &mut self,
        shared: SharedId,
        index: Value,
        lane: u8,
        value: Value,
    ) -> Result<(), Error> {
        let (decl, _) = self.shared(shared)?;
        if decl.lanes == 1 {
            return self.store(Storage::Shared(shared), index, value);
        }
        let (index, mut text) = (self.index(index)?, self.value(value)?);
        if decl.elem == Elem::F16 {
            text = format!("f16({text})");
        }
        let cell = self.part(&format!("s{}[{index}]", shared.0), decl.elem.scalar(), lane)?;
        self.line(format_args!("{cell} = {text};"));
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        result: Value,
        place: Storage,
        index: Value,
        op: AtomicOp,
        operand: Value,
        comparand: Option<Value>,
    ) -> Result<(), Error> {
        let ty = self.type_name(self.def(result)?.ty)?;
        let operand = self.value(operand)?;
        let comparand = comparand.map(|c| self.value(c)).transpose()?;
        let v = format!("v{}", result.0);
        self.line(format_args!("var {v}: {ty};"));
        let cell = match place {
            Storage::Arg(arg) => {
                let spot = self.store_spot(arg, index, "1u")?;
                format!("&{}[{}]", spot.name, spot.index)
            }
            Storage::Shared(shared) => format!("&s{}[{}]", shared.0, self.index(index)?),
        };
        let function = match op {
            AtomicOp::Add => "atomicAdd",
            AtomicOp::Min => "atomicMin",
            AtomicOp::Max => "atomicMax",
            AtomicOp::And => "atomicAnd",
            AtomicOp::Or => "atomicOr",
            AtomicOp::Xor => "atomicXor",
            AtomicOp::Exchange => "atomicExchange",
            AtomicOp::CompareExchange => {
                let Some(comparand) = comparand else {
                    return self.invalid(format_args!("%{}: a comparison without a comparand", result.0));
                };
                self.compare_exchange(&v, &cell, &comparand, &operand);
                if matches!(place, Storage::Arg(_)) {
                    self.close_spot();
                }
                return Ok(());
            }
        };
        self.line(format_args!("{v} = {function}({cell}, {operand});"));
        if matches!(place, Storage::Arg(_)) {
            self.close_spot();
        }
        Ok(())
    }

    /// WGSL has only the weak form, which may fail though memory holds the comparand; then it is tried again.
    fn compare_exchange(&mut self, result: &str, cell: &str, comparand: &str, operand: &str) {
        let tried = self.name();
        self.line("loop {");
        self.line(format_args!(
            "    let {tried} = atomicCompareExchangeWeak({cell}, {comparand}, {operand});"
        ));
        self.line(format_args!("    {result} = {tried}.old_value;"));
        self.line(format_args!("    if ({tried}.exchanged || {result} != {comparand}) {{ break; }}"));
        self.line("}");
    }

    /// Elements from the first to the last that a matrix touches.
    fn matrix_span(&mut self, ty: MatrixType, layout: MatrixLayout) -> Result<String, Error> {
        let (lines, length) = if layout.column_major { (ty.columns, ty.rows) } else { (ty.rows, ty.columns) };
        let stride = self.value(layout.stride)?;
        Ok(format!("{}u * {stride} + {length}u", lines.saturating_sub(1)))
    }

    pub(super) fn load_matrix(
        &mut self,
        ty: MatrixType,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
    ) -> Result<String, Error> {
        let name = self.matrix_type(ty)?;
        let (array, index) = match place {
            Storage::Arg(arg) => {
                let span = self.matrix_span(ty, layout)?;
                let spot = self.load_spot(arg, index, &span)?;
                (spot.name, spot.index)
            }
            Storage::Shared(shared) => (format!("s{}", shared.0), self.index(index)?),
        };
        let stride = self.bind(layout.stride)?;
        let load = if layout.column_major { "coopLoad" } else { "coopLoadT" };
        Ok(format!("{load}<{name}>(&{array}[{index}], {stride})"))
    }

    pub(super) fn store_matrix(
        &mut self,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
        value: Value,
    ) -> Result<(), Error> {
        let Type::Matrix(ty) = self.def(value)?.ty else {
            return self.invalid(format_args!("%{} stored as a matrix", value.0));
        };
        let stride = self.bind(layout.stride)?;
        let text = self.value(value)?;
        let store = if layout.column_major { "coopStore" } else { "coopStoreT" };
        match place {
            Storage::Arg(arg) => {
                let span = self.matrix_span(ty, layout)?;
                let spot = self.store_spot(arg, index, &span)?;
                self.line(format_args!("{store}({text}, &{}[{}], {stride});", spot.name, spot.index));
                self.close_spot();
            }
            Storage::Shared(shared) => {
                let index = self.index(index)?;
                self.line(format_args!("{store}({text}, &s{}[{index}], {stride});", shared.0));
            }
        }
        Ok(())
    }

    /// A name for a value: naga wants the stride of a matrix bound.
    fn bind(&mut self, value: Value) -> Result<String, Error> {
        let (name, text) = (self.name(), self.value(value)?);
        self.line(format_args!("let {name} = {text};"));
        Ok(name)
    }
}

/// An element from `at` bits on in a word.
fn unpack(elem: Elem, word: &str, at: u32) -> String {
    let down = if at == 0 { word.to_owned() } else { format!("({word} >> {at}u)") };
    let signed = |bits: u32| format!("(bitcast<i32>({word} << {}u) >> {}u)", 32 - bits - at, 32 - bits);
    match elem {
        Elem::F16 => format!("unpack2x16float({word}).{}", if at == 0 { 'x' } else { 'y' }),
        Elem::BF16 if at == 16 => format!("bitcast<f32>({word} & 0xffff0000u)"),
        Elem::BF16 => format!("bitcast<f32>({word} << 16u)"),
        Elem::I8 => signed(8),
        Elem::I16 => signed(16),
        Elem::U8 => format!("({down} & 0xffu)"),
        Elem::U16 => format!("({down} & 0xffffu)"),
        Elem::Bool => format!("(({down} & 0xffu) != 0u)"),
        _ => word.to_owned(),
    }
}

/// Packed elements of one word, the first lowest.
fn join(parts: &[String], bits: u32) -> String {
    let shifted = parts.iter().enumerate().map(|(i, part)| match i {
        0 => part.clone(),
        _ => format!("({part} << {}u)", bits * i as u32),
    });
    shifted.collect::<Vec<_>>().join(" | ")
}
