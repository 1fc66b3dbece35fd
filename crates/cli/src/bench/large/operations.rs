//! Operations on a tensor of more elements than 31 bits count, made on the device: each result is read back in part and
//! compared with a formula.
//!
//! ```text
//!   x[i, j] = r[i] + c[j]       whole numbers from 0 to 30, exact in every dtype
//! ```

use olivine::ir::op::{PadMode, ReduceKind, ScatterMode, Window};
use olivine::ir::{DType, Error, Graph, Tensor, ValueId};
use olivine::{DeviceTensor, Session};
use serde_json::{Value, json};

use super::tensor::{only, ranges};
use crate::answer::Failure;
use crate::measure::graph;
use crate::timing::{ms, short, timed};

/// Numbers of a row.
const COLUMNS: usize = 4096;
/// Ranges to look at beside both ends and around 2³¹, and numbers in each.
const PLACES: usize = 24;
const LENGTH: usize = 2000;
/// Columns of the matrix that the tensor is multiplied with.
const OUTPUTS: usize = 8;

/// What the tensor is made of.
struct Made {
    rows: usize,
    r: Vec<f64>,
    c: Vec<f64>,
}

impl Made {
    fn new(rows: usize) -> Self {
        let numbers = |n: usize, step: usize| (0..n).map(|i| (i * step / 7 % 16) as f64).collect();
        Made { rows, r: numbers(rows, 5), c: numbers(COLUMNS, 11) }
    }

    fn elements(&self) -> usize {
        self.rows * COLUMNS
    }

    /// The element at a flat position.
    fn at(&self, flat: usize) -> f64 {
        self.r[flat / COLUMNS] + self.c[flat % COLUMNS]
    }

    fn largest_row(&self) -> f64 {
        self.r.iter().copied().fold(0.0, f64::max)
    }

    fn mean_and_deviation(&self) -> (f64, f64) {
        let mean = self.c.iter().sum::<f64>() / COLUMNS as f64;
        let variance = self.c.iter().map(|c| (c - mean) * (c - mean)).sum::<f64>() / COLUMNS as f64;
        (mean, variance.sqrt())
    }
}

type Build = Box<dyn Fn(&mut Graph, ValueId) -> Result<ValueId, Error>>;
type Expect = Box<dyn Fn(&Made, usize) -> f64>;

/// One operation: its name, the tensor's dtype, its graph, its result at a flat position, and the error that is allowed.
struct Operation {
    name: &'static str,
    dtype: DType,
    build: Build,
    expect: Expect,
    allowed: f64,
}

/// What was found of an operation.
pub(super) struct Checked {
    name: &'static str,
    dtype: DType,
    checked: usize,
    run_ms: f64,
}

/// Every operation on a tensor of at least `elements`.
pub(super) fn check(session: &Session, elements: usize) -> Result<Vec<Checked>, Failure> {
    // Windows take four rows at least.
    let made = Made::new(elements.div_ceil(COLUMNS).max(8));
    let mut found = Vec::new();
    for dtype in [DType::F16, DType::U8] {
        let x = make(session, &made, dtype)?;
        for operation in operations(&made).into_iter().filter(|o| o.dtype == dtype) {
            found.push(operation.check(session, &made, &x)?);
        }
    }
    Ok(found)
}

fn make(session: &Session, made: &Made, dtype: DType) -> Result<DeviceTensor, Failure> {
    let executable = session.compile(&graph("make", |g| {
        let (r, c) = (g.input("r", DType::F32, [made.rows, 1])?, g.input("c", DType::F32, [COLUMNS])?);
        let x = g.add(r, c)?;
        g.cast(x, dtype)
    })?)?;
    let numbers = |values: &[f64]| values.iter().map(|v| *v as f32).collect::<Vec<_>>();
    let r = Tensor::new([made.rows, 1], numbers(&made.r))?;
    let c = Tensor::new([COLUMNS], numbers(&made.c))?;
    only(executable.run_resident([("r", &r), ("c", &c)])?)
}

impl Operation {
    fn check(&self, session: &Session, made: &Made, x: &DeviceTensor) -> Result<Checked, Failure> {
        let wrong = |problem: String| Failure::new(format!("{} of {}: {problem}", self.name, self.dtype));
        let executable = session.compile(&graph(self.name, |g| {
            let x = g.input("x", self.dtype, [made.rows, COLUMNS])?;
            (self.build)(g, x)
        })?)?;
        let (time, y) = timed(|| executable.run_resident([("x", x)]));
        let y = only(y?)?;
        let all = y.ty().shape.numel();
        let mut checked = 0;
        for range in ranges(all, PLACES, LENGTH) {
            let part = Tensor::from_data([range.len()], y.read_elements(range.clone())?)?;
            for (i, got) in range.zip(part.to_f64()) {
                let expected = (self.expect)(made, i);
                // A NaN is wrong as well.
                let near = (got - expected).abs() <= self.allowed * (1.0 + expected.abs());
                if !near {
                    return Err(wrong(format!("element {i} of {all} is {got} instead of {expected}")));
                }
                checked += 1;
            }
        }
        Ok(Checked { name: self.name, dtype: self.dtype, checked, run_ms: ms(time) })
    }
}

fn operation(
    name: &'static str,
    dtype: DType,
    build: impl Fn(&mut Graph, ValueId) -> Result<ValueId, Error> + 'static,
    expect: impl Fn(&Made, usize) -> f64 + 'static,
) -> Operation {
    Operation { name, dtype, build: Box::new(build), expect: Box::new(expect), allowed: 0.0 }
}

/// A constant of whole numbers in f16.
fn numbers(g: &mut Graph, dims: &[usize], of: impl Fn(usize) -> f64) -> Result<ValueId, Error> {
    let values: Vec<f32> = (0..dims.iter().product()).map(|i| of(i) as f32).collect();
    let constant = g.constant(Tensor::new(dims, values)?);
    g.cast(constant, DType::F16)
}

fn operations(made: &Made) -> Vec<Operation> {
    [movement(made), folds(made), rows_of(made), windows(made)].into_iter().flatten().collect()
}

fn movement(made: &Made) -> Vec<Operation> {
    let (rows, half) = (made.rows, made.rows / 2);
    let last = made.elements() - 1;
    let far = move |k: usize| [last, 0, last / 2, last - 5][k];
    let mut all = vec![
        operation(
            "gather",
            DType::F16,
            move |g, x| {
                let flat = g.reshape(x, &[-1])?;
                let i = g.constant(Tensor::new([4], (0..4).map(|k| far(k) as i64).collect())?);
                g.gather(flat, i, 0)
            },
            move |m, k| m.at(far(k)),
        ),
        operation(
            "scatter_nd",
            DType::F16,
            move |g, x| {
                let i = g.constant(Tensor::new([2, 1], vec![rows as i64 - 2, 1])?);
                let updates = numbers(g, &[2, COLUMNS], |i| (i % 13) as f64)?;
                g.scatter_nd(x, i, updates, ScatterMode::Replace)
            },
            move |m, i| match i / COLUMNS {
                row if row == rows - 2 => (i % COLUMNS % 13) as f64,
                1 => ((COLUMNS + i % COLUMNS) % 13) as f64,
                _ => m.at(i),
            },
        ),
    ];
    for dtype in [DType::F16, DType::U8] {
        all.extend([
            operation("add", dtype, |g, x| g.add(x, x), |m, i| 2.0 * m.at(i)),
            operation(
                "transpose",
                dtype,
                |g, x| g.transpose(x, &[1, 0]),
                move |m, i| m.r[i % rows] + m.c[i / rows],
            ),
            operation(
                "slice",
                dtype,
                move |g, x| g.slice(x, 0, rows as i64 - 3, rows as i64, 1),
                move |m, i| m.at((rows - 3) * COLUMNS + i),
            ),
            operation(
                "pad",
                dtype,
                |g, x| g.pad(x, &[(1, 2), (0, 0)], PadMode::Constant, 3.0),
                move |m, i| {
                    let row = i / COLUMNS;
                    if row == 0 || row > rows { 3.0 } else { m.at(i - COLUMNS) }
                },
            ),
            operation(
                "concat",
                dtype,
                move |g, x| {
                    let parts = g.split(x, 0, &[half, rows - half])?;
                    g.concat(&[parts[1], parts[0]], 0)
                },
                move |m, i| m.at((i + half * COLUMNS) % (rows * COLUMNS)),
            ),
        ]);
    }
    all
}

fn folds(made: &Made) -> Vec<Operation> {
    let (top, first) =
        (made.largest_row(), made.r.iter().position(|r| *r == made.largest_row()).unwrap_or(0));
    let right = made.c.iter().copied().fold(0.0, f64::max);
    let mut all = Vec::new();
    for dtype in [DType::F16, DType::U8] {
        all.extend([
            operation(
                "maximum of rows",
                dtype,
                |g, x| g.reduce(ReduceKind::Max, x, &[1], false),
                move |m, i| m.r[i] + right,
            ),
            operation(
                "maximum of columns",
                dtype,
                |g, x| g.reduce(ReduceKind::Max, x, &[0], false),
                move |m, j| top + m.c[j],
            ),
            operation(
                "maximum of all",
                dtype,
                |g, x| g.reduce(ReduceKind::Max, x, &[0, 1], false),
                move |_, _| top + right,
            ),
            operation("argmax of columns", dtype, |g, x| g.argmax(x, 0, false), move |_, _| first as f64),
        ]);
    }
    all
}

fn rows_of(made: &Made) -> Vec<Operation> {
    let (mean, deviation) = made.mean_and_deviation();
    let total: f64 = made.c.iter().map(|c| c.exp()).sum();
    let mut sorted = made.c.clone();
    sorted.sort_by(f64::total_cmp);
    let mut softmax =
        operation("softmax", DType::F16, |g, x| g.softmax(x, 1), move |m, i| m.c[i % COLUMNS].exp() / total);
    let mut norm = operation(
        "layer_norm",
        DType::F16,
        |g, x| {
            let gamma = numbers(g, &[COLUMNS], |_| 1.0)?;
            g.layer_norm(x, gamma, None, 0.0)
        },
        move |m, i| (m.c[i % COLUMNS] - mean) / deviation,
    );
    // The roundings of f16.
    (softmax.allowed, norm.allowed) = (1e-3, 2e-3);
    vec![
        softmax,
        norm,
        operation(
            "sort",
            DType::F16,
            |g, x| g.sort(x, 1, false),
            move |m, i| m.r[i / COLUMNS] + sorted[i % COLUMNS],
        ),
        operation(
            "matmul",
            DType::F16,
            |g, x| {
                let w = numbers(g, &[COLUMNS, OUTPUTS], |i| {
                    f64::from(u8::from(picks(i / OUTPUTS, i % OUTPUTS)))
                })?;
                g.matmul(x, w)
            },
            |m, i| {
                let (row, k) = (i / OUTPUTS, i % OUTPUTS);
                (0..COLUMNS).filter(|j| picks(*j, k)).map(|j| m.r[row] + m.c[j]).sum()
            },
        ),
    ]
}

/// Whether column `k` of the matrix takes row `j`: eight rows each.
fn picks(j: usize, k: usize) -> bool {
    j % (COLUMNS / 8) == 3 * k
}

/// Windows over four channels, each a quarter of the tensor.
fn windows(made: &Made) -> Vec<Operation> {
    // The tensor's last rows are left out where four do not divide them.
    let rows = made.rows / 4 * 4;
    let positions = rows / 4 * COLUMNS;
    let channels = move |g: &mut Graph, x: ValueId| {
        let x = g.slice(x, 0, 0, rows as i64, 1)?;
        g.reshape(x, &[1, 4, positions as i64])
    };
    let weight = |i: usize| (i % 3) as f64;
    vec![
        operation(
            "convolution 1",
            DType::F16,
            move |g, x| {
                let (x, w) = (channels(g, x)?, numbers(g, &[2, 4, 1], weight)?);
                g.conv(x, w, None, Window::unit(1), 1)
            },
            move |m, i| {
                let (f, p) = (i / positions, i % positions);
                (0..4).map(|c| weight(f * 4 + c) * m.at(c * positions + p)).sum()
            },
        ),
        operation(
            "convolution 3",
            DType::F16,
            move |g, x| {
                let (x, w) = (channels(g, x)?, numbers(g, &[2, 4, 3], weight)?);
                g.conv(x, w, None, Window::same(1, 1, 1), 1)
            },
            move |m, i| {
                let (f, p) = (i / positions, i % positions);
                let tap = |c: usize, k: usize| {
                    let at = (p + k).checked_sub(1).filter(|at| *at < positions);
                    at.map_or(0.0, |at| weight((f * 4 + c) * 3 + k) * m.at(c * positions + at))
                };
                (0..4).flat_map(|c| (0..3).map(move |k| (c, k))).map(|(c, k)| tap(c, k)).sum()
            },
        ),
        operation(
            "max_pool",
            DType::F16,
            move |g, x| {
                let x = channels(g, x)?;
                g.max_pool(x, &[2], Window::same(1, 2, 0), false)
            },
            move |m, i| {
                let (c, p) = (i / (positions / 2), i % (positions / 2));
                m.at(c * positions + 2 * p).max(m.at(c * positions + 2 * p + 1))
            },
        ),
    ]
}

impl Checked {
    pub(super) fn text(&self) -> String {
        let Checked { name, dtype, checked, run_ms } = self;
        format!(
            "  {name:<20} {dtype:<4} {checked:>7} elements checked and right, run in {} ms\n",
            short(*run_ms)
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "operation": self.name, "dtype": self.dtype.name(), "checked": self.checked, "run_ms": self.run_ms,
        })
    }
}
