//! Transforms of a few points in registers.

use olivine_kernel::Val;
use olivine_numerics::fft::root;

/// A complex number in registers.
pub(super) type Complex<'k> = (Val<'k>, Val<'k>);

pub(super) fn plus<'k>(a: Complex<'k>, b: Complex<'k>) -> Complex<'k> {
    (a.0 + b.0, a.1 + b.1)
}

pub(super) fn minus<'k>(a: Complex<'k>, b: Complex<'k>) -> Complex<'k> {
    (a.0 - b.0, a.1 - b.1)
}

pub(super) fn times<'k>(a: Complex<'k>, b: Complex<'k>) -> Complex<'k> {
    (a.0.fma(b.0, -(a.1 * b.1)), a.0.fma(b.1, a.1 * b.0))
}

/// The parts exchanged: before and after, it turns a forward transform into the inverse one.
pub(super) fn swapped((re, im): Complex<'_>) -> Complex<'_> {
    (im, re)
}

/// Times −i.
fn turned<'k>(a: Complex<'k>) -> Complex<'k> {
    (a.1, -a.0)
}

/// Times `e^(−2πi·k/n)`, without a product where that is ±1 or ±i.
fn rotated<'k>(a: Complex<'k>, k: usize, n: usize) -> Complex<'k> {
    let k = k % n;
    match (4 * k).checked_div(n).filter(|_| (4 * k).is_multiple_of(n)) {
        Some(0) => a,
        Some(1) => turned(a),
        Some(2) => (-a.0, -a.1),
        Some(_) => (-a.1, a.0),
        None if (8 * k).is_multiple_of(n) => {
            // An odd multiple of an eighth turn.
            let half = std::f64::consts::FRAC_1_SQRT_2;
            let (sum, difference) = (a.0 + a.1, a.1 - a.0);
            match 8 * k / n {
                1 => (sum * half, difference * half),
                3 => (difference * half, sum * -half),
                5 => (sum * -half, difference * -half),
                _ => (difference * -half, sum * half),
            }
        }
        None => {
            let (c, s) = root(k, n);
            times(a, (a.0.like(c), a.0.like(s)))
        }
    }
}

/// The forward transform of `x`.
pub(super) fn transform<'k>(x: &[Complex<'k>]) -> Vec<Complex<'k>> {
    match x {
        [a] => vec![*a],
        [a, b] => vec![plus(*a, *b), minus(*a, *b)],
        [a, b, c, d] => {
            let (ac, bd) = (plus(*a, *c), plus(*b, *d));
            let (a, b) = (minus(*a, *c), turned(minus(*b, *d)));
            vec![plus(ac, bd), plus(a, b), minus(ac, bd), minus(a, b)]
        }
        _ => match factor(x.len()) {
            Some(first) => composed(x, first),
            None => prime(x),
        },
    }
}

/// The first factor of a composite number of points; squares and powers of two halve best.
fn factor(n: usize) -> Option<usize> {
    [4, 2, 3, 5, 7].into_iter().find(|p| n.is_multiple_of(*p) && n > *p)
}

/// Columns of `first` points, a turn, rows.
fn composed<'k>(x: &[Complex<'k>], first: usize) -> Vec<Complex<'k>> {
    let n = x.len();
    let second = n / first;
    let columns: Vec<Vec<Complex<'k>>> = (0..second)
        .map(|j| {
            let column: Vec<Complex<'k>> = x.iter().skip(j).step_by(second).copied().collect();
            transform(&column).into_iter().enumerate().map(|(k, y)| rotated(y, j * k, n)).collect()
        })
        .collect();
    let mut out = x.to_vec();
    for k in 0..first {
        let row: Vec<Complex<'k>> = columns.iter().map(|column| column[k]).collect();
        for (q, y) in transform(&row).into_iter().enumerate() {
            out[k + first * q] = y;
        }
    }
    out
}

/// An odd number of points: sums and differences of those that mirror each other share their products.
fn prime<'k>(x: &[Complex<'k>]) -> Vec<Complex<'k>> {
    let n = x.len();
    let sums: Vec<Complex<'k>> = (1..=n / 2).map(|i| plus(x[i], x[n - i])).collect();
    let differences: Vec<Complex<'k>> = (1..=n / 2).map(|i| minus(x[i], x[n - i])).collect();
    let mut out = x.to_vec();
    out[0] = sums.iter().fold(x[0], |all, s| plus(all, *s));
    for q in 1..=n / 2 {
        let (mut even, mut odd): (Complex<'k>, Option<Complex<'k>>) = (x[0], None);
        for (i, (sum, difference)) in sums.iter().zip(&differences).enumerate() {
            let (c, s) = root((i + 1) * q, n);
            even = (sum.0.fma(c, even.0), sum.1.fma(c, even.1));
            // i·s·(a + bi) = −s·b + s·a·i
            odd = Some(match odd {
                None => (difference.1 * -s, difference.0 * s),
                Some(odd) => (difference.1.fma(-s, odd.0), difference.0.fma(s, odd.1)),
            });
        }
        if let Some(odd) = odd {
            out[q] = plus(even, odd);
            out[n - q] = minus(even, odd);
        }
    }
    out
}
