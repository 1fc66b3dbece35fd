//! Which kernel a matmul of 8-bit integers gets.

use std::fmt;

use olivine_ir::Dim;

use crate::matmul::candidates;
use crate::matmul::choice::Shape;
use crate::matmul::int8::coop::{self, Int8CoopTile, Sizes};
use crate::matmul::problem::Problem;
use crate::matmul::warpgroup::{self, PathOfA};
use crate::site::{Site, choose_by_class, class_of};

/// The name of the family in records.
pub(crate) const FAMILY: &str = "qmatmul";

/// A kernel other than tiles of words, which serve any device and any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int8Choice {
    /// Warpgroups, printed as PTX; A comes this way.
    Warpgroup(PathOfA),
    /// Cooperative matrices.
    Coop(Int8CoopTile),
}

/// Chooses for a matmul that is not empty, on a device with warpgroups; `None` where tiles of words serve it.
pub(crate) fn choose(problem: &Problem<'_>, sizes: Sizes, site: &mut Site<'_>) -> Option<Int8Choice> {
    let caps = site.caps;
    let of_coop = || coop::choose(sizes, caps).map(Int8Choice::Coop);
    let is_tuned = site.is_tuned(FAMILY);
    let is_open = |size: &Dim| !size.is_constant();
    let others = [problem.n, problem.k, problem.batches()];
    let (shape, chosen) = if is_tuned || others.iter().any(is_open) {
        let shape = Shape::of(problem);
        (shape, warpgroup::choose(problem, &shape, caps))
    } else {
        let of_rows = |m| warpgroup::choose(problem, &Shape::with_rows(problem, m), caps);
        let now = Dim::from(problem.m.value().unwrap_or(0));
        (Shape::with_rows(problem, class_of(now)), choose_by_class(problem.m, of_rows))
    };
    let default = chosen.map(Int8Choice::Warpgroup).or_else(of_coop)?;
    let mut all = vec![default];
    if is_tuned || ![problem.m, shape.n, shape.k, shape.batches].iter().any(is_open) {
        all.extend(warpgroup::candidates(problem, caps).into_iter().map(Int8Choice::Warpgroup));
        if of_coop().is_some() {
            all.extend(coop::TILES.map(Int8Choice::Coop));
        }
    }
    let mut distinct = Vec::with_capacity(all.len());
    all.into_iter().for_each(|choice| {
        if !distinct.contains(&choice) {
            distinct.push(choice);
        }
    });
    let class = format!("{} {}", problem.b.operand.ty.dtype, candidates::class(problem, &shape, is_tuned));
    Some(site.tuned(FAMILY, class, default, distinct))
}

impl fmt::Display for Int8Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Int8Choice::Warpgroup(path) => write!(f, "warpgroup {path}"),
            Int8Choice::Coop(tile) => write!(f, "coop {tile}"),
        }
    }
}
