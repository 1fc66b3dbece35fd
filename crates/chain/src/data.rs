//! The data of a density: given by name, packed in two buffers.
//!
//! ```text
//!   numbers: y ─ each piece of data but indices, in the order of their declarations
//!   indices: of each index: a coordinate for each observation ─ where each coordinate's observations begin, d + 1 ─
//!            the observations sorted by coordinate
//! ```

use std::collections::BTreeMap;

use crate::Error;
use crate::expr::{DataDecl, DataKind, Density};

/// The data that a density reads; see [`Density::data`].
///
/// ```
/// use olivine_chain::Data;
/// let data = Data::new(vec![1.0, 2.0]).with("x", vec![0.5, 0.25]).with_index("group", vec![0, 1]);
/// # let _ = data;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Data {
    obs: Vec<f64>,
    numbers: BTreeMap<String, Vec<f64>>,
    indices: BTreeMap<String, Vec<u32>>,
}

impl Data {
    /// The observations, and nothing else.
    pub fn new(obs: Vec<f64>) -> Self {
        Data { obs, ..Data::default() }
    }

    /// Adds a scalar, a column, a vector or a matrix (row by row) by name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, numbers: Vec<f64>) -> Self {
        self.numbers.insert(name.into(), numbers);
        self
    }

    /// Adds an index by name.
    #[must_use]
    pub fn with_index(mut self, name: impl Into<String>, indices: Vec<u32>) -> Self {
        self.indices.insert(name.into(), indices);
        self
    }

    /// How many observations there are.
    pub fn n_obs(&self) -> usize {
        self.obs.len()
    }

    /// The two buffers for positions of `d` coordinates.
    pub(crate) fn pack(&self, density: &Density, d: usize) -> Result<(Vec<f64>, Vec<u32>), Error> {
        let layout = Layout::new(density.data(), self.n_obs(), d)?;
        let known = |name: &String| density.data().iter().any(|piece| piece.name == *name);
        if let Some(name) = self.numbers.keys().chain(self.indices.keys()).find(|name| !known(name)) {
            return Err(Error::Data(format!("the density reads no data named `{name}`")));
        }
        let mut numbers = Vec::with_capacity(layout.numbers);
        numbers.extend(&self.obs);
        let mut indices = Vec::with_capacity(layout.indices);
        for (i, piece) in density.data().iter().enumerate() {
            let (name, kind) = (&piece.name, piece.kind.name());
            let missing =
                || Error::Data(format!("the density reads the {kind} `{name}`, which is not given"));
            let wrong = |len: usize, wanted: usize| {
                Error::Data(format!("the {kind} `{name}` has {len} elements, not {wanted}"))
            };
            let wanted = layout.length(piece.kind);
            if piece.kind == DataKind::Index {
                let given = self.indices.get(name).ok_or_else(missing)?;
                if given.len() != wanted {
                    return Err(wrong(given.len(), wanted));
                }
                push_index(&mut indices, given, d).map_err(|(at, value)| {
                    Error::Data(format!(
                        "index `{name}` is {value} at observation {at}, and there are {d} coordinates"
                    ))
                })?;
            } else {
                let given = self.numbers.get(name).ok_or_else(missing)?;
                if given.len() != wanted {
                    return Err(wrong(given.len(), wanted));
                }
                debug_assert_eq!(numbers.len(), layout.offset(i));
                numbers.extend(given);
            }
        }
        // Buffers are never empty.
        numbers.resize(numbers.len().max(1), 0.0);
        indices.resize(indices.len().max(1), 0);
        Ok((numbers, indices))
    }
}

/// The coordinates, where those of each coordinate begin when sorted, and the observations in that order.
fn push_index(to: &mut Vec<u32>, given: &[u32], d: usize) -> Result<(), (usize, u32)> {
    let mut begins = vec![0u32; d + 1];
    for (at, coordinate) in given.iter().enumerate() {
        *begins.get_mut(*coordinate as usize + 1).ok_or((at, *coordinate))? += 1;
    }
    for i in 0..d {
        begins[i + 1] += begins[i];
    }
    to.extend(given);
    to.extend(&begins);
    let mut order = vec![0u32; given.len()];
    for (at, coordinate) in given.iter().enumerate() {
        let next = &mut begins[*coordinate as usize];
        order[*next as usize] = at as u32;
        *next += 1;
    }
    to.extend(order);
    Ok(())
}

/// Where each piece of data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) n_obs: usize,
    pub(crate) d: usize,
    offsets: Vec<usize>,
    /// Elements of the buffer of numbers.
    pub(crate) numbers: usize,
    /// Elements of the buffer of indices.
    pub(crate) indices: usize,
}

impl Layout {
    /// The layout, or an error where it is larger than 31-bit indices reach.
    pub(crate) fn new(data: &[DataDecl], n_obs: usize, d: usize) -> Result<Self, Error> {
        let too_large = || Error::Data(format!("{n_obs} observations and {d} coordinates are too many"));
        let mut layout = Layout { n_obs, d, offsets: Vec::new(), numbers: n_obs, indices: 0 };
        if n_obs >= 1 << 31 || d >= 1 << 24 {
            return Err(too_large());
        }
        for piece in data {
            let length = layout.length(piece.kind);
            let (sum, length) = match piece.kind {
                DataKind::Index => (&mut layout.indices, 2 * length + d + 1),
                _ => (&mut layout.numbers, length),
            };
            layout.offsets.push(*sum);
            *sum += length;
            if *sum >= 1 << 31 {
                return Err(too_large());
            }
        }
        (layout.numbers, layout.indices) = (layout.numbers.max(1), layout.indices.max(1));
        Ok(layout)
    }

    /// The first element of a piece of data in its buffer.
    pub(crate) fn offset(&self, piece: usize) -> usize {
        self.offsets[piece]
    }

    /// Elements that a piece of data has.
    fn length(&self, kind: DataKind) -> usize {
        match kind {
            DataKind::Scalar => 1,
            DataKind::Column | DataKind::Index => self.n_obs,
            DataKind::Vector => self.d,
            DataKind::Matrix => self.n_obs * self.d,
        }
    }
}
