//! Roots of unity with phases reduced in whole numbers.

/// A complex number in f64: real and imaginary part.
pub type Complex = (f64, f64);

/// `e^(−2πi·k/n)`, each part within a rounding or two of the exact one. n must not be 0.
pub fn root(k: usize, n: usize) -> Complex {
    let n = n.max(1) as u128;
    let k = k as u128 % n;
    // The angle is brought into an eighth of a turn, where sine and cosine lose nothing.
    let eighth = (8 * k + n / 2) / n;
    let twice = 2 * (8 * k) as i128 - 2 * (eighth * n) as i128;
    // `twice` is 16·(angle/turn·n) away from a multiple of an eighth of a turn, at most n either way.
    let rest = twice as f64 / n as f64 * (std::f64::consts::PI / 8.0);
    let (sin, cos) = rest.sin_cos();
    let half = std::f64::consts::FRAC_1_SQRT_2;
    let (c, s) = match eighth % 8 {
        0 => (cos, sin),
        1 => ((cos - sin) * half, (cos + sin) * half),
        2 => (-sin, cos),
        3 => (-(cos + sin) * half, (cos - sin) * half),
        4 => (-cos, -sin),
        5 => ((sin - cos) * half, -(cos + sin) * half),
        6 => (sin, -cos),
        _ => ((cos + sin) * half, (sin - cos) * half),
    };
    (c, -s)
}

/// Bluestein's chirp: `e^(−πi·j²/n)` for every j below n.
pub fn chirp(n: usize) -> Vec<Complex> {
    let turn = 2 * n as u128;
    (0..n as u128).map(|j| root((j * j % turn.max(1)) as usize, 2 * n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_exact_on_the_axes_and_of_length_one() {
        assert_eq!(root(0, 12), (1.0, 0.0));
        assert_eq!(root(3, 12), (0.0, -1.0));
        assert_eq!(root(6, 12), (-1.0, 0.0));
        assert_eq!(root(21, 12), (0.0, 1.0));
        for n in [1usize, 2, 3, 7, 8, 12, 1000, 65537] {
            for k in (0..n).step_by(1 + n / 50) {
                let (re, im) = root(k, n);
                let angle = -std::f64::consts::TAU * k as f64 / n as f64;
                assert!((re - angle.cos()).abs() < 1e-15 && (im - angle.sin()).abs() < 1e-15, "{k}/{n}");
            }
        }
    }

    #[test]
    fn a_chirp_keeps_its_phase_where_squares_are_large() {
        let n = 1_000_003;
        let c = chirp(n);
        // j and n − j: (n − j)² ≡ j² + n·(n − 2j) (mod 2n), half a turn apart as n is odd.
        for j in [1usize, 500, 77_777, 499_999] {
            let ((a, b), (re, im)) = (c[j], c[n - j]);
            assert!((a + re).abs() < 1e-15 && (b + im).abs() < 1e-15);
        }
    }
}
