//! A small random source whose cases can be told by one number.

use olivine_ir::DType;

/// SplitMix64.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if there is none.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % (n as u64).max(1)) as usize
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high + 1 - low)
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// A permutation of `0..n`.
    pub(crate) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut out: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            out.swap(i, self.below(i + 1));
        }
        out
    }

    /// Some of `0..n`, in any order.
    pub(crate) fn subset(&mut self, n: usize) -> Vec<usize> {
        let mut out = self.permutation(n);
        out.truncate(self.below(n + 1));
        out
    }

    /// A size, sometimes zero.
    pub(crate) fn size(&mut self) -> usize {
        if self.chance(6) { 0 } else { self.within(1, 4) }
    }

    pub(crate) fn sizes(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| self.size()).collect()
    }

    /// Sizes without zeros.
    pub(crate) fn full_sizes(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| self.within(1, 4)).collect()
    }

    /// Sizes of any rank from `low` to `high`.
    pub(crate) fn shape(&mut self, low: usize, high: usize) -> Vec<usize> {
        let rank = self.within(low, high);
        self.sizes(rank)
    }

    /// Sizes that broadcast to the given ones.
    pub(crate) fn broadcast_to(&mut self, dims: &[usize]) -> Vec<usize> {
        let lead = if self.chance(30) { self.below(dims.len() + 1) } else { 0 };
        dims[lead..].iter().map(|d| if self.chance(25) { 1 } else { *d }).collect()
    }

    pub(crate) fn dtype(&mut self) -> DType {
        self.pick(&DType::ALL)
    }

    pub(crate) fn float(&mut self) -> DType {
        self.pick(&[DType::F32, DType::F16, DType::BF16, DType::F64])
    }

    pub(crate) fn number(&mut self) -> DType {
        self.pick(&DType::ALL[..10])
    }

    pub(crate) fn index(&mut self) -> DType {
        self.pick(&[DType::I32, DType::I64])
    }

    /// A number for an attribute.
    pub(crate) fn real(&mut self) -> f64 {
        let bits = f64::from_bits(self.next());
        self.pick(&[
            0.0,
            -0.0,
            1.0,
            -0.75,
            1e-5,
            1e300,
            5e-324,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            bits,
        ])
    }

    /// A name, plain or not.
    pub(crate) fn name(&mut self) -> String {
        let parts =
            ["x", "layer0/", "\"", "\\", "\n", "ü", "😀", " ", "#", "//", "\u{0}", "%0", "}", "\u{2028}"];
        (0..self.below(4)).map(|_| self.pick(&parts)).collect()
    }
}
