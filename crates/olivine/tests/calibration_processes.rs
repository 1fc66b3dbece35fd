//! Calibrations between real processes: several that measure at once, a folder that cannot be written, and runs that contradict
//! what is stored. Each check starts this program again in a role.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use olivine::PipelineCache;
use olivine::cost::Calibration;
use olivine::prelude::*;
use serde_json::{Value, json};

/// Runs of an executable after which it has been held against its prediction.
const RUNS: usize = 16;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["role", role, folder] => print!("{}", in_role(role, Path::new(folder))),
        // Lists no tests when asked for a list; filters and options of the harness choose nothing here.
        ["--list", ..] => {}
        _ => {
            several_processes_at_once_measure_once();
            where_nothing_can_be_written_each_process_measures_and_predicts();
            runs_that_contradict_a_calibration_have_it_measured_again();
            println!("3 checks of calibrations between processes passed");
        }
    }
}

/// What a process does: it loads the calibration or measures, and runs a model where it is asked to. Prints whether it measured,
/// and the stored rate of copies.
fn in_role(role: &str, folder: &Path) -> Value {
    let options = SessionOptions::new().pipeline_cache(PipelineCache::Folder(folder.to_path_buf()));
    let session = Session::with_options(Device::Cpu, options).unwrap();
    let mut g = Graph::new("dense");
    let x = g.input("x", DType::F32, [64, 256]).unwrap();
    let w = g.param("w", DType::F32, [256, 256]).unwrap();
    let y = g.matmul(x, w).unwrap();
    g.output("y", y).unwrap();
    if role.starts_with("run") {
        run(role, &session, &g);
    }
    let mut points = 0;
    let calibration = Calibration::load_or_measure_with(&session, &mut |_, _, _| points += 1).unwrap();
    let predicted = session.predict(&g, &CompileOptions::new()).unwrap().total.as_secs_f64();
    json!({
        "measured": points > 0, "copy": calibration.copy_rate().unwrap(), "predicted": predicted,
        "confirmed": calibration.confirmed,
    })
}

/// Runs a graph in a session that nobody has asked for a prediction, in one way or another.
fn run(role: &str, session: &Session, graph: &Graph) {
    let executable = session.compile(graph).unwrap();
    executable.set_param("w", Tensor::zeros(DType::F32, [256, 256]).unwrap()).unwrap();
    let x = Tensor::zeros(DType::F32, [64, 256]).unwrap();
    let mut y = Tensor::zeros(DType::F32, [64, 256]).unwrap();
    for _ in 0..RUNS {
        match role {
            "run into" => executable.run_into([("x", &x)], &mut [("y", &mut y)]).unwrap(),
            "run resident" => drop(executable.run_resident([("x", &x)]).unwrap()),
            _ => drop(executable.run([("x", &x)]).unwrap()),
        }
    }
}

/// Starts this program in a role.
fn start(role: &str, folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["role", role]).arg(folder).stdout(Stdio::piped()).spawn().unwrap()
}

fn finish(child: Child) -> Value {
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", out.status);
    serde_json::from_slice(&out.stdout).unwrap()
}

/// A folder of this process, empty.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("olivine-processes-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// The calibration's file.
fn stored(folder: &Path) -> PathBuf {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let file = files.next().unwrap();
    assert!(files.next().is_none(), "there is one file");
    file
}

fn several_processes_at_once_measure_once() {
    let folder = folder("at-once");
    let children: Vec<Child> = (0..3).map(|_| start("load", &folder)).collect();
    let answers: Vec<Value> = children.into_iter().map(finish).collect();
    let measured = answers.iter().filter(|answer| answer["measured"] == true).count();
    assert_eq!(measured, 1, "the others wait and read: {answers:?}");
    let copy = |answer: &Value| answer["copy"].as_f64().unwrap();
    for answer in &answers {
        assert!((copy(answer) / copy(&answers[0]) - 1.0).abs() < 1e-9, "all have the same: {answers:?}");
    }
    Calibration::from_json(&std::fs::read(stored(&folder)).unwrap()).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

fn where_nothing_can_be_written_each_process_measures_and_predicts() {
    // Not even the administrator can make a folder here; elsewhere there is a file in its stead.
    let file = folder("file");
    std::fs::write(&file, b"no folder").unwrap();
    let linux = Path::new("/proc/olivine-no-such-folder");
    let folders: &[&Path] = if cfg!(target_os = "linux") { &[linux, &file] } else { &[&file] };
    for folder in folders {
        for _ in 0..2 {
            let answer = finish(start("load", folder));
            assert_eq!(answer["measured"], true, "{}", folder.display());
            assert!(answer["predicted"].as_f64().unwrap() > 0.0);
        }
    }
    std::fs::remove_file(file).unwrap();
}

/// Multiplies every time of a stored calibration.
fn falsify(file: &Path, factor: f64) {
    let mut json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    for rates in json["rates"].as_array_mut().unwrap() {
        for key in ["run", "dispatch", "barrier"] {
            rates[key] = (rates[key].as_f64().unwrap() * factor).into();
        }
        for (_, points) in rates["rows"].as_object_mut().unwrap() {
            for point in points.as_array_mut().unwrap() {
                point[1] = (point[1].as_f64().unwrap() * factor).into();
            }
        }
    }
    std::fs::write(file, json.to_string()).unwrap();
}

fn runs_that_contradict_a_calibration_have_it_measured_again() {
    let folder = folder("doubted");
    let first = finish(start("load", &folder));
    assert_eq!(first["measured"], true);
    let file = stored(&folder);
    let ways = [("run", 300.0), ("run", 1.0 / 300.0), ("run into", 300.0), ("run resident", 300.0)];
    for (way, factor) in ways {
        falsify(&file, factor);
        let wrong = finish(start("load", &folder));
        assert_eq!(wrong["measured"], false, "it uses what is stored");
        let ratio = wrong["predicted"].as_f64().unwrap() / first["predicted"].as_f64().unwrap();
        assert!((ratio / factor).ln().abs() < 10f64.ln(), "{ratio}");
        // The process itself measures again when it is next asked, as another would.
        let again = finish(start(way, &folder));
        assert_eq!(again["measured"], true, "after {way} it is measured again");
        assert_eq!(again["confirmed"], false, "the wrong one was wrong");
        let ratio = again["predicted"].as_f64().unwrap() / first["predicted"].as_f64().unwrap();
        assert!(ratio.ln().abs() < 8f64.ln(), "{ratio}");
        assert_eq!(finish(start("load", &folder))["measured"], false, "and from then on it is read");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
