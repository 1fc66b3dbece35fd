//! Devices, densities with gradients written by hand, and a leapfrog integrator on the host.
#![allow(dead_code, reason = "not every test uses everything")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use olivine::internals::SessionExt as _;
use olivine::{PipelineCache, Session, SessionOptions};
use olivine_chain::{DType, Data, Density, Leapfrog, Trajectories};

pub(crate) fn open(device: &str) -> Session {
    let options = SessionOptions::new().pipeline_cache(PipelineCache::Off);
    Session::with_options(device.parse().unwrap(), options)
        .expect("a device; `apt-get install mesa-vulkan-drivers`")
}

/// What chains run on; f64 where the device has it.
pub(crate) fn devices() -> Vec<(Session, DType)> {
    let mut all = Vec::new();
    for name in ["cpu", "vulkan", "wgpu"] {
        let session = open(name);
        if session.caps().is_none_or(|caps| caps.target.f64) {
            all.push((session.clone(), DType::F64));
        }
        all.push((session, DType::F32));
    }
    assert!(all.iter().filter(|(_, dtype)| *dtype == DType::F64).count() >= 2);
    all
}

/// Numbers between −1 and 1 that look random.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

type Evaluate = Box<dyn Fn(&[f64]) -> (f64, Vec<f64>)>;

/// A density in the text form, its data, and the same by hand.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    pub(crate) data: Data,
    pub(crate) d: usize,
    pub(crate) by_hand: Evaluate,
}

impl Model {
    pub(crate) fn density(&self) -> Density {
        self.text.parse().unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    pub(crate) fn start(&self) -> (Vec<f64>, Vec<f64>) {
        let q = noise(3, self.d).iter().map(|x| 0.3 * x).collect();
        (q, noise(4, self.d))
    }

    pub(crate) fn leapfrog(&self, step_size: f64, steps: usize) -> Leapfrog {
        let inverse_mass = noise(5, self.d).iter().map(|x| 1.0 + 0.5 * x).collect();
        Leapfrog { step_size, inverse_mass, steps }
    }
}

pub(crate) const MIXTURE: &str = "
    let w = logsumexp(q[6], q[7], 0);
    let a = (y - q[0]) / exp(q[3]);
    let b = (y - q[1]) / exp(q[4]);
    let c = (y - q[2]) / exp(q[5]);
    sum_obs(logsumexp(q[6] - w - q[3] - 0.5 * a^2, q[7] - w - q[4] - 0.5 * b^2, -w - q[5] - 0.5 * c^2))
      - 0.5 * sum_coord(q^2)";

/// A mixture of three normal distributions: means, logarithms of scales, and two logits of weights.
pub(crate) fn mixture(n_obs: usize) -> Model {
    let y: Vec<f64> = noise(1, n_obs).iter().map(|x| 3.0 * x).collect();
    let data = Data::new(y.clone());
    let by_hand = move |q: &[f64]| {
        let logits = [q[6], q[7], 0.0];
        let most = logits.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = logits.iter().map(|l| (l - most).exp()).sum();
        let log_weights = logits.map(|l| l - most - total.ln());
        let (mut value, mut gradient) = (0.0, vec![0.0; 8]);
        for y in &y {
            let z = [0, 1, 2].map(|k| (y - q[k]) / q[3 + k].exp());
            let parts = [0, 1, 2].map(|k| log_weights[k] - q[3 + k] - 0.5 * z[k] * z[k]);
            let most = parts.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = parts.iter().map(|p| (p - most).exp()).sum();
            value += most + total.ln();
            for k in 0..3 {
                let share = (parts[k] - most).exp() / total;
                gradient[k] += share * z[k] / q[3 + k].exp();
                gradient[3 + k] += share * (z[k] * z[k] - 1.0);
                if k < 2 {
                    gradient[6 + k] += share - log_weights[k].exp();
                }
            }
        }
        for c in 0..8 {
            value -= 0.5 * q[c] * q[c];
            gradient[c] -= q[c];
        }
        (value, gradient)
    };
    Model { name: "mixture", text: MIXTURE, data, d: 8, by_hand: Box::new(by_hand) }
}

/// Logistic regression.
pub(crate) fn logistic(n_obs: usize, d: usize) -> Model {
    let x: Vec<f64> = noise(11, n_obs * d);
    let y: Vec<f64> = noise(12, n_obs).iter().map(|x| f64::from(u8::from(*x > 0.0))).collect();
    let data = Data::new(y.clone()).with("X", x.clone());
    let by_hand = move |q: &[f64]| {
        let (mut value, mut gradient) = (0.0, vec![0.0; q.len()]);
        for (n, y) in y.iter().enumerate() {
            let row = &x[n * q.len()..(n + 1) * q.len()];
            let eta: f64 = row.iter().zip(q).map(|(x, q)| x * q).sum();
            value += y * eta - (eta.max(0.0) + (-eta.abs()).exp().ln_1p());
            let residual = y - 1.0 / (1.0 + (-eta).exp());
            gradient.iter_mut().zip(row).for_each(|(g, x)| *g += residual * x);
        }
        for (g, q) in gradient.iter_mut().zip(q) {
            value -= 0.5 * q * q;
            *g -= q;
        }
        (value, gradient)
    };
    let text = "matrix X; let eta = sum_coord(X * q);
        sum_obs(y * eta - softplus(eta)) - 0.5 * sum_coord(q^2)";
    Model { name: "logistic", text, data, d, by_hand: Box::new(by_hand) }
}

/// Means of groups around a common one, which is the last coordinate, with a scale for each observation.
pub(crate) fn hierarchical(n_obs: usize, d: usize) -> Model {
    let y = noise(21, n_obs);
    let group: Vec<u32> = (0..n_obs).map(|n| (n * 7 % (d - 1)) as u32).collect();
    let scale: Vec<f64> = noise(22, n_obs).iter().map(|x| 1.5 + x).collect();
    let prior = noise(23, d);
    let data = Data::new(y.clone())
        .with_index("g", group.clone())
        .with("scale", scale.clone())
        .with("prior", prior.clone())
        .with("tau", vec![0.7]);
    let by_hand = move |q: &[f64]| {
        let (mut value, mut gradient) = (0.0, vec![0.0; q.len()]);
        let common = q[0];
        for n in 0..y.len() {
            let z = (y[n] - q[group[n] as usize]) / scale[n];
            value -= 0.5 * z * z;
            gradient[group[n] as usize] += z / scale[n];
        }
        for c in 0..q.len() {
            let z = (q[c] - common - prior[c]) / 0.7;
            value -= 0.5 * z * z;
            gradient[c] -= z / 0.7;
            gradient[0] += z / 0.7;
        }
        (value, gradient)
    };
    let text = "index g; column scale; vector prior; scalar tau;
        sum_obs(-0.5 * ((y - q[g]) / scale)^2) - sum_coord(0.5 * ((q - q[0] - prior) / tau)^2)";
    Model { name: "hierarchical", text, data, d, by_hand: Box::new(by_hand) }
}

/// A function of a sum over observations, and terms that need another: two passes.
pub(crate) fn nested(n_obs: usize) -> Model {
    let y = noise(31, n_obs);
    let data = Data::new(y.clone());
    let by_hand = move |q: &[f64]| {
        // mean = Σ y·e^{q₁·y} / Σ e^{q₁·y}; the density is −ln(1 + Σ (y − q₀ − mean)²) − ½ |q|².
        let weights: Vec<f64> = y.iter().map(|y| (q[1] * y).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mean: f64 = y.iter().zip(&weights).map(|(y, w)| y * w).sum::<f64>() / total;
        let second: f64 = y.iter().zip(&weights).map(|(y, w)| y * y * w).sum::<f64>() / total;
        let rest: f64 = y.iter().map(|y| y - q[0] - mean).sum();
        let squares: f64 = y.iter().map(|y| (y - q[0] - mean).powi(2)).sum();
        let value = -squares.ln_1p() - 0.5 * (q[0] * q[0] + q[1] * q[1]);
        let outer = 2.0 * rest / (1.0 + squares);
        (value, vec![outer - q[0], outer * (second - mean * mean) - q[1]])
    };
    let text = "let w = exp(q[1] * y);
        let mean = sum_obs(y * w) / sum_obs(w);
        -log1p(sum_obs((y - q[0] - mean)^2)) - 0.5 * sum_coord(q^2)";
    Model { name: "nested", text, data, d: 2, by_hand: Box::new(by_hand) }
}

/// A normal distribution of many coordinates with different scales, tied by a softmax.
pub(crate) fn coordinates(d: usize) -> Model {
    let scale: Vec<f64> = noise(41, d).iter().map(|x| 1.5 + x).collect();
    let data = Data::default().with("scale", scale.clone());
    let by_hand = move |q: &[f64]| {
        let total: f64 = q.iter().map(|q| q.exp()).sum();
        let (mut value, mut gradient) = (-total.ln(), vec![0.0; q.len()]);
        for c in 0..q.len() {
            value -= 0.5 * (q[c] / scale[c]).powi(2);
            gradient[c] = -q[c] / scale[c].powi(2) - q[c].exp() / total;
        }
        (value, gradient)
    };
    let text = "vector scale; sum_coord(-0.5 * (q / scale)^2) - log(sum_coord(exp(q)))";
    Model { name: "coordinates", text, data, d, by_hand: Box::new(by_hand) }
}

/// The reference: velocity Verlet in f64.
pub(crate) fn reference(
    evaluate: impl Fn(&[f64]) -> (f64, Vec<f64>),
    leapfrog: &Leapfrog,
    q: &[f64],
    p: &[f64],
) -> Trajectories {
    let (mut q, mut p, d) = (q.to_vec(), p.to_vec(), q.len());
    let mut run = Trajectories { chains: 1, steps: leapfrog.steps, d, ..Trajectories::default() };
    let mut gradient = evaluate(&q).1;
    for _ in 0..leapfrog.steps {
        for c in 0..d {
            p[c] += 0.5 * leapfrog.step_size * gradient[c];
            q[c] += leapfrog.step_size * leapfrog.inverse_mass[c] * p[c];
        }
        let (value, next) = evaluate(&q);
        gradient = next;
        for c in 0..d {
            p[c] += 0.5 * leapfrog.step_size * gradient[c];
        }
        run.q.extend(&q);
        run.p.extend(&p);
        run.gradient.extend(&gradient);
        run.density.push(value);
    }
    run
}

/// The largest difference, relative to the largest number.
pub(crate) fn error(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let scale = theirs.iter().fold(0f64, |most, x| most.max(x.abs())).max(1e-300);
    let worst = ours
        .iter()
        .zip(theirs)
        .map(|(a, b)| (a - b).abs())
        .fold(0f64, |most, e| if e.is_nan() { f64::NAN } else { most.max(e) });
    worst / scale
}

/// The largest error of all results.
pub(crate) fn errors(ours: &Trajectories, theirs: &Trajectories) -> f64 {
    let parts = [
        error(&ours.q, &theirs.q),
        error(&ours.p, &theirs.p),
        error(&ours.gradient, &theirs.gradient),
        error(&ours.density, &theirs.density),
    ];
    assert!(parts.iter().all(|e| e.is_finite()), "{parts:?}");
    parts.into_iter().fold(0.0, f64::max)
}
