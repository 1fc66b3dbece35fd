//! Tables that the host computes and kernels read: one for all sizes, or one that follows from the sizes of a run.

use std::fmt;
use std::sync::Arc;

use olivine_ir::{Dim, Tensor};

/// Computes a table for some sizes.
type Compute = dyn Fn(&[usize]) -> Result<Tensor, String> + Send + Sync;

/// A table, and how to compute it for other sizes where it depends on them.
#[derive(Clone, Debug)]
pub struct HostTable {
    now: Tensor,
    sized: Option<SizedTable>,
}

/// A table that follows from sizes.
#[derive(Clone)]
pub struct SizedTable {
    /// What it follows from.
    pub(crate) sizes: Vec<Dim>,
    /// Its bytes.
    pub(crate) bytes: Dim,
    compute: Arc<Compute>,
}

impl HostTable {
    /// A table of `bytes` bytes that `compute` makes of some sizes. It must depend on nothing else.
    pub fn of_sizes(
        sizes: Vec<Dim>,
        bytes: Dim,
        compute: impl Fn(&[usize]) -> Result<Tensor, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let is_open = sizes.iter().any(|size| !size.is_constant());
        Self::made(SizedTable { sizes, bytes, compute: Arc::new(compute) }, is_open)
    }

    /// So many words of 0 for kernels that count and leave zeros behind. The memory of every run has its own.
    pub fn counters(count: Dim) -> Result<Self, String> {
        let zeros = |sizes: &[usize]| {
            let count = sizes.first().copied().unwrap_or(0);
            Tensor::new([count], vec![0u32; count]).map_err(|e| e.to_string())
        };
        Self::made(SizedTable { sizes: vec![count], bytes: 4 * count, compute: Arc::new(zeros) }, true)
    }

    /// A table, and whether the memory of every run has its own.
    fn made(table: SizedTable, is_own: bool) -> Result<Self, String> {
        let number = |dim: &Dim| {
            let value = dim.value().map_err(|e| e.to_string())?;
            usize::try_from(value).map_err(|_| format!("{dim} is {value}"))
        };
        let values = table.sizes.iter().map(number).collect::<Result<Vec<usize>, String>>()?;
        let now = table.of(&values, number(&table.bytes)?)?;
        Ok(HostTable { now, sized: is_own.then_some(table) })
    }

    /// The table in the current compile.
    pub fn now(&self) -> &Tensor {
        &self.now
    }

    /// How it follows from sizes; `None` where it is the same for all of them and for all runs.
    pub fn sized(&self) -> Option<&SizedTable> {
        self.sized.as_ref()
    }
}

impl From<Tensor> for HostTable {
    fn from(table: Tensor) -> Self {
        HostTable { now: table, sized: None }
    }
}

impl SizedTable {
    /// Its bytes.
    pub fn bytes(&self) -> Dim {
        self.bytes
    }

    /// Whether another is this one.
    pub fn is(&self, other: &SizedTable) -> bool {
        let same = |(a, b): (&Dim, &Dim)| a.structural() == b.structural();
        Arc::ptr_eq(&self.compute, &other.compute)
            && self.sizes.len() == other.sizes.len()
            && self.sizes.iter().zip(&other.sizes).all(same)
    }

    /// The table for some values of its sizes, and of its bytes.
    pub(crate) fn of(&self, sizes: &[usize], bytes: usize) -> Result<Tensor, String> {
        let table = (self.compute)(sizes)?;
        if table.ty().bytes() != bytes {
            return Err(format!("a table of {} bytes for {sizes:?}, not of {bytes}", table.ty().bytes()));
        }
        Ok(table)
    }
}

impl fmt::Debug for SizedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a table of {} bytes by {:?}", self.bytes, self.sizes)
    }
}
