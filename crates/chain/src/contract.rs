//! Chains as one dispatch of a SPIR-V module with bindings: the module of a density, and the checks of its arguments.
//!
//! | binding | holds | elements |
//! |---|---|---|
//! | 0 | position at the beginning | d |
//! | 1 | momentum at the beginning | d |
//! | 2 | observations, then inverse masses | n_obs + d |
//! | 3 | positions | K · d |
//! | 4 | momenta | K · d |
//! | 5 | gradients | K · d |
//! | 6 | log-densities | K |
//!
//! Push constants are u32 K, n_obs, d and 0, then ε as f32 (20 bytes in all) or f64 (24 bytes), little-endian; up to 128
//! bytes are passed on as they are. Row k holds the state after step k + 1; gradient and log-density are those at that
//! row's position. A module is dispatched as one workgroup.

use olivine_ir::DType;
use olivine_kernel::spirv::{Addressing, FloatControls, SpirvOptions, print};
use olivine_kernel::{Access, Builder, Elem, Kernel, Scalar, Target};

use crate::Error;
use crate::expr::{Axis, Density};
use crate::gpu::{Io, Memory, Rows, Writer};
use crate::gradient::differentiate;
use crate::plan::Plan;

/// Invocations of the module's workgroup, which every Vulkan device has.
pub const THREADS: u32 = 128;

/// Sizes of a chain, as its push constants say them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contract {
    /// Steps.
    pub steps: u32,
    /// Observations.
    pub n_obs: u32,
    /// Coordinates.
    pub d: u32,
    /// f32 or f64.
    pub dtype: DType,
    /// ε.
    pub step_size: f64,
}

impl Contract {
    /// The push constants.
    pub fn push(&self) -> Vec<u8> {
        let mut push: Vec<u8> =
            [self.steps, self.n_obs, self.d, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        match self.dtype {
            DType::F64 => push.extend(self.step_size.to_le_bytes()),
            _ => push.extend((self.step_size as f32).to_le_bytes()),
        }
        push
    }

    /// Bytes of each result: positions, momenta, gradients, log-densities.
    pub fn result_bytes(&self) -> [u64; 4] {
        let row = u64::from(self.steps) * u64::from(self.d) * self.size();
        [row, row, row, u64::from(self.steps) * self.size()]
    }

    fn size(&self) -> u64 {
        if self.dtype == DType::F64 { 8 } else { 4 }
    }
}

/// Checks a dispatch's arguments against the contract: `k` steps, lengths in bytes of position, momentum and extras, and
/// the push constants. The element type follows from the lengths.
///
/// ```
/// use olivine_chain::contract::{Contract, check_contract};
/// use olivine_chain::DType;
/// let push = Contract { steps: 8, n_obs: 3, d: 2, dtype: DType::F32, step_size: 0.1 }.push();
/// assert_eq!(check_contract(8, 8, 8, 20, &push)?.dtype, DType::F32);
/// assert!(check_contract(9, 8, 8, 20, &push).is_err());
/// # Ok::<(), olivine_chain::Error>(())
/// ```
pub fn check_contract(k: u32, q: u64, p: u64, extras: u64, push: &[u8]) -> Result<Contract, Error> {
    let wrong = |problem: String| Err(Error::Contract(problem));
    if !(20..=128).contains(&push.len()) {
        return wrong(format!("push constants of {} bytes, not 20 to 128", push.len()));
    }
    let word =
        |i: usize| u32::from_le_bytes([push[4 * i], push[4 * i + 1], push[4 * i + 2], push[4 * i + 3]]);
    let (steps, n_obs, d) = (word(0), word(1), word(2));
    if steps != k {
        return wrong(format!("k is {k}, and the push constants say {steps}"));
    }
    if d == 0 {
        return wrong("a position without coordinates".into());
    }
    let dtype = match q {
        q if q == 4 * u64::from(d) => DType::F32,
        q if q == 8 * u64::from(d) => DType::F64,
        q => {
            return wrong(format!(
                "a position of {q} bytes, and d is {d}: {} or {}",
                4 * u64::from(d),
                8 * u64::from(d)
            ));
        }
    };
    if p != q {
        return wrong(format!("a momentum of {p} bytes, and a position of {q}"));
    }
    let size = q / u64::from(d);
    let wanted = size * (u64::from(n_obs) + u64::from(d));
    if extras != wanted {
        return wrong(format!(
            "extras of {extras} bytes: {n_obs} observations and {d} inverse masses are {wanted}"
        ));
    }
    let step_size = match dtype {
        DType::F64 => {
            let Some(bytes) = push.get(16..24).and_then(|b| <[u8; 8]>::try_from(b).ok()) else {
                return wrong(format!(
                    "push constants of {} bytes, and an f64 step size ends at 24",
                    push.len()
                ));
            };
            f64::from_le_bytes(bytes)
        }
        _ => f64::from(f32::from_bits(word(4))),
    };
    if u64::from(steps) * u64::from(d) >= 1 << 31 {
        return wrong(format!("{steps} steps of {d} coordinates are too many"));
    }
    Ok(Contract { steps, n_obs, d, dtype, step_size })
}

/// The module of a density in f32 or f64, as bytes. The density reads observations and the position only: a dispatch has
/// no place for other data, nor for values of each observation or coordinate between two loops.
pub fn spirv_module(density: &Density, dtype: DType) -> Result<Vec<u8>, Error> {
    let controls = FloatControls::default();
    let options = SpirvOptions {
        addressing: Addressing::Bindings { immediate_bytes: 128, storage16: false },
        checked: false,
        f16_registers: false,
        float16: controls,
        float32: controls,
        float64: controls,
    };
    let words = print(&kernel(density, dtype)?, &options)?;
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// The kernel that [`spirv_module`] prints.
pub fn kernel(density: &Density, dtype: DType) -> Result<Kernel, Error> {
    let (elem, scalar) = match dtype {
        DType::F32 => (Elem::F32, Scalar::F32),
        DType::F64 => (Elem::F64, Scalar::F64),
        other => {
            return Err(Error::Unsupported(format!("chains are computed in f32 or f64, not in {other}")));
        }
    };
    if let Some(data) = density.data().first() {
        let (kind, name) = (data.kind.name(), &data.name);
        return Err(Error::Unsupported(format!(
            "the density reads the {kind} `{name}`, and a dispatch has observations only"
        )));
    }
    let plan = Plan::new(&differentiate(density)?)?;
    let stores = plan.stores(Axis::Obs).len() + plan.stores(Axis::Coord).len() + plan.coord_sums().len();
    if stores > 0 {
        return Err(Error::Unsupported(
            "the density combines every observation with every coordinate, for which a dispatch has no memory".into(),
        ));
    }
    let wide = dtype == DType::F64;
    let target = Target { f64: wide, i64: wide, ..Target::plain() };
    let k = Builder::new("chain", THREADS, &target);
    let q_init = k.arg("q_init", elem, Access::Read);
    let p_init = k.arg("p_init", elem, Access::Read);
    let extras = k.arg("extras", elem, Access::Read);
    let q = k.arg("q_chain", elem, Access::ReadWrite);
    let p = k.arg("p_chain", elem, Access::ReadWrite);
    let gradient = k.arg("grad_chain", elem, Access::ReadWrite);
    let logp = k.arg("logp_chain", elem, Access::ReadWrite);
    let steps = k.param("steps", Scalar::U32);
    let n_obs = k.param("n_obs", Scalar::U32);
    let d = k.param("d", Scalar::U32);
    k.param("pad", Scalar::U32);
    let step_size = match wide {
        true => {
            let (low, high) = (k.param("step_low", Scalar::U32), k.param("step_high", Scalar::U32));
            low.join(high).bitcast(Scalar::F64)
        }
        false => k.param("step_size", Scalar::F32),
    };
    let zero = k.u32(0);
    // Any other workgroup of a dispatch has nothing to do, nor has a chain without steps a row for its state.
    let first_group = (k.group_id(0) + k.group_id(1) + k.group_id(2)).eq(0);
    k.if_(first_group & steps.gt(0), || {
        let io = Io {
            steps,
            n_obs,
            d,
            step_size,
            numbers: extras,
            indices: None,
            offsets: Vec::new(),
            inverse_mass: (extras, n_obs),
            q: (q_init, zero),
            p: (p_init, zero),
            rows: Rows { q, p, gradient, first: zero, density: logp, first_density: zero },
            memory: Memory::Rows,
            obs: (zero, n_obs),
            writes: k.bool(true),
        };
        let writer = Writer::new(&k, &plan, scalar, io);
        writer.write(zero, steps + 2);
    });
    Ok(k.finish()?)
}
