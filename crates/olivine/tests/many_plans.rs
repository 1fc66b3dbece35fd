//! Sizes that each need a plan of their own: as many as fit are kept, and the least recently used goes first.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::prelude::*;

/// Plans that an executable keeps.
const MOST: usize = 512;

/// The sums of the first rows of `[n, 2]`, which are computed one after another: every `n` has a plan.
fn sums() -> Executable {
    let mut body = Graph::new("body");
    let total = body.input("total", DType::F32, [2]).unwrap();
    let row = body.input("row", DType::F32, [2]).unwrap();
    let next = body.add(total, row).unwrap();
    body.output("next", next).unwrap();
    body.output("sum", next).unwrap();
    let mut g = Graph::new("sums");
    let x = g.input_with_dims("x", DType::F32, [4, 2], vec![Some("n".into()), None]).unwrap();
    let zero = g.constant(Tensor::new([2], vec![0f32; 2]).unwrap());
    let all = g.scan(&[zero], &[x], &[], body).unwrap();
    g.output("sums", all[1]).unwrap();
    Session::new(Device::Cpu).unwrap().compile(&g).unwrap()
}

fn run(sums: &Executable, n: usize) {
    let x = Tensor::new([n, 2], vec![1f32; 2 * n]).unwrap();
    let out = sums.run([("x", &x)]).unwrap();
    let want: Vec<f32> = (1..=n).flat_map(|i| [i as f32; 2]).collect();
    assert_eq!(out["sums"].as_slice::<f32>().unwrap(), want, "{n} rows");
}

#[test]
fn prepare_counts_the_plans_it_makes_and_they_are_all_kept() {
    let sums = sums();
    // The declared size is compiled already.
    assert_eq!((sums.compiled(), sums.prepare([("n", 4..=4)]).unwrap()), (1, 0));
    assert_eq!(sums.prepare([("n", 1..=120)]).unwrap(), 119);
    assert_eq!((sums.compiled(), sums.prepare([("n", 1..=120)]).unwrap()), (120, 0));
    (1..=120).rev().for_each(|n| run(&sums, n));
    assert_eq!(sums.compiled(), 120, "no run compiles");
}

#[test]
fn past_the_limit_the_least_recently_used_plan_goes() {
    let sums = sums();
    assert_eq!(sums.prepare([("n", 1..=MOST)]).unwrap(), MOST - 1);
    assert_eq!(sums.compiled(), MOST);
    // All but the fifth were used since.
    (1..=MOST).filter(|n| *n != 5).for_each(|n| run(&sums, n));
    assert_eq!(sums.prepare([("n", MOST + 1..=MOST + 1)]).unwrap(), 1);
    assert_eq!(sums.compiled(), MOST);
    for n in [1, 4, 6, 7, MOST, MOST + 1] {
        assert_eq!(sums.prepare([("n", n..=n)]).unwrap(), 0, "{n} is kept");
    }
    assert_eq!(sums.prepare([("n", 5..=5)]).unwrap(), 1, "5 had gone");
    // More than are kept are counted too.
    assert_eq!(sums.prepare([("n", MOST + 2..=2 * MOST + 2)]).unwrap(), MOST + 1);
    assert_eq!(sums.compiled(), MOST);
    run(&sums, 3);
}

#[test]
fn sizes_that_come_by_turns_are_recorded_once_each() {
    let mut g = Graph::new("by turns");
    let x = g.input_with_dims("x", DType::F32, [64, 8], vec![Some("n".into()), None]).unwrap();
    let rows = g.softmax(x, 1).unwrap();
    let columns = g.transpose(rows, &[1, 0]).unwrap();
    let y = g.matmul(rows, columns).unwrap();
    g.output("y", y).unwrap();
    let session = Session::new(Device::Vulkan).unwrap();
    let executable = session.compile(&g).unwrap();
    let run = |n: usize| {
        let numbers: Vec<f32> = (0..8 * n).map(|i| (i % 13) as f32 / 4.0).collect();
        let x = Tensor::new([n, 8], numbers).unwrap();
        executable.run([("x", &x)]).unwrap()["y"].bytes().to_vec()
    };
    // The largest comes first, so that no memory grows.
    let sizes = [256, 192, 128, 64];
    let first: Vec<Vec<u8>> = sizes.iter().map(|n| run(*n)).collect();
    let recorded = executable.recordings();
    let taken = session.memory_taken();
    for _ in 0..5 {
        for (n, want) in sizes.iter().zip(&first) {
            assert!(run(*n) == *want, "{n} rows");
        }
    }
    assert_eq!(recorded, sizes.len(), "once for each size");
    assert_eq!(executable.recordings(), recorded, "and then replayed");
    assert_eq!(session.memory_taken(), taken);
}
