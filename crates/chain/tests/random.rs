//! Random expressions: gradients against differences, GPUs against the CPU, and damaged texts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use common::{MIXTURE, errors, noise, open};
use olivine_chain::{
    Axis, Builder, Chain, DType, Data, Density, Expr, Function, Leapfrog, Operator, Reduction,
};

const N_OBS: usize = 70;
const D: usize = 5;

/// Whole numbers below a limit.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }
}

fn data() -> Data {
    Data::new(noise(1, N_OBS))
        .with("X", noise(2, N_OBS * D))
        .with("v", noise(3, D))
        .with("x", noise(4, N_OBS))
        .with("s", vec![0.6])
        .with_index("g", (0..N_OBS as u32).map(|n| n * 3 % D as u32).collect())
}

/// A smooth expression with every axis, of random parts.
fn random(seed: u64) -> Density {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let b = Builder::new();
    let q = b.position();
    let mut pool: Vec<Expr<'_>> = vec![
        q,
        q.at(0),
        q.at(3),
        q.gather("g"),
        b.obs(),
        b.matrix("X"),
        b.vector("v"),
        b.column("x"),
        b.scalar("s"),
        b.vector("v").at(2),
    ];
    let functions = [Function::Sin, Function::Tanh, Function::Sigmoid, Function::Atan, Function::Cos];
    for _ in 0..12 + dice.roll(12) {
        let (x, z) = (pool[dice.roll(pool.len())], pool[dice.roll(pool.len())]);
        let axis = if dice.roll(2) == 0 { Axis::Obs } else { Axis::Coord };
        let count = b.count(axis);
        pool.push(match dice.roll(6) {
            0 => x.apply(functions[dice.roll(functions.len())]),
            1 => x + z,
            2 => x * z,
            3 => (x - z).tanh(),
            4 => (x.reduce(Reduction::Sum, axis) / count).sin(),
            _ => x.with(Operator::Div, z.square() + 1.5),
        });
    }
    let mut total = b.number(0.0);
    for x in &pool[10..] {
        total = total + (x.tanh().sum_coord() / b.count(Axis::Coord)).sum_obs() * 0.1;
    }
    b.density(total - 0.5 * q.square().sum_coord()).unwrap()
}

#[test]
fn gradients_of_random_expressions_are_those_of_differences() {
    let data = data();
    let q = noise(9, D);
    for seed in 0..150 {
        let density = random(seed);
        let (_, gradient) = density.evaluate(&data, &q).unwrap();
        for c in 0..D {
            let at = |h: f64| {
                let mut q = q.clone();
                q[c] += h;
                density.evaluate(&data, &q).unwrap().0
            };
            let (near, far) = ((at(1e-4) - at(-1e-4)) / 2e-4, (at(2e-4) - at(-2e-4)) / 4e-4);
            let wanted = (4.0 * near - far) / 3.0;
            let error = (gradient[c] - wanted).abs();
            assert!(error <= 1e-7 * wanted.abs().max(1.0), "{seed}: {} not {wanted}\n{density}", gradient[c]);
        }
    }
}

#[test]
fn random_expressions_are_the_same_on_a_gpu() {
    let (cpu, gpu) = (open("cpu"), open("vulkan"));
    let (data, q, p) = (data(), noise(9, D), noise(10, D));
    let leapfrog = Leapfrog { step_size: 0.01, inverse_mass: vec![1.0; D], steps: 3 };
    for seed in 0..12 {
        let density = random(seed);
        let run = |session| {
            let chain = Chain::compile(session, &density, DType::F64).unwrap().bind(&data, D).unwrap();
            chain.run(&leapfrog, &q, &p).unwrap()
        };
        let error = errors(&run(&gpu), &run(&cpu));
        assert!(error <= 1e-13, "{seed}: {error:e}\n{density}");
    }
}

#[test]
fn damaged_texts_are_read_or_refused() {
    let whole = format!("index g; matrix X; scalar s; {} + sum_obs(q[g] * sum_coord(X)) * s", MIXTURE.trim());
    let mut dice = Dice(77);
    let words = ["(", ")", "[", "]", "+", "-", "^", ";", "let", "q", "1e", "=", "sum_obs(", "é", "\n", "."];
    let mut read = 0;
    for _ in 0..20_000 {
        let mut text: Vec<char> = whole.chars().collect();
        for _ in 0..1 + dice.roll(3) {
            let at = dice.roll(text.len().max(1));
            match dice.roll(3) {
                0 if text.is_empty() => {}
                0 => drop(text.remove(at)),
                1 => text.truncate(at.max(1)),
                _ => drop(text.splice(at..at, words[dice.roll(words.len())].chars())),
            }
        }
        let text: String = text.into_iter().collect();
        if let Ok(density) = text.parse::<Density>() {
            read += 1;
            assert!(density.size() > 0);
        }
    }
    assert!(read > 0 && read < 20_000);
}
