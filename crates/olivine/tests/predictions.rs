//! What runs are predicted to take, and devices chosen by it.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::path::PathBuf;
use std::time::Duration;

use olivine::cost::Calibration;
use olivine::prelude::*;
use olivine::{DeviceClass, PipelineCache};

/// A matmul of open batch, `n` by `n`.
fn dense(n: usize) -> Graph {
    let mut g = Graph::new("dense");
    let x = g.input_with_dims("x", DType::F32, [1, n], vec![Some("batch".into()), None]).unwrap();
    let w = g.param("w", DType::F32, [n, n]).unwrap();
    let y = g.matmul(x, w).unwrap();
    g.output("y", y).unwrap();
    g
}

/// A folder of this test, empty.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("olivine-predictions-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn options(folder: &std::path::Path) -> SessionOptions {
    SessionOptions::new().pipeline_cache(PipelineCache::Folder(folder.to_path_buf()))
}

#[test]
fn the_processor_is_measured_once_stored_and_read_again() {
    let folder = folder("stored");
    let session = Session::with_options(Device::Cpu, options(&folder)).unwrap();
    let mut rows = Vec::new();
    let mut progress = |row: &str, _: usize, _: usize| rows.push(row.to_string());
    let measured = Calibration::load_or_measure_with(&session, &mut progress).unwrap();
    assert!(rows.contains(&"matmul f32".to_string()) && measured.copy_rate().unwrap() > 1e6, "{rows:?}");
    let files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let file = files.iter().find(|path| path.extension().is_some_and(|e| e == "json")).unwrap();
    let stored = Calibration::from_json(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!((&stored.device, &stored.driver), (&measured.device, &measured.driver));
    let (read, own) = (stored.copy_rate().unwrap(), measured.copy_rate().unwrap());
    assert!((read / own - 1.0).abs() < 1e-9, "{read} {own}");
    let again = Session::with_options(Device::Cpu, options(&folder)).unwrap();
    let mut measured_again = |row: &str, _: usize, _: usize| panic!("{row} is measured again");
    assert_eq!(Calibration::load_or_measure_with(&again, &mut measured_again).unwrap(), measured);

    // More work is predicted to take longer, by the sizes of the options.
    let batch = |n| session.predict(&dense(256), &CompileOptions::new().dim("batch", n)).unwrap();
    let (one, many) = (batch(1), batch(4096));
    assert!(one.total > Duration::ZERO && many.total > 10 * one.total, "{one:?} {many:?}");
    assert_eq!(many.total, many.run + many.transfers + many.steps_time());
    assert!(many.reason().contains('%'), "{}", many.reason());

    // An executable predicts the same for inputs of those sizes.
    let executable = session.compile(&dense(256)).unwrap();
    executable.set_param("w", Tensor::zeros(DType::F32, [256, 256]).unwrap()).unwrap();
    let x = Tensor::zeros(DType::F32, [4096, 256]).unwrap();
    let predicted = executable.predict([("x", &x)]).unwrap();
    assert_eq!(predicted.steps.len(), many.steps.len());
    assert!(predicted.total < 2 * many.total && many.total < 2 * predicted.total);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn each_cache_folder_keeps_a_calibration_of_its_own() {
    for name in ["first", "second"] {
        let folder = folder(name);
        let session = Session::with_options(Device::Cpu, options(&folder)).unwrap();
        Calibration::load_or_measure(&session).unwrap();
        let stored = std::fs::read_dir(&folder).unwrap().any(|file| {
            let path = file.unwrap().path();
            path.extension().is_some_and(|e| e == "json")
        });
        assert!(stored, "{name}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn a_model_that_does_not_fit_its_sizes_is_an_error_of_the_prediction() {
    let folder = folder("names");
    let session = Session::with_options(Device::Cpu, options(&folder)).unwrap();
    let error = session.predict(&dense(8), &CompileOptions::new().shape("x", [1, 9])).unwrap_err();
    assert!(!error.to_string().is_empty());
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_software_gpu_is_never_chosen_for_a_model() {
    let device = Device::auto_for(&dense(32), &CompileOptions::new()).unwrap();
    let info = devices().into_iter().find(|info| info.is(&device)).unwrap();
    assert!(info.class != DeviceClass::Software && info.unavailable.is_none(), "{device}");
}

#[test]
fn fallbacks_are_tried_in_order_and_nothing_else_is() {
    let missing: Device = "vulkan:99".parse().unwrap();
    let other: Device = "wgpu:name:no such card".parse().unwrap();
    let opened =
        Session::fallback([missing.clone(), other.clone(), Device::Cpu], SessionOptions::new()).unwrap();
    assert_eq!(opened.session.device(), &Device::Cpu);
    let refused: Vec<&Device> = opened.refused.iter().map(|(device, _)| device).collect();
    assert_eq!(refused, [&missing, &other]);
    let first = Session::fallback([Device::Cpu, missing.clone()], SessionOptions::new()).unwrap();
    assert!(first.refused.is_empty() && first.to_string().contains("the first asked for"), "{first}");
    let none = Session::fallback([missing], SessionOptions::new()).map(drop).unwrap_err();
    assert!(matches!(&none, Error::Unavailable { device, .. } if device == "vulkan:99"), "{none}");
    assert!(Session::fallback([], SessionOptions::new()).is_err());
}
