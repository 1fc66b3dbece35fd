//! Sequence models with a carried state: lengths around chunks, odd sizes, every optional operand, calls in a row.

use olivine_ir::DType::{self, BF16, F16, F32};
use olivine_ir::op::{CausalConv1d, GatedDeltaNet, Mamba2, SelectiveScan, state_dtype};
use olivine_ir::{Error, ValueId};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{self, Exact, Near, Scaled};
use crate::case::{Build, Table};
use crate::fill::{Fill, normal, uniform, whole};

/// Lengths around what kernels take at a time.
const LENGTHS: [usize; 8] = [1, 2, 31, 33, 64, 65, 100, 1000];

/// Errors of steps fade with the state; those of a chunk add up.
const STEPS: Bound = Scaled(60.0);

pub(super) fn rows(t: &mut Table) {
    selective(t);
    mamba(t);
    delta(t);
    conv(t);
}

/// A state where one is asked for.
fn state(g: &mut Build, given: bool, dims: &[usize]) -> Result<Vec<ValueId>, Error> {
    let dtype = state_dtype(g.dtype());
    Ok(if given { vec![g.of(dtype, dims, normal())?] } else { Vec::new() })
}

/// Batch, length, channels, states.
#[derive(Clone, Copy)]
struct Scan(usize, usize, usize, usize);

impl Scan {
    /// x, Δ, A, B and C; Δ positive unless it goes through softplus, and A below zero.
    fn operands(self, g: &mut Build, softplus: bool, weights: DType) -> Result<[ValueId; 5], Error> {
        let Scan(b, l, d, n) = self;
        let step = if softplus { uniform(-4.0, 1.0) } else { uniform(0.001, 0.5) };
        Ok([
            g.x([b, l, d])?,
            g.of(weights, [b, l, d], step)?,
            g.of(weights, [d, n], uniform(-8.0, -0.1))?,
            g.x([b, l, n])?,
            g.x([b, l, n])?,
        ])
    }

    fn run(self, g: &mut Build, spec: SelectiveScan) -> Result<(ValueId, ValueId), Error> {
        let weights = g.dtype();
        self.run_with(g, spec, weights)
    }

    fn run_with(
        self,
        g: &mut Build,
        spec: SelectiveScan,
        weights: DType,
    ) -> Result<(ValueId, ValueId), Error> {
        let Scan(b, l, d, n) = self;
        let operands = self.operands(g, spec.softplus, weights)?;
        let mut extra = Vec::new();
        if spec.skip {
            extra.push(g.of(weights, [d], normal())?);
        }
        if spec.gate {
            extra.push(g.x([b, l, d])?);
        }
        if spec.delta_bias {
            extra.push(g.of(weights, [d], uniform(-1.0, 0.0))?);
        }
        extra.extend(state(g, spec.state, &[b, d, n])?);
        g.selective_scan(spec, operands, &extra)
    }
}

const PLAIN: SelectiveScan =
    SelectiveScan { skip: false, gate: false, delta_bias: false, softplus: false, state: false };
const FULL: SelectiveScan =
    SelectiveScan { skip: true, gate: true, delta_bias: true, softplus: true, state: true };

fn selective(t: &mut Table) {
    for l in LENGTHS {
        t.case(&format!("selective_scan/length-{l}"), &[F32], normal(), STEPS, move |g| {
            Scan(2, l, 5, 16).run(g, FULL)
        });
        t.case(&format!("selective_scan/plain-{l}"), &[F32], normal(), STEPS, move |g| {
            Scan(1, l, 7, 3).run(g, PLAIN)
        });
    }
    t.case("selective_scan/length-4096", &[F32], normal(), STEPS, |g| Scan(1, 4096, 3, 16).run(g, FULL));
    let sizes = [(1usize, 1usize), (33, 1), (5, 17), (130, 4), (3, 64), (2, 130), (1, 256)];
    for (d, n) in sizes {
        t.case(&format!("selective_scan/channels-{d}-states-{n}"), &[F32], normal(), STEPS, move |g| {
            Scan(2, 70, d, n).run(g, SelectiveScan { state: true, ..PLAIN })
        });
    }
    let options = [
        ("skip", SelectiveScan { skip: true, ..PLAIN }),
        ("gate", SelectiveScan { gate: true, ..PLAIN }),
        ("delta-bias", SelectiveScan { delta_bias: true, ..PLAIN }),
        ("softplus", SelectiveScan { softplus: true, ..PLAIN }),
        ("state", SelectiveScan { state: true, ..PLAIN }),
    ];
    for (what, spec) in options {
        t.case(&format!("selective_scan/{what}"), PAIR, normal(), STEPS, move |g| {
            Scan(2, 9, 6, 4).run(g, spec.clone())
        });
    }
    t.case("selective_scan/floats", FLOATS, normal(), STEPS, |g| Scan(2, 100, 6, 8).run(g, FULL));
    t.case("selective_scan/wide-weights", &[F16, BF16], normal(), STEPS, |g| {
        Scan(2, 100, 6, 8).run_with(g, FULL, F32)
    });
    for (what, sizes) in
        [("no-steps", Scan(2, 0, 5, 3)), ("no-batch", Scan(0, 4, 5, 3)), ("no-channels", Scan(2, 4, 0, 3))]
    {
        t.case(&format!("selective_scan/{what}"), PAIR, normal(), Exact, move |g| sizes.run(g, FULL));
        t.case(&format!("selective_scan/{what}-plain"), &[F32], normal(), Exact, move |g| {
            sizes.run(g, PLAIN)
        });
    }
    t.case("selective_scan/in-two-calls", PAIR, normal(), STEPS, |g| {
        let operands = Scan(2, 150, 5, 16).operands(g, false, g.dtype())?;
        in_two(g, &operands, &[0, 1, 3, 4], 70, |g, parts, carried| {
            let [x, delta, a, b, c] = *parts else { return Err(wrong_count()) };
            let spec = SelectiveScan { state: carried.is_some(), ..PLAIN };
            g.selective_scan(spec, [x, delta, a, b, c], carried.as_slice())
        })
    });
}

fn wrong_count() -> Error {
    Error::Invalid { location: "a case".into(), problem: "has another number of operands".into() }
}

/// A sequence in two calls, the second beginning with the first one's state; `along` are the operands with steps.
fn in_two(
    g: &mut Build,
    operands: &[ValueId],
    along: &[usize],
    middle: usize,
    call: impl Fn(&mut Build, &[ValueId], Option<ValueId>) -> Result<(ValueId, ValueId), Error>,
) -> Result<Vec<ValueId>, Error> {
    let length = g.ty(operands[0])?.shape[1];
    let mut results = Vec::new();
    let mut carried = None;
    for (from, to) in [(0, middle), (middle, length)] {
        let mut parts = operands.to_vec();
        for i in along {
            parts[*i] = g.narrow(operands[*i], 1, from, to - from)?;
        }
        let (y, state) = call(g, &parts, carried)?;
        results.push(y);
        carried = Some(state);
    }
    results.extend(carried);
    Ok(results)
}

/// Batch, length, heads, groups, elements of a value and of a key.
#[derive(Clone, Copy)]
struct Heads(usize, usize, usize, usize, usize, usize);

impl Heads {
    fn mamba_operands(self, g: &mut Build, rate: Fill, weights: DType) -> Result<[ValueId; 5], Error> {
        let Heads(b, l, h, groups, p, n) = self;
        Ok([
            g.x([b, l, h, p])?,
            g.of(weights, [b, l, h], uniform(0.01, 1.0))?,
            g.of(weights, [h], rate)?,
            g.x([b, l, groups, n])?,
            g.x([b, l, groups, n])?,
        ])
    }

    fn mamba(
        self,
        g: &mut Build,
        spec: Mamba2,
        rate: Fill,
        weights: DType,
    ) -> Result<(ValueId, ValueId), Error> {
        let Heads(b, _, h, _, p, n) = self;
        let operands = self.mamba_operands(g, rate, weights)?;
        let mut extra = Vec::new();
        if spec.skip {
            extra.push(g.of(weights, [h], normal())?);
        }
        extra.extend(state(g, spec.state, &[b, h, p, n])?);
        g.mamba2(spec, operands, &extra)
    }

    /// q, k, v, g and β; keys about as long as one, without which the rule is unstable.
    fn delta_operands(self, g: &mut Build, decay: Fill, weights: DType) -> Result<[ValueId; 5], Error> {
        let Heads(b, l, h, groups, dv, dk) = self;
        let key = Fill::Normal(0.0, 1.0 / (dk as f64).sqrt());
        Ok([
            g.x([b, l, groups, dk])?,
            g.like([b, l, groups, dk], key)?,
            g.x([b, l, h, dv])?,
            g.of(weights, [b, l, h], decay)?,
            g.of(weights, [b, l, h], uniform(0.0, 1.0))?,
        ])
    }

    fn delta(
        self,
        g: &mut Build,
        spec: GatedDeltaNet,
        decay: Fill,
        weights: DType,
    ) -> Result<(ValueId, ValueId), Error> {
        let Heads(b, _, h, _, dv, dk) = self;
        let operands = self.delta_operands(g, decay, weights)?;
        let state = state(g, spec.state, &[b, h, dk, dv])?;
        g.gated_delta_net(spec, operands, state.first().copied())
    }
}

/// Head sizes: groups and elements that fill tiles, and such that do not.
const SHAPES: [(usize, usize, usize, usize); 6] =
    [(1, 1, 1, 1), (4, 2, 5, 3), (2, 1, 64, 16), (3, 3, 33, 65), (2, 2, 7, 130), (1, 1, 130, 70)];

fn mamba(t: &mut Table) {
    let (plain, full) = (Mamba2 { skip: false, state: false }, Mamba2 { skip: true, state: true });
    let rate = || uniform(-2.0, -0.05);
    for l in LENGTHS {
        let full = full.clone();
        t.case(&format!("mamba2/length-{l}"), &[F32], normal(), STEPS, move |g| {
            Heads(2, l, 2, 1, 5, 9).mamba(g, full.clone(), rate(), F32)
        });
    }
    t.case("mamba2/length-4096", &[F32], normal(), STEPS, |g| {
        Heads(1, 4096, 1, 1, 4, 8).mamba(g, Mamba2 { skip: true, state: true }, uniform(-1e-3, -1e-4), F32)
    });
    for (h, groups, p, n) in SHAPES {
        for (tail, l) in [("", 5usize), ("-chunks", 70)] {
            let plain = plain.clone();
            t.case(&format!("mamba2/heads-{h}-{groups}-{p}-{n}{tail}"), &[F32], normal(), STEPS, move |g| {
                Heads(1, l, h, groups, p, n).mamba(g, plain.clone(), rate(), F32)
            });
        }
    }
    for (what, rate) in
        [("strong", uniform(-40.0, -10.0)), ("weak", uniform(-1e-5, 0.0)), ("none", whole(0, 0))]
    {
        t.case(&format!("mamba2/{what}-decay"), &[F32], normal(), STEPS, move |g| {
            Heads(1, 200, 3, 1, 5, 9).mamba(g, Mamba2 { skip: true, state: true }, rate.clone(), F32)
        });
    }
    for (tail, l) in [("steps", 6usize), ("chunks", 100)] {
        t.case(&format!("mamba2/floats-{tail}"), FLOATS, normal(), STEPS, move |g| {
            let weights = g.dtype();
            Heads(2, l, 4, 2, 6, 8).mamba(g, Mamba2 { skip: true, state: true }, rate(), weights)
        });
        t.case(&format!("mamba2/wide-weights-{tail}"), &[BF16], normal(), STEPS, move |g| {
            Heads(2, l, 4, 2, 6, 8).mamba(g, Mamba2 { skip: true, state: true }, rate(), F32)
        });
    }
    let empty = [
        ("no-steps", Heads(2, 0, 4, 2, 5, 3)),
        ("no-batch", Heads(0, 4, 4, 2, 5, 3)),
        ("no-heads", Heads(2, 4, 0, 0, 5, 3)),
        ("no-values", Heads(2, 4, 4, 2, 0, 3)),
    ];
    for (what, sizes) in empty {
        let full = full.clone();
        t.case(&format!("mamba2/{what}"), PAIR, normal(), Exact, move |g| {
            let weights = g.dtype();
            sizes.mamba(g, full.clone(), rate(), weights)
        });
    }
    t.case("mamba2/in-two-calls", &[F32], normal(), STEPS, move |g| {
        let operands = Heads(2, 150, 2, 1, 5, 9).mamba_operands(g, rate(), g.dtype())?;
        in_two(g, &operands, &[0, 1, 3, 4], 70, |g, parts, carried| {
            let [x, dt, a, b, c] = *parts else { return Err(wrong_count()) };
            let spec = Mamba2 { skip: false, state: carried.is_some() };
            g.mamba2(spec, [x, dt, a, b, c], carried.as_slice())
        })
    });
}

fn delta(t: &mut Table) {
    let plain = GatedDeltaNet::new;
    let full = || GatedDeltaNet { state: true, ..GatedDeltaNet::new() };
    let decay = || uniform(-1.0, 0.0);
    for l in LENGTHS {
        t.case(&format!("gated_delta_net/length-{l}"), &[F32], normal(), STEPS, move |g| {
            Heads(2, l, 2, 1, 5, 9).delta(g, full(), decay(), F32)
        });
    }
    t.case("gated_delta_net/length-4096", &[F32], normal(), STEPS, move |g| {
        Heads(1, 4096, 1, 1, 4, 8).delta(g, full(), uniform(-1e-2, 0.0), F32)
    });
    for (h, groups, dv, dk) in SHAPES {
        for (tail, l) in [("", 5usize), ("-chunks", 70)] {
            let name = format!("gated_delta_net/heads-{h}-{groups}-{dv}-{dk}{tail}");
            t.case(&name, &[F32], normal(), STEPS, move |g| {
                Heads(1, l, h, groups, dv, dk).delta(g, plain(), decay(), F32)
            });
        }
    }
    let decays = [
        ("strong", uniform(-20.0, -5.0)),
        ("mixed", uniform(-20.0, 0.0)),
        ("weak", uniform(-1e-4, 0.0)),
        ("none", whole(0, 0)),
        ("total", Fill::These(vec![-0.1, f64::NEG_INFINITY, -0.2, -0.3, -1e5])),
    ];
    for (what, decay) in decays {
        for (tail, l) in [("", 20usize), ("-chunks", 200)] {
            let decay = decay.clone();
            t.case(&format!("gated_delta_net/{what}-decay{tail}"), &[F32], normal(), STEPS, move |g| {
                Heads(1, l, 3, 1, 5, 9).delta(g, full(), decay.clone(), F32)
            });
        }
    }
    for (tail, l) in [("steps", 6usize), ("chunks", 100)] {
        t.case(&format!("gated_delta_net/floats-{tail}"), FLOATS, normal(), STEPS, move |g| {
            let weights = g.dtype();
            Heads(2, l, 4, 2, 6, 8).delta(g, full(), decay(), weights)
        });
        t.case(&format!("gated_delta_net/wide-weights-{tail}"), &[BF16], normal(), STEPS, move |g| {
            Heads(2, l, 4, 2, 6, 8).delta(g, full(), decay(), F32)
        });
    }
    t.case("gated_delta_net/scale", PAIR, normal(), STEPS, move |g| {
        let weights = g.dtype();
        let spec = GatedDeltaNet { scale: Some(0.37), ..plain() };
        Heads(2, 6, 4, 2, 6, 8).delta(g, spec, decay(), weights)
    });
    t.case("gated_delta_net/normalise", PAIR, normal(), STEPS, move |g| {
        let weights = g.dtype();
        let spec = GatedDeltaNet { normalise: Some(1e-6), ..full() };
        Heads(2, 20, 4, 2, 6, 8).delta(g, spec, decay(), weights)
    });
    let empty = [
        ("no-steps", Heads(2, 0, 4, 2, 5, 3)),
        ("no-batch", Heads(0, 4, 4, 2, 5, 3)),
        ("no-heads", Heads(2, 4, 0, 0, 5, 3)),
        ("no-values", Heads(2, 4, 4, 2, 0, 3)),
    ];
    for (what, sizes) in empty {
        t.case(&format!("gated_delta_net/{what}"), PAIR, normal(), Exact, move |g| {
            let weights = g.dtype();
            sizes.delta(g, full(), decay(), weights)
        });
    }
    t.case("gated_delta_net/in-two-calls", &[F32], normal(), STEPS, move |g| {
        let operands = Heads(2, 150, 2, 1, 5, 9).delta_operands(g, decay(), g.dtype())?;
        in_two(g, &operands, &[0, 1, 2, 3, 4], 70, |g, parts, carried| {
            let [q, k, v, decay, beta] = *parts else { return Err(wrong_count()) };
            let spec = GatedDeltaNet { state: carried.is_some(), ..GatedDeltaNet::new() };
            g.gated_delta_net(spec, [q, k, v, decay, beta], carried)
        })
    });
}

/// A causal convolution of x by so many taps.
fn convolve(
    g: &mut Build,
    [b, l, d]: [usize; 3],
    taps: usize,
    spec: CausalConv1d,
) -> Result<(ValueId, ValueId), Error> {
    let (x, weight) = (g.x([b, l, d])?, g.x([d, taps])?);
    let mut extra = Vec::new();
    if spec.bias {
        extra.push(g.x([d])?);
    }
    if spec.state {
        extra.push(g.x([b, taps - 1, d])?);
    }
    g.causal_conv1d(spec, x, weight, &extra)
}

fn conv(t: &mut Table) {
    let plain = CausalConv1d { bias: false, silu: false, state: false };
    let full = CausalConv1d { bias: true, silu: false, state: true };
    for l in LENGTHS {
        let full = full.clone();
        t.case(&format!("causal_conv1d/length-{l}"), &[F32], whole(-9, 9), Exact, move |g| {
            convolve(g, [2, l, 7], 4, full.clone())
        });
    }
    for taps in [1usize, 2, 3, 8, 9, 40] {
        for (tail, spec) in [("", &plain), ("-state", &full)] {
            let spec = spec.clone();
            t.case(&format!("causal_conv1d/taps-{taps}{tail}"), &[F32], whole(-9, 9), Exact, move |g| {
                convolve(g, [2, 11, 5], taps, spec.clone())
            });
        }
    }
    t.case("causal_conv1d/silu", FLOATS, normal(), Near(40.0, 40.0), |g| {
        convolve(g, [2, 33, 6], 4, CausalConv1d { bias: true, silu: true, state: true })
    });
    t.case("causal_conv1d/floats", FLOATS, normal(), crate::bound::sum_of(5), {
        let full = full.clone();
        move |g| convolve(g, [2, 10, 6], 4, full.clone())
    });
    for (what, x, taps) in [
        ("no-steps", [2, 0, 5], 4),
        ("no-steps-one-tap", [2, 0, 5], 1),
        ("no-batch", [0, 3, 5], 4),
        ("no-channels", [2, 3, 0], 4),
    ] {
        let full = full.clone();
        t.case(&format!("causal_conv1d/{what}"), PAIR, whole(-9, 9), Exact, move |g| {
            convolve(g, x, taps, full.clone())
        });
    }
    t.case("causal_conv1d/in-two-calls", PAIR, whole(-3, 3), Exact, |g| {
        let operands = [g.x([2, 9, 5])?, g.x([5, 4])?];
        in_two(g, &operands, &[0], 2, |g, parts, carried| {
            let [x, weight] = *parts else { return Err(wrong_count()) };
            let spec = CausalConv1d { bias: false, silu: false, state: carried.is_some() };
            g.causal_conv1d(spec, x, weight, carried.as_slice())
        })
    });
}
