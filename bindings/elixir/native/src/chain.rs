//! Leapfrog chains: the dispatch contract on buffers, and densities bound to data.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use olivine_array::{Buffer, ErrorKind};
use olivine_chain::contract::{Contract, check_contract, spirv_module};
use olivine_chain::{BoundChain, Chain, DType, Data, Density, Leapfrog, Trajectories};
use rustler::{Atom, Binary, Encoder, Env, NifResult, OwnedBinary, Term};

use crate::array::dtype_of;
use crate::call::{Errors, Failure, call, size};
use crate::device::context;
use crate::resource::{BufferHandle, buffer, buffer_handle, chain, chain_handle};
use crate::spv::Kernel;

/// What `:builtin` samples.
const STANDARD_NORMAL: &str = "sum_coord(-0.5 * q^2 - 0.5 * log(2 * pi))";

/// A density with its data on the device; clones share it.
pub(crate) type Bound = Arc<BoundChain>;

impl From<olivine_chain::Error> for Failure {
    fn from(error: olivine_chain::Error) -> Self {
        match error {
            olivine_chain::Error::Run(error) => error.into(),
            error @ olivine_chain::Error::Unsupported(_) => {
                Failure::Error(ErrorKind::Unsupported, error.to_string())
            }
            error => Failure::bad(error.to_string()),
        }
    }
}

/// A chain of the dispatch contract: four buffers.
#[rustler::nif(schedule = "DirtyIo")]
fn leapfrog_chain_synth<'a>(
    env: Env<'a>,
    q: Term<'a>,
    p: Term<'a>,
    extras: Term<'a>,
    push: Binary<'a>,
    k: Term<'a>,
    spv: Term<'a>,
) -> NifResult<Term<'a>> {
    call(env, Errors::Contract, || {
        let (q, p, extras) = (buffer(q)?, buffer(p)?, buffer(extras)?);
        let k = size("k", k)?;
        let k = u32::try_from(k).map_err(|_| Failure::bad(format!("k is {k}, not a number of steps")))?;
        let kernel = Kernel::of(spv)?;
        let contract = checked(k, &q, &p, &extras, &push)?;
        let [q, p, gradient, density] = match kernel {
            Kernel::Module(module) => dispatch(&contract, [&q, &p, &extras], &push, &module)?,
            Kernel::Density(text) => on_any_device(&contract, [&q, &p, &extras], &text)?,
            Kernel::Builtin(DType::I32) => return Err(Failure::bad("chains are computed in f32 or f64")),
            Kernel::Builtin(_) => on_any_device(&contract, [&q, &p, &extras], STANDARD_NORMAL)?,
        };
        Ok((handle(q), handle(p), handle(gradient), handle(density)).encode(env))
    })
}

fn handle(buffer: Buffer) -> rustler::ResourceArc<BufferHandle> {
    buffer_handle(buffer)
}

/// The contract of the arguments. Lengths that do not fit the push constants are a size mismatch; push constants that say
/// something impossible are bad input.
fn checked(k: u32, q: &Buffer, p: &Buffer, extras: &Buffer, push: &[u8]) -> Result<Contract, Failure> {
    let bytes = |buffer: &Buffer| buffer.byte_size() as u64;
    check_contract(k, bytes(q), bytes(p), bytes(extras), push).map_err(|error| {
        let word = |at: usize| push.get(4 * at..4 * at + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
        let said = |at: usize| word(at).map_or(0, u32::from_le_bytes);
        let (steps, n_obs, d) = (said(0), u64::from(said(1)), u64::from(said(2)));
        let possible = (20..=128).contains(&push.len()) && steps == k && d > 0;
        let fits =
            |size: u64| bytes(q) == size * d && bytes(p) == size * d && bytes(extras) == size * (n_obs + d);
        match possible && !fits(4) && !fits(8) {
            true => Failure::mismatch(error.to_string()),
            false => error.into(),
        }
    })
}

/// Runs a caller's module: three operands, four results, one workgroup.
fn dispatch(
    contract: &Contract,
    operands: [&Buffer; 3],
    push: &[u8],
    module: &[u8],
) -> Result<[Buffer; 4], Failure> {
    let context = operands[0].context();
    let module = context.module(module)?;
    let [q, p, gradient, density] = contract.result_bytes().map(|bytes| {
        let bytes =
            usize::try_from(bytes).map_err(|_| Failure::mismatch(format!("{bytes} bytes of results")))?;
        Ok::<_, Failure>(context.alloc(bytes)?)
    });
    let results = [q?, p?, gradient?, density?];
    let buffers: Vec<&Buffer> = operands.into_iter().chain(&results).collect();
    context.dispatch_spv(&buffers, push, [1, 1, 1], &module)?;
    Ok(results)
}

/// Runs a density on whatever device the buffers are on.
fn on_any_device(contract: &Contract, operands: [&Buffer; 3], text: &str) -> Result<[Buffer; 4], Failure> {
    let context = operands[0].context();
    let read =
        |buffer: &Buffer| -> Result<Vec<f64>, Failure> { Ok(numbers(contract.dtype, &buffer.download()?)) };
    let (q, p, extras) = (read(operands[0])?, read(operands[1])?, read(operands[2])?);
    let (obs, inverse_mass) = extras.split_at(contract.n_obs as usize);
    let bound = KNOWN.get(context, text, contract, obs)?;
    let leapfrog = Leapfrog {
        step_size: contract.step_size,
        inverse_mass: inverse_mass.to_vec(),
        steps: contract.steps as usize,
    };
    let run = bound.run(&leapfrog, &q, &p)?;
    let write =
        |numbers: &[f64]| -> Result<Buffer, Failure> { Ok(context.upload(&bytes(contract.dtype, numbers))?) };
    Ok([write(&run.q)?, write(&run.p)?, write(&run.gradient)?, write(&run.density)?])
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_ne_bytes(*b)).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_ne_bytes(*b))).collect(),
    }
}

fn bytes(dtype: DType, numbers: &[f64]) -> Vec<u8> {
    match dtype {
        DType::F64 => numbers.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        _ => numbers.iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect(),
    }
}

/// The last few densities with their observations: a sampler asks for the same one again and again.
struct Known(Mutex<VecDeque<(Key, Bound)>>);

static KNOWN: Known = Known(Mutex::new(VecDeque::new()));

/// As many as are kept.
const CACHED: usize = 16;

#[derive(PartialEq)]
struct Key {
    device: String,
    text: String,
    dtype: DType,
    d: u32,
    obs: Vec<u64>,
}

impl Known {
    fn get(
        &self,
        context: &olivine_array::Context,
        text: &str,
        contract: &Contract,
        obs: &[f64],
    ) -> Result<Bound, Failure> {
        let key = Key {
            device: context.session().device().to_string(),
            text: text.to_string(),
            dtype: contract.dtype,
            d: contract.d,
            obs: obs.iter().map(|x| x.to_bits()).collect(),
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bound)) = known.iter().find(|(other, _)| *other == key) {
            return Ok(bound.clone());
        }
        let density: Density = text.parse()?;
        let chain = Chain::compile(context.session(), &density, contract.dtype)?;
        let bound = Arc::new(chain.bind(&Data::new(obs.to_vec()), contract.d as usize)?);
        if known.len() == CACHED {
            known.pop_front();
        }
        known.push_back((key, bound.clone()));
        Ok(bound)
    }
}

/// The SPIR-V module of a density.
#[rustler::nif(schedule = "DirtyIo")]
fn chain_spirv<'a>(env: Env<'a>, text: &str, dtype: Atom) -> NifResult<Term<'a>> {
    call(env, Errors::All, || {
        let density: Density = text.parse()?;
        let module = spirv_module(&density, dtype_of(env, dtype)?)?;
        Ok(OwnedBinary::from_slice(&module).release(env).encode(env))
    })
}

/// A piece of data: its name and numbers (f64) or indices (u32) as packed bytes.
type Piece<'a> = (String, Binary<'a>);

/// A density with its data on the device. Observations and data are packed f64, indices packed u32.
#[rustler::nif(schedule = "DirtyIo")]
fn chain_bind<'a>(
    env: Env<'a>,
    device: &str,
    text: &str,
    dtype: Atom,
    d: Term<'a>,
    obs: Binary<'a>,
    data: Vec<Piece<'a>>,
    indices: Vec<Piece<'a>>,
) -> NifResult<Term<'a>> {
    call(env, Errors::All, || {
        let density: Density = text.parse()?;
        let mut bound = Data::new(numbers(DType::F64, &obs));
        for (name, piece) in data {
            bound = bound.with(name, numbers(DType::F64, &piece));
        }
        for (name, piece) in indices {
            let words = piece.as_slice().as_chunks().0.iter().map(|b| u32::from_ne_bytes(*b)).collect();
            bound = bound.with_index(name, words);
        }
        let compiled = Chain::compile(context(device)?.session(), &density, dtype_of(env, dtype)?)?;
        Ok(chain_handle(Arc::new(compiled.bind(&bound, size("d", d)?)?)).encode(env))
    })
}

/// Runs chains from positions and momenta, packed f64, one after another; the results are packed f64 as well.
#[rustler::nif(schedule = "DirtyIo")]
fn chain_run<'a>(
    env: Env<'a>,
    handle: Term<'a>,
    steps: Term<'a>,
    step_size: f64,
    inverse_mass: Binary<'a>,
    q: Binary<'a>,
    p: Binary<'a>,
) -> NifResult<Term<'a>> {
    call(env, Errors::All, || {
        let leapfrog = Leapfrog {
            step_size,
            inverse_mass: numbers(DType::F64, &inverse_mass),
            steps: size("steps", steps)?,
        };
        let run = chain(handle)?.run_batch(&leapfrog, &numbers(DType::F64, &q), &numbers(DType::F64, &p))?;
        let Trajectories { q, p, gradient, density, .. } = run;
        let packed = |x: &[f64]| OwnedBinary::from_slice(&bytes(DType::F64, x)).release(env);
        Ok((packed(&q), packed(&p), packed(&gradient), packed(&density)).encode(env))
    })
}
