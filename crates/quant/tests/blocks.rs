//! Blocks: what is encoded decodes to nearly the same, and nothing that is given breaks anything.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use olivine_quant::{BlockFormat, Error, can_encode, decode, encode, encode_q8_0};

/// Numbers like those of weights, from a simple generator.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| (0..6).map(|_| uniform()).sum::<f32>() - 3.0).collect()
}

fn round_trip(format: BlockFormat, x: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    let packed = encode(format, x, importance).unwrap();
    let mut back = vec![0.0; x.len()];
    decode(format, &packed, &mut back).unwrap();
    back
}

fn relative_error(x: &[f32], y: &[f32]) -> f64 {
    let error: f64 = x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    (error / x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>()).sqrt()
}

#[test]
fn encoding_loses_what_its_bits_must_lose() {
    // Root mean square errors on normal numbers, a tenth above what was measured; llama.cpp's are no smaller.
    let bounds = [
        (BlockFormat::Q8_0, 0.006),
        (BlockFormat::Q6_K, 0.019),
        (BlockFormat::Q5_K, 0.039),
        (BlockFormat::Q5_1, 0.038),
        (BlockFormat::Q5_0, 0.045),
        (BlockFormat::Q4_K, 0.078),
        (BlockFormat::Q4_1, 0.077),
        (BlockFormat::IQ4_NL, 0.081),
        (BlockFormat::IQ4_XS, 0.082),
        (BlockFormat::Q4_0, 0.09),
        (BlockFormat::NVFP4, 0.1),
        (BlockFormat::MXFP4, 0.125),
        (BlockFormat::Q3_K, 0.16),
        (BlockFormat::Q2_K, 0.29),
        (BlockFormat::Q1_0, 0.67),
    ];
    let x = numbers(256 * 64, 1);
    for (format, bound) in bounds {
        let error = relative_error(&x, &round_trip(format, &x, None));
        assert!(error < bound && error > bound / 2.0, "{format}: {error:.4}, not {bound}");
    }
    for format in BlockFormat::ALL.iter().filter(|f| can_encode(**f)) {
        let ternary = matches!(format, BlockFormat::TQ1_0 | BlockFormat::TQ2_0);
        assert!(ternary || bounds.iter().any(|(f, _)| f == format), "{format} has no bound");
    }
}

#[test]
fn ternary_weights_survive() {
    let x: Vec<f32> = (0..512).map(|i| 0.5 * ((i * 7 % 3) as f32 - 1.0)).collect();
    for format in [BlockFormat::TQ1_0, BlockFormat::TQ2_0] {
        assert_eq!(round_trip(format, &x, None), x, "{format}");
    }
}

#[test]
fn blocks_of_one_value_and_extremes_survive() {
    for format in BlockFormat::ALL.iter().copied().filter(|f| can_encode(*f)) {
        let n = format.elements();
        assert!(round_trip(format, &vec![0.0; n], None).iter().all(|y| *y == 0.0), "{format}");
        for value in [1.0f32, -1.0, 1e-3, 1000.0, -1000.0] {
            let back = round_trip(format, &vec![value; n], None);
            assert!(
                back.iter().all(|y| (y - value).abs() <= 0.07 * value.abs()),
                "{format}: {value} is {}",
                back[0]
            );
        }
        // Numbers too small for an f16 scale become 0 or tiny, not NaN.
        for value in [1e-30f32, f32::MIN_POSITIVE / 4.0] {
            assert!(
                round_trip(format, &vec![value; n], None).iter().all(|y| y.abs() <= 1e-6),
                "{format}: {value:e}"
            );
        }
        let mut one = vec![0.0; n];
        one[n - 1] = -3.0;
        let back = round_trip(format, &one, None);
        assert!(format == BlockFormat::Q1_0 || (back[n - 1] + 3.0).abs() < 0.2, "{format}: {}", back[n - 1]);
    }
}

#[test]
fn important_columns_are_nearer() {
    let x = numbers(256 * 32, 3);
    let importance: Vec<f32> = (0..256).map(|i| if i % 4 == 0 { 100.0 } else { 1.0 }).collect();
    let error = |y: &[f32]| -> f64 {
        let squares = x.iter().zip(y).enumerate().filter(|(i, _)| i % 4 == 0);
        squares.map(|(_, (x, y))| f64::from(x - y).powi(2)).sum()
    };
    for format in [
        BlockFormat::Q4_0,
        BlockFormat::Q4_1,
        BlockFormat::Q2_K,
        BlockFormat::Q3_K,
        BlockFormat::Q4_K,
        BlockFormat::IQ4_XS,
    ] {
        let (plain, weighted) = (round_trip(format, &x, None), round_trip(format, &x, Some(&importance)));
        assert!(
            error(&weighted) < 0.95 * error(&plain),
            "{format}: {} against {}",
            error(&weighted),
            error(&plain)
        );
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let format = BlockFormat::Q4_K;
    assert!(matches!(encode(format, &[0.0; 255], None), Err(Error::NotWholeBlocks { elements: 255, .. })));
    assert!(matches!(encode(format, &[0.0; 256], Some(&[1.0; 255])), Err(Error::WrongImportance { .. })));
    assert!(matches!(encode(format, &[0.0; 256], Some(&[])), Err(Error::WrongImportance { .. })));
    assert!(matches!(
        decode(format, &[0; 143], &mut [0.0; 256]),
        Err(Error::WrongLength { expected: 144, .. })
    ));
    assert!(matches!("q9_z".parse::<BlockFormat>(), Err(Error::UnknownFormat { .. })));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = [0.0; 256];
        x[200] = bad;
        assert!(matches!(encode(format, &x, None), Err(Error::NotFinite { index: 200, .. })));
    }
    assert!(matches!(encode(format, &[1e20; 256], None), Err(Error::TooLarge { .. })));
    assert!(matches!(encode(BlockFormat::IQ1_S, &[0.0; 256], None), Err(Error::CannotEncode { .. })));
    // Weights that say nothing count as if there were none.
    let x = numbers(256, 5);
    assert_eq!(encode(format, &x, Some(&[0.0; 256])), encode(format, &x, None));
    assert_eq!(encode(format, &x, Some(&[f32::NAN; 256])), encode(format, &x, None));
}

#[test]
fn any_bytes_decode() {
    for format in BlockFormat::ALL.iter().copied() {
        for fill in [0u8, 255, 0x55, 0xaa, 1, 0x80] {
            let mut into = vec![0.0; 2 * format.elements()];
            decode(format, &vec![fill; 2 * format.bytes()], &mut into).unwrap();
        }
        assert_eq!(format.ggml_id().map_or(Some(format), BlockFormat::from_ggml_id), Some(format));
        assert_eq!(format.name().parse::<BlockFormat>().unwrap(), format);
    }
}

#[test]
fn eight_bit_floats_have_the_values_of_ocp() {
    let all: Vec<u8> = (0..=255).collect();
    let mut e4m3 = [0.0f32; 256];
    decode(BlockFormat::F8_E4M3, &all, &mut e4m3).unwrap();
    for (code, value) in e4m3.iter().enumerate() {
        let (sign, exponent, mantissa) = (code >> 7, code >> 3 & 15, code & 7);
        let expected = match (exponent, mantissa) {
            (15, 7) => f64::NAN,
            (0, m) => m as f64 / 8.0 * 2f64.powi(-6),
            (e, m) => (1.0 + m as f64 / 8.0) * 2f64.powi(e as i32 - 7),
        };
        let expected = if sign == 1 { -expected } else { expected };
        assert!(
            expected.is_nan() == value.is_nan() && (value.is_nan() || f64::from(*value) == expected),
            "{code:#x}"
        );
    }
    assert_eq!(e4m3[0x7e], 448.0);
    let mut e5m2 = [0.0f32; 256];
    decode(BlockFormat::F8_E5M2, &all, &mut e5m2).unwrap();
    assert_eq!((e5m2[0x7b], e5m2[0x7c], e5m2[0x01]), (57344.0, f32::INFINITY, 2f32.powi(-16)));
}

#[test]
fn bare_integers_are_stored_from_the_lowest_bits_on() {
    let decoded = |format: BlockFormat, byte: u8| {
        let mut into = vec![0.0f32; format.elements()];
        decode(format, &[byte], &mut into).unwrap();
        into
    };
    assert_eq!(decoded(BlockFormat::U2, 0b11_10_01_00), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(decoded(BlockFormat::U4, 0xf3), [3.0, 15.0]);
    assert_eq!(decoded(BlockFormat::I4, 0xf3), [3.0, -1.0]);
    assert_eq!(decoded(BlockFormat::I4, 0x78), [-8.0, 7.0]);
}

#[test]
fn q8_0_of_any_numbers_is_what_encode_makes_of_those_it_takes() {
    let block = |x: &[f32; 32]| {
        let mut into = [0xaau8; 34];
        encode_q8_0(x, &mut into);
        into
    };
    let mut seed = 1u32;
    let mut numbers = |scale: f32| {
        std::array::from_fn::<f32, 32, _>(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed as f32 / u32::MAX as f32 - 0.5) * scale
        })
    };
    for power in -40..16 {
        let x = numbers(2f32.powi(power));
        assert_eq!(block(&x).to_vec(), encode(BlockFormat::Q8_0, &x, None).unwrap(), "2^{power}");
    }
    // Halves go away from zero; a scale that f16 takes for 0 leaves nothing.
    let mut halves = [0.0f32; 32];
    halves[..4].copy_from_slice(&[127.0, 0.5, -0.5, 1.5]);
    assert_eq!(block(&halves)[2..6], [127, 1, 0xff, 2]);
    assert_eq!(block(&[3.7e-6; 32]), [0; 34]);
    assert_eq!(block(&[1e-39; 32]), [0; 34]);
    // Beyond f16's range, and no numbers.
    let huge = block(&[1e30; 32]);
    assert!(huge[..2] == [0x00, 0x7c] && huge[2..] == [127; 32]);
    for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = [1.0f32; 32];
        x[7] = odd;
        let packed = block(&x);
        assert_eq!((packed[0], packed[1], packed[2..] == [0; 32]), (0x00, 0x7e, true));
        let mut back = [0.0; 32];
        decode(BlockFormat::Q8_0, &packed, &mut back).unwrap();
        assert!(back.iter().all(|x| x.is_nan()));
    }
}
