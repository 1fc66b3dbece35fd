//! Tensors as text, in the way of NumPy: nested brackets, aligned columns, the middle of long axes left out.

use std::fmt;

use half::{bf16, f16};

use crate::{DType, Data, Tensor};

/// Elements above which the middle of long axes is left out, and elements shown at either end.
const MOST: usize = 1000;
const EDGE: usize = 3;

/// Decimals at most, and significant digits at most where exponents are shown.
const DECIMALS: usize = 8;
/// Characters of a line.
const LINE: usize = 75;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = self.shape();
        if shape.has_zero() {
            return f.write_str("[]");
        }
        let shorten = shape.numel() > MOST;
        let shown = |size: usize| -> Vec<Option<usize>> {
            if !shorten || size <= 2 * EDGE {
                return (0..size).map(Some).collect();
            }
            (0..EDGE).map(Some).chain([None]).chain((size - EDGE..size).map(Some)).collect()
        };
        let axes: Vec<Vec<Option<usize>>> = shape.iter().map(|d| shown(*d)).collect();
        let mut elements = Vec::new();
        collect(self, &axes, 0, &mut elements);
        let texts = Texts::new(&elements);
        write(f, &axes, 0, &mut texts.all.iter())
    }
}

/// The elements that are shown, in order.
fn collect(tensor: &Tensor, axes: &[Vec<Option<usize>>], start: usize, to: &mut Vec<Data>) {
    let rank = tensor.shape().rank();
    let Some((first, rest)) = axes.split_first() else {
        to.extend(element(tensor, start));
        return;
    };
    let inner: usize = tensor.shape()[rank - rest.len()..].iter().product();
    for i in first.iter().flatten() {
        collect(tensor, rest, start + i * inner, to);
    }
}

/// One element; nothing else of the tensor is read.
fn element(tensor: &Tensor, at: usize) -> Option<Data> {
    let size = tensor.dtype().size();
    Data::from_bytes(tensor.dtype(), tensor.bytes().get(at * size..(at + 1) * size)?).ok()
}

/// Elements as texts of one length.
struct Texts {
    all: Vec<String>,
}

impl Texts {
    fn new(elements: &[Data]) -> Self {
        let mut all: Vec<String> = match elements.first().map(Data::dtype) {
            Some(DType::F16 | DType::BF16 | DType::F32 | DType::F64) => floats(elements),
            _ => elements.iter().map(whole).collect(),
        };
        let width = all.iter().map(String::len).max().unwrap_or(0);
        all.iter_mut().for_each(|text| *text = format!("{text:>width$}"));
        Texts { all }
    }
}

/// A whole number or a truth value.
fn whole(element: &Data) -> String {
    match element {
        Data::I8(v) => v[0].to_string(),
        Data::U8(v) => v[0].to_string(),
        Data::I16(v) => v[0].to_string(),
        Data::I32(v) => v[0].to_string(),
        Data::U32(v) => v[0].to_string(),
        Data::I64(v) => v[0].to_string(),
        Data::Bool(v) => v[0].to_string(),
        _ => String::new(),
    }
}

/// The number, and the shortest decimal digits that mean it in its own type.
fn float(element: &Data) -> (f64, String) {
    match element {
        Data::F32(v) => (v[0].into(), format!("{:e}", v[0])),
        Data::F64(v) => (v[0], format!("{:e}", v[0])),
        Data::F16(v) => (v[0].into(), shortest(v[0].into(), |x| f16::from_f64(x) == v[0])),
        Data::BF16(v) => (v[0].into(), shortest(v[0].into(), |x| bf16::from_f64(x) == v[0])),
        _ => (0.0, String::new()),
    }
}

/// The fewest significant digits that mean the number; five are always enough for sixteen bits.
fn shortest(x: f64, means: impl Fn(f64) -> bool) -> String {
    let texts = (0..4).map(|decimals| format!("{x:.decimals$e}"));
    let found = texts.into_iter().find(|text| text.parse().is_ok_and(&means));
    found.unwrap_or_else(|| format!("{x:.4e}"))
}

fn floats(elements: &[Data]) -> Vec<String> {
    let numbers: Vec<(f64, String)> = elements.iter().map(float).collect();
    let sizes = || numbers.iter().map(|(x, _)| x.abs()).filter(|x| *x > 0.0 && x.is_finite());
    let (largest, smallest) = (sizes().fold(0.0, f64::max), sizes().fold(f64::INFINITY, f64::min));
    let exponents = largest >= 1e8 || smallest < 1e-4 || (largest > 0.0 && largest / smallest > 1e3);
    if exponents {
        let digits = numbers.iter().map(|(_, e)| mantissa_decimals(e)).max().unwrap_or(0).min(DECIMALS);
        return numbers
            .iter()
            .map(|(x, _)| if x.is_finite() { exponent(*x, digits) } else { odd(*x) })
            .collect();
    }
    let decimals = numbers.iter().map(|(_, e)| decimals(e)).max().unwrap_or(0).min(DECIMALS);
    let fixed = |x: f64| {
        let text = format!("{x:.decimals$}");
        if decimals == 0 { text + "." } else { text }
    };
    numbers.iter().map(|(x, _)| if x.is_finite() { fixed(*x) } else { odd(*x) }).collect()
}

/// Infinities and NaN, whose sign says nothing.
fn odd(x: f64) -> String {
    if x.is_nan() {
        "nan".into()
    } else if x > 0.0 {
        "inf".into()
    } else {
        "-inf".into()
    }
}

fn exponent(x: f64, digits: usize) -> String {
    let text = format!("{x:.digits$e}");
    let Some((number, power)) = text.split_once('e') else { return text };
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |p| ('-', p));
    let point = if digits == 0 { "." } else { "" };
    format!("{number}{point}e{sign}{power:0>2}")
}

/// Decimals of a number written with one digit before the point.
fn mantissa_decimals(text: &str) -> usize {
    text.split_once('e').and_then(|(m, _)| m.split_once('.')).map_or(0, |(_, d)| d.len())
}

/// Decimals of a number written without exponent.
fn decimals(text: &str) -> usize {
    let power = text.split_once('e').and_then(|(_, p)| p.parse::<isize>().ok()).unwrap_or(0);
    (mantissa_decimals(text) as isize - power).max(0) as usize
}

/// Writes one axis and those inside it.
fn write<'t>(
    f: &mut fmt::Formatter<'_>,
    axes: &[Vec<Option<usize>>],
    indent: usize,
    texts: &mut impl Iterator<Item = &'t String>,
) -> fmt::Result {
    let Some((first, rest)) = axes.split_first() else {
        return f.write_str(texts.next().map_or("", String::as_str));
    };
    f.write_str("[")?;
    let mut column = indent + 1;
    for (i, index) in first.iter().enumerate() {
        if i > 0 && !rest.is_empty() {
            // A line for every row, and an empty one more for every axis around rows.
            write!(f, "{}{}", "\n".repeat(rest.len()), " ".repeat(indent + 1))?;
        }
        if index.is_none() {
            f.write_str(if i > 0 && rest.is_empty() { " ..." } else { "..." })?;
            column += 4;
            continue;
        }
        if !rest.is_empty() {
            write(f, rest, indent + 1, texts)?;
            continue;
        }
        let text = texts.next().map_or("", String::as_str);
        if i > 0 && column + 1 + text.len() > LINE {
            write!(f, "\n{}", " ".repeat(indent + 1))?;
            column = indent + 1;
        } else if i > 0 {
            f.write_str(" ")?;
            column += 1;
        }
        f.write_str(text)?;
        column += text.len();
    }
    f.write_str("]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<T: crate::Element>(shape: &[usize], elements: Vec<T>) -> String {
        Tensor::new(shape, elements).unwrap().to_string()
    }

    #[test]
    fn tensors_print_in_brackets_and_columns() {
        assert_eq!(text(&[], vec![2.5f32]), "2.5");
        assert_eq!(text(&[3], vec![1i64, -20, 300]), "[  1 -20 300]");
        assert_eq!(text(&[2, 2], vec![1.0f32, 2.5, -3.0, 4.0]), "[[ 1.0  2.5]\n [-3.0  4.0]]");
        assert_eq!(text(&[2], vec![1.0f32, 2.0]), "[1. 2.]");
        assert_eq!(text(&[2], vec![0.1f32, 0.25]), "[0.10 0.25]");
        assert_eq!(text(&[2], vec![1e10f32, 1.5]), "[1.0e+10 1.5e+00]");
        assert_eq!(text(&[2], vec![1e-5f64, 0.0]), "[1.e-05 0.e+00]");
        assert_eq!(text(&[3], vec![f32::NAN, f32::INFINITY, -1.0]), "[nan inf -1.]");
        assert_eq!(text(&[2], vec![true, false]), "[ true false]");
        assert_eq!(text(&[1, 2, 1], vec![1u8, 2]), "[[[1]\n  [2]]]");
        assert_eq!(text(&[2, 1, 1], vec![1u8, 2]), "[[[1]]\n\n [[2]]]");
        assert_eq!(text(&[1], vec![f16::from_f32(0.1)]), "[0.1]");
        assert_eq!(text(&[0, 3], Vec::<f32>::new()), "[]");
        assert_eq!(text(&[1], vec![i64::MAX]), "[9223372036854775807]");
    }

    #[test]
    fn the_middle_of_long_axes_is_left_out_and_not_read() {
        assert_eq!(text(&[1001], (0..1001).collect()), "[   0    1    2 ...  998  999 1000]");
        let rows = text(&[500, 3], (0..1500).collect());
        assert_eq!(rows.lines().count(), 7);
        assert_eq!(rows.lines().nth(3), Some(" ..."));
        assert_eq!(rows.lines().last(), Some(" [1497 1498 1499]]"));
    }

    #[test]
    fn long_lines_are_broken() {
        let text = text(&[40], vec![1234567i32; 40]);
        assert!(text.lines().all(|line| line.len() <= LINE + 1), "{text}");
        assert_eq!(text.matches("1234567").count(), 40);
    }
}
