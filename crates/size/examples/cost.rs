//! What sizes cost: `cargo run --release -p olivine-size --example cost`.
#![allow(clippy::unwrap_used, reason = "an example that cannot go on ends")]

use std::hint::black_box;
use std::time::Instant;

use olivine_size::{Bindings, Dim, Error, Scope, Table, guards};

/// The best of several rounds, in nanoseconds for each of `count` steps.
fn nanoseconds(count: usize, mut round: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best * 1e9 / count as f64
}

fn main() -> Result<(), Error> {
    let mut scope = Scope::new();
    let batch = scope.declare("batch", 1..=1024, 4)?;
    let sequence = scope.declare("sequence", 1..=4096, 77)?;

    constants();
    symbolic(batch, sequence);
    tables(&scope, batch, sequence)
}

/// The product of a shape, as shape rules compute it all the time.
fn constants() {
    const SHAPES: usize = 10_000;
    let plain: Vec<[usize; 4]> = (0..SHAPES).map(|i| [1 + i % 3, 2 + i % 5, 64, 1 + i % 7]).collect();
    let dims: Vec<[Dim; 4]> = plain.iter().map(|shape| shape.map(Dim::from)).collect();
    let operations = SHAPES * 5;
    let checked = nanoseconds(operations, || {
        for [a, b, c, d] in black_box(&plain) {
            let product =
                a.checked_mul(*b).and_then(|ab| ab.checked_mul(*c)?.checked_mul(*d)?.checked_add(1));
            black_box(product.is_some_and(|elements| elements > 100));
        }
    });
    let sized = nanoseconds(operations, || {
        for [a, b, c, d] in black_box(&dims) {
            black_box(a * b * c * d + 1 > 100);
        }
    });
    let quotients = nanoseconds(SHAPES, || {
        for [a, ..] in black_box(&dims) {
            black_box(a.div_ceil(7));
        }
    });
    println!("constants: usize, checked      {checked:8.2} ns for each operation");
    println!("constants: Dim                 {sized:8.2} ns for each operation");
    println!("constants: Dim::div_ceil       {quotients:8.2} ns");
}

fn symbolic(batch: Dim, sequence: Dim) {
    const STEPS: usize = 20_000;
    let known = nanoseconds(STEPS * 3, || {
        for step in 0..STEPS {
            black_box((batch * sequence * 64 + (step % 16)).as_constant());
        }
    });
    let mut next = 0;
    let new = nanoseconds(STEPS * 2, || {
        for _ in 0..STEPS {
            next += 1;
            black_box((sequence + next).max(batch + 5000));
        }
    });
    let outside = nanoseconds(STEPS, || {
        for limit in 0..STEPS {
            black_box(sequence < limit % 64);
        }
    });
    let (inside, _) = guards::record(|| {
        nanoseconds(STEPS, || {
            for limit in 0..STEPS {
                black_box(sequence < limit % 64);
            }
        })
    });
    println!("symbols: known expression      {known:8.1} ns for each operation");
    println!("symbols: new expression        {new:8.1} ns for each operation");
    println!("symbols: question, unrecorded  {outside:8.1} ns");
    println!("symbols: question, recorded    {inside:8.1} ns");
}

/// Sizes as a program of a transformer has them: rows, tiles, bytes, offsets.
fn tables(scope: &Scope, batch: Dim, sequence: Dim) -> Result<(), Error> {
    let mut table = Table::new();
    let rows = batch * sequence;
    for layer in 0..500usize {
        let width = 64 * (1 + layer);
        table.add(rows * width)?;
        table.add(rows.div_ceil(16 + layer))?;
        table.add((rows * width * 4).next_multiple_of(256))?;
        table.add((batch * sequence * sequence + layer).div_ceil(64).min(4096))?;
    }
    let mut sizes = Bindings::new();
    for (symbol, _) in scope.iter() {
        sizes.bind(symbol, 33)?;
    }
    let mut values = Vec::new();
    let time = nanoseconds(1, || table.evaluate(black_box(&sizes), &mut values).unwrap());
    println!("table: 2,000 expressions       {:8.1} µs ({} instructions)", time / 1e3, table.len());

    let (_, set) = guards::record(|| {
        for limit in 0..60i64 {
            black_box((rows * (limit + 1)).rem_floor(7 + limit) == 0);
            black_box(sequence < limit);
        }
    });
    let own = scope.bindings();
    let time = nanoseconds(1, || assert!(set.holds(black_box(&own))));
    println!("guards: {:3} of them            {:8.2} µs", set.len(), time / 1e3);
    Ok(())
}
