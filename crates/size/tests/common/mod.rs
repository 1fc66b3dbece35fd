//! Random expressions, and what they are worth by plain arithmetic.
#![allow(dead_code)]

use olivine_size::{Bindings, Dim, Symbol, guards};

/// xorshift64*: the same numbers on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 33) as usize) % end
    }

    pub(crate) fn between(&mut self, min: i64, max: i64) -> i64 {
        // The low bits of one number are not random enough for small counts, so they come from a second one.
        let number = (self.next() & !0xffff_ffff) | (self.next() >> 32);
        min.wrapping_add_unsigned(number % (max.abs_diff(min) + 1))
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    DivFloor,
    DivCeil,
    Rem,
    Min,
    Max,
    NextMultiple,
}

#[derive(Clone, Debug)]
pub(crate) enum Tree {
    Number(i64),
    Symbol(usize),
    Binary(Binary, Box<Tree>, Box<Tree>),
    Abs(Box<Tree>),
    NextPowerOfTwo(Box<Tree>),
    Clamp(Box<Tree>, Box<Tree>, Box<Tree>),
}

impl Tree {
    pub(crate) fn random(random: &mut Random, symbols: usize, depth: usize) -> Tree {
        if depth == 0 || random.below(8) == 0 {
            return match random.below(3) {
                0 => Tree::Number(random.between(-9, 9)),
                _ => Tree::Symbol(random.below(symbols)),
            };
        }
        let child = |random: &mut Random| Box::new(Tree::random(random, symbols, depth - 1));
        match random.below(16) {
            14 => Tree::Abs(child(random)),
            15 if random.below(2) == 0 => Tree::NextPowerOfTwo(child(random)),
            15 => Tree::Clamp(child(random), child(random), child(random)),
            kind => {
                let left = child(random);
                let right = match kind {
                    // Sizes are mostly divided by numbers.
                    7..=11 if random.below(3) > 0 => Box::new(Tree::Number(random.between(-8, 16))),
                    _ => child(random),
                };
                let operation = match kind {
                    0 | 1 => Binary::Add,
                    2 | 3 => Binary::Sub,
                    4..=6 => Binary::Mul,
                    7 => Binary::DivFloor,
                    8 => Binary::DivCeil,
                    9 | 10 => Binary::Rem,
                    11 => Binary::NextMultiple,
                    12 => Binary::Min,
                    _ => Binary::Max,
                };
                Tree::Binary(operation, left, right)
            }
        }
    }

    /// The value by plain arithmetic; `None` where it divides by zero. `largest` becomes the largest magnitude seen.
    pub(crate) fn value(&self, symbols: &[i64], largest: &mut i128) -> Option<i128> {
        let value = match self {
            Tree::Number(value) => i128::from(*value),
            Tree::Symbol(at) => i128::from(symbols[*at]),
            Tree::Abs(a) => a.value(symbols, largest)?.abs(),
            Tree::NextPowerOfTwo(a) => {
                let a = a.value(symbols, largest)?;
                let mut power = 1;
                while power < a {
                    power *= 2;
                }
                power
            }
            Tree::Clamp(a, low, high) => {
                let (a, low) = (a.value(symbols, largest)?, low.value(symbols, largest)?);
                a.max(low).min(high.value(symbols, largest)?)
            }
            Tree::Binary(operation, a, b) => {
                let (a, b) = (a.value(symbols, largest)?, b.value(symbols, largest)?);
                match operation {
                    Binary::Add => a + b,
                    Binary::Sub => a - b,
                    Binary::Mul => a * b,
                    Binary::DivFloor => floor(a, b)?,
                    Binary::DivCeil => -floor(-a, b)?,
                    Binary::Rem => a - floor(a, b)? * b,
                    Binary::Min => a.min(b),
                    Binary::Max => a.max(b),
                    Binary::NextMultiple => -floor(-a, b)? * b,
                }
            }
        };
        *largest = (*largest).max(value.abs());
        i64::try_from(value).ok().map(i128::from)
    }

    pub(crate) fn dim(&self, symbols: &[Dim]) -> Dim {
        match self {
            Tree::Number(value) => Dim::constant(*value),
            Tree::Symbol(at) => symbols[*at],
            Tree::Abs(a) => a.dim(symbols).abs(),
            Tree::NextPowerOfTwo(a) => a.dim(symbols).next_power_of_two(),
            Tree::Clamp(a, low, high) => a.dim(symbols).clamp(low.dim(symbols), high.dim(symbols)),
            Tree::Binary(operation, a, b) => {
                let (a, b) = (a.dim(symbols), b.dim(symbols));
                match operation {
                    Binary::Add => a + b,
                    Binary::Sub => a - b,
                    Binary::Mul => a * b,
                    Binary::DivFloor => a.div_floor(b),
                    Binary::DivCeil => a.div_ceil(b),
                    Binary::Rem => a.rem_floor(b),
                    Binary::Min => a.min(b),
                    Binary::Max => a.max(b),
                    Binary::NextMultiple => a.next_multiple_of(b),
                }
            }
        }
    }
}

fn floor(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    Some(if quotient * b > a && b > 0 || quotient * b < a && b < 0 { quotient - 1 } else { quotient })
}

pub(crate) fn bindings(symbols: &[Symbol], values: &[i64]) -> Bindings {
    let mut bindings = Bindings::new();
    for (&symbol, &value) in symbols.iter().zip(values) {
        bindings.bind(symbol, value).unwrap();
    }
    bindings
}

pub(crate) fn dims(symbols: &[Symbol], values: &[i64]) -> Vec<Dim> {
    symbols.iter().zip(values).map(|(symbol, &value)| symbol.with_value(value).unwrap()).collect()
}

pub(crate) fn values(random: &mut Random, symbols: &[Symbol]) -> Vec<i64> {
    symbols.iter().map(|symbol| random.between(*symbol.bounds().start(), *symbol.bounds().end())).collect()
}

/// A program that asks questions; which ones come later depends on the answers before.
pub(crate) struct Program(Vec<(Tree, Tree, usize)>);

impl Program {
    pub(crate) fn random(random: &mut Random, symbols: usize, depth: usize) -> Program {
        let questions = random.between(2, 8);
        Program(
            (0..questions)
                .map(|_| {
                    let right = match random.below(3) {
                        0 => Tree::random(random, symbols, depth),
                        _ => Tree::Number(random.between(-4, 30)),
                    };
                    (Tree::random(random, symbols, depth), right, random.below(8))
                })
                .collect(),
        )
    }

    /// The answers, the sizes that were asked about, and whether arithmetic had a result everywhere.
    pub(crate) fn run(&self, symbols: &[Dim]) -> (Vec<i64>, Vec<Dim>, bool) {
        let (mut answers, mut sizes, mut defined) = (Vec::new(), Vec::new(), true);
        let mut skip = false;
        for (left, right, kind) in &self.0 {
            if std::mem::take(&mut skip) {
                continue;
            }
            let (a, b) = (left.dim(symbols), right.dim(symbols));
            defined &= a.fault().is_none() && b.fault().is_none();
            let answer = match kind {
                0 => i64::from(a == b),
                1 => i64::from(a < b),
                2 => i64::from(a >= b),
                3 => i64::from(a <= b),
                4 => i64::from(a > b),
                5 => i64::from(a != b),
                6 => a.partial_cmp(&b).map_or(9, |order| order as i64),
                _ => i64::from(a.is_multiple_of(4)),
            };
            skip = answer == 1;
            answers.push(answer);
            sizes.extend([a, b]);
        }
        (answers, sizes, defined)
    }
}

/// Runs programs, and for all sizes for which their guards hold, runs them again: the answers must be the same, and
/// the expressions of the first run must have the values of the second.
///
/// Returns how many sizes held and how many were tried.
pub(crate) fn check_programs(seed: u64, programs: usize, depth: usize, symbols: &[Symbol]) -> (usize, usize) {
    let mut random = Random::new(seed);
    let (mut held, mut tried) = (0, 0);
    for case in 0..programs {
        let program = Program::random(&mut random, symbols.len(), depth);
        let hints = values(&mut random, symbols);
        let ((answers, sizes, defined), guards) = guards::record(|| program.run(&dims(symbols, &hints)));
        if let Some(failure) = guards.first_failure(&bindings(symbols, &hints)) {
            // The canonical form can be larger on the way than what was computed.
            let overflows = failure.to_string().contains("64 bits");
            assert!(!defined || overflows, "case {case}: the guards fail for their own sizes: {failure}");
        }
        for _ in 0..60 {
            let mut others = values(&mut random, symbols);
            if random.below(2) == 0 {
                // Near the hints, guards hold more often.
                let at = random.below(symbols.len());
                others = hints.clone();
                others[at] = random.between(*symbols[at].bounds().start(), *symbols[at].bounds().end());
            }
            tried += 1;
            let bound = bindings(symbols, &others);
            assert_eq!(guards.holds(&bound), guards.first_failure(&bound).is_none());
            if !guards.holds(&bound) {
                continue;
            }
            held += 1;
            let (again, fresh, all_defined) = program.run(&dims(symbols, &others));
            if !all_defined {
                continue;
            }
            assert_eq!(again, answers, "case {case}: {hints:?}, then {others:?}:\n{guards}");
            // A fault is an error of the first run.
            for (size, fresh) in sizes.iter().zip(fresh).filter(|(size, _)| size.fault().is_none()) {
                match size.evaluate(&bound) {
                    Ok(value) => {
                        assert_eq!(value, fresh.value().unwrap(), "case {case}: {size} with {others:?}")
                    }
                    Err(error) => assert!(error.to_string().contains("64 bits"), "case {case}: {error}"),
                }
            }
        }
    }
    (held, tried)
}
