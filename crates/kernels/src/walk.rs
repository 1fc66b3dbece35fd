//! Walking several strided operands over one shape, with as few dimensions as their strides allow.

use olivine_ir::{Dim, product};
use olivine_kernel::Val;

use crate::launch::{Launch, number, signed};

/// A shape and the strides of several operands over it, neighbouring dimensions merged where all of them allow it and
/// dimensions of size 1 dropped. Rank 0 means one element.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub(crate) dims: Vec<Dim>,
    /// For every operand, one stride per dimension.
    pub(crate) strides: Vec<Vec<Dim>>,
}

impl Walk {
    pub(crate) fn new<D: Copy + Into<Dim>, S: Copy + Into<Dim>>(dims: &[D], strides: &[Vec<S>]) -> Self {
        let mut walk = Walk { dims: Vec::new(), strides: vec![Vec::new(); strides.len()] };
        let dims = dims.iter().map(|size| (*size).into());
        // A size that is an expression is kept: it may be 1 for some sizes, and is right as any other.
        for (d, size) in dims.enumerate().filter(|(_, size)| size.as_constant() != Some(1)) {
            let merges = !walk.dims.is_empty()
                && strides.iter().zip(&walk.strides).all(|(of, kept)| {
                    let step: Dim = of[d].into();
                    kept.last().is_some_and(|outer| *outer == step * size)
                });
            if let (true, Some(last)) = (merges, walk.dims.last_mut()) {
                *last *= size;
                for (kept, of) in walk.strides.iter_mut().zip(strides) {
                    if let Some(stride) = kept.last_mut() {
                        *stride = of[d].into();
                    }
                }
            } else {
                walk.dims.push(size);
                for (kept, of) in walk.strides.iter_mut().zip(strides) {
                    kept.push(of[d].into());
                }
            }
        }
        walk
    }

    /// Drops open dimensions that are 1, which is asked: then a walk is the one of fixed sizes.
    #[track_caller]
    pub(crate) fn drop_single(&mut self) {
        for d in (0..self.dims.len()).rev() {
            if self.dims[d] == 1 {
                self.dims.remove(d);
                self.strides.iter_mut().for_each(|of| {
                    of.remove(d);
                });
            }
        }
    }

    /// The same with nothing merged or dropped.
    pub(crate) fn unmerged<D: Copy + Into<Dim>, S: Copy + Into<Dim>>(dims: &[D], strides: &[Vec<S>]) -> Self {
        let strides = strides.iter().map(|of| of.iter().map(|s| (*s).into()).collect()).collect();
        Walk { dims: dims.iter().map(|d| (*d).into()).collect(), strides }
    }

    /// Sizes as numbers.
    #[track_caller]
    pub(crate) fn dims(&self) -> Vec<usize> {
        self.dims.iter().map(|d| number(*d)).collect()
    }

    /// An operand's strides as numbers.
    #[track_caller]
    pub(crate) fn strides(&self, operand: usize) -> Vec<i64> {
        self.strides[operand].iter().map(|s| signed(*s)).collect()
    }

    /// Elements.
    pub(crate) fn numel(&self) -> Dim {
        product(&self.dims)
    }

    /// An operand's stride in the innermost dimension; 0 for a single element.
    pub(crate) fn inner(&self, operand: usize) -> Dim {
        self.strides[operand].last().copied().unwrap_or(Dim::ZERO)
    }

    /// Whether an operand's stride in the innermost dimension is a number that kernels know.
    pub(crate) fn steps_by(&self, operand: usize, stride: i64) -> bool {
        self.inner(operand).as_constant() == Some(stride)
    }

    /// Declares sizes and strides as run-time numbers; strides of 0 and 1 are baked in. `offsets` are added to the
    /// operands' indices.
    pub(crate) fn declare<'k, T: Copy + Into<Dim>>(&self, l: &Launch<'k>, offsets: &[T]) -> Walker<'k> {
        let k = l.k();
        let rank = self.dims.len();
        let dims = (1..rank).map(|d| l.size(&format!("d{d}"), self.dims[d])).collect();
        let strides = self
            .strides
            .iter()
            .enumerate()
            .map(|(o, of)| {
                let stride = |(d, s): (usize, &Dim)| match s.as_constant() {
                    Some(0) => k.u32(0),
                    Some(1) => k.u32(1),
                    _ => l.stride(&format!("s{o}_{d}"), *s),
                };
                of.iter().enumerate().map(stride).collect()
            })
            .collect();
        let offset = |(o, offset): (usize, &T)| {
            let offset: Dim = (*offset).into();
            if offset.as_constant() == Some(0) { k.u32(0) } else { l.size(&format!("o{o}"), offset) }
        };
        let offsets = offsets.iter().enumerate().map(offset).collect();
        Walker { dims, strides, offsets }
    }
}

/// A declared walk: turns a position in the shape into every operand's index.
pub(crate) struct Walker<'k> {
    /// Sizes of all dimensions but the outermost.
    dims: Vec<Val<'k>>,
    strides: Vec<Vec<Val<'k>>>,
    offsets: Vec<Val<'k>>,
}

impl<'k> Walker<'k> {
    /// Every operand's index at a row-major position.
    pub(crate) fn at(&self, position: Val<'k>) -> Vec<Val<'k>> {
        let mut indices = self.offsets.clone();
        let rank = self.strides.first().map_or(0, Vec::len);
        let mut rest = position;
        for d in (0..rank).rev() {
            // The outermost coordinate is what is left.
            let coordinate = if d == 0 {
                rest
            } else {
                let size = self.dims[d - 1];
                let outer = rest / size;
                let here = rest - outer * size;
                rest = outer;
                here
            };
            for (index, strides) in indices.iter_mut().zip(&self.strides) {
                *index = *index + coordinate * strides[d];
            }
        }
        indices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_operands_become_one_dimension_and_broadcast_ones_keep_theirs() {
        let packed = vec![12, 4, 1];
        assert_eq!(Walk::new(&[2, 3, 4], std::slice::from_ref(&packed)).dims, [24]);
        let walk = Walk::new(&[2, 3, 4], &[packed, vec![4, 0, 1]]);
        assert_eq!(walk.dims, [2, 3, 4]);
        let walk = Walk::new(&[2, 3, 4], &[vec![12, 4, 1], vec![0, 0, 1]]);
        assert_eq!(walk.dims, [6, 4]);
        assert_eq!(walk.strides, [[4, 1], [0, 1]]);
        assert!(Walk::new(&[1, 1], &[vec![7, 9]]).dims.is_empty());
    }

    #[test]
    fn a_reversed_dimension_merges_only_with_its_like() {
        let walk = Walk::new(&[2, 3], &[vec![-3, -1]]);
        assert_eq!(walk.dims, [6]);
        assert_eq!(walk.strides, [[-1]]);
        assert_eq!(Walk::new(&[2, 3], &[vec![3, -1]]).dims, [2, 3]);
    }
}
