//! Chains on a session's device: compiled, bound to data, run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use olivine::custom::{Attrs, CpuFunction, CustomOp, ResultMut};
use olivine::internals::SessionExt as _;
use olivine::{DeviceTensor, Executable, Input, Session};
use olivine_ir::{DType, Graph, Shape, Tensor, TensorType, TensorView};

use crate::cpu::{self, Real};
use crate::data::{Data, Layout};
use crate::expr::Density;
use crate::gradient::differentiate;
use crate::plan::Plan;
use crate::{Error, gpu};

/// Steps of one run; a longer chain begins again where the last run ended.
pub const MAX_STEPS: usize = 1 << 20;

/// How trajectories are integrated.
#[derive(Clone, Debug, PartialEq)]
pub struct Leapfrog {
    /// ε.
    pub step_size: f64,
    /// The diagonal of the inverse mass matrix, a number for each coordinate.
    pub inverse_mass: Vec<f64>,
    /// Steps of each chain.
    pub steps: usize,
}

/// States of one or several chains after each step; row-major, a row for each step of each chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trajectories {
    /// Chains.
    pub chains: usize,
    /// Steps of each chain.
    pub steps: usize,
    /// Coordinates.
    pub d: usize,
    /// Positions: `chains` · `steps` · `d`.
    pub q: Vec<f64>,
    /// Momenta: `chains` · `steps` · `d`.
    pub p: Vec<f64>,
    /// Gradients of the log-density at these positions: `chains` · `steps` · `d`.
    pub gradient: Vec<f64>,
    /// The log-density at these positions: `chains` · `steps`.
    pub density: Vec<f64>,
}

/// A density compiled for a device.
#[derive(Clone)]
pub struct Chain {
    session: Session,
    density: Arc<Density>,
    plan: Arc<Plan>,
    dtype: DType,
    /// Of one dispatch, in instructions of an invocation.
    budget: u64,
}

impl Chain {
    /// Compiles a density for chains in f32 or f64. A device without f64 refuses the latter.
    pub fn compile(session: &Session, density: &Density, dtype: DType) -> Result<Self, Error> {
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(Error::Unsupported(format!("chains are computed in f32 or f64, not in {dtype}")));
        }
        if let Some(caps) = session.caps()
            && dtype == DType::F64
            && !(caps.target.f64 && caps.target.i64)
        {
            return Err(Error::Unsupported(format!("{} cannot compute in f64", caps.name)));
        }
        let plan = Arc::new(Plan::new(&differentiate(density)?)?);
        let (session, density) = (session.clone(), Arc::new(density.clone()));
        Ok(Chain { session, density, plan, dtype, budget: gpu::BUDGET })
    }

    /// Sets how much an invocation may compute in one dispatch, in instructions: chains on a GPU are cut into as many
    /// dispatches as that takes. The default is some ten milliseconds; systems that stop long dispatches allow seconds.
    #[must_use]
    pub fn with_budget(self, instructions: u64) -> Self {
        Chain { budget: instructions, ..self }
    }

    /// Passes over the observations that one evaluation of density and gradient takes.
    pub fn passes(&self) -> usize {
        self.plan.passes()
    }

    /// Brings data to the device, for positions of `d` coordinates.
    pub fn bind(&self, data: &Data, d: usize) -> Result<BoundChain, Error> {
        if d == 0 || d < self.density.dims() {
            let least = self.density.dims().max(1);
            return Err(Error::Data(format!("a position of {d} coordinates, and the density needs {least}")));
        }
        check_vector_indices(&self.density, d)?;
        let (numbers, indices) = data.pack(&self.density, d)?;
        let layout = Layout::new(self.density.data(), data.n_obs(), d)?;
        let numbers = tensor(self.dtype, &numbers)?;
        let indices = Tensor::new([indices.len()], indices)?;
        Ok(BoundChain {
            numbers: self.session.upload(&numbers)?,
            indices: self.session.upload(&indices)?,
            layout: Arc::new(layout),
            chain: self.clone(),
            executables: Mutex::default(),
        })
    }
}

fn check_vector_indices(density: &Density, d: usize) -> Result<(), Error> {
    match density.largest_index() {
        Some(i) if i as usize >= d => {
            Err(Error::Data(format!("a vector is indexed at {i}, and there are {d} coordinates")))
        }
        _ => Ok(()),
    }
}

/// A compiled density with its data on the device.
pub struct BoundChain {
    chain: Chain,
    layout: Arc<Layout>,
    numbers: DeviceTensor,
    indices: DeviceTensor,
    /// By chains and steps.
    executables: Mutex<HashMap<(usize, usize), Arc<Executable>>>,
}

impl BoundChain {
    /// Runs one chain from a position and a momentum.
    pub fn run(&self, leapfrog: &Leapfrog, q: &[f64], p: &[f64]) -> Result<Trajectories, Error> {
        let d = self.layout.d;
        if q.len() != d {
            return Err(Error::Data(format!(
                "a position of {} numbers, and there are {d} coordinates",
                q.len()
            )));
        }
        self.run_batch(leapfrog, q, p)
    }

    /// Runs several chains at once; their positions and momenta stand one after another.
    pub fn run_batch(&self, leapfrog: &Leapfrog, q: &[f64], p: &[f64]) -> Result<Trajectories, Error> {
        let (d, steps) = (self.layout.d, leapfrog.steps);
        let chains = q.len() / d;
        if q.len() != chains * d || p.len() != q.len() {
            return Err(Error::Data(format!(
                "positions of {} numbers and momenta of {}: both need {d} for each chain",
                q.len(),
                p.len()
            )));
        }
        if leapfrog.inverse_mass.len() != d {
            let given = leapfrog.inverse_mass.len();
            return Err(Error::Data(format!("{given} inverse masses, and there are {d} coordinates")));
        }
        if steps > MAX_STEPS {
            return Err(Error::Data(format!("{steps} steps, and a run has at most {MAX_STEPS}")));
        }
        if chains == 0 || steps == 0 {
            return Ok(Trajectories { chains, steps, d, ..Trajectories::default() });
        }
        let executable = self.executable(chains, steps)?;
        let mut start = Vec::with_capacity(1 + d + 2 * q.len());
        start.push(leapfrog.step_size);
        start.extend(&leapfrog.inverse_mass);
        for (q, p) in q.chunks(d).zip(p.chunks(d)) {
            start.extend(q);
            start.extend(p);
        }
        let start = tensor(self.chain.dtype, &start)?;
        let outputs = executable.run([
            ("start", Input::from(&start)),
            ("numbers", Input::from(&self.numbers)),
            ("indices", Input::from(&self.indices)),
        ])?;
        let get = |name: &str| outputs.get(name).map(Tensor::to_f64);
        let (q, p) = (get("q")?, get("p")?);
        let (gradient, density) = (get("gradient")?, get("density")?);
        Ok(Trajectories { chains, steps, d, q, p, gradient, density })
    }

    fn executable(&self, chains: usize, steps: usize) -> Result<Arc<Executable>, Error> {
        let mut known = self.executables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(executable) = known.get(&(chains, steps)) {
            return Ok(executable.clone());
        }
        let executable = Arc::new(self.chain.session.compile(&self.graph(chains, steps)?)?);
        // Programs with many different numbers of steps keep the last few.
        if known.len() >= 64 {
            known.clear();
        }
        known.insert((chains, steps), executable.clone());
        Ok(executable)
    }

    /// A graph of one operation: the chains.
    fn graph(&self, chains: usize, steps: usize) -> Result<Graph, Error> {
        let (dtype, d) = (self.chain.dtype, self.layout.d);
        let rows = TensorType::new(dtype, Shape::new(&[chains, steps, d])?);
        let results = vec![rows, rows, rows, TensorType::new(dtype, Shape::new(&[chains, steps])?)];
        let program = cpu::Program::new(&self.chain.plan, &self.layout);
        let shape = gpu::Shape { chains, steps, dtype, budget: self.chain.budget };
        let op = CustomOp::new("olivine.chain", move |_, _| Ok(results.clone()))
            .with(CpuFunction::new(move |_, operands, results| match dtype {
                DType::F64 => on_cpu::<f64>(&program, steps, operands, results),
                _ => on_cpu::<f32>(&program, steps, operands, results),
            }))
            .with(gpu::kernel(self.chain.plan.clone(), self.layout.clone(), shape));
        let mut g = Graph::new("chain");
        let start = g.input("start", dtype, [1 + d + 2 * chains * d])?;
        let numbers = g.input("numbers", dtype, [self.layout.numbers])?;
        let indices = g.input("indices", DType::U32, [self.layout.indices])?;
        let values = g.custom(&Arc::new(op), Attrs::default(), &[start, numbers, indices])?;
        for (name, value) in ["q", "p", "gradient", "density"].into_iter().zip(values) {
            g.output(name, value)?;
        }
        Ok(g)
    }
}

fn on_cpu<T: Real>(
    program: &cpu::Program,
    steps: usize,
    operands: &[TensorView<'_>],
    results: &mut [ResultMut<'_>],
) -> Result<(), String> {
    let [start, numbers, indices] = operands else { return Err("a chain has three operands".into()) };
    let [q, p, gradient, density] = results else { return Err("a chain has four results".into()) };
    let text = |e: olivine_ir::Error| e.to_string();
    let start = cpu::Start {
        start: start.as_slice::<T>().map_err(text)?,
        numbers: numbers.as_slice::<T>().map_err(text)?,
        indices: indices.as_slice::<u32>().map_err(text)?,
        steps,
    };
    let results = cpu::Chains {
        q: q.as_mut_slice::<T>().map_err(text)?,
        p: p.as_mut_slice::<T>().map_err(text)?,
        gradient: gradient.as_mut_slice::<T>().map_err(text)?,
        density: density.as_mut_slice::<T>().map_err(text)?,
    };
    cpu::run(program, &start, results);
    Ok(())
}

/// Numbers as a tensor of f32 or f64.
fn tensor(dtype: DType, numbers: &[f64]) -> Result<Tensor, Error> {
    Ok(match dtype {
        DType::F64 => Tensor::new([numbers.len()], numbers.to_vec())?,
        _ => Tensor::new([numbers.len()], numbers.iter().map(|x| *x as f32).collect::<Vec<f32>>())?,
    })
}

impl Density {
    /// The density and its gradient at a position, in f64 on the CPU.
    pub fn evaluate(&self, data: &Data, q: &[f64]) -> Result<(f64, Vec<f64>), Error> {
        if q.is_empty() || q.len() < self.dims() {
            let least = self.dims().max(1);
            return Err(Error::Data(format!(
                "a position of {} coordinates, and the density needs {least}",
                q.len()
            )));
        }
        check_vector_indices(self, q.len())?;
        let plan = Plan::new(&differentiate(self)?)?;
        let (numbers, indices) = data.pack(self, q.len())?;
        let layout = Layout::new(self.data(), data.n_obs(), q.len())?;
        Ok(cpu::evaluate(&cpu::Program::new(&plan, &layout), &numbers, &indices, q))
    }
}
