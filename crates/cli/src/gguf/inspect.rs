//! `olivine inspect` of a GGUF file: its metadata, and how many tensors of which type.

use std::collections::BTreeMap;
use std::path::Path;

use olivine_gguf::{Gguf, TensorKind, Value};
use serde_json::json;

use super::open;
use crate::answer::{Answer, Failure};
use crate::table::Table;
use crate::timing::{bytes, ms, short, timed};

/// Elements of an array, and characters of a text, that are shown.
const SHOWN: usize = 4;
const LONGEST_TEXT: usize = 60;

pub(crate) fn run(path: &Path) -> Result<Answer, Failure> {
    let (loading, file) = timed(|| open(path));
    let file = file?;
    let elements: usize = file.tensors().iter().map(|t| t.elements()).sum();
    let stored: usize = file.tensors().iter().map(|t| t.byte_size()).sum();
    let mut text = format!("{}\nGGUF version {}; ", path.display(), file.version());
    let bits = if elements == 0 { 0.0 } else { stored as f64 * 8.0 / elements as f64 };
    text += &format!(
        "{} tensors, {elements} parameters, {} ({bits:.2} bits each); read in {} ms\n",
        file.tensors().len(),
        bytes(stored),
        short(ms(loading))
    );
    let mut metadata = Table::new(&["metadata", "type", "value"]);
    for (key, value) in file.metadata().iter() {
        metadata.row([key.to_string(), value.type_name().to_string(), shown(value)]);
    }
    let mut types = Table::new(&["type", ">tensors", ">parameters", ">bytes"]);
    for (kind, [tensors, elements, stored]) in by_type(&file) {
        types.row([kind, tensors.to_string(), elements.to_string(), bytes(stored)]);
    }
    let mut tensors = Table::new(&["tensor", "type", "shape"]);
    for tensor in file.tensors() {
        tensors.row([tensor.name.clone(), tensor.kind.to_string(), format!("{:?}", tensor.shape)]);
    }
    text += &format!("\n{metadata}\n{types}\n{tensors}");
    let tensors = file
        .tensors()
        .iter()
        .map(|t| json!({ "name": t.name, "type": t.kind.name(), "shape": t.shape, "bytes": t.byte_size() }));
    let metadata: serde_json::Map<_, _> =
        file.metadata().iter().map(|(key, value)| (key.to_string(), json!(shown(value)))).collect();
    let json = json!({
        "model": path, "version": file.version(), "parameters": elements, "weight_bytes": stored,
        "metadata": metadata, "tensors": tensors.collect::<Vec<_>>(), "load_ms": ms(loading),
    });
    Ok(Answer::new(text, json))
}

/// Tensors, elements and bytes of each type.
fn by_type(file: &Gguf) -> BTreeMap<String, [usize; 3]> {
    let mut types: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    for tensor in file.tensors() {
        let sums = types.entry(name(tensor.kind)).or_default();
        sums[0] += 1;
        sums[1] += tensor.elements();
        sums[2] += tensor.byte_size();
    }
    types
}

fn name(kind: TensorKind) -> String {
    kind.name().to_string()
}

/// A value on one line.
fn shown(value: &Value) -> String {
    let Some(count) = value.array_len() else { return single(value) };
    let first: Vec<String> =
        (0..count.min(SHOWN)).filter_map(|i| value.element(i)).map(|v| single(&v)).collect();
    let rest = if count > SHOWN { ", …" } else { "" };
    format!("{count}: [{}{rest}]", first.join(", "))
}

fn single(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let mut short: String = text.chars().take(LONGEST_TEXT).collect();
            if short.len() < text.len() {
                short.push('…');
            }
            format!("{short:?}")
        }
        other => other.to_string(),
    }
}
