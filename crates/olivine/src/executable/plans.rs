//! What a graph is compiled to: plans, each for all sizes that give the same answers to what its compile asked, and the
//! plans' programs for the sizes that came.

use std::collections::HashMap;
use std::sync::Arc;

use olivine_compile::Growing;
use olivine_ir::size::guards::GuardSet;
use olivine_ir::size::{Bindings, Symbol};
use olivine_ir::{Def, Graph, Shape, ValueId, open_symbol};

use crate::Error;
use crate::engine::Prepared;

/// Plans kept at a time; the one that was compiled first goes when another comes.
const MOST_PLANS: usize = 64;

/// Programs for certain sizes kept at a time; each is a copy of its plan's numbers.
const MOST_PROGRAMS: usize = 64;

/// The open sizes of a graph's inputs: for every input its name, and for every axis of it the symbol.
pub(super) struct OpenSizes(Vec<(String, Vec<Option<Symbol>>)>);

/// Values of open sizes. A size of 0 is no symbol's value: what is compiled for it has a plan of its own.
pub(super) struct SizeValues {
    bindings: Bindings,
    zeros: Vec<Symbol>,
}

impl OpenSizes {
    pub(super) fn new(graph: &Graph) -> Result<Self, Error> {
        let symbol = |dim: &Option<String>| dim.as_deref().map(open_symbol).transpose();
        let of = |(name, id): (&str, ValueId)| match &graph.values()[id.index()].def {
            Def::Input { dims, .. } => {
                Ok((name.to_string(), dims.iter().map(symbol).collect::<Result<Vec<_>, _>>()?))
            }
            _ => Ok::<_, Error>((name.to_string(), Vec::new())),
        };
        Ok(OpenSizes(graph.inputs().map(of).collect::<Result<_, _>>()?))
    }

    /// Their values in some input shapes, which were checked against the graph.
    pub(super) fn values(&self, shapes: &[Shape]) -> Result<SizeValues, Error> {
        let mut values = SizeValues { bindings: Bindings::new(), zeros: Vec::new() };
        for ((input, symbols), shape) in self.0.iter().zip(shapes) {
            for (symbol, size) in symbols.iter().zip(shape.iter()) {
                if let Some(symbol) = symbol {
                    values.add(*symbol, *size).map_err(|problem| olivine_ir::Error::Invalid {
                        location: format!("input `{input}`"),
                        problem,
                    })?;
                }
            }
        }
        values.zeros.sort_unstable();
        Ok(values)
    }
}

/// A compiled graph and the sizes it holds for.
pub(super) struct Plan {
    pub(super) guards: GuardSet,
    zeros: Vec<Symbol>,
    /// States that it appends to.
    pub(super) states: Arc<[Growing]>,
    pub(super) prepared: Arc<dyn Prepared>,
}

/// Plans and programs of one graph.
#[derive(Default)]
pub(super) struct Plans {
    plans: Vec<Plan>,
    programs: HashMap<Vec<Shape>, Arc<dyn Prepared>>,
    /// The one program while there is one, which is found without a hash.
    only: Option<(Vec<Shape>, Arc<dyn Prepared>)>,
    order: Vec<Vec<Shape>>,
}

impl Plans {
    /// The program for some shapes, if they came before.
    pub(super) fn get(&self, shapes: &[Shape]) -> Option<&Arc<dyn Prepared>> {
        match &self.only {
            Some((only, prepared)) => (only == shapes).then_some(prepared),
            None => self.programs.get(shapes),
        }
    }

    /// How many plans there are.
    pub(super) fn count(&self) -> usize {
        self.plans.len()
    }

    /// The program that came last.
    pub(super) fn last(&self) -> Option<&Arc<dyn Prepared>> {
        self.order.last().and_then(|last| self.get(last))
    }

    /// How many times runs of all plans were recorded.
    pub(super) fn recordings(&self) -> usize {
        self.plans.iter().map(|plan| plan.prepared.recordings()).sum()
    }

    /// Frees what earlier runs left on the device, and returns whether that was anything.
    #[cfg(feature = "async")]
    pub(super) fn evict(&self) -> bool {
        self.plans.iter().filter(|plan| plan.prepared.evict()).count() > 0
    }

    /// The guards of every plan.
    pub(super) fn guards(&self) -> impl Iterator<Item = &GuardSet> {
        self.plans.iter().map(|plan| &plan.guards)
    }

    /// A plan that holds for such sizes; the newest first.
    pub(super) fn plan<'a>(&'a self, values: &'a SizeValues) -> Option<&'a Arc<dyn Prepared>> {
        let mut plans = self.newest(values);
        plans.find(|plan| plan.guards.holds(&values.bindings)).map(|plan| &plan.prepared)
    }

    /// The plans for sizes of which the same are 0, the newest first; their guards may not hold.
    pub(super) fn newest<'a>(&'a self, values: &'a SizeValues) -> impl Iterator<Item = &'a Plan> {
        self.plans.iter().rev().filter(|plan| plan.zeros == values.zeros)
    }

    /// Adds a plan.
    pub(super) fn add_plan(
        &mut self,
        guards: GuardSet,
        values: &SizeValues,
        states: Arc<[Growing]>,
        prepared: Arc<dyn Prepared>,
    ) {
        if self.plans.len() == MOST_PLANS {
            self.plans.remove(0);
        }
        self.plans.push(Plan { guards, zeros: values.zeros.clone(), states, prepared });
    }

    /// Adds a program, unless another thread has; returns the one that is kept.
    pub(super) fn add_program(&mut self, shapes: &[Shape], program: Arc<dyn Prepared>) -> Arc<dyn Prepared> {
        if let Some(found) = self.programs.get(shapes) {
            return found.clone();
        }
        if self.order.len() == MOST_PROGRAMS {
            let oldest = self.order.remove(0);
            self.programs.remove(&oldest);
        }
        self.only = self.order.is_empty().then(|| (shapes.to_vec(), program.clone()));
        self.order.push(shapes.to_vec());
        self.programs.insert(shapes.to_vec(), program.clone());
        program
    }
}

impl SizeValues {
    /// Gives a symbol its value; the error says what is wrong with it.
    fn add(&mut self, symbol: Symbol, size: usize) -> Result<(), String> {
        let known = match self.zeros.contains(&symbol) {
            true => Some(0),
            false => self.bindings.get(symbol).map(|known| known as usize),
        };
        match known {
            Some(known) if known == size => Ok(()),
            Some(known) => Err(format!("size `{}` is {size} here and {known} elsewhere", symbol.name())),
            None if size == 0 => {
                self.zeros.push(symbol);
                Ok(())
            }
            None => self.bindings.bind(symbol, size as i64).map_err(|e| e.to_string()),
        }
    }

    /// Whether a size is 0.
    pub(super) fn is_zero(&self, symbol: Symbol) -> bool {
        self.zeros.contains(&symbol)
    }

    /// The values of the symbols.
    pub(super) fn bindings(&self) -> &Bindings {
        &self.bindings
    }
}
