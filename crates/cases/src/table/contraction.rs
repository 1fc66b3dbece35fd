//! Products: sizes around every tile edge, batches that broadcast, and the general forms.

use olivine_ir::DType::{self, BF16, F16, F32, F64, I8, I32, I64, U8};
use olivine_ir::op::DotGeneral;

use super::{FLOATS, INTS, PAIR};
use crate::bound::{Bound, sum_of};
use crate::case::Table;
use crate::fill::Fill;
use crate::fill::{normal, whole};

pub(super) fn rows(t: &mut Table) {
    sizes(t);
    batches(t);
    transposed(t);
    general(t);
    einsums(t);
    adapters(t);
}

fn matmul(t: &mut Table, what: &str, dtypes: &[DType], a: &'static [usize], b: &'static [usize]) {
    let k = a.last().copied().unwrap_or(1);
    t.case(&format!("matmul/{what}"), dtypes, normal(), sum_of(k), move |g| {
        let (x, y) = (g.x(a)?, g.x(b)?);
        g.matmul(x, y)
    });
}

fn sizes(t: &mut Table) {
    for m in [1usize, 2, 5, 16, 31, 33, 65] {
        for n in [1usize, 8, 31, 33] {
            for k in [1usize, 7, 33, 64] {
                // Whole numbers make the sum exact in any order, so nothing is forgiven.
                t.case(&format!("matmul/{m}x{k}x{n}"), &[F32], whole(-8, 8), Bound::Exact, move |g| {
                    let (x, w) = (g.x([m, k])?, g.x([k, n])?);
                    g.matmul(x, w)
                });
            }
        }
    }
    matmul(t, "long-k", FLOATS, &[3, 1000], &[1000, 5]);
    matmul(t, "k-2049", PAIR, &[2, 2049], &[2049, 17]);
    matmul(t, "wide", &[F32, BF16], &[1, 96], &[96, 1000]);
    matmul(t, "tall", &[F32, F16], &[1000, 48], &[48, 3]);
    matmul(t, "small-m-vectors", &[F16, BF16], &[3, 264], &[264, 136]);
    matmul(t, "small-m", &[F16, BF16], &[16, 512], &[512, 520]);
    matmul(t, "square-100", FLOATS, &[100, 100], &[100, 100]);
    matmul(t, "vector-matrix", FLOATS, &[65], &[65, 33]);
    matmul(t, "matrix-vector", FLOATS, &[33, 65], &[65]);
    matmul(t, "vectors", FLOATS, &[65], &[65]);
    matmul(t, "empty-k", &[F32, F16, F64], &[3, 0], &[0, 4]);
    matmul(t, "empty-m", PAIR, &[0, 5], &[5, 4]);
    matmul(t, "empty-n", PAIR, &[3, 5], &[5, 0]);
    matmul(t, "empty-batch", PAIR, &[0, 3, 5], &[5, 2]);
    t.case("matmul/ints", INTS, Fill::Anything, Bound::Exact, |g| {
        let (x, y) = (g.x([9, 33])?, g.x([33, 7])?);
        g.matmul(x, y)
    });
    t.case("matmul/ints-batched", &[I8, U8, I32, I64], whole(-99, 99), Bound::Exact, |g| {
        let (x, y) = (g.x([2, 1, 4, 9])?, g.x([3, 9, 5])?);
        g.matmul(x, y)
    });
    t.case("matmul/nan-and-inf", &[F32, F16], these_odd(), sum_of(4), |g| {
        let (x, y) = (g.x([5, 4])?, g.like([4, 3], whole(1, 3))?);
        g.matmul(x, y)
    });
    t.case("matmul/half-accumulates-in-f32", &[F16, BF16], Fill::Uniform(0.5, 1.5), sum_of(3000), |g| {
        let (x, y) = (g.x([2, 3000])?, g.x([3000, 3])?);
        g.matmul(x, y)
    });
    t.case("matmul/param", FLOATS, normal(), sum_of(40), |g| {
        let (x, w) = (g.x([3, 7, 40])?, g.w([40, 24])?);
        g.matmul(x, w)
    });
}

/// Rows with one odd number each, so that every result is decided by it.
fn these_odd() -> Fill {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    Fill::These(vec![
        nan, 1.0, 1.0, 1.0, inf, 1.0, 1.0, 1.0, 1.0, -inf, 1.0, 1.0, inf, -inf, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0,
    ])
}

fn batches(t: &mut Table) {
    matmul(t, "batch-broadcast", FLOATS, &[2, 1, 5, 17], &[1, 3, 17, 4]);
    matmul(t, "batch-left-missing", FLOATS, &[5, 17], &[2, 3, 17, 4]);
    matmul(t, "batch-right-missing", FLOATS, &[2, 3, 5, 17], &[17, 4]);
    matmul(t, "batch-3", PAIR, &[2, 1, 3, 5, 8], &[4, 1, 8, 3]);
    matmul(t, "batch-rank-8", &[F32], &[1, 2, 1, 2, 1, 2, 3, 4], &[2, 1, 2, 1, 2, 1, 4, 3]);
    matmul(t, "batch-vector-left", PAIR, &[17], &[2, 3, 17, 4]);
    matmul(t, "batch-vector-right", PAIR, &[2, 3, 5, 17], &[17]);
    matmul(t, "batch-many", PAIR, &[24, 7, 9], &[24, 9, 5]);
}

fn transposed(t: &mut Table) {
    t.case("matmul/right-transposed", FLOATS, normal(), sum_of(33), |g| {
        let (x, y) = (g.x([2, 9, 33])?, g.x([2, 7, 33])?);
        g.matmul_nt(x, y)
    });
    t.case("matmul/right-transposed-narrow", &[F16, BF16], normal(), sum_of(520), |g| {
        let (x, y) = (g.x([33, 520])?, g.x([512, 520])?);
        g.matmul_nt(x, y)
    });
    t.case("matmul/right-transposed-slots", &[F16, BF16], normal(), sum_of(264), |g| {
        let (x, y) = (g.x([2, 264])?, g.x([40, 264])?);
        g.matmul_nt(x, y)
    });
    t.case("matmul/left-transposed", FLOATS, normal(), sum_of(33), |g| {
        let (x, y) = (g.x([33, 9])?, g.x([33, 7])?);
        let x = g.transpose(x, &[1, 0])?;
        g.matmul(x, y)
    });
    t.case("matmul/both-transposed", FLOATS, normal(), sum_of(33), |g| {
        let (x, y) = (g.x([33, 9])?, g.x([7, 33])?);
        let (x, y) = (g.transpose(x, &[1, 0])?, g.transpose(y, &[1, 0])?);
        g.matmul(x, y)
    });
    t.case("matmul/heads-from-rows", FLOATS, normal(), sum_of(16), |g| {
        let (q, k) = (g.x([2, 9, 3, 16])?, g.x([2, 11, 3, 16])?);
        let (q, k) = (g.transpose(q, &[0, 2, 1, 3])?, g.transpose(k, &[0, 2, 3, 1])?);
        g.matmul(q, k)
    });
    t.case("matmul/sliced-operands", PAIR, normal(), sum_of(10), |g| {
        let (x, y) = (g.x([8, 20])?, g.x([20, 9])?);
        let (x, y) = (g.slice(x, 1, 1, 20, 2)?, g.slice(y, 0, 19, 9, -1)?);
        g.matmul(x, y)
    });
    t.case("matmul/expanded-operand", PAIR, normal(), sum_of(6), |g| {
        let (x, y) = (g.x([1, 6])?, g.x([3, 6, 4])?);
        let x = g.expand(x, [3, 5, 6])?;
        g.matmul(x, y)
    });
}

fn general(t: &mut Table) {
    let dims = |lb: &[usize], rb: &[usize], lc: &[usize], rc: &[usize]| DotGeneral {
        lhs_batch: lb.to_vec(),
        rhs_batch: rb.to_vec(),
        lhs_contract: lc.to_vec(),
        rhs_contract: rc.to_vec(),
    };
    let rows: [(&str, &[usize], &[usize], DotGeneral); 8] = [
        ("plain", &[5, 17], &[17, 4], dims(&[], &[], &[1], &[0])),
        ("outer", &[5], &[4], dims(&[], &[], &[], &[])),
        ("two-contracted", &[5, 3, 4], &[4, 6, 3], dims(&[], &[], &[1, 2], &[2, 0])),
        ("batch-last", &[5, 7, 3], &[7, 4, 3], dims(&[2], &[2], &[1], &[0])),
        ("batch-crossed", &[2, 3, 5, 7], &[3, 7, 2, 4], dims(&[0, 1], &[2, 0], &[3], &[1])),
        ("all-contracted", &[3, 4], &[4, 3], dims(&[], &[], &[0, 1], &[1, 0])),
        ("batch-only", &[6, 4], &[4, 6], dims(&[0, 1], &[1, 0], &[], &[])),
        ("empty-contracted", &[3, 0], &[0, 2], dims(&[], &[], &[1], &[0])),
    ];
    for (name, a, b, op) in rows {
        let k: usize = op.lhs_contract.iter().map(|i| a[*i]).product();
        t.case(&format!("dot_general/{name}"), &[F32, F16, I32], normal(), sum_of(k), move |g| {
            let (x, y) = (g.x(a)?, g.x(b)?);
            g.dot_general(x, y, op.clone())
        });
    }
}

fn einsums(t: &mut Table) {
    let rows: [(&str, &str, &[&[usize]], usize); 22] = [
        ("matmul", "ij,jk->ik", &[&[5, 17], &[17, 4]], 17),
        ("scores", "bhqd,bhkd->bhqk", &[&[2, 3, 5, 8], &[2, 3, 7, 8]], 8),
        ("values", "bhqk,bkhd->bqhd", &[&[2, 3, 5, 7], &[2, 7, 3, 8]], 7),
        ("implicit", "ij,jk", &[&[5, 6], &[6, 4]], 6),
        ("implicit-order", "ba", &[&[5, 6]], 1),
        ("ellipsis", "...ij,...jk->...ik", &[&[2, 1, 3, 5], &[4, 5, 2]], 5),
        ("ellipsis-implicit", "...ij,jk", &[&[2, 2, 3, 5], &[5, 4]], 5),
        ("ellipsis-last", "i...->...i", &[&[2, 3, 4]], 1),
        ("ellipsis-sum", "...i->...", &[&[2, 3, 4]], 4),
        ("diagonal", "ii->i", &[&[6, 6]], 1),
        ("trace", "ii", &[&[6, 6]], 6),
        ("batch-diagonal", "bii->bi", &[&[3, 5, 5]], 1),
        ("transpose", "ijk->kij", &[&[2, 3, 4]], 1),
        ("sum", "ijk->j", &[&[2, 3, 4]], 8),
        ("outer", "i,j->ij", &[&[5], &[4]], 1),
        ("dot", "i,i->", &[&[33], &[33]], 33),
        ("elementwise", "ij,ij->ij", &[&[5, 4], &[5, 4]], 1),
        ("three", "ij,jk,kl->il", &[&[3, 4], &[4, 5], &[5, 2]], 20),
        ("bilinear", "bi,oij,bj->bo", &[&[3, 4], &[6, 4, 5], &[3, 5]], 20),
        ("sum-of-one-side", "ij,k->k", &[&[3, 4], &[5]], 12),
        ("diagonal-times", "ii,ij->ij", &[&[4, 4], &[4, 3]], 1),
        ("spaces", " i j , j -> i ", &[&[3, 4], &[4]], 4),
    ];
    for (name, equation, shapes, k) in rows {
        t.case(&format!("einsum/{name}"), &[F32, F16, I32], normal(), sum_of(k), move |g| {
            let operands = shapes.iter().map(|s| g.x(*s)).collect::<Result<Vec<_>, _>>()?;
            g.einsum(equation, &operands)
        });
    }
}

fn adapters(t: &mut Table) {
    for (name, x) in [("rows", &[9usize, 33] as &'static [usize]), ("batch", &[2, 3, 33]), ("vector", &[33])]
    {
        t.case(&format!("lora/{name}"), FLOATS, normal(), lora_bound(), move |g| {
            let (x, w, a, b) = (g.x(x)?, g.w([33, 17])?, g.w([33, 4])?, g.w([4, 17])?);
            g.lora_matmul(x, w, a, b, 0.5)
        });
    }
    let experts: [(&str, &[i64]); 4] = [
        ("mixed", &[2, 0, 1, 1, 3, 0, 2]),
        ("one", &[1]),
        ("unused", &[3, 3, 3]),
        ("out-of-range", &[0, 7, -1, 2]),
    ];
    for (name, ids) in experts {
        for index in [I32, I64] {
            t.case(&format!("grouped/{name}-{index}"), &[F32, BF16, F64], normal(), sum_of(17), move |g| {
                let (x, w) = (g.x([11, 17])?, g.w([4, 17, 9])?);
                let ids = g.ints(index, [11], ids)?;
                g.grouped_matmul(x, w, ids)
            });
        }
    }
    // So many rows that they are put in the order of their experts.
    let many: [(&str, usize, [usize; 3]); 2] = [("many", 150, [5, 64, 72]), ("many-odd", 83, [40, 41, 37])];
    for (name, m, [e, k, n]) in many {
        t.case(&format!("grouped/{name}"), FLOATS, normal(), sum_of(k), move |g| {
            let (x, w) = (g.x([m, k])?, g.w([e, k, n])?);
            let ids = g.ints(I32, [m], &[2, 0, 1, 1, 3, 0, 2, 2, 2, 4, 2])?;
            g.grouped_matmul(x, w, ids)
        });
    }
    t.case("grouped/many-out-of-range", &[F32, F16], normal(), sum_of(48), |g| {
        let (x, w) = (g.x([40, 48])?, g.w([3, 48, 24])?);
        let ids = g.ints(I64, [40], &[0, 7, -1, 2, 1, 1])?;
        g.grouped_matmul(x, w, ids)
    });
}

/// Unlike one matmul, a narrow low-rank operand may be stored in its own dtype on the way.
fn lora_bound() -> Bound {
    Bound::Peak(8.0)
}
