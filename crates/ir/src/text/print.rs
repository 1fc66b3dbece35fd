//! Writes a graph as text.

use std::fmt;

use super::base64;
use super::lex::is_plain_word;
use super::literal::Literal;
use crate::attr::{Attr, Attrs, inner_text, quoted};
use crate::graph::{Def, Graph, Node, Value, ValueId};
use crate::{Tensor, with_dtype};

/// Constants of up to this many elements are written as numbers.
const MAX_NUMBERS: usize = 64;

/// Bytes that are written at a time; whole elements of every dtype, and whole characters.
const PIECE: usize = 24 << 10;

/// Prints a graph with options.
///
/// ```
/// use olivine_ir::{DType, Graph, Printer, Tensor};
/// let mut g = Graph::new("table");
/// let table = g.constant(Tensor::zeros(DType::F32, [100, 100])?);
/// g.output("y", table)?;
/// let text = Printer::new(&g).elide_constants(true).to_string();
/// assert!(text.contains("%0 = const f32[100, 100] …\n"));
/// # Ok::<(), olivine_ir::Error>(())
/// ```
pub struct Printer<'a> {
    graph: &'a Graph,
    elide_constants: bool,
}

impl<'a> Printer<'a> {
    /// Prints everything, so that the text parses back to an equal graph.
    pub fn new(graph: &'a Graph) -> Self {
        Printer { graph, elide_constants: false }
    }

    /// Whether constants that are too large to be read by eye print as `…`; such a text does not parse.
    pub fn elide_constants(mut self, elide: bool) -> Self {
        self.elide_constants = elide;
        self
    }

    fn definition(&self, f: &mut fmt::Formatter<'_>, id: ValueId, value: &Value) -> fmt::Result {
        match &value.def {
            Def::Input { name, dims } => {
                let element = value.ty.packed.map_or(value.ty.dtype.name(), |format| format.name());
                write!(f, "  {} = input {}: {element}[", Id(id), quoted(name))?;
                for (axis, size) in value.ty.elements().values().iter().enumerate() {
                    f.write_str(if axis > 0 { ", " } else { "" })?;
                    match dims.get(axis) {
                        Some(Some(dim)) if is_plain_word(dim) => write!(f, "{dim}={size}")?,
                        Some(Some(dim)) => write!(f, "{}={size}", quoted(dim))?,
                        _ => write!(f, "{size}")?,
                    }
                }
                f.write_str("]\n")
            }
            Def::Param { name } => writeln!(f, "  {} = param {}: {}", Id(id), quoted(name), value.ty),
            Def::Const(tensor) => {
                write!(f, "  {} = const {} ", Id(id), value.ty)?;
                self.elements(f, tensor)?;
                f.write_str("\n")
            }
            // A node stands where its first result does; its other results come with it.
            Def::Node { node, result: 0 } => match self.graph.nodes().get(node.index()) {
                Some(node) => self.node(f, node),
                None => writeln!(f, "  {}: {} = ?", Id(id), value.ty),
            },
            Def::Node { .. } => Ok(()),
        }
    }

    fn node(&self, f: &mut fmt::Formatter<'_>, node: &Node) -> fmt::Result {
        f.write_str("  ")?;
        for (i, id) in node.outputs.iter().enumerate() {
            f.write_str(if i > 0 { ", " } else { "" })?;
            match self.graph.ty(*id) {
                Ok(ty) => write!(f, "{}: {ty}", Id(*id))?,
                Err(_) => write!(f, "{}: ?", Id(*id))?,
            }
        }
        write!(f, " = {}(", node.op.name())?;
        for (i, id) in node.inputs.iter().enumerate() {
            write!(f, "{}{}", if i > 0 { ", " } else { "" }, Id(*id))?;
        }
        f.write_str(")")?;
        let given: Vec<_> = node.op.attrs().0.into_iter().filter(|(_, a)| *a != Attr::None).collect();
        if given.iter().any(|(_, a)| matches!(a, Attr::Graph(_))) {
            let fields: Vec<String> =
                given.iter().map(|(name, a)| format!("{name}={}", self.attr(a))).collect();
            write!(f, " {{{}}}", fields.join(", "))?;
        } else if !given.is_empty() {
            write!(f, " {}", Attrs(given))?;
        }
        writeln!(f, " {}", quoted(&node.name))
    }

    /// An attribute; a graph prints as the outer one does.
    fn attr(&self, attr: &Attr) -> String {
        match attr {
            Attr::Graph(inner) => {
                let printer = Printer::new(inner.graph()).elide_constants(self.elide_constants);
                inner_text(&printer.to_string())
            }
            other => other.to_string(),
        }
    }

    fn elements(&self, f: &mut fmt::Formatter<'_>, tensor: &Tensor) -> fmt::Result {
        if let Some(numbers) = numbers(tensor) {
            return f.write_str(&numbers);
        }
        if self.elide_constants {
            return f.write_str("…");
        }
        f.write_str("base64 \"")?;
        // Piece by piece: a text of all bytes and a copy of them would take more than the tensor itself.
        for piece in tensor.bytes().chunks(PIECE) {
            let mut bytes = piece.to_vec();
            little_endian(&mut bytes, tensor.dtype().size());
            f.write_str(&base64::encode(&bytes))?;
        }
        f.write_str("\"")
    }
}

/// A small tensor as numbers, if numbers show all its bits.
fn numbers(tensor: &Tensor) -> Option<String> {
    if tensor.shape().numel() > MAX_NUMBERS {
        return None;
    }
    let texts: Vec<String> = with_dtype!(tensor.dtype(), T => {
        tensor.as_slice::<T>().ok()?.iter().map(|x| Literal::print(*x)).collect::<Option<_>>()?
    });
    Some(match texts.as_slice() {
        [one] if tensor.shape().rank() == 0 => one.clone(),
        many => format!("[{}]", many.join(", ")),
    })
}

/// Turns native elements into little-endian ones, and back.
pub(super) fn little_endian(bytes: &mut [u8], size: usize) {
    if cfg!(target_endian = "big") {
        bytes.chunks_mut(size.max(1)).for_each(<[u8]>::reverse);
    }
}

impl fmt::Display for Printer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {} {{", quoted(self.graph.name()))?;
        for (id, value) in self.graph.ids().zip(self.graph.values()) {
            self.definition(f, id, value)?;
        }
        for output in self.graph.outputs() {
            writeln!(f, "  output {} = {}", quoted(&output.name), Id(output.value))?;
        }
        f.write_str("}\n")
    }
}

/// `%5`.
struct Id(ValueId);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
