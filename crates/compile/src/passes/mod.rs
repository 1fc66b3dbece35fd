//! The passes, in the order they run. Each is a file: its name, what it needs and what it gives.
//!
//! ```text
//!   (widen) ─ (integers) ─ (dequantise) ─ (narrow) ─ canonicalise ─ fold ─ (control ─ …) ─ cse ─ dce ─ legalise ─ canonicalise ─ fold ─ cse ─ (fuse) ─ (sink) ─ views ─ pack ─ cse ─ dce
//!   └─ the graph as written, smaller ─┘ └─ kernel and layout ops only ────┘          └─ no layout op but view
//! ```
//!
//! Every pass also runs on the graphs inside operations, before it runs on the graph around them.

mod canonical;
mod control;
mod cse;
mod dce;
mod dequantise;
mod fold;
mod fuse;
#[cfg(test)]
mod growth;
mod integers;
mod legalise;
mod narrow;
mod pack;
mod sink;
mod views;
mod widen;

use crate::{Options, Pass};
use canonical::Canonicalise;
use control::Control;
use cse::Cse;
use dce::Dce;
use dequantise::Dequantise;
use fold::Fold;
use integers::Integers;
use legalise::Legalise;
use narrow::Narrow;
use pack::Pack;
use sink::Sink;
use views::Views;
pub use widen::Widen;
use widen::WidenFloats;

/// All passes that `options` ask for; `control` says whether the graph has operations with graphs inside.
pub(crate) fn pipeline(options: &Options<'_>, control: bool) -> Vec<Box<dyn Pass>> {
    let mut passes: Vec<Box<dyn Pass>> = Vec::new();
    if let Some(widen) = options.widen {
        passes.push(Box::new(WidenFloats(widen)));
    }
    if options.integers {
        passes.push(Box::new(Integers));
    }
    if !options.no_fusion {
        passes.push(Box::new(Dequantise));
    }
    if options.narrow {
        passes.push(Box::new(Narrow));
    }
    passes.extend([Box::new(Canonicalise) as Box<dyn Pass>, Box::new(Fold)]);
    if control {
        // What a graph in its node's place computes of constants may decide the next one.
        let again = [Box::new(Control) as Box<dyn Pass>, Box::new(Canonicalise), Box::new(Fold)];
        passes.extend(again);
        passes.push(Box::new(Control));
    }
    passes.extend([
        Box::new(Cse) as Box<dyn Pass>,
        Box::new(Dce),
        Box::new(Legalise),
        Box::new(Canonicalise),
        Box::new(Fold),
        Box::new(Cse),
    ]);
    if !options.no_fusion {
        passes.extend(fuse::passes());
    }
    if options.widen.is_some() {
        passes.push(Box::new(Sink));
    }
    // Views of one value by several roads meet only after composition, hence a second cse.
    passes.extend([Box::new(Views) as Box<dyn Pass>, Box::new(Pack), Box::new(Cse), Box::new(Dce)]);
    passes
}
