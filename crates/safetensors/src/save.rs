//! Writing tensors to a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use olivine_ir::Tensor;
use serde_json::{Map, json};

use crate::Error;
use crate::header::name_of;

/// Writes named tensors to a safetensors file, which [`crate::Weights::load`] reads.
pub fn save(path: impl AsRef<Path>, tensors: &[(String, Tensor)]) -> Result<(), Error> {
    let path = path.as_ref();
    let header = header(tensors)?;
    write(path, &header, tensors).map_err(|source| Error::Write { path: path.to_path_buf(), source })
}

/// The header, whose length is a multiple of 8 so that elements are aligned.
fn header(tensors: &[(String, Tensor)]) -> Result<String, Error> {
    let mut entries = Map::new();
    let mut at = 0;
    for (name, tensor) in tensors {
        let end = at + tensor.ty().bytes();
        let entry = json!({
            "dtype": name_of(tensor.dtype()), "shape": tensor.shape().dims(), "data_offsets": [at, end],
        });
        if entries.insert(name.clone(), entry).is_some() || name == "__metadata__" {
            let problem = "the name is taken".into();
            return Err(Error::Tensor { name: name.clone(), problem });
        }
        at = end;
    }
    let mut text = serde_json::Value::Object(entries).to_string();
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    Ok(text)
}

fn write(path: &Path, header: &str, tensors: &[(String, Tensor)]) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for (_, tensor) in tensors {
        file.write_all(tensor.view().bytes())?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Weights;

    #[test]
    fn what_is_saved_is_loaded_again() {
        let folder = std::env::temp_dir().join(format!("olivine-save-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state.safetensors");
        let tensors = [
            (
                "a \"quoted\" name".to_string(),
                Tensor::new([2, 3], vec![1i64, -2, 3, 4, 5, i64::MIN]).unwrap(),
            ),
            ("none".to_string(), Tensor::zeros(olivine_ir::DType::F16, [0, 4]).unwrap()),
            ("scalar".to_string(), Tensor::scalar(true)),
        ];
        save(&path, &tensors).unwrap();
        let back = Weights::load(&path).unwrap();
        assert_eq!(back.names().count(), tensors.len());
        for (name, tensor) in &tensors {
            assert_eq!(back.tensor(name).unwrap(), *tensor, "{name}");
        }
        let twice = [tensors[2].clone(), tensors[2].clone()];
        assert!(matches!(save(&path, &twice), Err(Error::Tensor { .. })));
        assert!(matches!(save(folder.join("no/file"), &tensors), Err(Error::Write { .. })));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
