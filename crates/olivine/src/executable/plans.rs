//! What a graph is compiled to: plans, each for all sizes that give the same answers to what its compile asked, and the
//! plans' programs for the sizes that came.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use olivine_compile::Growing;
use olivine_ir::size::guards::GuardSet;
use olivine_ir::size::{Bindings, Error as SizeError, Symbol};
use olivine_ir::{Def, Graph, Shape, ValueId, open_symbol};

use crate::Error;
use crate::engine::Prepared;

/// Plans kept at a time; the least recently used goes when another comes. An encoder needs some 100 for all batches and
/// lengths.
const MOST_PLANS: usize = 512;

/// Programs for certain sizes kept at a time; each is a copy of its plan's numbers. The least recently used goes.
const MOST_PROGRAMS: usize = 64;

/// When something was used last, as a count of uses.
#[derive(Clone, Default)]
struct LastUse(Arc<AtomicU64>);

impl LastUse {
    fn set(&self, clock: &AtomicU64) {
        self.0.store(clock.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The open sizes of a graph's inputs: for every input its name, and for every axis of it the symbol.
pub(super) struct OpenSizes(Vec<(String, Vec<Option<Symbol>>)>);

/// Values of open sizes. A size of 0 is no symbol's value: what is compiled for it has a plan of its own.
pub(super) struct SizeValues {
    bindings: Bindings,
    zeros: Vec<Symbol>,
}

/// Why a symbol does not take a value.
enum SizeProblem {
    /// It has another already.
    Differs {
        known: usize,
    },
    Size(SizeError),
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

    /// The first input that has an axis of this size.
    fn first_with(&self, symbol: Symbol) -> &str {
        let has = |(_, symbols): &&(String, Vec<Option<Symbol>>)| symbols.contains(&Some(symbol));
        self.0.iter().find(has).map_or("", |(input, _)| input)
    }

    /// Their values in some input shapes, which were checked against the graph.
    pub(super) fn values(&self, shapes: &[Shape]) -> Result<SizeValues, Error> {
        let mut values = SizeValues { bindings: Bindings::new(), zeros: Vec::new() };
        for ((input, symbols), shape) in self.0.iter().zip(shapes) {
            for (symbol, size) in symbols.iter().zip(shape.iter()) {
                let Some(symbol) = symbol else { continue };
                values.add(*symbol, *size).map_err(|problem| olivine_ir::Error::Invalid {
                    location: format!("input `{input}`"),
                    problem: match problem {
                        SizeProblem::Differs { known } => {
                            let (name, first) = (symbol.name(), self.first_with(*symbol));
                            format!("size `{name}` is {size} here and {known} in input `{first}`")
                        }
                        SizeProblem::Size(error) => error.to_string(),
                    },
                })?;
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
    used: LastUse,
}

/// A plan's numbers for certain sizes.
#[derive(Clone)]
struct Program {
    prepared: Arc<dyn Prepared>,
    used: LastUse,
    /// Of its plan.
    plan_used: LastUse,
}

/// Plans and programs of one graph.
#[derive(Default)]
pub(super) struct Plans {
    /// In the order in which they were made.
    plans: Vec<Plan>,
    programs: HashMap<Vec<Shape>, Program>,
    /// The one program while there is one, which is found without a hash.
    only: Option<(Vec<Shape>, Program)>,
    /// The program that came last.
    last: Option<Arc<dyn Prepared>>,
    /// Plans made so far.
    made: usize,
    /// Uses so far.
    clock: AtomicU64,
}

impl Plans {
    /// The program for some shapes, if they came before.
    pub(super) fn get(&self, shapes: &[Shape]) -> Option<&Arc<dyn Prepared>> {
        let found = match &self.only {
            Some((only, program)) => (only == shapes).then_some(program),
            None => self.programs.get(shapes),
        }?;
        found.used.set(&self.clock);
        found.plan_used.set(&self.clock);
        Some(&found.prepared)
    }

    /// How many plans there are.
    pub(super) fn count(&self) -> usize {
        self.plans.len()
    }

    /// How many plans were made so far.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// The program that came last.
    pub(super) fn last(&self) -> Option<&Arc<dyn Prepared>> {
        self.last.as_ref()
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
        let plan = self.newest(values).find(|plan| plan.guards.holds(&values.bindings))?;
        plan.used.set(&self.clock);
        Some(&plan.prepared)
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
        if self.plans.len() == MOST_PLANS
            && let Some(oldest) = (0..MOST_PLANS).min_by_key(|i| self.plans[*i].used.get())
        {
            self.plans.remove(oldest);
        }
        let used = LastUse::default();
        used.set(&self.clock);
        self.made += 1;
        self.plans.push(Plan { guards, zeros: values.zeros.clone(), states, prepared, used });
    }

    /// Adds a program of a plan, unless another thread has; returns the one that is kept.
    pub(super) fn add_program(
        &mut self,
        shapes: &[Shape],
        plan: &Arc<dyn Prepared>,
        program: Arc<dyn Prepared>,
    ) -> Arc<dyn Prepared> {
        if let Some(found) = self.programs.get(shapes) {
            return found.prepared.clone();
        }
        if self.programs.len() == MOST_PROGRAMS {
            let oldest = self.programs.iter().min_by_key(|(_, program)| program.used.get());
            if let Some(oldest) = oldest.map(|(shapes, _)| shapes.clone()) {
                self.programs.remove(&oldest);
            }
        }
        let plan = self.plans.iter().rev().find(|known| Arc::ptr_eq(&known.prepared, plan));
        let plan_used = plan.map(|plan| plan.used.clone()).unwrap_or_default();
        let added = Program { prepared: program.clone(), used: LastUse::default(), plan_used };
        added.used.set(&self.clock);
        self.only = self.programs.is_empty().then(|| (shapes.to_vec(), added.clone()));
        self.programs.insert(shapes.to_vec(), added);
        self.last = Some(program.clone());
        program
    }
}

impl SizeValues {
    /// Gives a symbol its value.
    fn add(&mut self, symbol: Symbol, size: usize) -> Result<(), SizeProblem> {
        let known = match self.zeros.contains(&symbol) {
            true => Some(0),
            false => self.bindings.get(symbol).map(|known| known as usize),
        };
        match known {
            Some(known) if known == size => Ok(()),
            Some(known) => Err(SizeProblem::Differs { known }),
            None if size == 0 => {
                self.zeros.push(symbol);
                Ok(())
            }
            None => self.bindings.bind(symbol, size as i64).map_err(SizeProblem::Size),
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
