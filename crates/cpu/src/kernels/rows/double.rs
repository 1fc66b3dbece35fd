//! Rows of f64.

use super::wide::{Moments, Wide};

fn max_of(x: &[f64]) -> f64 {
    x.iter().fold(f64::NEG_INFINITY, |m, x| if *x > m { *x } else { m })
}

fn scaled(x: &[f64], m: Moments<f64>, gamma: &[f64], beta: Option<&[f64]>, out: &mut [f64]) {
    for (i, (o, x)) in out.iter_mut().zip(x).enumerate() {
        *o = ((x - m.shift) * m.scale + m.offset) * gamma[i] + beta.map_or(0.0, |b| b[i]);
    }
}

impl Wide for f64 {
    const LOWEST: f64 = f64::NEG_INFINITY;

    fn softmax(x: &[f64], out: &mut [f64]) {
        let max = max_of(x);
        let mut sum = 0.0;
        for (o, x) in out.iter_mut().zip(x) {
            *o = (x - max).exp();
            sum += *o;
        }
        out.iter_mut().for_each(|o| *o /= sum);
    }

    fn log_softmax(x: &[f64], out: &mut [f64]) {
        let max = max_of(x);
        let log = x.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
        for (o, x) in out.iter_mut().zip(x) {
            *o = (x - max) - log;
        }
    }

    fn short_softmax(x: &[f64], out: &mut [f64], row: usize, log: bool) {
        for (x, out) in x.chunks_exact(row).zip(out.chunks_exact_mut(row)) {
            if log { Self::log_softmax(x, out) } else { Self::softmax(x, out) }
        }
    }

    fn layer_norm(x: &[f64], gamma: &[f64], beta: Option<&[f64]>, eps: f64, out: &mut [f64]) {
        scaled(x, Self::moments(x, eps), gamma, beta, out);
    }

    fn rms_norm(x: &[f64], gamma: &[f64], beta: Option<&[f64]>, eps: f64, out: &mut [f64]) {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let moments = Moments { shift: 0.0, scale: (mean + eps).sqrt().recip(), offset: 0.0 };
        scaled(x, moments, gamma, beta, out);
    }

    fn moments(x: &[f64], eps: f64) -> Moments<f64> {
        let n = x.len() as f64;
        let shift = x.iter().sum::<f64>() / n;
        let rest = x.iter().map(|v| v - shift).sum::<f64>() / n;
        let variance = x.iter().map(|v| (v - shift - rest).powi(2)).sum::<f64>() / n;
        let scale = (variance + eps).sqrt().recip();
        Moments { shift, scale, offset: -rest * scale }
    }

    fn affine(x: &[f64], m: Moments<f64>, gamma: f64, beta: f64, out: &mut [f64]) {
        for (o, x) in out.iter_mut().zip(x) {
            *o = ((x - m.shift) * m.scale + m.offset) * gamma + beta;
        }
    }

    fn raise(max: &mut [f64], x: &[f64]) {
        for (m, x) in max.iter_mut().zip(x) {
            *m = if *x > *m { *x } else { *m };
        }
    }

    fn add_weights(sum: &mut [f64], x: &[f64], max: &[f64]) {
        for ((s, x), m) in sum.iter_mut().zip(x).zip(max) {
            *s += (x - m).exp();
        }
    }

    fn weights(x: &[f64], max: &[f64], sum: &[f64], log: bool, out: &mut [f64]) {
        for (((o, x), m), s) in out.iter_mut().zip(x).zip(max).zip(sum) {
            *o = if log { (x - m) - s.ln() } else { (x - m).exp() / s };
        }
    }
}
