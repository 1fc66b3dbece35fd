//! The passes, in the order they run. Each is a file: its name, what it needs and what it gives.
//!
//! ```text
//!   canonicalise ─ fold ─ cse ─ dce ─ legalise ─ canonicalise ─ fold ─ cse ─ (fuse) ─ views ─ pack ─ cse ─ dce
//!   └─ the graph as written, smaller ─┘ └─ kernel and layout ops only ────┘          └─ no layout op but view
//! ```

mod canonical;
mod cse;
mod dce;
mod fold;
mod fuse;
mod legalise;
mod pack;
mod views;

use crate::{Options, Pass};
use canonical::Canonicalise;
use cse::Cse;
use dce::Dce;
use fold::Fold;
use legalise::Legalise;
use pack::Pack;
use views::Views;

/// All passes that `options` ask for.
pub(crate) fn pipeline(options: &Options<'_>) -> Vec<Box<dyn Pass>> {
    let mut passes: Vec<Box<dyn Pass>> = vec![
        Box::new(Canonicalise),
        Box::new(Fold),
        Box::new(Cse),
        Box::new(Dce),
        Box::new(Legalise),
        Box::new(Canonicalise),
        Box::new(Fold),
        Box::new(Cse),
    ];
    if !options.no_fusion {
        passes.extend(fuse::passes());
    }
    // Views of one value by several roads meet only after composition, hence a second cse.
    passes.extend([Box::new(Views) as Box<dyn Pass>, Box::new(Pack), Box::new(Cse), Box::new(Dce)]);
    passes
}
