//! Fourier transforms of all kinds of lengths, and what signals are made into.

use olivine_ir::DType::{BF16, F16, F32, F64};
use olivine_ir::op::FftKind::{self, Fft, Ifft, Irfft, Rfft};
use olivine_ir::op::{FftNorm, MelFilterBank, MelScale, Stft, WindowKind};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{Close, Exact, Scaled, Ulp};
use crate::case::Table;
use crate::fill::{normal, these, uniform};

pub(super) fn rows(t: &mut Table) {
    lengths(t);
    norms_and_axes(t);
    dft(t);
    stft(t);
    mel(t);
    log_mel(t);
}

/// An operand for a transform of length n along the middle of three axes.
fn operand(kind: FftKind, outer: usize, n: usize, inner: Option<usize>) -> Vec<usize> {
    let size = if kind == Irfft { n / 2 + 1 } else { n };
    let complex = (kind != Rfft).then_some(2);
    [outer, size].into_iter().chain(inner).chain(complex).collect()
}

/// One case of a kind and a length.
fn length(t: &mut Table, kind: FftKind, n: usize, lines: usize, bound: f64) {
    t.case(&format!("{}/{n}", kind.name()), &[F32], normal(), Scaled(bound), move |g| {
        let x = g.x(&operand(kind, lines, n, None))?;
        g.fft_of(kind, x, 1, Some(n), FftNorm::Backward)
    });
}

fn lengths(t: &mut Table) {
    // Every way of making a length: each radix, several stages, primes too large for one.
    for n in [1usize, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 17, 31, 33, 64, 100, 243, 400, 1000, 1024] {
        length(t, Fft, n, 3, 12.0);
    }
    for n in [1usize, 8, 33, 1000] {
        length(t, Ifft, n, 3, 12.0);
    }
    for n in [1usize, 2, 3, 4, 31, 33, 34, 400, 1000] {
        length(t, Rfft, n, 3, 12.0);
        length(t, Irfft, n, 3, 12.0);
    }
    // Smooth in one workgroup and in two passes, a large prime in one and in several.
    for n in [2048usize, 4096, 10_000, 509, 1009, 4099] {
        length(t, Fft, n, 2, 20.0);
    }
    for (kind, n) in [
        (Ifft, 10_000usize),
        (Ifft, 4099),
        (Rfft, 4096),
        (Rfft, 20_000),
        (Rfft, 8198),
        (Irfft, 20_000),
        (Irfft, 1018),
        (Irfft, 8198),
        (Irfft, 10_125),
    ] {
        length(t, kind, n, 2, 20.0);
    }
    for (kind, n) in [(Fft, 65_537usize), (Rfft, 65_537), (Fft, 1_000_000), (Rfft, 131_072), (Irfft, 131_072)]
    {
        length(t, kind, n, 1, 24.0);
    }
    for kind in [Fft, Ifft, Rfft, Irfft] {
        t.case(&format!("{}/dtypes", kind.name()), &[F16, BF16, F64], normal(), Scaled(16.0), move |g| {
            let x = g.x(&operand(kind, 3, 60, None))?;
            g.fft_of(kind, x, 1, Some(60), FftNorm::Ortho)
        });
        t.case(&format!("{}/nan", kind.name()), &[F32], these(&[f64::NAN]), Exact, move |g| {
            let x = g.x(&operand(kind, 2, 60, None))?;
            g.fft_of(kind, x, 1, None, FftNorm::Backward)
        });
    }
    t.case("fft/prime-dtypes", &[F16, F64], normal(), Scaled(24.0), |g| {
        let x = g.x([3, 67, 2])?;
        g.fft_of(Fft, x, 1, None, FftNorm::Forward)
    });
    t.case("rfft/12000-f64", &[F64], normal(), Scaled(40.0), |g| {
        let x = g.x([1, 12_000])?;
        g.rfft(x, 1)
    });
}

fn norms_and_axes(t: &mut Table) {
    for kind in [Fft, Ifft, Rfft, Irfft] {
        let name = kind.name();
        for norm in [FftNorm::Backward, FftNorm::Ortho, FftNorm::Forward] {
            let dtypes = if norm == FftNorm::Ortho { PAIR } else { &[F32] };
            t.case(&format!("{name}/{}", norm.name()), dtypes, normal(), Scaled(12.0), move |g| {
                let x = g.x(&operand(kind, 5, 60, None))?;
                g.fft_of(kind, x, 1, None, norm)
            });
        }
        let middle = |t: &mut Table, n: usize, inner: usize| {
            t.case(&format!("{name}/middle-{n}x{inner}"), &[F32], normal(), Scaled(20.0), move |g| {
                let x = g.x(&operand(kind, 2, n, Some(inner)))?;
                g.fft_of(kind, x, 1, Some(n), FftNorm::Backward)
            });
        };
        for (n, inner) in [(60usize, 3usize), (60, 40), (10_000, 3)] {
            middle(t, n, inner);
        }
        if matches!(kind, Fft | Rfft) {
            for (n, inner) in [(33, 17), (1024, 9), (509, 4), (4099, 3)] {
                middle(t, n, inner);
            }
        }
        // Shorter and longer than the axis, even and odd.
        for (size, n) in [(20usize, 12usize), (21, 13), (20, 31), (21, 40)] {
            t.case(&format!("{name}/{size}-as-{n}"), &[F32], normal(), Scaled(20.0), move |g| {
                let x = if kind == Rfft { g.x([3, size])? } else { g.x([3, size, 2])? };
                g.fft_of(kind, x, 1, Some(n), FftNorm::Backward)
            });
        }
        t.case(&format!("{name}/many-short"), &[F32], normal(), Scaled(12.0), move |g| {
            let x = g.x(&operand(kind, 1000, 8, None))?;
            g.fft_of(kind, x, 1, None, FftNorm::Backward)
        });
        t.case(&format!("{name}/no-lines"), PAIR, normal(), Exact, move |g| {
            let x = g.x(&operand(kind, 0, 8, None))?;
            g.fft_of(kind, x, 1, None, FftNorm::Backward)
        });
        t.case(&format!("{name}/empty-axis-padded"), &[F32], normal(), Exact, move |g| {
            let x = if kind == Rfft { g.x([3, 0])? } else { g.x([3, 0, 2])? };
            g.fft_of(kind, x, 1, Some(8), FftNorm::Backward)
        });
        for (what, skip) in [("even", 2usize), ("odd", 1)] {
            t.case(&format!("{name}/{what}-offset"), PAIR, normal(), Scaled(12.0), move |g| {
                let x = g.x([162])?;
                let x = g.narrow(x, 0, skip, 160)?;
                let x = if kind == Rfft { g.reshape(x, &[5, 32])? } else { g.reshape(x, &[5, 16, 2])? };
                g.fft_of(kind, x, 1, None, FftNorm::Backward)
            });
        }
    }
    for (kind, size, n) in [(Fft, 7usize, 4100usize), (Irfft, 7, 8200), (Rfft, 15_000, 10_000)] {
        t.case(&format!("{}/{size}-as-{n}", kind.name()), &[F32], normal(), Scaled(20.0), move |g| {
            let x = if kind == Rfft { g.x([3, size])? } else { g.x([3, size, 2])? };
            g.fft_of(kind, x, 1, Some(n), FftNorm::Backward)
        });
    }
    t.case("fft/rank-8", &[F32], normal(), Scaled(12.0), |g| {
        let x = g.x([2, 1, 2, 3, 6, 1, 2, 2])?;
        g.fft_of(Fft, x, 4, None, FftNorm::Backward)
    });
    t.case("fft/there-and-back", FLOATS, normal(), Scaled(24.0), |g| {
        let x = g.x([4, 60, 2])?;
        let y = g.fft(x, 1)?;
        g.ifft(y, 1)
    });
    t.case("rfft/there-and-back", PAIR, normal(), Scaled(24.0), |g| {
        let x = g.x([4, 77])?;
        let y = g.rfft(x, 1)?;
        g.irfft(y, 1, Some(77))
    });
    t.case("fft/two-axes", &[F32], normal(), Scaled(20.0), |g| {
        let x = g.x([3, 60, 60, 2])?;
        let y = g.fft(x, -1)?;
        g.fft(y, -2)
    });
}

fn dft(t: &mut Table) {
    for (what, parts, inverse, onesided) in [
        ("real", 1usize, false, false),
        ("real-onesided", 1, false, true),
        ("complex", 2, false, false),
        ("complex-onesided", 2, false, true),
        ("inverse", 2, true, false),
        ("inverse-of-real", 1, true, false),
        ("inverse-onesided", 2, true, true),
    ] {
        let dtypes = if what == "real-onesided" { FLOATS } else { &[F32] };
        t.case(&format!("dft/{what}"), dtypes, normal(), Scaled(12.0), move |g| {
            let x = g.x([2, 21, 3, parts])?;
            g.dft(x, 1, None, inverse, onesided)
        });
        t.case(&format!("dft/{what}-length"), &[F32], normal(), Scaled(12.0), move |g| {
            let x = g.x([2, 21, parts])?;
            g.dft(x, 1, Some(32), inverse, onesided)
        });
    }
}

fn stft(t: &mut Table) {
    let plain = Stft { frame_length: 64, frame_step: 24, onesided: true, center: false };
    let ways: [(&str, Stft); 4] = [
        ("onesided", plain.clone()),
        ("both-sides", Stft { onesided: false, ..plain.clone() }),
        ("centred", Stft { center: true, ..plain.clone() }),
        ("odd", Stft { frame_length: 25, frame_step: 7, center: true, onesided: true }),
    ];
    for (what, stft) in ways {
        let shapes: [(&str, &[usize]); 3] =
            [("real", &[2, 400]), ("real-1", &[2, 400, 1]), ("complex", &[2, 400, 2])];
        for (shape, dims) in shapes {
            let stft = stft.clone();
            let dtypes = if what == "centred" { PAIR } else { &[F32] };
            t.case(&format!("stft/{what}-{shape}"), dtypes, normal(), Scaled(16.0), move |g| {
                let x = g.x(dims)?;
                let dtype = g.dtype();
                let window = g.window(WindowKind::Hann, stft.frame_length, true, dtype)?;
                g.stft(x, Some(window), stft.clone())
            });
        }
    }
    t.case("stft/no-window", FLOATS, normal(), Scaled(16.0), move |g| {
        let x = g.x([1, 200])?;
        g.stft(x, None, plain.clone())
    });
    for kind in WindowKind::ALL {
        t.case(&format!("window/{}", kind.name()), &[F32], normal(), Ulp(1.0), |g| {
            let x = g.x([32])?;
            let window = g.window(*kind, 32, false, F32)?;
            g.mul(x, window)
        });
    }
}

fn mel(t: &mut Table) {
    for (what, bands, dft_length, rate, low, high) in [
        ("onnx-example", 8usize, 16usize, 8192.0, 0.0, 4096.0),
        ("whisper", 80, 400, 16000.0, 0.0, 8000.0),
        ("narrow", 5, 513, 22050.0, 300.0, 3400.0),
        ("past-nyquist", 4, 64, 8000.0, 0.0, 9000.0),
        ("none", 0, 64, 8000.0, 0.0, 4000.0),
    ] {
        for scale in MelScale::ALL.iter().copied() {
            for equal_area in [false, true] {
                if equal_area && scale == MelScale::Onnx {
                    continue;
                }
                let tail = if equal_area { "-equal-area" } else { "" };
                let name = format!("mel/{what}-{}{tail}", scale.name());
                let bound = Close { rel: 1e-6, abs: 1e-9 };
                let dtypes = if what == "whisper" { FLOATS } else { &[F32] };
                t.case(&name, dtypes, normal(), bound, move |g| {
                    let (dtype, lower_hz, upper_hz) = (g.dtype(), low, high);
                    let sample_rate = rate;
                    g.mel_filter_bank(MelFilterBank {
                        dtype,
                        bands,
                        dft_length,
                        sample_rate,
                        lower_hz,
                        upper_hz,
                        scale,
                        equal_area,
                    })
                });
            }
        }
    }
}

fn log_mel(t: &mut Table) {
    for (what, dims) in [("short", [1usize, 1600]), ("batch", [3, 2000])] {
        t.case(
            &format!("log_mel/{what}"),
            &[F32, F64],
            uniform(-0.5, 0.5),
            Close { rel: 0.0, abs: 2e-5 },
            move |g| {
                let x = g.x(dims)?;
                g.whisper_features(x, 80)
            },
        );
    }
    t.case("log_mel/narrow", &[F16, BF16], uniform(-0.5, 0.5), Close { rel: 0.0, abs: 1e-3 }, |g| {
        let x = g.x([1, 1600])?;
        g.whisper_features(x, 80)
    });
    t.case("log_mel/silence", &[F32], these(&[0.0]), Close { rel: 0.0, abs: 1e-6 }, |g| {
        let x = g.x([2, 800])?;
        g.whisper_features(x, 80)
    });
}
