//! Norms over every kind of block, ordinary data and data far from zero.

use olivine_ir::DType::{BF16, F32};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{self, Close, Peak, Scaled};
use crate::case::Table;
use crate::fill::Fill::{self, Normal};
use crate::fill::{normal, uniform};

/// One kernel: statistics, division, scale and shift each round once or twice.
const ONE: Bound = Scaled(32.0);
/// May be written out in simpler operations, whose results are stored.
const FEW: Bound = Peak(24.0);

pub(super) fn rows(t: &mut Table) {
    row_norms(t);
    channel_norms(t);
    others(t);
    far_from_zero(t);
}

fn row_norms(t: &mut Table) {
    let blocks: [(&str, &[usize], &[usize]); 8] = [
        ("row", &[6, 64], &[64]),
        ("odd-row", &[5, 77], &[77]),
        ("batch", &[2, 3, 33], &[33]),
        ("two-axes", &[4, 5, 9], &[5, 9]),
        ("all-axes", &[5, 9], &[5, 9]),
        ("long", &[2, 4099], &[4099]),
        ("vector", &[65], &[65]),
        ("no-rows", &[0, 8], &[8]),
    ];
    for (name, x, block) in blocks {
        for bias in [false, true] {
            let tail = if bias { "-beta" } else { "" };
            t.case(&format!("layer_norm/{name}{tail}"), FLOATS, normal(), ONE, move |g| {
                let (x, gamma) = (g.x(x)?, g.w(block)?);
                let beta = if bias { Some(g.w(block)?) } else { None };
                g.layer_norm(x, gamma, beta, 1e-5)
            });
            t.case(&format!("rms_norm/{name}{tail}"), FLOATS, normal(), ONE, move |g| {
                let (x, gamma) = (g.x(x)?, g.w(block)?);
                let beta = if bias { Some(g.w(block)?) } else { None };
                g.rms_norm(x, gamma, beta, 1e-6)
            });
        }
    }
    t.case("layer_norm/constant-row", PAIR, Fill::These(vec![3.0]), ONE, |g| {
        let (x, gamma, beta) = (g.x([4, 16])?, g.w([16])?, g.w([16])?);
        g.layer_norm(x, gamma, Some(beta), 1e-5)
    });
    t.case("rms_norm/large-eps", &[F32], normal(), ONE, |g| {
        let (x, gamma) = (g.x([4, 48])?, g.w([48])?);
        g.rms_norm(x, gamma, None, 10.0)
    });
    t.case("layer_norm/transposed-input", FLOATS, normal(), ONE, |g| {
        let (x, gamma, beta) = (g.x([2, 20, 7])?, g.w([20])?, g.w([20])?);
        let x = g.transpose(x, &[0, 2, 1])?;
        g.layer_norm(x, gamma, Some(beta), 1e-5)
    });
    t.case("layer_norm/nan-row", &[F32], Fill::Mixed(f64::NAN, 0.02), ONE, |g| {
        let (x, gamma) = (g.x([16, 24])?, g.w([24])?);
        g.layer_norm(x, gamma, None, 1e-5)
    });
}

fn channel_norms(t: &mut Table) {
    let shapes: [(&str, &[usize]); 5] = [
        ("nchw", &[2, 6, 5, 7]),
        ("ncl", &[3, 6, 11]),
        ("ncdhw", &[1, 6, 3, 4, 5]),
        ("nc", &[4, 6]),
        ("one-position", &[2, 6, 1, 1]),
    ];
    for (name, x) in shapes {
        for groups in [1usize, 2, 3, 6] {
            t.case(&format!("group_norm/{name}-{groups}"), FLOATS, normal(), ONE, move |g| {
                let (x, gamma, beta) = (g.x(x)?, g.w([6])?, g.w([6])?);
                g.group_norm(x, gamma, beta, groups, 1e-5)
            });
        }
        t.case(&format!("instance_norm/{name}"), FLOATS, normal(), FEW, move |g| {
            let (x, gamma, beta) = (g.x(x)?, g.w([6])?, g.w([6])?);
            g.instance_norm(x, gamma, beta, 1e-5)
        });
        t.case(&format!("batch_norm/{name}"), FLOATS, normal(), FEW, move |g| {
            let (x, gamma, beta, mean) = (g.x(x)?, g.w([6])?, g.w([6])?, g.w([6])?);
            let variance = g.weight([6], uniform(0.1, 3.0))?;
            g.batch_norm(x, gamma, beta, [mean, variance], 1e-5)
        });
        if x.len() == 4 {
            t.case(&format!("layer_norm2d/{name}"), FLOATS, normal(), FEW, move |g| {
                let (x, gamma, beta) = (g.x(x)?, g.w([6])?, g.w([6])?);
                g.layer_norm2d(x, gamma, beta, 1e-6)
            });
        }
    }
}

fn others(t: &mut Table) {
    let modulations: [(&str, &[usize]); 4] =
        [("full", &[2, 5, 32]), ("per-batch", &[2, 1, 32]), ("row", &[32]), ("per-token", &[2, 5, 1])];
    for (name, m) in modulations {
        t.case(&format!("ada_layer_norm/{name}"), FLOATS, normal(), FEW, move |g| {
            let (x, scale, shift) = (g.x([2, 5, 32])?, g.x(m)?, g.x(m)?);
            g.ada_layer_norm(x, scale, shift, 1e-6)
        });
    }
    for axis in [0isize, 1, 2] {
        t.case(&format!("l2_norm/axis-{axis}"), FLOATS, normal(), FEW, move |g| {
            let x = g.x([3, 9, 7])?;
            g.l2_norm(x, axis, 1e-12)
        });
    }
    t.case("l2_norm/zeros", PAIR, Fill::Chance(0.0), FEW, |g| {
        let x = g.x([3, 9])?;
        g.l2_norm(x, -1, 1e-6)
    });
}

/// One pass over squares would leave no digit of the variance.
fn far_from_zero(t: &mut Table) {
    let far = || Normal(1e4, 1.0);
    t.case("layer_norm/offset-1e4", &[F32], far(), Close { rel: 1e-5, abs: 1e-5 }, |g| {
        let (x, gamma, beta) = (g.x([4, 256])?, g.w([256])?, g.w([256])?);
        g.layer_norm(x, gamma, Some(beta), 1e-5)
    });
    t.case("group_norm/offset-1e4", &[F32], far(), Close { rel: 1e-5, abs: 1e-5 }, |g| {
        let (x, gamma, beta) = (g.x([2, 8, 9, 9])?, g.w([8])?, g.w([8])?);
        g.group_norm(x, gamma, beta, 4, 1e-5)
    });
    t.case("instance_norm/offset-1e4", &[F32], far(), Close { rel: 1e-5, abs: 1e-5 }, |g| {
        let (x, gamma, beta) = (g.x([2, 3, 13, 9])?, g.w([3])?, g.w([3])?);
        g.instance_norm(x, gamma, beta, 1e-5)
    });
    t.case("layer_norm2d/offset-1e4", &[F32], far(), Close { rel: 1e-5, abs: 1e-5 }, |g| {
        let (x, gamma, beta) = (g.x([2, 24, 3, 5])?, g.w([24])?, g.w([24])?);
        g.layer_norm2d(x, gamma, beta, 1e-5)
    });
    t.case("layer_norm/offset-100", &[BF16], Normal(100.0, 30.0), ONE, |g| {
        let (x, gamma, beta) = (g.x([4, 96])?, g.w([96])?, g.w([96])?);
        g.layer_norm(x, gamma, Some(beta), 1e-5)
    });
}
