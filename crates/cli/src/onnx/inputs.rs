//! A model's inputs from the command line: files, or shapes to fill.

use std::collections::HashMap;
use std::path::Path;

use clap::{Args, ValueEnum};
use olivine::internals::ir::{nearest, round_to_odd};
use olivine::internals::onnx::{Dim, ElementType, Kind, Links, LoadOptions, Port};
use olivine::ir::half::{bf16, f16};
use olivine::ir::{Data, Shape, Tensor};
use olivine::{CompileOptions, Model, npy};

use olivine_files::Format;

use crate::answer::Failure;

/// Inputs and sizes of an ONNX model.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct InputArgs {
    /// An input: `NAME=FILE.npy`, `NAME=shape:1x3x224x224` (`:zeros`, `:ones` or `:random`, the default, may follow), or
    /// `NAME=random` for the declared shape. Element `i` of a sequence is `NAME[i]`.
    #[arg(long = "input", value_name = "NAME=WHAT")]
    inputs: Vec<String>,
    #[command(flatten)]
    dims: DimArgs,
    /// Seed of random inputs.
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
}

/// How an ONNX model is read: sizes for its named dimensions, and where its files may be.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DimArgs {
    /// Where links among an ONNX model's files may lead.
    #[arg(long, value_enum, default_value_t, value_name = "WHERE")]
    links: LinkArg,
    /// The size of a named dimension of an ONNX model's inputs: `batch=1`.
    #[arg(long = "dim", value_name = "NAME=N")]
    dims: Vec<String>,
}

/// Where links among a model's files may lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkArg {
    /// To files of the model's folder.
    Folder,
    /// Also to the files of the download cache that the model is in.
    #[default]
    Cache,
    /// To any file.
    Anywhere,
}

/// What to put into a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Random,
    Zeros,
    Ones,
}

impl Fill {
    fn named(name: &str) -> Option<Fill> {
        Some(match name {
            "random" => Fill::Random,
            "zeros" => Fill::Zeros,
            "ones" => Fill::Ones,
            _ => return None,
        })
    }
}

impl DimArgs {
    /// Sizes of named dimensions.
    pub(crate) fn of_sizes<'a>(sizes: impl IntoIterator<Item = (&'a String, &'a usize)>) -> Self {
        let dims = sizes.into_iter().map(|(name, size)| format!("{name}={size}")).collect();
        DimArgs { dims, ..DimArgs::default() }
    }

    /// Refuses sizes of dimensions where there is no ONNX model that could have them.
    pub(crate) fn none(&self) -> Result<(), Failure> {
        match self.dims.first() {
            None => Ok(()),
            Some(text) => Err(Failure::new(format!("`--dim {text}` is for ONNX models"))
                .hint("sizes of built-in models are given with --batch, --sequence and so on")),
        }
    }

    /// How the model's files are read.
    pub(crate) fn load_options(&self) -> LoadOptions {
        let links = match self.links {
            LinkArg::Folder => Links::Folder,
            LinkArg::Cache => Links::Cache,
            LinkArg::Anywhere => Links::Anywhere,
        };
        LoadOptions::new().links(links)
    }

    fn sizes(&self) -> Result<HashMap<String, usize>, Failure> {
        let mut sizes = HashMap::new();
        for text in &self.dims {
            let bad =
                || Failure::new(format!("`--dim {text}` is not NAME=N")).hint("for example --dim batch=1");
            let (name, size) = text.rsplit_once('=').ok_or_else(bad)?;
            if sizes.insert(name.to_string(), size.parse().map_err(|_| bad())?).is_some() {
                return Err(Failure::new(format!("the size of `{name}` is given twice")));
            }
        }
        Ok(sizes)
    }

    /// The sizes as options of a compile.
    pub(crate) fn compile_options(&self, model: &Model) -> Result<CompileOptions, Failure> {
        let sizes = self.sizes()?;
        check_dims(&sizes, &all_inputs(model))?;
        Ok(sizes.into_iter().fold(CompileOptions::new(), |options, (name, size)| options.dim(name, size)))
    }

    /// Random tensors for all inputs; sizes that are not known are 1.
    pub(crate) fn random(&self, model: &Model) -> Result<Vec<(String, Tensor)>, Failure> {
        InputArgs { dims: self.clone(), ..InputArgs::default() }.tensors(model, true)
    }
}

impl InputArgs {
    /// How the model's files are read.
    pub(crate) fn load_options(&self) -> LoadOptions {
        self.dims.load_options()
    }

    /// The tensors of a run. Inputs that are not given are filled at random if `fill_rest`, with sizes of 1 where neither
    /// `--dim` nor another input has them; otherwise they are an error.
    pub(crate) fn tensors(&self, model: &Model, fill_rest: bool) -> Result<Vec<(String, Tensor)>, Failure> {
        let required = model.inputs();
        let ports = all_inputs(model);
        let sizes = self.dims.sizes()?;
        check_dims(&sizes, &ports)?;
        let mut given: Vec<(String, Tensor)> = Vec::new();
        for text in &self.inputs {
            let (name, what) = text.split_once('=').ok_or_else(|| {
                Failure::new(format!("`--input {text}` is not NAME=WHAT"))
                    .hint("for example --input x=x.npy or --input x=shape:1x3x224x224")
            })?;
            let kind = kind_of(name, &ports)?;
            let tensor =
                self.tensor(name, what, kind, &sizes).map_err(|e| e.context(format!("input `{name}`")))?;
            if given.iter().any(|(n, _)| n == name) {
                return Err(Failure::new(format!("input `{name}` is given twice")));
            }
            given.push((name.to_string(), tensor));
        }
        let is_given = |port: &Port| {
            let within = |name: &str| name.strip_prefix(&port.name).is_some_and(|r| r.starts_with('['));
            given.iter().any(|(n, _)| *n == port.name || within(n))
        };
        let missing: Vec<&Port> = required.iter().filter(|p| needed(&p.kind) && !is_given(p)).collect();
        if !fill_rest && !missing.is_empty() {
            return Err(missing_inputs(&missing));
        }
        let sizes = with_sizes_of(&given, &ports, sizes);
        let mut filled = Vec::new();
        for port in missing {
            let (element, dims) = tensor_kind(&port.kind)?;
            let dims = dims.clone().unwrap_or_default();
            let shape: Vec<usize> = dims.iter().map(|d| size(d, &sizes).unwrap_or(1)).collect();
            filled.push((port.name.clone(), fill(element, &shape, Fill::Random, self.seed_of(&port.name))?));
        }
        given.append(&mut filled);
        Ok(given)
    }

    fn seed_of(&self, name: &str) -> u64 {
        name.bytes()
            .fold(self.seed ^ 0x9e37_79b9_7f4a_7c15, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
    }

    fn tensor(
        &self,
        name: &str,
        what: &str,
        kind: &Kind,
        sizes: &HashMap<String, usize>,
    ) -> Result<Tensor, Failure> {
        let (element, dims) = tensor_kind(kind)?;
        let seed = self.seed_of(name);
        if let Some(how) = Fill::named(what) {
            let dims = dims.as_ref().ok_or_else(|| {
                Failure::new("its rank is not declared").hint("give its sizes: NAME=shape:1x3x224x224")
            })?;
            let shape: Option<Vec<usize>> = dims.iter().map(|d| size(d, sizes)).collect();
            let shape = shape.ok_or_else(|| {
                Failure::new(format!("it is {kind}, and not all of its sizes are known"))
                    .hint("bind them with --dim NAME=N, or give NAME=shape:1x3x224x224")
            })?;
            return fill(element, &shape, how, seed);
        }
        if let Some(text) = what.strip_prefix("shape:") {
            let (text, how) = match text.split_once(':') {
                Some((text, how)) => {
                    let known = Fill::named(how);
                    let bad = || Failure::new(format!("`{how}` is not random, zeros or ones"));
                    (text, known.ok_or_else(bad)?)
                }
                None => (text, Fill::Random),
            };
            return fill(element, &parse_shape(text)?, how, seed);
        }
        let bytes = olivine_files::read_plain(Path::new(what), u64::MAX)
            .map_err(|e| Failure::new(e.to_string()).context(format!("cannot read `{what}`")))?;
        npy::read(&bytes, element).map_err(|e| {
            let other = Format::of(&bytes).filter(|format| *format != Format::Npy);
            let problem = other.map_or(e.to_string(), |format| format!("it is {format}, not a .npy file"));
            Failure::new(problem).context(format!("cannot use `{what}`"))
        })
    }
}

/// Named sizes, with those that given inputs have.
fn with_sizes_of(
    given: &[(String, Tensor)],
    ports: &[Port],
    mut sizes: HashMap<String, usize>,
) -> HashMap<String, usize> {
    for (name, tensor) in given {
        let kind = ports.iter().find(|port| port.name == *name).map(|port| tensor_kind(&port.kind));
        let Some(Ok((_, Some(dims)))) = kind else { continue };
        for (dim, size) in dims.iter().zip(tensor.shape().iter()) {
            if let Dim::Named(name) = dim {
                sizes.entry(name.clone()).or_insert(*size);
            }
        }
    }
    sizes
}

/// Sizes joined by `x`; nothing or `scalar` is rank 0.
fn parse_shape(text: &str) -> Result<Vec<usize>, Failure> {
    if matches!(text, "" | "scalar") {
        return Ok(Vec::new());
    }
    let sizes: Result<Vec<usize>, _> = text.split(['x', ',']).map(str::parse).collect();
    sizes
        .map_err(|_| Failure::new(format!("`{text}` is no shape")).hint("sizes are joined by x: 1x3x224x224"))
}

/// All inputs that a run may supply, initializers that may be overridden among them.
pub(super) fn all_inputs(model: &Model) -> Vec<Port> {
    model.inputs().into_iter().chain(model.overridable_initializers()).collect()
}

/// Refuses sizes of dimensions that no input has.
fn check_dims(sizes: &HashMap<String, usize>, ports: &[Port]) -> Result<(), Failure> {
    let mut names: Vec<&str> = Vec::new();
    for port in ports {
        if let Ok((_, Some(dims))) = tensor_kind(&port.kind) {
            names.extend(dims.iter().filter_map(|d| match d {
                Dim::Named(name) => Some(name.as_str()),
                _ => None,
            }));
        }
    }
    match sizes.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            names.sort_unstable();
            names.dedup();
            let failure = Failure::new(format!("no input has a dimension `{name}`"));
            Err(failure.hint(match nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("named dimensions: {}", names.join(", ")),
            }))
        }
    }
}

/// What an input, or an element of a sequence, is declared to be.
fn kind_of<'a>(name: &str, ports: &'a [Port]) -> Result<&'a Kind, Failure> {
    if let Some(port) = ports.iter().find(|p| p.name == name) {
        return Ok(&port.kind);
    }
    let inner = name.rsplit_once('[').and_then(|(base, _)| {
        let mut kind = &ports.iter().find(|p| p.name == base)?.kind;
        if let Kind::Optional(inner) = kind {
            kind = inner;
        }
        if let Kind::Sequence(inner) = kind { Some(&**inner) } else { None }
    });
    inner.ok_or_else(|| {
        let failure = Failure::new(format!("the model has no input `{name}`"));
        let names = ports.iter().map(|p| p.name.as_str());
        failure.hint(match nearest(name, names.clone()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("its inputs are {}", names.collect::<Vec<_>>().join(", ")),
        })
    })
}

fn needed(kind: &Kind) -> bool {
    // A sequence that is not given is empty.
    !matches!(kind, Kind::Optional(_) | Kind::Sequence(_))
}

fn tensor_kind(kind: &Kind) -> Result<(ElementType, &Option<Vec<Dim>>), Failure> {
    match kind {
        Kind::Tensor { element, dims } => Ok((*element, dims)),
        Kind::Optional(inner) => tensor_kind(inner),
        Kind::Sequence(_) => {
            Err(Failure::new("it is a sequence").hint("give its elements as NAME[0], NAME[1], …"))
        }
        Kind::Other(what) => Err(Failure::new(format!("values of kind {what} cannot be given"))),
    }
}

fn size(dim: &Dim, sizes: &HashMap<String, usize>) -> Option<usize> {
    match dim {
        Dim::Fixed(size) => Some(*size),
        Dim::Named(name) => sizes.get(name).copied(),
        Dim::Free => None,
    }
}

fn missing_inputs(missing: &[&Port]) -> Failure {
    let list: Vec<String> = missing.iter().map(|p| format!("`{}`: {}", p.name, p.kind)).collect();
    let example = |port: &&Port| {
        let shape = match tensor_kind(&port.kind) {
            Ok((_, Some(dims))) => {
                let sizes = dims.iter().map(|d| size(d, &HashMap::new()).unwrap_or(1).to_string());
                sizes.collect::<Vec<_>>().join("x")
            }
            _ => "1".into(),
        };
        format!("--input '{}=shape:{shape}'", port.name)
    };
    let examples: Vec<String> = missing.iter().map(example).collect();
    Failure::new(format!("inputs are missing: {}", list.join(", ")))
        .hint(format!("random numbers: {}; files: --input NAME=FILE.npy", examples.join(" ")))
}

/// A tensor of a shape. Random floats are uniform in [-1, 1), bytes take every value, and other integers are 0 or 1, which
/// are indices of most tables.
pub(crate) fn fill(element: ElementType, shape: &[usize], how: Fill, seed: u64) -> Result<Tensor, Failure> {
    let dtype =
        element.dtype().ok_or_else(|| Failure::new(format!("elements of type {element} cannot be held")))?;
    let shape = Shape::new(shape)?;
    // Asked for first, so that memory that is not there is an error.
    let mut tensor = Tensor::zeros(dtype, shape)?;
    if how == Fill::Zeros {
        return Ok(tensor);
    }
    let mut random = Random::new(seed);
    let mut next = |one: f64, floats: bool, bytes: Option<f64>| match (how, floats, bytes) {
        (Fill::Random, true, _) => random.unit() * 2.0 - 1.0,
        (Fill::Random, false, Some(low)) => (random.unit() * 256.0).floor() + low,
        (Fill::Random, false, None) => (random.unit() * 2.0).floor(),
        _ => one,
    };
    let whole = matches!(element, ElementType::U8 | ElementType::I8);
    match tensor.data_mut()? {
        // Small floats are held by f32, which must hold one of their values.
        Data::F32(v) if element != ElementType::F32 => {
            v.iter_mut().for_each(|x| *x = next(1.0, false, None) as f32)
        }
        Data::F32(v) => v.iter_mut().for_each(|x| *x = next(1.0, true, None) as f32),
        Data::F64(v) => v.iter_mut().for_each(|x| *x = next(1.0, true, None)),
        Data::I8(v) => {
            let bytes = whole.then_some(-128.0);
            v.iter_mut().for_each(|x| *x = next(1.0, false, bytes) as i8);
        }
        Data::U8(v) => {
            let bytes = whole.then_some(0.0);
            v.iter_mut().for_each(|x| *x = next(1.0, false, bytes) as u8);
        }
        Data::I16(v) => v.iter_mut().for_each(|x| *x = next(1.0, false, None) as i16),
        Data::I32(v) => v.iter_mut().for_each(|x| *x = next(1.0, false, None) as i32),
        Data::U32(v) => v.iter_mut().for_each(|x| *x = next(1.0, false, None) as u32),
        Data::I64(v) => v.iter_mut().for_each(|x| *x = next(1.0, false, None) as i64),
        Data::Bool(v) => v.iter_mut().for_each(|x| *x = next(1.0, false, None) != 0.0),
        Data::F16(v) => v.iter_mut().for_each(|x| *x = f16::from_f32(round_to_odd(next(1.0, true, None)))),
        Data::BF16(v) => v.iter_mut().for_each(|x| *x = bf16::from_f32(round_to_odd(next(1.0, true, None)))),
    }
    Ok(tensor)
}

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// A number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_sizes_joined_by_x() {
        assert_eq!(parse_shape("1x3x224x224").unwrap(), [1, 3, 224, 224]);
        assert_eq!(parse_shape("7").unwrap(), [7]);
        assert!(parse_shape("").unwrap().is_empty() && parse_shape("scalar").unwrap().is_empty());
        assert!(parse_shape("1x-3").is_err() && parse_shape("axb").is_err());
    }

    #[test]
    fn tensors_are_filled_in_every_type_with_numbers_that_it_holds() {
        for element in [ElementType::F32, ElementType::F16, ElementType::BF16, ElementType::F64] {
            let values = fill(element, &[500], Fill::Random, 1).unwrap().to_f64();
            assert!(
                values.iter().all(|x| x.abs() <= 1.0) && values.iter().any(|x| x.abs() > 0.5),
                "{element}"
            );
        }
        for element in [
            ElementType::I64,
            ElementType::U16,
            ElementType::U64,
            ElementType::Bool,
            ElementType::I4,
            ElementType::F8E5M2,
        ] {
            let values = fill(element, &[500], Fill::Random, 1).unwrap().to_f64();
            assert!(values.contains(&0.0) && values.contains(&1.0), "{element}");
            assert!(values.iter().all(|x| *x == 0.0 || *x == 1.0), "{element}");
        }
        assert!(fill(ElementType::I8, &[500], Fill::Random, 1).unwrap().to_f64().iter().any(|x| *x < -100.0));
        assert_eq!(fill(ElementType::U8, &[2], Fill::Ones, 1).unwrap().to_f64(), [1.0, 1.0]);
        assert!(fill(ElementType::String, &[2], Fill::Ones, 1).is_err());
    }
}
