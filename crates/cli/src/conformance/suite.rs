//! The cases of ONNX's backend tests, and what becomes of one.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use olivine::internals::onnx::{DataValue, ElementType, Kind, Port};
use olivine::ir::Tensor;
use olivine::{Model, Session};

use super::compare::compare;
use crate::answer::Failure;
use crate::panics::{Silence, caught};

/// A case on disk.
pub(super) struct Case {
    /// `suite/case`.
    pub(super) name: String,
    folder: PathBuf,
}

/// What became of a case on a device.
pub(super) struct Done {
    pub(super) name: String,
    /// Why it does not pass.
    pub(super) problem: Option<String>,
}

/// What can be said of a case without a device.
pub(super) struct Facts {
    /// Inputs and outputs are tensors of f32, f16, integers and bools alone.
    pub(super) is_plain: bool,
    /// A backend that returns zeros, or its first input, would pass.
    pub(super) is_idle: bool,
}

/// All cases below a folder whose names contain a text.
pub(super) fn cases(suite: &Path, filter: &str) -> Result<Vec<Case>, Failure> {
    let mut found = Vec::new();
    for folder in folders(suite)? {
        let group = file_name(&folder);
        if folder.join("model.onnx").exists() {
            found.push(Case { name: group, folder });
            continue;
        }
        // The weights of `light` are constants, and `real` is downloaded: neither shows right from wrong here.
        if matches!(group.as_str(), "light" | "real") {
            continue;
        }
        for folder in folders(&folder)? {
            if folder.join("model.onnx").exists() {
                found.push(Case { name: format!("{group}/{}", file_name(&folder)), folder });
            }
        }
    }
    found.retain(|case| case.name.contains(filter));
    found.sort_by(|a, b| a.name.cmp(&b.name));
    if found.is_empty() {
        let problem = format!("no case in `{}` has `{filter}` in its name", suite.display());
        return Err(Failure::new(problem).hint("give the folder that holds `node`, `simple` and so on"));
    }
    Ok(found)
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

fn folders(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(path)
        .map_err(|e| Failure::new(format!("cannot read `{}`: {e}", path.display())))?;
    let mut found: Vec<PathBuf> =
        entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).collect();
    found.sort();
    Ok(found)
}

/// Runs cases, some at a time; the answer is in the order of their names.
pub(super) fn run_all(cases: &[Case], session: &Session, jobs: usize) -> Vec<Done> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Done>> = Mutex::new(Vec::with_capacity(cases.len()));
    // A case that panics is a case that fails; what it says is in the result.
    let silence = Silence::new();
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, 64) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let problem = caught(|| run(session, &case.folder)).flatten().err();
                    if let Ok(mut done) = done.lock() {
                        done.push(Done { name: case.name.clone(), problem });
                    }
                }
            });
        }
    });
    drop(silence);
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by(|a, b| a.name.cmp(&b.name));
    done
}

/// Runs a case's data sets.
fn run(session: &Session, folder: &Path) -> Result<(), String> {
    let model = Model::load(folder.join("model.onnx")).map_err(|e| e.to_string())?;
    let executable = session.compile(&model).map_err(|e| e.to_string())?;
    let sets = data_sets(folder);
    if sets.is_empty() {
        return Err("there are no data".into());
    }
    for set in sets {
        let inputs = values(&set, "input", &model.inputs())?;
        let outputs = values(&set, "output", &model.outputs())?;
        let given: Vec<_> = inputs.iter().flat_map(|(name, value)| value.flat(name)).collect();
        let results = executable
            .run(given.iter().map(|(name, _, tensor)| (name.as_str(), tensor)))
            .map_err(|e| e.to_string())?;
        for (name, want) in &outputs {
            let mut expected = want.flat(name);
            if let DataValue::Sequence(items) = want
                && results.get(&format!("{name}[{}]", items.len())).is_ok()
            {
                return Err(format!("output `{name}` has more than {} elements", items.len()));
            }
            for (name, element, want) in expected.drain(..) {
                let got = results.get(&name).map_err(|e| e.to_string())?;
                compare(got, &want, element).map_err(|e| format!("output `{name}`: {e}"))?;
            }
        }
    }
    Ok(())
}

fn data_sets(folder: &Path) -> Vec<PathBuf> {
    let all = folders(folder).unwrap_or_default();
    all.into_iter().filter(|p| file_name(p).starts_with("test_data_set")).collect()
}

/// A data set's values in the order of the model's ports.
fn values(set: &Path, what: &str, ports: &[Port]) -> Result<Vec<(String, DataValue)>, String> {
    let mut found = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let path = set.join(format!("{what}_{i}.pb"));
        if !path.exists() {
            continue;
        }
        let bytes = std::fs::read(&path).map_err(|e| e.to_string())?;
        let value =
            DataValue::read(&bytes, &port.kind).map_err(|e| format!("{what} `{}`: {e}", port.name))?;
        found.push((port.name.clone(), value));
    }
    Ok(found)
}

/// What can be said of a case without a device.
pub(super) fn facts(case: &Case) -> Facts {
    let Ok(model) = olivine::internals::onnx::Model::load_with(
        case.folder.join("model.onnx"),
        &olivine::internals::onnx::LoadOptions::new().allow_unsupported(true),
    ) else {
        return Facts { is_plain: false, is_idle: false };
    };
    let (inputs, outputs) = (model.inputs(), model.outputs());
    let is_plain = inputs.iter().chain(&outputs).all(|port| is_plain(&port.kind));
    let sets = data_sets(&case.folder);
    let is_idle = !sets.is_empty() && sets.iter().all(|set| passes_idle(set, &inputs, &outputs));
    Facts { is_plain, is_idle }
}

fn is_plain(kind: &Kind) -> bool {
    use ElementType::{Bool, F16, F32, I8, I16, I32, I64, U8, U16, U32, U64};
    let Kind::Tensor { element, .. } = kind else { return false };
    matches!(element, F32 | F16 | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64 | Bool)
}

/// Whether zeros, or the first input, would do for every output.
fn passes_idle(set: &Path, inputs: &[Port], outputs: &[Port]) -> bool {
    let (Ok(inputs), Ok(outputs)) = (values(set, "input", inputs), values(set, "output", outputs)) else {
        return false;
    };
    let flat = |values: &[(String, DataValue)]| -> Vec<(String, ElementType, Tensor)> {
        values.iter().flat_map(|(name, value)| value.flat(name)).collect()
    };
    let (given, wanted) = (flat(&inputs), flat(&outputs));
    wanted.iter().all(|(_, element, want)| {
        let zeros = Tensor::zeros(want.dtype(), *want.shape());
        zeros.is_ok_and(|zeros| compare(&zeros, want, *element).is_ok())
            || given.first().is_some_and(|(_, _, first)| compare(first, want, *element).is_ok())
    })
}
