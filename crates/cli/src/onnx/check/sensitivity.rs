//! How much a model amplifies rounding: floats are moved by about as much as rounding moves them, and values are compared.
//!
//! A quantised model rounds numbers that were computed in floats. A small part of such a float may become a whole step of
//! the integer behind it, so that two right implementations differ by that much.

use std::time::Duration;

use olivine::ir::{DType, Data, Tensor};

use super::compare::{Distance, Sensitivity, Values};
use crate::onnx::inputs::Random;

/// Weights of so few elements stay as they are: scales of a resize and the like decide shapes.
pub(super) const FEW: usize = 8;

/// Runs with moved floats: so many, and more up to so many while they take no longer than this.
pub(super) const LEAST_RUNS: u64 = 5;
pub(super) const MOST_RUNS: u64 = 100;
pub(super) const LONGEST: Duration = Duration::from_secs(5);

/// An element moves by this part of itself at most, or by its dtype's noise, however large others of its tensor are.
const LARGEST_PART: f64 = 1e-3;

/// By how much elements move at most, as a part of the tensor's largest. In f32 and f64 that is more than one operation
/// rounds by: every operation of an implementation rounds, and only inputs and weights are moved here.
fn noise(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F32 => Some(16.0 * f64::from(f32::EPSILON)),
        DType::F64 => Some(16.0 * f64::EPSILON),
        DType::F16 => Some(2f64.powi(-10)),
        DType::BF16 => Some(2f64.powi(-7)),
        _ => None,
    }
}

/// A float tensor with its elements moved at random; zeros, infinities and NaN stay. None of another type.
pub(super) fn moved(tensor: &Tensor, seed: u64) -> Option<Tensor> {
    let (dtype, part) = (tensor.dtype(), noise(tensor.dtype())?);
    let mut values = tensor.to_f64();
    let largest = values.iter().map(|x| x.abs()).filter(|x| x.is_finite()).fold(0.0, f64::max);
    let mut random = Random::new(seed);
    for x in values.iter_mut().filter(|x| x.is_finite()) {
        let step = (random.unit() * 2.0 - 1.0) * (part * largest).min(LARGEST_PART.max(part) * x.abs());
        *x += step;
    }
    let bytes: Vec<u8> = match dtype {
        DType::F32 => values.iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect(),
        DType::F64 => values.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        _ => values.iter().flat_map(|x| Tensor::scalar_of(dtype, *x).bytes().to_vec()).collect(),
    };
    Tensor::from_data(*tensor.shape(), Data::from_bytes(dtype, &bytes).ok()?).ok()
}

/// Keeps the largest change of each value, with those of one more run. A value of another shape says nothing.
pub(super) fn widen(found: &mut Sensitivity, still: &Values, moved: &Values) {
    for (name, moved) in moved {
        let Some(still) = still.get(name) else { continue };
        let change = Distance::of(moved, still);
        if matches!(change, Distance::Type(_)) {
            continue;
        }
        let before = found.remove(name).unwrap_or(Distance::Relative(0.0));
        found.insert(name.clone(), before.max(change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_move_by_as_much_as_rounding_and_zeros_and_infinities_stay() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            let values = [0.0, -2.0, 1.0, f64::INFINITY, 0.5, 1.5, 0.25, 0.75];
            let bytes: Vec<u8> =
                values.iter().flat_map(|x| Tensor::scalar_of(dtype, *x).bytes().to_vec()).collect();
            let still = Tensor::from_data([8], Data::from_bytes(dtype, &bytes).unwrap()).unwrap();
            let changed = (0..8).map(|seed| moved(&still, seed).unwrap().to_f64());
            let steps: Vec<f64> = changed
                .flat_map(|moved| {
                    assert_eq!((moved[0], moved[3]), (0.0, f64::INFINITY), "{dtype}");
                    [1, 2, 4, 5, 6, 7].map(|i: usize| (moved[i] - values[i]).abs() / values[i].abs())
                })
                .collect();
            let most = 2.0 * noise(dtype).unwrap() + LARGEST_PART;
            assert!(steps.iter().any(|step| *step > 0.0), "{dtype}: nothing moved");
            assert!(steps.iter().all(|step| *step < most), "{dtype}: {steps:?}");
        }
        assert!(moved(&Tensor::new([1], vec![1i64]).unwrap(), 1).is_none());
    }

    #[test]
    fn the_sensitivity_of_a_value_is_its_largest_change() {
        let values = |x: f32| Values::from([("y".to_string(), Tensor::new([1], vec![x]).unwrap())]);
        let mut found = Sensitivity::new();
        for moved in [4.0, 5.0, 4.5] {
            widen(&mut found, &values(4.0), &values(moved));
        }
        assert_eq!(found["y"], Distance::Relative(0.25));
    }
}
