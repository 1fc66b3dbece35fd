//! The leapfrog integrator on the CPU.

use std::sync::Mutex;

use super::evaluate::Evaluator;
use super::program::Program;
use super::real::Real;

/// Where chains begin, as the device gets it.
///
/// ```text
///   step size ─ inverse masses: d ─ of each chain: position: d ─ momentum: d
/// ```
pub(crate) struct Start<'a, T> {
    pub(crate) start: &'a [T],
    pub(crate) numbers: &'a [T],
    pub(crate) indices: &'a [u32],
    /// Steps of each chain.
    pub(crate) steps: usize,
}

/// Results of chains, one after another: positions, momenta and gradients, `steps` · d each, and densities.
pub(crate) struct Chains<'a, T> {
    pub(crate) q: &'a mut [T],
    pub(crate) p: &'a mut [T],
    pub(crate) gradient: &'a mut [T],
    pub(crate) density: &'a mut [T],
}

/// Runs all chains: several in parallel, or the observations of one.
pub(crate) fn run<T: Real>(program: &Program, start: &Start<'_, T>, results: Chains<'_, T>) {
    let (d, steps) = (program.layout.d, start.steps);
    let rows = (d * steps).max(1);
    let Some((step, rest)) = start.start.split_first() else { return };
    let Some((inverse_mass, states)) = rest.split_at_checked(d) else { return };
    let chains: Vec<Mutex<(Chains<'_, T>, &[T])>> = results
        .q
        .chunks_mut(rows)
        .zip(results.p.chunks_mut(rows))
        .zip(results.gradient.chunks_mut(rows))
        .zip(results.density.chunks_mut(steps.max(1)))
        .zip(states.chunks(2 * d))
        .map(|((((q, p), gradient), density), state)| Mutex::new((Chains { q, p, gradient, density }, state)))
        .collect();
    let several = chains.len() > 1;
    olivine_cpu::share(chains.len(), &|i| {
        if let Ok(mut chain) = chains[i].lock() {
            let (results, state) = &mut *chain;
            let evaluator = Evaluator::new(program, start.numbers, start.indices, !several);
            one(evaluator, *step, inverse_mass, state, results);
        }
    });
}

/// One chain: an evaluation at the beginning and one for each step.
fn one<T: Real>(
    mut evaluator: Evaluator<'_, T>,
    step: T,
    inverse_mass: &[T],
    state: &[T],
    results: &mut Chains<'_, T>,
) {
    let d = inverse_mass.len();
    let mul = |a: T, b: T| T::binary(crate::expr::Operator::Mul, a, b);
    let add = |a: T, b: T| T::binary(crate::expr::Operator::Add, a, b);
    let half = mul(step, T::from_f64(0.5));
    let (mut q, mut p) = (state[..d].to_vec(), state[d..2 * d].to_vec());
    evaluator.evaluate(&q);
    for k in 0..results.density.len() {
        for c in 0..d {
            p[c] = add(p[c], mul(half, evaluator.gradient[c]));
            q[c] = add(q[c], mul(step, mul(inverse_mass[c], p[c])));
        }
        results.density[k] = evaluator.evaluate(&q);
        for c in 0..d {
            p[c] = add(p[c], mul(half, evaluator.gradient[c]));
        }
        let row = k * d..(k + 1) * d;
        results.q[row.clone()].copy_from_slice(&q);
        results.p[row.clone()].copy_from_slice(&p);
        results.gradient[row].copy_from_slice(&evaluator.gradient);
    }
}

/// The density and its gradient at one position.
pub(crate) fn evaluate(program: &Program, numbers: &[f64], indices: &[u32], q: &[f64]) -> (f64, Vec<f64>) {
    let mut evaluator = Evaluator::new(program, numbers, indices, false);
    let density = evaluator.evaluate(q);
    (density, evaluator.gradient)
}
