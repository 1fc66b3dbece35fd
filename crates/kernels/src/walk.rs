//! Walking several strided operands over one shape, with as few dimensions as their strides allow.

use olivine_kernel::Val;

use crate::launch::Launch;

/// A shape and the strides of several operands over it, neighbouring dimensions merged where all of them allow it and
/// dimensions of size 1 dropped. Rank 0 means one element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    pub(crate) dims: Vec<usize>,
    /// For every operand, one stride per dimension.
    pub(crate) strides: Vec<Vec<i64>>,
}

impl Walk {
    pub(crate) fn new(dims: &[usize], strides: &[Vec<i64>]) -> Self {
        let mut walk = Walk { dims: Vec::new(), strides: vec![Vec::new(); strides.len()] };
        for (d, size) in dims.iter().enumerate().filter(|(_, size)| **size != 1) {
            let merges = !walk.dims.is_empty()
                && strides
                    .iter()
                    .zip(&walk.strides)
                    .all(|(of, kept)| kept.last().is_some_and(|outer| *outer == of[d] * *size as i64));
            if let (true, Some(last)) = (merges, walk.dims.last_mut()) {
                *last *= size;
                for (kept, of) in walk.strides.iter_mut().zip(strides) {
                    if let Some(stride) = kept.last_mut() {
                        *stride = of[d];
                    }
                }
            } else {
                walk.dims.push(*size);
                for (kept, of) in walk.strides.iter_mut().zip(strides) {
                    kept.push(of[d]);
                }
            }
        }
        walk
    }

    /// Elements.
    pub(crate) fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// An operand's stride in the innermost dimension; 0 for a single element.
    pub(crate) fn inner(&self, operand: usize) -> i64 {
        self.strides[operand].last().copied().unwrap_or(0)
    }

    /// Declares sizes and strides as run-time numbers; strides of 0 and 1 are baked in. `offsets` are added to the
    /// operands' indices.
    pub(crate) fn declare<'k>(&self, l: &Launch<'k>, offsets: &[usize]) -> Walker<'k> {
        let k = l.k();
        let rank = self.dims.len();
        let dims = (1..rank).map(|d| l.size(&format!("d{d}"), self.dims[d])).collect();
        let strides = self
            .strides
            .iter()
            .enumerate()
            .map(|(o, of)| {
                let stride = |(d, s): (usize, &i64)| match *s {
                    0 => k.u32(0),
                    1 => k.u32(1),
                    s => l.stride(&format!("s{o}_{d}"), s),
                };
                of.iter().enumerate().map(stride).collect()
            })
            .collect();
        let offsets = offsets
            .iter()
            .enumerate()
            .map(|(o, offset)| if *offset == 0 { k.u32(0) } else { l.size(&format!("o{o}"), *offset) })
            .collect();
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
        assert_eq!((walk.dims, walk.strides), (vec![6, 4], vec![vec![4, 1], vec![0, 1]]));
        assert_eq!(Walk::new(&[1, 1], &[vec![7, 9]]).dims, Vec::<usize>::new());
    }

    #[test]
    fn a_reversed_dimension_merges_only_with_its_like() {
        let walk = Walk::new(&[2, 3], &[vec![-3, -1]]);
        assert_eq!((walk.dims, walk.strides), (vec![6], vec![vec![-1]]));
        assert_eq!(Walk::new(&[2, 3], &[vec![3, -1]]).dims, [2, 3]);
    }
}
