//! ONNX Runtime, asked through Python.

use std::path::{Path, PathBuf};
use std::process::Command;

use olivine::internals::onnx::{ElementType, Port};
use olivine::ir::{DType, Tensor};
use olivine::npy;
use serde_json::{Value, json};

use super::compare::Values;
use crate::onnx::element_of;

/// What asks ONNX Runtime.
const SCRIPT: &str = include_str!("oracle.py");

/// What ONNX Runtime is asked.
pub(super) struct Question<'a> {
    pub(super) model: &'a Path,
    pub(super) inputs: &'a [(String, Tensor)],
    /// What the inputs are declared to be.
    pub(super) ports: &'a [Port],
    /// Names of the values to compute.
    pub(super) values: Vec<String>,
    pub(super) threads: Option<usize>,
}

impl Question<'_> {
    /// The values of ONNX Runtime and its version, or why there are none.
    pub(super) fn ask(&self) -> Result<(String, Values), String> {
        let there = Command::new("python3").args(["-c", "import onnx, onnxruntime, numpy"]).output();
        match there {
            Ok(output) if output.status.success() => {}
            Ok(_) => return Err("python3 has no onnx and onnxruntime".into()),
            Err(error) => return Err(format!("python3: {error}")),
        }
        let folder = Scratch::new().map_err(|e| format!("no folder for its files: {e}"))?;
        self.run(&folder.0).map_err(|e| format!("{e:.400}"))
    }

    fn run(&self, folder: &Path) -> Result<(String, Values), String> {
        let failed = |e: std::io::Error| e.to_string();
        let mut files = serde_json::Map::new();
        for (i, (name, tensor)) in self.inputs.iter().enumerate() {
            let element =
                element_of(name, self.ports).unwrap_or_else(|| ElementType::of_dtype(tensor.dtype()));
            if name.contains('[') || element == ElementType::BF16 {
                return Err(format!("input `{name}` cannot be handed over"));
            }
            let file = format!("input_{i}.npy");
            let written = std::fs::File::create(folder.join(&file));
            written.and_then(|mut to| npy::write(&mut to, tensor, element)).map_err(failed)?;
            files.insert(name.clone(), file.into());
        }
        let request = json!({ "inputs": files, "values": self.values, "threads": self.threads });
        std::fs::write(folder.join("request.json"), request.to_string()).map_err(failed)?;
        let output = Command::new("python3")
            .args(["-c", SCRIPT])
            .arg(self.model)
            .arg(folder)
            .output()
            .map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("it failed").to_string());
        }
        let answer = std::fs::read_to_string(folder.join("answer.json")).map_err(failed)?;
        let answer: Value = serde_json::from_str(&answer).map_err(|e| e.to_string())?;
        let version = answer["version"].as_str().unwrap_or_default().to_string();
        let mut values = Values::new();
        for index in answer["saved"].as_array().into_iter().flatten().filter_map(Value::as_u64) {
            let Some(name) = self.values.get(index as usize) else { continue };
            let bytes = std::fs::read(folder.join(format!("value_{index}.npy"))).map_err(failed)?;
            if let Some(tensor) = read_any(&bytes) {
                values.insert(name.clone(), tensor);
            }
        }
        if values.is_empty() {
            return Err("ONNX Runtime returned no value that can be compared".into());
        }
        Ok((version, values))
    }
}

/// A tensor of whatever type, as a graph holds it.
pub(super) fn read_any(bytes: &[u8]) -> Option<Tensor> {
    let natives = DType::ALL.iter().filter(|d| **d != DType::BF16).map(|d| ElementType::of_dtype(*d));
    natives.chain([ElementType::U16, ElementType::U64]).find_map(|element| npy::read(bytes, element).ok())
}

/// A folder that goes when it is no longer needed.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("olivine-check-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
