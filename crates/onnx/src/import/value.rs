//! What a name of a model stands for while it is imported.

use olivine_ir::ValueId;

use crate::ElementType;

/// What a name stands for. Sequences and optional values exist only while a model is imported: what they hold is known
/// by then, and the graph has their tensors alone.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Tensor(TensorRef),
    /// A sequence, with the type of its tensors where that is known.
    Sequence(Vec<Value>, Option<ElementType>),
    /// An optional value that is not there.
    Nothing,
}

/// A tensor in one of the graphs under construction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorRef {
    /// Which of the graphs.
    pub(crate) frame: usize,
    pub(crate) id: ValueId,
    pub(crate) element: ElementType,
}

impl Value {
    /// The value in words, for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Value::Tensor(held) => format!("a tensor of {}", held.element),
            Value::Sequence(items, _) => format!("a sequence of {}", items.len()),
            Value::Nothing => "nothing".into(),
        }
    }
}
