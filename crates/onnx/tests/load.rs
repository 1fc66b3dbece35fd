//! Weights of a file: the same wherever they lie, and not copied where they need not be.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[allow(dead_code, reason = "a part is enough here")]
mod wire;

use olivine_onnx::Model;
use wire::{F32, Graph, external, node, tensor, value};

/// Enough that a tensor is worth sharing.
const COUNT: usize = 1 << 15;

fn bytes(seed: u32) -> Vec<u8> {
    (0..COUNT as u32).flat_map(|i| ((i * 7 + seed) as f32).to_le_bytes()).collect()
}

struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder(name: &str) -> Folder {
    let path = std::env::temp_dir().join(format!("olivine-onnx-load-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    Folder(path)
}

fn graph(weights: Vec<wire::Message>) -> Graph {
    Graph {
        nodes: vec![node("Relu", &["x"], &["y"])],
        initializers: weights,
        inputs: vec![value("x", F32, &["2"])],
        outputs: vec![value("y", F32, &["2"])],
        ..Graph::default()
    }
}

#[test]
fn weights_inside_a_file_are_the_same_at_every_alignment() {
    let folder = folder("inside");
    // Names of growing length bring the bytes after them to every offset.
    let weights: Vec<_> = (0..8)
        .map(|i| tensor(&format!("w{}", "x".repeat(i)), F32, &[COUNT as i64], &bytes(i as u32)))
        .collect();
    let path = folder.0.join("m.onnx");
    std::fs::write(&path, graph(weights).model()).unwrap();
    let model = Model::load(&path).unwrap();
    for i in 0..8 {
        let weight = model.weight(&format!("w{}", "x".repeat(i))).unwrap();
        assert_eq!(weight.bytes(), bytes(i as u32));
        assert_eq!(weight.as_slice::<f32>().unwrap()[3], 21.0 + i as f32);
        assert_eq!(weight.data().as_bytes(), weight.bytes());
        let mut own = weight.clone();
        own.as_mut_slice::<f32>().unwrap()[0] = -1.0;
        assert_eq!(weight.as_slice::<f32>().unwrap()[0], i as f32, "writing to a copy leaves the file alone");
    }
}

#[test]
fn tensors_of_one_external_file_lie_in_one_mapping() {
    let folder = folder("external");
    std::fs::write(folder.0.join("w.bin"), [bytes(1), bytes(2)].concat()).unwrap();
    let length = (COUNT * 4).to_string();
    let at = |offset: &str| {
        [("location", "w.bin"), ("offset", offset), ("length", &length)]
            .map(|(k, v)| (k.to_string(), v.to_string()))
    };
    let weight = |name: &str, offset: &str| {
        let entries = at(offset);
        let entries: Vec<(&str, &str)> = entries.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        external(name, F32, &[COUNT as i64], &entries)
    };
    let path = folder.0.join("m.onnx");
    std::fs::write(&path, graph(vec![weight("a", "0"), weight("b", &length)]).model()).unwrap();
    let model = Model::load(&path).unwrap();
    let (a, b) = (model.weight("a").unwrap(), model.weight("b").unwrap());
    assert_eq!((a.bytes(), b.bytes()), (bytes(1).as_slice(), bytes(2).as_slice()));
    if cfg!(target_endian = "little") {
        assert_eq!(b.bytes().as_ptr().addr() - a.bytes().as_ptr().addr(), COUNT * 4, "neither was copied");
    }
}
