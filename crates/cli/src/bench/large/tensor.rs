//! One tensor larger than 4 GiB: made on the device, worked on, read back in part.

use std::ops::Range;

use olivine::internals::models::seeded_input;
use olivine::ir::{DType, Data, Graph, Shape};
use olivine::{DeviceTensor, ResidentOutputs, Session};
use serde_json::{Value, json};

use crate::answer::Failure;
use crate::measure::{graph, span};
use crate::model::SEED;
use crate::timing::{Times, bytes, short};

/// Numbers of a row.
const COLUMNS: usize = 4096;
/// Ranges to look at beside both ends, and numbers in each.
const PLACES: usize = 64;
const LENGTH: usize = 5000;

/// What was found.
pub(super) struct Checked {
    bytes: usize,
    elements: usize,
    checked: usize,
    median_ms: f64,
}

/// y[i, j] = −(rows[i] + columns[j]) in two steps, so that the tensor is written, read and written again; every number
/// checked is exact.
pub(super) fn check(session: &Session, mib: usize) -> Result<Checked, Failure> {
    let rows = mib.saturating_mul(1 << 20).div_ceil(4 * COLUMNS);
    let make = session.compile(&graph("make", |g: &mut Graph| {
        let (r, c) = (g.input("r", DType::F32, [rows, 1])?, g.input("c", DType::F32, [COLUMNS])?);
        g.add(r, c)
    })?)?;
    let make_r = seeded_input("r", Shape::new(&[rows, 1])?, SEED)?;
    let make_c = seeded_input("c", Shape::new(&[COLUMNS])?, SEED)?;
    let x = only(make.run_resident([("r", &make_r), ("c", &make_c)])?)?;
    let negate = session.compile(&graph("negate", |g: &mut Graph| {
        let x = g.input("x", DType::F32, [rows, COLUMNS])?;
        g.neg(x)
    })?)?;
    let mut times = Times::default();
    for _ in 0..3 {
        times.push(span(&negate.profile([("x", &x)])?));
    }
    let y = only(negate.run_resident([("x", &x)])?)?;

    let (r, c) = (make_r.as_slice::<f32>()?, make_c.as_slice::<f32>()?);
    let elements = rows * COLUMNS;
    let mut checked = 0;
    for range in ranges(elements, PLACES, LENGTH) {
        let data = y.read_elements(range.clone())?;
        let Data::F32(got) = &data else { return Err(Failure::new("the result is not f32")) };
        for (i, got) in range.zip(got.iter()) {
            let expected = -(r[i / COLUMNS] + c[i % COLUMNS]);
            if got.to_bits() != expected.to_bits() {
                return Err(Failure::new(format!(
                    "element {i} of {elements} is {got} instead of {expected}"
                )));
            }
            checked += 1;
        }
    }
    Ok(Checked { bytes: 4 * elements, elements, checked, median_ms: times.median() })
}

pub(super) fn only(outputs: ResidentOutputs) -> Result<DeviceTensor, Failure> {
    let first = outputs.into_tensors().into_iter().next();
    first.ok_or_else(|| Failure::new("a run gave no output"))
}

/// Both ends, the neighbourhoods of 2 and 4 GiB of f32 and of 2³¹ and 2³² elements, and places in between that a
/// generator chooses.
pub(super) fn ranges(elements: usize, count: usize, length: usize) -> Vec<Range<usize>> {
    let around = |middle: usize| {
        let from = middle.min(elements).saturating_sub(length / 2);
        from..from.saturating_add(length).min(elements)
    };
    let mut list = vec![0..length.min(elements), elements.saturating_sub(length)..elements];
    list.extend([1usize << 29, 1 << 30, 1 << 31, 1 << 32].map(around));
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..count {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        list.push(around(((state >> 11) as usize) % elements.max(1)));
    }
    list
}

impl Checked {
    pub(super) fn text(&self) -> String {
        format!(
            "tensor of {}: {} elements checked and right; one pass over it {} ms, {} GB/s\n",
            bytes(self.bytes),
            self.checked,
            short(self.median_ms),
            short(self.rate())
        )
    }

    fn rate(&self) -> f64 {
        2.0 * self.bytes as f64 / self.median_ms / 1e6
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "bytes": self.bytes, "elements": self.elements, "checked": self.checked,
            "median_ms": self.median_ms, "gb_per_s": self.rate(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_inside_and_reach_both_ends() {
        for elements in [1, 4096, 1_000_000, 1_610_612_736usize] {
            let places = ranges(elements, 20, 5000);
            assert!(places.iter().all(|p| p.start < p.end && p.end <= elements), "{elements}");
            assert_eq!(places[0].start, 0);
            assert_eq!(places[1].end, elements);
        }
    }
}
