//! rnn, gru and lstm over directions, layouts, lengths, initial states, biases, functions and sizes.

use olivine_ir::DType::{self, BF16, F32, F64, I32, I64};
use olivine_ir::op::{Direction, GateFunction, Recurrent, RecurrentKind, RecurrentLayer};
use olivine_ir::{Error, ValueId};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{self, Exact, Scaled};
use crate::case::{Build, Table};
use crate::fill::{Fill, normal, uniform, whole};

/// Sequence, batch, input and hidden size.
#[derive(Clone, Copy)]
struct Sizes(usize, usize, usize, usize);

/// What is given beside x, w and r.
#[derive(Clone, Copy, Default)]
struct With {
    bias: bool,
    lengths: Option<(DType, &'static [i64])>,
    initial: bool,
    peepholes: bool,
}

const ALL: With = With { bias: true, lengths: None, initial: true, peepholes: false };
/// Five sequences: a whole one, an empty one, one of a step, and two between.
const LENGTHS: &[i64] = &[6, 0, 1, 4, 5];
const SMALL: Sizes = Sizes(6, 5, 3, 8);
/// Gates hold results within one, and an error fades from step to step instead of growing.
const FEW: Bound = Scaled(24.0);

fn spec(kind: RecurrentKind, direction: Direction) -> Recurrent {
    Recurrent::new(kind, direction)
}

/// The operands of a layer; weights are as large as they are made where training begins.
fn operands(g: &mut Build, op: &Recurrent, sizes: Sizes, with: With) -> Result<RecurrentLayer, Error> {
    let Sizes(_, batch, input, hidden) = sizes;
    let (dirs, rows) = (op.direction.count(), op.kind.gates() * hidden);
    let spread = |n: usize| uniform(-1.0 / (n.max(1) as f64).sqrt(), 1.0 / (n.max(1) as f64).sqrt());
    let state = if op.batch_first { [batch, dirs, hidden] } else { [dirs, batch, hidden] };
    let initial = |g: &mut Build, given: bool| given.then(|| g.like(state, uniform(-1.0, 1.0))).transpose();
    Ok(RecurrentLayer {
        w: g.weight([dirs, rows, input], spread(input))?,
        r: g.weight([dirs, rows, hidden], spread(hidden))?,
        bias: with.bias.then(|| g.weight([dirs, 2 * rows], uniform(-0.5, 0.5))).transpose()?,
        initial_h: initial(g, with.initial)?,
        initial_c: initial(g, with.initial && op.kind == RecurrentKind::Lstm)?,
        peepholes: with.peepholes.then(|| g.weight([dirs, 3 * hidden], uniform(-0.5, 0.5))).transpose()?,
    })
}

fn build(g: &mut Build, op: &Recurrent, sizes: Sizes, with: With) -> Result<Vec<ValueId>, Error> {
    let Sizes(sequence, batch, input, _) = sizes;
    let x = g.x(if op.batch_first { [batch, sequence, input] } else { [sequence, batch, input] })?;
    let layer = operands(g, op, sizes, with)?;
    let lengths = with.lengths.map(|(dtype, l)| g.ints(dtype, [batch], l)).transpose()?;
    g.recurrent(op.clone(), x, &layer, lengths)
}

fn case(t: &mut Table, what: &str, dtypes: &[DType], sizes: Sizes, with: With, op: Recurrent) {
    t.case(what, dtypes, normal(), FEW, move |g| build(g, &op, sizes, with));
}

pub(super) fn rows(t: &mut Table) {
    for kind in RecurrentKind::ALL.iter().copied() {
        cells(t, kind, kind.name(), |op| op);
    }
    cells(t, RecurrentKind::Gru, "gru-reset-after", |op| Recurrent { reset_after: true, ..op });
    lstm(t);
    functions(t);
    sizes(t);
    stacked(t);
    sliced_states(t);
    exact(t);
}

/// Directions, lengths, states and dtypes of one cell.
fn cells(t: &mut Table, kind: RecurrentKind, name: &str, change: fn(Recurrent) -> Recurrent) {
    let of = |direction| change(spec(kind, direction));
    for direction in Direction::ALL.iter().copied() {
        let what = |rest: &str| format!("{name}/{}{rest}", direction.name());
        let lengths = With { lengths: Some((I64, LENGTHS)), ..ALL };
        case(t, &what(""), FLOATS, SMALL, With::default(), of(direction));
        case(t, &what("-lengths"), FLOATS, SMALL, lengths, of(direction));
        let by_batch = Recurrent { batch_first: true, ..of(direction) };
        case(t, &what("-batch-first"), PAIR, SMALL, lengths, by_batch);
    }
    let forward = || of(Direction::Forward);
    let both = || of(Direction::Bidirectional);
    case(t, &format!("{name}/bias"), &[F32], SMALL, With { bias: true, ..With::default() }, forward());
    case(t, &format!("{name}/initial"), &[F32], SMALL, With { initial: true, ..With::default() }, both());
    // Lengths beyond the sequence or below zero are held within it.
    let wild = With { lengths: Some((I32, &[9, -2, i32::MAX as i64, 3, 6])), ..With::default() };
    case(t, &format!("{name}/wild-lengths"), &[F32], SMALL, wild, both());
    let clipped = Recurrent { clip: Some(0.25), ..both() };
    case(t, &format!("{name}/clip"), &[F32, F64], SMALL, ALL, clipped);
}

fn lstm(t: &mut Table) {
    let of = |direction| spec(RecurrentKind::Lstm, direction);
    let peepholes = With { peepholes: true, ..ALL };
    case(t, "lstm/peepholes", FLOATS, SMALL, peepholes, of(Direction::Bidirectional));
    let all = With { lengths: Some((I32, LENGTHS)), ..peepholes };
    let clipped = Recurrent { clip: Some(0.4), batch_first: true, ..of(Direction::Bidirectional) };
    case(t, "lstm/everything", &[F32, BF16], SMALL, all, clipped);
    let coupled = Recurrent { input_forget: true, ..of(Direction::Forward) };
    case(t, "lstm/input-forget", &[F32, F64], SMALL, peepholes, coupled);
    t.case("lstm/initial-h-alone", &[F32], normal(), FEW, move |g| {
        let op = of(Direction::Forward);
        let x = g.x([6, 5, 3])?;
        let layer = operands(g, &op, SMALL, ALL)?;
        g.recurrent(op, x, &RecurrentLayer { initial_c: None, ..layer }, None)
    });
    t.case("lstm/initial-c-alone", &[F32], normal(), FEW, move |g| {
        let op = of(Direction::Forward);
        let x = g.x([6, 5, 3])?;
        let layer = operands(g, &op, SMALL, ALL)?;
        g.recurrent(op, x, &RecurrentLayer { initial_h: None, ..layer }, None)
    });
    t.case("lstm/final-states-alone", PAIR, normal(), FEW, move |g| {
        let results = build(g, &of(Direction::Bidirectional), SMALL, ALL)?;
        Ok(results[1..].to_vec())
    });
}

fn functions(t: &mut Table) {
    use GateFunction::{HardSigmoid, Relu, Sigmoid, Softplus, Softsign, Tanh};
    let with = With { lengths: Some((I64, LENGTHS)), ..ALL };
    let rnn =
        Recurrent { functions: vec![Relu, Softsign], ..spec(RecurrentKind::Rnn, Direction::Bidirectional) };
    case(t, "rnn/relu-and-softsign", &[F32, F64], SMALL, with, rnn);
    let gru = Recurrent {
        functions: vec![HardSigmoid, Softsign, Sigmoid, Tanh],
        ..spec(RecurrentKind::Gru, Direction::Bidirectional)
    };
    case(t, "gru/functions", &[F32, F64], SMALL, with, gru);
    let lstm = Recurrent {
        functions: vec![HardSigmoid, Softplus, Softsign, Sigmoid, Softsign, Relu],
        ..spec(RecurrentKind::Lstm, Direction::Bidirectional)
    };
    case(t, "lstm/functions", &[F32, F64], SMALL, with, lstm);
}

fn sizes(t: &mut Table) {
    let rows: &[(&str, Sizes)] = &[
        ("one-of-all", Sizes(1, 1, 1, 1)),
        ("hidden-31", Sizes(3, 2, 5, 31)),
        ("hidden-33", Sizes(17, 5, 7, 33)),
        ("hidden-100", Sizes(17, 1, 12, 100)),
        ("batch-16", Sizes(3, 16, 16, 64)),
        ("one-step", Sizes(1, 5, 4, 32)),
        ("no-input", Sizes(3, 2, 0, 8)),
        ("no-steps", Sizes(0, 2, 3, 8)),
        ("no-batch", Sizes(3, 0, 3, 8)),
        ("no-units", Sizes(3, 2, 3, 0)),
    ];
    for (what, sizes) in rows {
        for kind in RecurrentKind::ALL.iter().copied() {
            let op = spec(kind, Direction::Bidirectional);
            case(t, &format!("{}/{what}", kind.name()), &[F32], *sizes, ALL, op);
        }
    }
    for (what, with) in [("no-steps-nor-states", With::default()), ("no-steps-by-batch", ALL)] {
        let op = Recurrent { batch_first: with.initial, ..spec(RecurrentKind::Lstm, Direction::Forward) };
        case(t, &format!("lstm/{what}"), PAIR, Sizes(0, 2, 3, 8), with, op);
    }
    // Tiles over units and batch, with some of both past the end.
    for (what, sizes) in [("many-rows", Sizes(2, 70, 8, 264)), ("few-wide", Sizes(2, 16, 8, 512))] {
        case(t, &format!("lstm/{what}"), PAIR, sizes, ALL, spec(RecurrentKind::Lstm, Direction::Forward));
    }
    let both = spec(RecurrentKind::Gru, Direction::Bidirectional);
    case(t, "gru/many-rows", &[F32], Sizes(2, 40, 8, 260), ALL, both);
}

/// Layers on layers: the directions of one are the input of the next.
fn stacked(t: &mut Table) {
    for (name, batch_first) in [("stacked", false), ("stacked-batch-first", true)] {
        for kind in RecurrentKind::ALL.iter().copied() {
            t.case(&format!("{}/{name}", kind.name()), PAIR, normal(), Scaled(64.0), move |g| {
                let op = Recurrent { batch_first, ..spec(kind, Direction::Bidirectional) };
                let x = g.x(if batch_first { [5, 6, 3] } else { [6, 5, 3] })?;
                let lengths = g.ints(I64, [5], LENGTHS)?;
                let first = operands(g, &op, SMALL, ALL)?;
                let second = operands(g, &op, Sizes(6, 5, 16, 8), ALL)?;
                let (y, states) = g.recurrent_layers(op, x, &[first, second], Some(lengths))?;
                Ok([vec![y], states.concat()].concat())
            });
        }
    }
}

/// The states of all layers in one tensor, as exporters write them: a slice is an operand that begins amid another value.
fn sliced_states(t: &mut Table) {
    t.case("lstm/sliced-states", PAIR, normal(), FEW, |g| {
        let op = spec(RecurrentKind::Lstm, Direction::Forward);
        let (x, all) = (g.x([6, 5, 3])?, g.like([3, 5, 8], uniform(-1.0, 1.0))?);
        let mut layer = operands(g, &op, SMALL, With::default())?;
        layer.initial_h = Some(g.narrow(all, 0, 1, 1)?);
        layer.initial_c = Some(g.narrow(all, 0, 2, 1)?);
        g.recurrent(op, x, &layer, None)
    });
}

/// Whole numbers, whose sums and products are exact: a wrong position cannot hide in a bound.
fn exact(t: &mut Table) {
    let functions =
        |kind: RecurrentKind, dirs: usize| vec![GateFunction::Relu; kind.functions().len() * dirs];
    let rows: [(RecurrentKind, usize, &[DType]); 3] = [
        (RecurrentKind::Rnn, 4, FLOATS),
        (RecurrentKind::Gru, 2, &[F32, F64]),
        (RecurrentKind::Lstm, 2, &[F32, F64]),
    ];
    for (kind, steps, dtypes) in rows {
        for direction in [Direction::Reverse, Direction::Bidirectional] {
            let what = format!("{}/whole-{}", kind.name(), direction.name());
            let op = Recurrent { functions: functions(kind, direction.count()), ..spec(kind, direction) };
            t.case(&what, dtypes, whole(-1, 1), Exact, move |g| {
                let dirs = op.direction.count();
                let (rows, ones) = (kind.gates() * 7, Fill::Whole(-1, 1));
                let x = g.x([steps, 3, 2])?;
                let mut layer = RecurrentLayer::new(
                    g.weight([dirs, rows, 2], ones.clone())?,
                    g.weight([dirs, rows, 7], ones.clone())?,
                );
                layer.bias = Some(g.weight([dirs, 2 * rows], whole(0, 1))?);
                layer.initial_h = Some(g.like([dirs, 3, 7], ones)?);
                let lengths = g.ints(I32, [3], &[steps as i64, 1, steps as i64 - 1])?;
                g.recurrent(op.clone(), x, &layer, Some(lengths))
            });
        }
    }
}
