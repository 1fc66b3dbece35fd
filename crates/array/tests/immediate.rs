//! Every op code with every dtype and odd sizes against a host reference, and every error.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::{bytes_of, contexts, numbers_of, seeded};
use olivine_array::{Buffer, Context, DType, ErrorKind, ops};

const DTYPES: [DType; 3] = [DType::F32, DType::F64, DType::I32];
const SIZES: [usize; 6] = [1, 2, 3, 7, 129, 1031];

/// Numbers as the dtype holds them.
fn held(dtype: DType, numbers: &[f64]) -> Vec<f64> {
    numbers_of(dtype, &bytes_of(dtype, numbers))
}

fn upload(context: &Context, dtype: DType, numbers: &[f64]) -> Buffer {
    context.upload(&bytes_of(dtype, numbers)).unwrap()
}

fn close(dtype: DType, got: f64, want: f64) -> bool {
    let tolerance = match dtype {
        DType::F32 => 4e-6,
        DType::F64 => 1e-13,
        _ => 0.0,
    };
    got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= tolerance * want.abs().max(1.0)
}

fn check(what: &str, dtype: DType, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(close(dtype, *got, *want), "{what} of {dtype}: element {i} is {got}, not {want}");
    }
}

/// What the host computes; integers in i32.
fn binary(dtype: DType, op: u32, a: f64, b: f64) -> f64 {
    use ops::binary::*;
    if dtype == DType::I32 {
        let (a, b) = (a as i32, b as i32);
        return f64::from(match op {
            ADD => a.wrapping_add(b),
            MUL => a.wrapping_mul(b),
            SUB => a.wrapping_sub(b),
            DIV => a.checked_div(b).unwrap_or(0),
            POW => a.wrapping_pow(b.unsigned_abs()),
            MAX => a.max(b),
            MIN => a.min(b),
            _ => panic!("{op}"),
        });
    }
    match op {
        ADD => a + b,
        MUL => a * b,
        SUB => a - b,
        DIV => a / b,
        POW => a.powf(b),
        MAX => a.max(b),
        MIN => a.min(b),
        _ => panic!("{op}"),
    }
}

fn unary(op: u32, x: f64) -> f64 {
    use ops::unary::*;
    match op {
        EXP => x.exp(),
        LOG => x.ln(),
        SQRT => x.sqrt(),
        ABS => x.abs(),
        NEG => -x,
        SIGMOID => 1.0 / (1.0 + (-x).exp()),
        TANH => x.tanh(),
        RELU => x.max(0.0),
        CEIL => x.ceil(),
        FLOOR => x.floor(),
        SIGN => {
            if x == 0.0 {
                0.0
            } else {
                x.signum()
            }
        }
        RECIPROCAL => 1.0 / x,
        SQUARE => x * x,
        _ => panic!("{op}"),
    }
}

#[test]
fn the_numbers_of_the_contract_are_fixed() {
    use ops::{binary as b, reduce as r, unary as u};
    assert_eq!([b::ADD, b::MUL, b::SUB, b::DIV, b::POW, b::MAX, b::MIN], [0, 1, 2, 3, 4, 5, 6]);
    let unary = [
        u::EXP,
        u::LOG,
        u::SQRT,
        u::ABS,
        u::NEG,
        u::SIGMOID,
        u::TANH,
        u::RELU,
        u::CEIL,
        u::FLOOR,
        u::SIGN,
        u::RECIPROCAL,
        u::SQUARE,
    ];
    assert!(unary.iter().copied().eq(0..13));
    assert_eq!([r::SUM, r::MAX, r::MIN], [0, 1, 2]);
    assert_eq!((b::ALL.len(), u::ALL.len(), r::ALL.len()), (15, 41, 10), "new operations go to the end");
}

#[test]
fn binary_operations_match_the_host() {
    for context in contexts() {
        for dtype in DTYPES {
            for n in SIZES {
                let positive = dtype != DType::I32;
                let a = held(dtype, &seeded(n as u64, n, if positive { 0.1 } else { -9.0 }, 9.0));
                let b = held(dtype, &seeded(n as u64 + 7, n, if positive { -3.0 } else { 0.0 }, 5.0));
                let (x, y) = (upload(&context, dtype, &a), upload(&context, dtype, &b));
                for op in 0..=ops::binary::MIN {
                    let out = context.alloc(n * dtype.size()).unwrap();
                    context.binary(&out, &x, &y, n, op, dtype).unwrap();
                    let want: Vec<f64> =
                        a.iter().zip(&b).map(|(a, b)| held(dtype, &[binary(dtype, op, *a, *b)])[0]).collect();
                    check(
                        &format!("binary {op}"),
                        dtype,
                        &numbers_of(dtype, &out.download().unwrap()),
                        &want,
                    );
                }
            }
        }
    }
}

#[test]
fn unary_operations_match_the_host_or_are_unsupported() {
    use ops::unary::*;
    for context in contexts() {
        for dtype in DTYPES {
            for n in SIZES {
                for op in 0..=SQUARE {
                    let low = if matches!(op, LOG | SQRT | RECIPROCAL) { 0.1 } else { -6.0 };
                    let a = held(dtype, &seeded(u64::from(op) + 1, n, low, 6.0));
                    let (x, out) = (upload(&context, dtype, &a), context.alloc(n * dtype.size()).unwrap());
                    let ran = context.unary(&out, &x, n, op, dtype);
                    let floats_alone = matches!(op, EXP | LOG | SQRT | SIGMOID | TANH | RECIPROCAL);
                    if dtype == DType::I32 && floats_alone {
                        assert_eq!(ran.unwrap_err().name(), "unsupported");
                        continue;
                    }
                    ran.unwrap();
                    let want: Vec<f64> = a.iter().map(|x| unary(op, *x)).collect();
                    check(&format!("unary {op}"), dtype, &numbers_of(dtype, &out.download().unwrap()), &want);
                }
            }
        }
    }
}

#[test]
fn reductions_match_the_host() {
    for context in contexts() {
        for dtype in DTYPES {
            for (outer, reduce, inner) in
                [(1, 1, 1), (1, 7, 1), (3, 5, 2), (2, 129, 3), (5, 1, 11), (2, 0, 3)]
            {
                let a = held(dtype, &seeded(3, outer * reduce * inner, -5.0, 5.0));
                let x = upload(&context, dtype, &a);
                for op in 0..=ops::reduce::MIN {
                    let empty = match (op, dtype) {
                        (ops::reduce::SUM, _) => 0.0,
                        (ops::reduce::MAX, DType::I32) => f64::from(i32::MIN),
                        (ops::reduce::MAX, _) => f64::NEG_INFINITY,
                        (_, DType::I32) => f64::from(i32::MAX),
                        _ => f64::INFINITY,
                    };
                    let mut want = Vec::new();
                    for o in 0..outer {
                        for i in 0..inner {
                            let all = (0..reduce).map(|r| a[(o * reduce + r) * inner + i]);
                            want.push(all.fold(empty, |acc, x| match op {
                                ops::reduce::SUM => acc + x,
                                ops::reduce::MAX => acc.max(x),
                                _ => acc.min(x),
                            }));
                        }
                    }
                    let out = context.alloc(outer * inner * dtype.size()).unwrap();
                    context.reduce(&out, &x, outer, reduce, inner, op, dtype).unwrap();
                    let got = numbers_of(dtype, &out.download().unwrap());
                    check(&format!("reduce {op} of {outer}x{reduce}x{inner}"), dtype, &got, &want);
                }
            }
        }
    }
}

#[test]
fn matmul_and_transpose_match_the_host() {
    for context in contexts() {
        for dtype in DTYPES {
            for (m, n, k) in [(1, 1, 1), (3, 5, 7), (17, 33, 9), (64, 65, 31), (2, 3, 0)] {
                let a = held(dtype, &seeded(1, m * k, -4.0, 4.0));
                let b = held(dtype, &seeded(2, k * n, -4.0, 4.0));
                let (x, y) = (upload(&context, dtype, &a), upload(&context, dtype, &b));
                let out = context.upload(&vec![0xff; m * n * dtype.size()]).unwrap();
                context.matmul(&out, &x, &y, m, n, k, dtype).unwrap();
                let want: Vec<f64> = (0..m * n)
                    .map(|at| (0..k).map(|i| a[at / n * k + i] * b[i * n + at % n]).sum())
                    .collect();
                let got = numbers_of(dtype, &out.download().unwrap());
                for (got, want) in got.iter().zip(&want) {
                    let bound = if dtype == DType::F32 { 1e-4 } else { 1e-12 };
                    assert!((got - want).abs() <= bound, "matmul {m}x{n}x{k} of {dtype}: {got}, not {want}");
                }
            }
            for (m, n) in [(1, 1), (1, 9), (7, 1), (13, 31), (64, 33)] {
                let a = held(dtype, &seeded(5, m * n, -100.0, 100.0));
                let (x, out) = (upload(&context, dtype, &a), context.alloc(m * n * dtype.size()).unwrap());
                context.transpose_2d(&out, &x, m, n, dtype).unwrap();
                let want: Vec<f64> = (0..m * n).map(|at| a[at % m * n + at / m]).collect();
                assert_eq!(numbers_of(dtype, &out.download().unwrap()), want);
            }
        }
    }
}

#[test]
fn an_output_may_be_an_input() {
    for context in contexts() {
        let a: Vec<f64> = (0..12).map(f64::from).collect();
        let dtype = DType::F32;
        let x = upload(&context, dtype, &a);
        context.binary(&x, &x, &x, 12, ops::binary::ADD, dtype).unwrap();
        context.unary(&x, &x, 12, ops::unary::NEG, dtype).unwrap();
        context.transpose_2d(&x, &x, 3, 4, dtype).unwrap();
        let want: Vec<f64> = (0..12).map(|at| -2.0 * a[at % 3 * 4 + at / 3]).collect();
        assert_eq!(numbers_of(dtype, &x.download().unwrap()), want);

        let y = upload(&context, dtype, &[1.0, 2.0, 3.0, 4.0]);
        context.matmul(&y, &y, &y, 2, 2, 2, dtype).unwrap();
        assert_eq!(numbers_of(dtype, &y.download().unwrap()), [7.0, 10.0, 15.0, 22.0]);
        context.reduce(&y, &y, 2, 2, 1, ops::reduce::SUM, dtype).unwrap();
        assert_eq!(numbers_of(dtype, &y.download().unwrap()), [17.0, 37.0, 15.0, 22.0], "the tail stays");
    }
}

#[test]
fn larger_buffers_keep_their_tails() {
    for context in contexts() {
        // 11 bytes: two numbers and an odd tail.
        let mut bytes = bytes_of(DType::F32, &[1.0, 2.0]);
        bytes.extend([7, 8, 9]);
        let (x, out) = (context.upload(&bytes).unwrap(), context.upload(&[0xab; 11]).unwrap());
        context.binary(&out, &x, &x, 2, ops::binary::ADD, DType::F32).unwrap();
        let got = out.download().unwrap();
        assert_eq!(numbers_of(DType::F32, &got[..8]), [2.0, 4.0]);
        assert_eq!(got[8..], [0xab; 3]);
        // The input is larger than what is used of it, and large enough to be on the device.
        let large = upload(&context, DType::F64, &vec![3.0; 1000]);
        let out = upload(&context, DType::F64, &vec![5.0; 2000]);
        context.unary(&out, &large, 7, ops::unary::SQUARE, DType::F64).unwrap();
        let got = numbers_of(DType::F64, &out.download().unwrap());
        assert_eq!(got[..7], [9.0; 7]);
        assert!(got[7..].iter().all(|x| *x == 5.0));
    }
}

#[test]
fn bytes_change_their_type_from_operation_to_operation() {
    for context in contexts() {
        for n in [3, 1000] {
            let x = upload(&context, DType::F32, &vec![-1.5; n]);
            // The bits of −1.5 as an i32, plus itself; then read as f32 again.
            context.binary(&x, &x, &x, n, ops::binary::MAX, DType::I32).unwrap();
            context.unary(&x, &x, n, ops::unary::ABS, DType::F32).unwrap();
            assert_eq!(numbers_of(DType::F32, &x.download().unwrap()), vec![1.5; n]);
        }
    }
}

#[test]
fn empty_buffers_are_legal() {
    for context in contexts() {
        let empty = context.alloc(0).unwrap();
        assert_eq!(empty.byte_size(), 0);
        assert_eq!(empty.download().unwrap(), Vec::<u8>::new());
        empty.upload_into(&[]).unwrap();
        for dtype in DTYPES {
            context.binary(&empty, &empty, &empty, 0, ops::binary::ADD, dtype).unwrap();
            context.unary(&empty, &empty, 0, ops::unary::ABS, dtype).unwrap();
            context.reduce(&empty, &empty, 0, 5, 3, ops::reduce::SUM, dtype).unwrap();
            context.matmul(&empty, &empty, &empty, 0, 0, 4, dtype).unwrap();
            context.transpose_2d(&empty, &empty, 0, 9, dtype).unwrap();
        }
        assert_eq!(empty.download().unwrap(), Vec::<u8>::new());
    }
}

#[test]
fn every_mistake_has_its_error_and_changes_nothing() {
    for context in contexts() {
        let (small, big) = (context.upload(&[7; 8]).unwrap(), context.alloc(64).unwrap());
        let kind = |result: Result<(), olivine_array::Error>| result.unwrap_err().kind();
        let f32 = DType::F32;
        use ErrorKind::{BadInput, SizeMismatch, Unsupported};
        // Too small, each operand in turn.
        assert_eq!(kind(context.binary(&small, &big, &big, 3, 0, f32)), SizeMismatch);
        assert_eq!(kind(context.binary(&big, &small, &big, 3, 0, f32)), SizeMismatch);
        assert_eq!(kind(context.binary(&big, &big, &small, 3, 0, f32)), SizeMismatch);
        assert_eq!(kind(context.unary(&small, &big, 3, 0, f32)), SizeMismatch);
        assert_eq!(kind(context.unary(&big, &small, 3, 0, f32)), SizeMismatch);
        assert_eq!(kind(context.reduce(&small, &big, 3, 2, 1, 0, f32)), SizeMismatch);
        assert_eq!(kind(context.reduce(&big, &small, 3, 2, 1, 0, f32)), SizeMismatch);
        assert_eq!(kind(context.matmul(&small, &big, &big, 3, 3, 1, f32)), SizeMismatch);
        assert_eq!(kind(context.matmul(&big, &small, &big, 3, 1, 3, f32)), SizeMismatch);
        assert_eq!(kind(context.matmul(&big, &big, &small, 1, 3, 3, f32)), SizeMismatch);
        assert_eq!(kind(context.transpose_2d(&small, &big, 3, 1, f32)), SizeMismatch);
        assert_eq!(kind(context.transpose_2d(&big, &small, 3, 1, f32)), SizeMismatch);
        // Products that overflow, and sizes that are only too large.
        let huge = usize::MAX;
        for n in [huge, huge / 2, huge / 4 + 1, 1 << 62] {
            assert_eq!(kind(context.binary(&big, &big, &big, n, 0, f32)), SizeMismatch);
            assert_eq!(kind(context.unary(&big, &big, n, 0, f32)), SizeMismatch);
            assert_eq!(kind(context.reduce(&big, &big, n, 2, 2, 0, f32)), SizeMismatch);
            assert_eq!(kind(context.reduce(&big, &big, 2, n, 2, 0, f32)), SizeMismatch);
            assert_eq!(kind(context.matmul(&big, &big, &big, n, 2, 1, f32)), SizeMismatch);
            assert_eq!(kind(context.matmul(&big, &big, &big, 2, n, 1, f32)), SizeMismatch);
            assert_eq!(kind(context.matmul(&big, &big, &big, 1, 1, n, f32)), SizeMismatch);
            assert_eq!(kind(context.transpose_2d(&big, &big, n, 3, f32)), SizeMismatch);
        }
        // A zero does not hide what overflows a shape.
        assert!(context.matmul(&big, &big, &big, 0, huge, 0, f32).is_err());
        assert!(context.reduce(&big, &big, huge, 0, 0, 0, f32).is_err());
        // Numbers that are no operation, and dtypes that are none here.
        assert_eq!(kind(context.binary(&big, &big, &big, 1, 15, f32)), BadInput);
        assert_eq!(kind(context.unary(&big, &big, 1, u32::MAX, f32)), BadInput);
        assert_eq!(kind(context.reduce(&big, &big, 1, 1, 1, 10, f32)), BadInput);
        assert_eq!(kind(context.binary(&big, &big, &big, 1, 0, DType::I64)), Unsupported);
        assert_eq!(kind(context.unary(&big, &big, 1, 0, DType::I32)), Unsupported);
        assert_eq!(kind(context.binary(&big, &big, &big, 1, ops::binary::AND, f32)), Unsupported);
        assert_eq!(kind(context.reduce(&big, &big, 1, 1, 1, ops::reduce::MEAN, DType::I32)), Unsupported);
        // Another context's buffer.
        let other = Context::new(olivine_array::Device::Cpu).unwrap().alloc(64).unwrap();
        assert_eq!(kind(context.unary(&big, &other, 1, 0, f32)), BadInput);
        assert_eq!(kind(small.upload_into(&[1; 9])), SizeMismatch);
        assert_eq!(kind(small.download_into(&mut [1; 7])), SizeMismatch);
        assert_eq!(small.download().unwrap(), [7; 8]);
        assert_eq!(big.download().unwrap(), [0; 64]);
        // No device has so much.
        for bytes in [usize::MAX, 1 << 60, 1 << 49] {
            assert_eq!(context.alloc(bytes).unwrap_err().kind(), ErrorKind::OutOfMemory, "{bytes}");
        }
    }
}

#[test]
fn errors_have_stable_numbers_and_names() {
    let names = [
        "size_mismatch",
        "bad_input",
        "spv_read_failed",
        "dispatch_failed",
        "out_of_memory",
        "unsupported",
        "device_lost",
        "unavailable",
    ];
    for (i, (kind, name)) in ErrorKind::ALL.iter().zip(names).enumerate() {
        assert_eq!((*kind as usize, kind.name()), (i + 1, name));
    }
    let error = Context::new("vulkan:99".parse().unwrap()).err().unwrap();
    assert_eq!((error.code(), error.name()), (8, "unavailable"));
}
