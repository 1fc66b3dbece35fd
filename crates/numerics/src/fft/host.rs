//! The transform on a processor: Stockham stages of small radices over several lines side by side.

use super::{Complex, LARGEST_PRIME, chirp, convolution_length, is_smooth, radices, root};

/// The largest radix of a stage on a processor; beyond, its numbers no longer stay in registers.
const MOST: usize = LARGEST_PRIME;

/// The arithmetic of a transform: f32 or f64.
pub trait Real:
    Copy
    + Default
    + Send
    + Sync
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Neg<Output = Self>
{
    /// The nearest number.
    fn of(x: f64) -> Self;
}

impl Real for f32 {
    fn of(x: f64) -> Self {
        x as f32
    }
}

impl Real for f64 {
    fn of(x: f64) -> Self {
        x
    }
}

/// Complex numbers with real and imaginary parts apart: point by point, and of each point the lines side by side.
#[derive(Clone, Debug, Default)]
pub struct Line<T> {
    /// Real parts.
    pub re: Vec<T>,
    /// Imaginary parts.
    pub im: Vec<T>,
}

impl<T: Real> Line<T> {
    /// Makes room for so many numbers, all zero.
    pub fn clear(&mut self, len: usize) {
        for part in [&mut self.re, &mut self.im] {
            part.clear();
            part.resize(len, T::default());
        }
    }

    fn swap_parts(&mut self) {
        std::mem::swap(&mut self.re, &mut self.im);
    }
}

/// A forward transform of one length, with its tables.
#[derive(Clone, Debug)]
pub struct Plan<T> {
    n: usize,
    way: Way<T>,
}

#[derive(Clone, Debug)]
enum Way<T> {
    Stages(Vec<Stage<T>>),
    Chirp { chirp: Vec<(T, T)>, filter: Vec<(T, T)>, convolution: Box<Plan<T>> },
}

/// One stage: butterflies of `radix` points whose inputs are a `radix`-th of the remaining length apart.
#[derive(Clone, Debug)]
struct Stage<T> {
    radix: usize,
    /// The remaining length divided by the radix.
    rest: usize,
    /// `e^(−2πi·p·q/(radix·rest))` for every p below `rest` and q from 1 below `radix`.
    roots: Vec<(T, T)>,
    /// `e^(−2πi·q/radix)` for every q.
    own: Vec<(T, T)>,
}

fn rounded<T: Real>((re, im): Complex) -> (T, T) {
    (T::of(re), T::of(im))
}

impl<T: Real> Plan<T> {
    /// Prepares a length of at least 1; `None` if its convolution's length overflows.
    pub fn new(n: usize) -> Option<Self> {
        if let Some(radices) = is_smooth(n).then(|| radices(n, MOST)).flatten() {
            let mut rest = n;
            let stages = radices.into_iter().map(|radix| {
                rest /= radix;
                let len = radix * rest;
                let roots = (0..rest).flat_map(|p| (1..radix).map(move |q| rounded(root(p * q, len))));
                let own = (0..radix).map(|q| rounded(root(q, radix)));
                Stage { radix, rest, roots: roots.collect(), own: own.collect() }
            });
            return Some(Plan { n, way: Way::Stages(stages.collect()) });
        }
        let filter = convolution_filter(n)?.into_iter().map(rounded).collect::<Vec<_>>();
        let convolution = Box::new(Plan::new(filter.len())?);
        let chirp = chirp(n).into_iter().map(rounded).collect();
        Some(Plan { n, way: Way::Chirp { chirp, filter, convolution } })
    }

    /// The length.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Never: a transform has at least one point.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Transforms `lanes` lines in place; `x` and `spare` hold n·lanes numbers each (`spare` is resized as needed).
    pub fn run(&self, x: &mut Line<T>, spare: &mut Line<T>, lanes: usize) {
        match &self.way {
            Way::Stages(stages) => {
                spare.clear(self.n * lanes);
                let mut stride = lanes;
                for stage in stages {
                    stage.run(x, spare, stride);
                    std::mem::swap(x, spare);
                    stride *= stage.radix;
                }
            }
            Way::Chirp { chirp, filter, convolution } => {
                let mut wide = Line::default();
                wide.clear(filter.len() * lanes);
                for (j, c) in chirp.iter().enumerate() {
                    for at in j * lanes..(j + 1) * lanes {
                        (wide.re[at], wide.im[at]) = times((x.re[at], x.im[at]), *c);
                    }
                }
                convolution.run(&mut wide, spare, lanes);
                for (k, f) in filter.iter().enumerate() {
                    for at in k * lanes..(k + 1) * lanes {
                        (wide.re[at], wide.im[at]) = times((wide.re[at], wide.im[at]), *f);
                    }
                }
                // With its parts swapped before and after, a forward transform is the inverse one.
                wide.swap_parts();
                convolution.run(&mut wide, spare, lanes);
                wide.swap_parts();
                for (k, c) in chirp.iter().enumerate() {
                    for at in k * lanes..(k + 1) * lanes {
                        (x.re[at], x.im[at]) = times((wide.re[at], wide.im[at]), *c);
                    }
                }
            }
        }
    }
}

/// The transform of Bluestein's filter `e^(πi·j²/n)`, divided by the convolution's length, in f64.
pub fn convolution_filter(n: usize) -> Option<Vec<Complex>> {
    let m = convolution_length(n)?;
    let mut line = Line::<f64>::default();
    line.clear(m);
    for (j, (re, im)) in chirp(n).into_iter().enumerate() {
        for at in [j, (m - j) % m] {
            (line.re[at], line.im[at]) = (re / m as f64, -im / m as f64);
        }
    }
    Plan::<f64>::new(m)?.run(&mut line, &mut Line::default(), 1);
    Some(line.re.into_iter().zip(line.im).collect())
}

fn times<T: Real>(a: (T, T), b: (T, T)) -> (T, T) {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

impl<T: Real> Stage<T> {
    /// `to[s·(r·p + q)] = root(p·q) · Σ from[s·(p + i·rest)]·own(i·q)` for `s` numbers side by side.
    fn run(&self, from: &Line<T>, to: &mut Line<T>, stride: usize) {
        match self.radix {
            1 => {
                to.re.copy_from_slice(&from.re);
                to.im.copy_from_slice(&from.im);
            }
            2 => self.fixed::<2>(from, to, stride, |x| [plus(x[0], x[1]), minus(x[0], x[1])]),
            4 => self.fixed::<4>(from, to, stride, dft4),
            8 => self.fixed::<8>(from, to, stride, dft8),
            3 => self.fixed::<3>(from, to, stride, |x| self.odd(x)),
            5 => self.fixed::<5>(from, to, stride, |x| self.odd(x)),
            7 => self.fixed::<7>(from, to, stride, |x| self.odd(x)),
            9 => self.fixed::<9>(from, to, stride, |x| self.odd(x)),
            11 => self.fixed::<11>(from, to, stride, |x| self.odd(x)),
            13 => self.fixed::<13>(from, to, stride, |x| self.odd(x)),
            6 => self.fixed::<6>(from, to, stride, |x| self.direct(x)),
            10 => self.fixed::<10>(from, to, stride, |x| self.direct(x)),
            _ => self.fixed::<12>(from, to, stride, |x| self.direct(x)),
        }
    }

    fn fixed<const R: usize>(
        &self,
        from: &Line<T>,
        to: &mut Line<T>,
        stride: usize,
        butterfly: impl Fn([(T, T); R]) -> [(T, T); R],
    ) {
        for p in 0..self.rest {
            let roots = &self.roots[p * (R - 1)..(p + 1) * (R - 1)];
            let source: [(&[T], &[T]); R] = std::array::from_fn(|i| {
                let at = stride * (p + i * self.rest);
                (&from.re[at..at + stride], &from.im[at..at + stride])
            });
            let out = stride * R * p..stride * R * (p + 1);
            let (re, im) = (&mut to.re[out.clone()], &mut to.im[out]);
            for s in 0..stride {
                let y = butterfly(std::array::from_fn(|i| (source[i].0[s], source[i].1[s])));
                for (q, y) in y.into_iter().enumerate() {
                    let y = if q == 0 { y } else { times(y, roots[q - 1]) };
                    (re[q * stride + s], im[q * stride + s]) = y;
                }
            }
        }
    }

    /// An odd number of points: sums and differences of those that mirror each other share their products.
    fn odd<const R: usize>(&self, x: [(T, T); R]) -> [(T, T); R] {
        let mut y = [(T::default(), T::default()); R];
        let half = R / 2;
        y[0] = (1..R).fold(x[0], |sum, i| plus(sum, x[i]));
        for q in 1..=half {
            let (mut even, mut odd) = (x[0], (T::default(), T::default()));
            for i in 1..=half {
                let (c, s) = self.own[i * q % R];
                let (sum, difference) = (plus(x[i], x[R - i]), minus(x[i], x[R - i]));
                even = (even.0 + c * sum.0, even.1 + c * sum.1);
                // −s is the sine; i·(a + bi) = −b + ai.
                odd = (odd.0 - s * difference.1, odd.1 + s * difference.0);
            }
            y[q] = plus(even, odd);
            y[R - q] = minus(even, odd);
        }
        y
    }

    fn direct<const R: usize>(&self, x: [(T, T); R]) -> [(T, T); R] {
        std::array::from_fn(|q| (1..R).fold(x[0], |sum, i| plus(sum, times(x[i], self.own[i * q % R]))))
    }
}

fn plus<T: Real>(a: (T, T), b: (T, T)) -> (T, T) {
    (a.0 + b.0, a.1 + b.1)
}

fn minus<T: Real>(a: (T, T), b: (T, T)) -> (T, T) {
    (a.0 - b.0, a.1 - b.1)
}

/// Times −i.
fn turned<T: Real>(a: (T, T)) -> (T, T) {
    (a.1, -a.0)
}

fn dft4<T: Real>(x: [(T, T); 4]) -> [(T, T); 4] {
    let (a, b) = (plus(x[0], x[2]), minus(x[0], x[2]));
    let (c, d) = (plus(x[1], x[3]), turned(minus(x[1], x[3])));
    [plus(a, c), plus(b, d), minus(a, c), minus(b, d)]
}

fn dft8<T: Real>(x: [(T, T); 8]) -> [(T, T); 8] {
    let even = dft4([x[0], x[2], x[4], x[6]]);
    let odd = dft4([x[1], x[3], x[5], x[7]]);
    let half = T::of(std::f64::consts::FRAC_1_SQRT_2);
    let turned_odd = [
        odd[0],
        (half * (odd[1].0 + odd[1].1), half * (odd[1].1 - odd[1].0)),
        turned(odd[2]),
        (half * (odd[3].1 - odd[3].0), -half * (odd[3].0 + odd[3].1)),
    ];
    std::array::from_fn(|q| {
        let (e, o) = (even[q % 4], turned_odd[q % 4]);
        if q < 4 { plus(e, o) } else { minus(e, o) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(n: usize) -> Line<f64> {
        let mut state = n as u64 + 1;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
        };
        Line { re: (0..n).map(|_| next()).collect(), im: (0..n).map(|_| next()).collect() }
    }

    fn direct(x: &Line<f64>, n: usize, lanes: usize, lane: usize) -> Vec<Complex> {
        (0..n)
            .map(|k| {
                (0..n).fold((0.0, 0.0), |sum, j| {
                    let at = j * lanes + lane;
                    plus(sum, times((x.re[at], x.im[at]), root(j * k % n, n)))
                })
            })
            .collect()
    }

    #[test]
    fn a_transform_and_its_inverse_give_the_signal_back() {
        for n in [1usize, 6, 97, 1000, 4096, 10_007] {
            let x = signal(n);
            let mut y = x.clone();
            let plan = Plan::new(n);
            assert!(plan.is_some());
            if let Some(plan) = plan {
                plan.run(&mut y, &mut Line::default(), 1);
                y.swap_parts();
                plan.run(&mut y, &mut Line::default(), 1);
                y.swap_parts();
            }
            let far = |a: &[f64], b: &[f64]| {
                a.iter().zip(b).map(|(a, b)| (a / n as f64 - b).abs()).fold(0.0, f64::max)
            };
            assert!(far(&y.re, &x.re).max(far(&y.im, &x.im)) < 1e-14, "{n}");
        }
    }

    #[test]
    fn every_short_length_agrees_with_the_sum() {
        for n in (1..=130).chain([143, 169, 210, 256, 360, 499, 512]) {
            for lanes in [1, 3] {
                let x = signal(n * lanes);
                let mut y = x.clone();
                let plan = Plan::new(n);
                assert!(plan.is_some());
                if let Some(plan) = plan {
                    plan.run(&mut y, &mut Line::default(), lanes);
                }
                for lane in 0..lanes {
                    for (k, want) in direct(&x, n, lanes, lane).into_iter().enumerate() {
                        let at = k * lanes + lane;
                        let far = (y.re[at] - want.0).abs().max((y.im[at] - want.1).abs());
                        assert!(far < 1e-13 * (n as f64).sqrt().max(4.0), "n {n} lane {lane} k {k}: {far:e}");
                    }
                }
            }
        }
    }
}
