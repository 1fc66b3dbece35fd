//! Whole runs of ONNX files, from inputs in host memory to outputs in host memory.

use std::path::PathBuf;

use olivine::{Model, Session};

use crate::answer::Failure;
use crate::measure::Subject;
use crate::onnx::inputs::DimArgs;

/// An ONNX file to measure, and the name of its row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OnnxFile {
    pub(super) name: String,
    path: PathBuf,
    /// Sizes of its open dimensions.
    dims: Vec<(String, usize)>,
}

/// Reads `NAME=FILE[,DIM=N…]`.
pub(super) fn parse(text: &str) -> Result<OnnxFile, String> {
    let wrong =
        || "expected NAME=FILE or NAME=FILE,DIM=N, such as `resnet b8=resnet.onnx,batch=8`".to_string();
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let mut parts = rest.split(',');
    let path = parts.next().filter(|path| !path.is_empty()).ok_or_else(wrong)?;
    let dims = parts.map(|dim| {
        let (name, size) = dim.split_once('=').ok_or_else(wrong)?;
        Ok((name.to_string(), size.parse().map_err(|_| wrong())?))
    });
    Ok(OnnxFile { name: name.to_string(), path: path.into(), dims: dims.collect::<Result<_, String>>()? })
}

impl OnnxFile {
    /// The model with random inputs.
    pub(super) fn subject(&self, session: &Session) -> Result<Subject, Failure> {
        let model = Model::load(&self.path)?;
        let dims = DimArgs::of_sizes(self.dims.iter().map(|(name, size)| (name, size)));
        let inputs = dims.random(&model)?;
        Subject::of_model(session, &model, inputs)
    }

    /// The size of the file.
    pub(super) fn bytes(&self) -> Result<f64, Failure> {
        let of = std::fs::metadata(&self.path).map_err(|error| {
            Failure::new(error.to_string()).context(format!("cannot read `{}`", self.path.display()))
        })?;
        Ok(of.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_name_a_file_and_sizes() {
        let file = |text| parse(text).map(|f| (f.name, f.path, f.dims));
        assert_eq!(file("r b2=a/b.onnx"), Ok(("r b2".into(), "a/b.onnx".into(), Vec::new())));
        let sizes = vec![("n".to_string(), 2), ("s".to_string(), 64)];
        assert_eq!(file("r=b.onnx,n=2,s=64"), Ok(("r".into(), "b.onnx".into(), sizes)));
        for wrong in ["", "r", "r=", "r=b.onnx,n", "r=b.onnx,n=many", "r=b.onnx,"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
