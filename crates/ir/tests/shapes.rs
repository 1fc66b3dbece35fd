//! Shape arithmetic against slow, direct models.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine_ir::op::{Reshape, Slice, View, Window};
use olivine_ir::{DType, Op, Shape, TensorType};
use proptest::prelude::*;

fn dims(ranks: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![4 => 1usize..5, 1 => Just(0usize), 2 => Just(1usize)], ranks)
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

/// Every index of a shape, in row-major order.
fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for d in dims {
        all = all.iter().flat_map(|head| (0..*d).map(|i| [&head[..], &[i]].concat())).collect();
    }
    all
}

/// The position of an index in row-major order, found by looking.
fn position(dims: &[usize], index: &[usize]) -> usize {
    indices(dims).iter().position(|i| i == index).unwrap()
}

fn dot(index: &[usize], strides: &[isize]) -> isize {
    index.iter().zip(strides).map(|(i, s)| *i as isize * s).sum()
}

/// NumPy's words: align at the back, each pair equal or one of them 1.
fn broadcast_model(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let padded = |s: &[usize]| [vec![1; rank - s.len()], s.to_vec()].concat();
    padded(a)
        .into_iter()
        .zip(padded(b))
        .map(|(x, y)| if x == y || y == 1 { Some(x) } else { (x == 1).then_some(y) })
        .collect()
}

/// Python's list slicing for a forward step, and ONNX's clamps for a backward one, one element at a time.
fn slice_model(size: usize, start: i64, end: i64, step: i64) -> Vec<usize> {
    let n = size as i128;
    let from_front = |p: i64| if p < 0 { i128::from(p) + n } else { i128::from(p) };
    let (mut at, end, step) = (from_front(start), from_front(end), i128::from(step));
    at = if step > 0 { at.max(0) } else { at.max(0).min(n - 1) };
    let end = if end < -1 { -1 } else { end };
    let mut out = Vec::new();
    while (0..n).contains(&at) && if step > 0 { at < end } else { at > end } {
        out.push(at as usize);
        at += step;
    }
    out
}

fn end() -> impl Strategy<Value = i64> {
    prop_oneof![5 => -7i64..8, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => Just(i64::MIN + 1)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn strides_give_row_major_positions(d in dims(0..=5)) {
        let s = shape(&d);
        prop_assert_eq!(s.numel(), indices(&d).len());
        for (at, index) in indices(&d).iter().enumerate() {
            prop_assert_eq!(dot(index, &s.strides()), at as isize);
        }
    }

    #[test]
    fn broadcasting_is_numpys(a in dims(0..=8), b in dims(0..=8)) {
        let model = broadcast_model(&a, &b);
        let got = shape(&a).broadcast(&shape(&b));
        prop_assert_eq!(got.map(|s| s.to_vec()), model.clone());
        prop_assert_eq!(shape(&b).broadcast(&shape(&a)).map(|s| s.to_vec()), model);
    }

    #[test]
    fn broadcast_strides_read_the_expanded_elements(to in dims(0..=4), lead in 0usize..5, ones: [bool; 4]) {
        let lead = lead.min(to.len());
        let from: Vec<usize> =
            to[lead..].iter().zip(ones).map(|(d, one)| if one { 1 } else { *d }).collect();
        let strides = shape(&from).broadcast_strides(&shape(&to)).unwrap();
        for index in indices(&to) {
            let read: Vec<usize> =
                index[lead..].iter().zip(&from).map(|(i, d)| if *d == 1 { 0 } else { *i }).collect();
            prop_assert_eq!(dot(&index, &strides), position(&from, &read) as isize);
        }
    }

    #[test]
    fn broadcast_strides_exist_exactly_when_the_target_is_the_broadcast(a in dims(0..=5), b in dims(0..=5)) {
        let fits = broadcast_model(&a, &b).as_ref() == Some(&b);
        prop_assert_eq!(shape(&a).broadcast_strides(&shape(&b)).is_some(), fits);
    }

    #[test]
    fn slices_take_the_elements_of_the_model(
        size in 0usize..6, start in end(), stop in end(), step in end().prop_filter("a step moves", |s| *s != 0),
    ) {
        let slice = Slice { axes: vec![1], starts: vec![start.into()], ends: vec![stop.into()], steps: vec![step] };
        let ranges = slice.ranges(&shape(&[3, size])).unwrap();
        prop_assert_eq!(ranges[0], (0.into(), 1, 3.into()));
        let (first, step, count) = ranges[1];
        let [first, count] = [first, count].map(|number| number.as_constant().unwrap());
        let taken: Vec<usize> =
            (0..count).map(|i| (i128::from(first) + i128::from(i) * i128::from(step)) as usize).collect();
        prop_assert_eq!(taken, slice_model(size, start, stop, slice.steps[0]));
    }

    #[test]
    fn reshape_keeps_elements_and_infers_one_size(x in dims(0..=5), asked in prop::collection::vec(-2i64..7, 0..=6)) {
        let operand = TensorType::new(DType::F32, shape(&x));
        let got = Op::from(Reshape { dims: asked.iter().map(|d| (*d).into()).collect() }).infer(&[operand]);
        let count = indices(&x).len();
        // Try every size for -1, and see whether exactly one fits.
        let copied: Option<Vec<i64>> = asked
            .iter()
            .enumerate()
            .map(|(i, d)| if *d == 0 { x.get(i).map(|d| *d as i64) } else { Some(*d) })
            .collect();
        let legal = asked.iter().filter(|d| **d == -1).count() <= 1 && asked.iter().all(|d| *d >= -1);
        let fitting: Vec<Vec<usize>> = match copied {
            Some(dims) if legal => (0..=count.max(1))
                .map(|n| dims.iter().map(|d| if *d == -1 { n } else { *d as usize }).collect::<Vec<usize>>())
                .filter(|d| d.iter().product::<usize>() == count)
                .collect(),
            _ => Vec::new(),
        };
        let unique = fitting.first().filter(|first| fitting.iter().all(|f| f == *first));
        match unique {
            Some(dims) => prop_assert_eq!(got.map(|t| t[0].shape.to_vec()), Ok(dims.clone())),
            None => prop_assert!(got.is_err(), "{:?}", got),
        }
    }

    #[test]
    fn views_are_refused_exactly_when_they_read_outside(
        count in 0usize..20, d in dims(0..=3), strides in prop::collection::vec(-4i64..5, 3), offset in 0usize..20,
    ) {
        let strides = strides[..d.len()].to_vec();
        let reads: Vec<i64> = indices(&d)
            .iter()
            .map(|i| offset as i64 + i.iter().zip(&strides).map(|(i, s)| *i as i64 * s).sum::<i64>())
            .collect();
        let inside = reads.iter().all(|r| (0..count as i64).contains(r));
        let view = View { shape: shape(&d), strides: strides.iter().map(|s| (*s).into()).collect(), offset: offset.into() };
        let operand = TensorType::new(DType::U8, shape(&[count]));
        prop_assert_eq!(Op::from(view.clone()).infer(&[operand]).is_ok(), inside);
        if inside && view.is_packed() {
            prop_assert_eq!(reads, (0..indices(&d).len() as i64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn window_counts_are_the_windows_that_can_be_placed(
        input in 0usize..9, kernel in 1usize..4, stride in 1usize..4, dilation in 1usize..3,
        before in 0usize..3, after in 0usize..3, ceil: bool,
    ) {
        let window = Window { strides: vec![stride], pads: vec![(before, after)], dilations: vec![dilation] };
        let span = (kernel - 1) * dilation + 1;
        let padded = before + input + after;
        let starts = (0..).map(|i| i * stride);
        let whole = starts.clone().take_while(|s| s + span <= padded).count();
        let got = window.count(0, input, kernel, ceil);
        if whole == 0 && ceil && span < padded + stride {
            // The only window hangs over the end, unless it would begin in the padding after the operand.
            prop_assert_eq!(got, Ok(usize::from(input + before > 0)));
        } else if whole == 0 {
            prop_assert!(got.is_err());
        } else if !ceil {
            prop_assert_eq!(got, Ok(whole));
        } else {
            // One more if elements are left over, unless it would begin in the padding after the operand.
            let left = (whole - 1) * stride + span < padded;
            let candidates = whole + usize::from(left);
            let last = (candidates - 1) * stride;
            prop_assert_eq!(got, Ok(candidates - usize::from(last >= input + before)));
        }
    }
}

#[test]
fn shapes_have_limits() {
    assert!(Shape::new(&[1; 8]).is_ok());
    assert_eq!(Shape::new(&[1; 9]).unwrap_err().to_string(), "rank 9 is above the limit of 8");
    assert!(Shape::new(&[1 << 50]).is_ok());
    assert!(Shape::new(&[(1 << 50) + 1]).is_err());
    assert!(Shape::new(&[0, 1 << 50, 2]).is_err(), "zeros count as one, so that strides stay in range too");
    assert!(Shape::new(&[usize::MAX, usize::MAX]).is_err());
}

#[test]
fn a_broadcast_past_the_limit_is_refused() {
    let (a, b) = (shape(&[1 << 30, 1]), shape(&[1, 1 << 30]));
    assert_eq!(a.broadcast(&b), None);
    let types = [a, b].map(|s| TensorType::new(DType::F32, s));
    let add = Op::read("add", &Default::default()).unwrap();
    assert_eq!(
        add.infer(&types).unwrap_err(),
        "shapes do not broadcast: [1073741824, 1] with [1, 1073741824]: more than 2^50 elements"
    );
}

#[test]
fn shrinking_never_grows() {
    let s = shape(&[2, 3]);
    assert_eq!(s.shrunk(1, 1).dims(), [2, 1]);
    assert_eq!(s.shrunk(1, 9), s);
    assert_eq!(s.shrunk(2, 0), s);
}

#[test]
fn negative_axes_count_from_the_back() {
    let s = shape(&[2, 3]);
    assert_eq!([-3, -2, -1, 0, 1, 2].map(|a| s.axis(a)), [None, Some(0), Some(1), Some(0), Some(1), None]);
    assert_eq!(s.axis(isize::MIN), None);
    assert_eq!(shape(&[]).axis(0), None);
}

/// Errors with the types of three tensors stay within clippy's threshold.
#[test]
#[cfg(target_pointer_width = "64")]
fn a_shape_has_72_bytes() {
    assert_eq!((size_of::<Shape>(), size_of::<TensorType>()), (72, 80));
}
