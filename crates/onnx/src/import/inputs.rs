//! A run's inputs: their types beside what the model declares.

use std::collections::HashMap;

use super::walk::Walk;
use super::{Answer, Bound, TensorRef, Value};
use crate::error::Error;
use crate::{Dim, Kind, Port};

/// Checks that axes of one name have one size. Elements of a sequence may differ.
pub(super) fn check_named_sizes(ports: &[Port], given: &HashMap<&str, &Bound>) -> Result<(), Error> {
    let mut known: HashMap<&str, (usize, &str)> = HashMap::new();
    for port in ports {
        let kind = if let Kind::Optional(inner) = &port.kind { &**inner } else { &port.kind };
        let (Kind::Tensor { dims: Some(dims), .. }, Some(Bound::Tensor { ty, .. })) =
            (kind, given.get(port.name.as_str()))
        else {
            continue;
        };
        for (dim, size) in dims.iter().zip(ty.shape.values().iter()) {
            let Dim::Named(name) = dim else { continue };
            let (first, input) = *known.entry(name).or_insert((*size, &port.name));
            if first != *size {
                let problem = format!("size `{name:.200}` is {size} here and {first} in input `{input}`");
                return Err(Error::invalid(format!("input `{}`", port.name), problem));
            }
        }
    }
    Ok(())
}

impl Walk<'_> {
    /// Declares a run's input.
    pub(super) fn declare(&mut self, name: &str, kind: &Kind, bound: &Bound) -> Answer<Value> {
        let wrong = |problem: String| Error::invalid(format!("input `{name}`"), problem);
        match (kind, bound) {
            (Kind::Optional(_), Bound::Nothing) => Ok(Value::Nothing),
            (Kind::Optional(inner), bound) => self.declare(name, inner, bound),
            (Kind::Sequence(inner), Bound::Sequence(items)) => {
                let element = match &**inner {
                    Kind::Tensor { element, .. } => Some(*element),
                    _ => None,
                };
                let values =
                    items.iter().enumerate().map(|(i, b)| self.declare(&format!("{name}[{i}]"), inner, b));
                Ok(Value::Sequence(values.collect::<Answer<_>>()?, element))
            }
            (Kind::Tensor { element, dims }, Bound::Tensor { ty, .. }) => {
                let fits = |(dim, size): (&Dim, &usize)| !matches!(dim, Dim::Fixed(fixed) if fixed != size);
                let given = ty.shape.values();
                if let Some(dims) = dims
                    && (dims.len() != given.rank() || !dims.iter().zip(given.iter()).all(fits))
                {
                    let declared: Vec<String> = dims.iter().map(Dim::to_string).collect();
                    let problem = format!("it is declared as [{}]; given {}", declared.join(", "), ty.shape);
                    return Err(wrong(problem).into());
                }
                if element.dtype() != Some(ty.dtype) {
                    let by = element.dtype().map_or("nothing".to_string(), |d| d.to_string());
                    let held = if element.is_native() { String::new() } else { format!(", passed as {by}") };
                    return Err(wrong(format!("expected elements of {element}{held}, got {ty}")).into());
                }
                // A size that is a symbol is open in the graph too, by the symbol's name.
                let open =
                    ty.shape.sizes().iter().map(|size| Some(size.as_symbol()?.name().to_string())).collect();
                let id = self.graph().input_with_dims(name, ty.dtype, ty.shape, open);
                let id = id.map_err(|e| wrong(e.to_string()))?;
                Ok(Value::Tensor(TensorRef { frame: 0, id, element: *element }))
            }
            (Kind::Other(what), _) => Err(wrong(format!("values of kind {what} cannot be imported")).into()),
            _ => Err(wrong("what is given is of another kind than declared".into()).into()),
        }
    }
}
