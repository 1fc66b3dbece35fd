//! Operations of the user's own: a name, a shape rule, and what backends need to compute it.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::attr::{Attr, Attrs};
use crate::error::nearest;
use crate::graph::{Graph, ValueId};
use crate::op::{Rule, Spelled};
use crate::{Error, Tensor, TensorType};

/// The rule of a custom operation: the results' types for attributes and operands, or what is wrong with them.
type Infer = dyn Fn(&Attrs, &[TensorType]) -> Result<Vec<TensorType>, String> + Send + Sync;

/// A custom operation: its name, its shape rule, and a part for each backend that can compute it.
///
/// This crate knows nothing of backends: each declares the type of the part that it looks for.
///
/// ```
/// use olivine_ir::op::CustomOp;
/// let op = CustomOp::new("acme.twice", |_, operands| Ok(operands.to_vec())).with(2.0f32);
/// assert_eq!(op.part::<f32>(), Some(&2.0));
/// ```
pub struct CustomOp {
    name: String,
    infer: Box<Infer>,
    parts: Vec<Box<dyn Any + Send + Sync>>,
}

impl CustomOp {
    /// An operation that no backend computes yet.
    pub fn new(
        name: impl Into<String>,
        infer: impl Fn(&Attrs, &[TensorType]) -> Result<Vec<TensorType>, String> + Send + Sync + 'static,
    ) -> Self {
        CustomOp { name: name.into(), infer: Box::new(infer), parts: Vec::new() }
    }

    /// Adds what one backend needs; of several of a type the first counts.
    #[must_use]
    pub fn with<T: Any + Send + Sync>(mut self, part: T) -> Self {
        self.parts.push(Box::new(part));
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What one backend needs, if it was given.
    pub fn part<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.parts.iter().find_map(|part| part.downcast_ref())
    }
}

impl fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomOp({})", self.name)
    }
}

/// Custom operations by name: what reads the text form of a graph must know them.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    ops: BTreeMap<String, Arc<CustomOp>>,
}

impl Registry {
    /// A registry without operations.
    pub fn new() -> Self {
        Registry::default()
    }

    /// Registers an operation; a name can be taken once.
    pub fn register(&mut self, op: CustomOp) -> Result<Arc<CustomOp>, Error> {
        if self.ops.contains_key(op.name()) {
            return Err(Error::Duplicate { kind: "custom operation", name: op.name().into() });
        }
        let op = Arc::new(op);
        self.ops.insert(op.name().into(), op.clone());
        Ok(op)
    }

    /// The operation of a name.
    pub fn get(&self, name: &str) -> Result<&Arc<CustomOp>, Error> {
        self.ops.get(name).ok_or_else(|| Error::Unknown {
            kind: "custom operation",
            name: name.into(),
            nearest: nearest(name, self.ops.keys().map(String::as_str)),
        })
    }

    /// The names of all, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.ops.keys().map(String::as_str)
    }

    /// Reads a use of a custom operation from its attributes.
    pub(crate) fn read(&self, attrs: &Attrs) -> Result<Custom, String> {
        attrs.only(&["name", "attrs"])?;
        let name: String = attrs.get("name")?;
        let own = match attrs.0.iter().find(|(n, _)| n == "attrs") {
            None => Attrs::default(),
            Some((_, Attr::Record(fields))) => Attrs(fields.clone()),
            Some((_, other)) => return Err(format!("attribute `attrs`: expected a record, found `{other}`")),
        };
        let op = self.get(&name).map_err(|e| e.to_string())?.clone();
        Ok(Custom { op, attrs: own })
    }
}

/// A use of a custom operation. In the text form `custom(%0) {name="acme.scale", attrs={by=2.0}}`.
#[derive(Clone, Debug)]
pub struct Custom {
    /// The operation.
    pub op: Arc<CustomOp>,
    /// Attributes of this use, which only the operation understands.
    pub attrs: Attrs,
}

/// The same registered operation with the same attributes.
impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.op, &other.op) && self.attrs == other.attrs
    }
}

impl Spelled for Custom {
    fn name(&self) -> &'static str {
        "custom"
    }
    fn attrs(&self) -> Attrs {
        let mut fields = vec![("name".to_string(), Attr::Text(self.op.name().into()))];
        if !self.attrs.0.is_empty() {
            fields.push(("attrs".into(), Attr::Record(self.attrs.0.clone())));
        }
        Attrs(fields)
    }
    fn names() -> Vec<&'static str> {
        vec!["custom"]
    }
    fn read(name: &str, _: &Attrs) -> Option<Result<Self, String>> {
        (name == "custom")
            .then(|| Err("custom operations are read with a registry: Graph::parse_with".into()))
    }
}

impl Rule for Custom {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let name = self.op.name();
        let inferred = catch_unwind(AssertUnwindSafe(|| (self.op.infer)(&self.attrs, operands)));
        match inferred {
            Ok(Ok(results)) if results.is_empty() => Err(format!("`{name}` gives no results")),
            Ok(outcome) => outcome.map_err(|problem| format!("`{name}`: {problem}")),
            Err(_) => Err(format!("the shape rule of `{name}` panicked")),
        }
    }

    fn check_constants(&self, _: &[TensorType], _: &[Option<&Tensor>]) -> Result<(), String> {
        Ok(())
    }
}

impl Graph {
    /// Adds a use of a custom operation; see [`CustomOp`].
    pub fn custom(
        &mut self,
        op: &Arc<CustomOp>,
        attrs: Attrs,
        operands: &[ValueId],
    ) -> Result<Vec<ValueId>, Error> {
        self.add_op(Custom { op: op.clone(), attrs }, operands)
    }
}
