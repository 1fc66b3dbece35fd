//! The graphs that a device is measured by: the library's own kernels, at sizes from small to large.

use olivine_ir::op::{
    Attention, Direction, HeadLayout, PadMode, Recurrent, RecurrentKind, RecurrentLayer, ReduceKind, Window,
};
use olivine_ir::{DType, Error, Graph, ValueId};

use super::work::Work;

/// What a row of a calibration counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Bytes,
    Flops,
}

/// A row of a calibration: one kind of graph at several sizes, those first that say the most.
#[derive(Clone, Copy)]
pub(crate) struct Probe {
    /// The row's name.
    pub(crate) row: &'static str,
    pub(crate) quantity: Quantity,
    pub(crate) sizes: &'static [usize],
    /// The type that the device must compute in.
    pub(crate) dtype: DType,
    /// Whether it is for the CPU alone: on a GPU it would be another row's kernel.
    pub(crate) on_host: bool,
    /// A size that is measured before all others, however long it takes.
    pub(crate) required: Option<usize>,
    build: fn(&mut Graph, usize, DType) -> Result<ValueId, Error>,
}

impl Probe {
    /// With a size that is measured before all others, however long it takes.
    const fn required(self, size: usize) -> Self {
        Probe { required: Some(size), ..self }
    }

    /// For the CPU alone.
    const fn on_host(self) -> Self {
        Probe { on_host: true, ..self }
    }

    /// What a step does, in the row's quantity.
    pub(crate) fn amount(&self, work: &Work) -> u64 {
        if self.quantity == Quantity::Bytes { work.bytes } else { work.flops }
    }

    /// The graph of a size.
    pub(crate) fn graph(&self, size: usize) -> Result<Graph, Error> {
        let mut graph = Graph::new(self.row);
        let y = (self.build)(&mut graph, size, self.dtype)?;
        graph.output("y", y)?;
        Ok(graph)
    }
}

const fn bytes(
    row: &'static str,
    sizes: &'static [usize],
    build: fn(&mut Graph, usize, DType) -> Result<ValueId, Error>,
) -> Probe {
    Probe { row, quantity: Quantity::Bytes, sizes, dtype: DType::F32, on_host: false, required: None, build }
}

const fn flops(
    row: &'static str,
    sizes: &'static [usize],
    dtype: DType,
    build: fn(&mut Graph, usize, DType) -> Result<ValueId, Error>,
) -> Probe {
    Probe { row, quantity: Quantity::Flops, sizes, dtype, on_host: false, required: None, build }
}

/// Every row, the ones that matter most first. Required sizes are measured before all others; then all rows are measured at
/// their first size before one is at its second, and a measurement that runs out of time leaves out the last.
pub(crate) const PROBES: &[Probe] = &[
    bytes("copy", &[1 << 16, 1 << 12, 1 << 19, 1 << 21, 1 << 23], copy).required(1 << 16),
    bytes("read", &[1 << 20, 1 << 24], read).required(1 << 20),
    bytes("write", &[1 << 20, 1 << 24], write).required(1 << 20),
    flops("matmul f32", &[128, 32, 512, 2048, 4096], DType::F32, matmul).required(512),
    flops("conv", &[2, 1, 4, 16], DType::F32, conv),
    bytes("conv short", &[128, 48, 320, 768], short_conv),
    flops("conv pointwise", &[2, 1, 4, 8], DType::F32, pointwise_conv).on_host(),
    flops("conv few", &[96, 32, 192, 384], DType::F32, first_conv).on_host(),
    flops("arithmetic", &[1 << 16, 1 << 12, 1 << 19, 1 << 22], DType::F32, arithmetic),
    bytes("gemv", &[256, 64, 1024, 2048, 4096], gemv),
    flops("depthwise", &[32, 8, 128, 256], DType::F32, depthwise),
    flops("pool", &[32, 8, 128], DType::F32, pool),
    flops("functions", &[1 << 14, 1 << 10, 1 << 18], DType::F32, functions),
    flops("attention", &[32, 8, 128, 512, 2048], DType::F32, attention),
    flops("recurrence", &[128, 64, 256], DType::F32, recurrence),
    bytes("rows", &[256, 16, 2048, 16384], rows),
    bytes("movement", &[256, 32, 1024, 2048], movement),
    flops("matmul f16", &[512, 4096], DType::F16, matmul),
    flops("matmul bf16", &[512, 4096], DType::BF16, matmul),
    flops("matmul i8", &[128, 512, 2048], DType::I8, integer_matmul),
];

fn copy(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [n])?;
    g.neg(x)
}

pub(crate) fn read(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [n / 1024, 1024])?;
    g.reduce(ReduceKind::Sum, x, &[-1], false)
}

pub(crate) fn write(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [n / 1024, 1])?;
    let b = g.input("b", dtype, [1, 1024])?;
    g.add(x, b)
}

/// Links of the chain of multiply-adds: so many that memory is not what limits it.
const CHAIN: usize = 16;

fn arithmetic(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let mut y = g.input("x", dtype, [n / 64, 64])?;
    let a = g.input("a", dtype, [64])?;
    for _ in 0..CHAIN {
        let product = g.mul(y, a)?;
        y = g.add(product, a)?;
    }
    Ok(y)
}

fn matmul(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let (a, b) = (g.input("a", dtype, [n, n])?, g.param("b", dtype, [n, n])?);
    g.matmul(a, b)
}

fn integer_matmul(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let (a, b) = (g.input("a", dtype, [n, n])?, g.param("b", dtype, [n, n])?);
    g.qmatmul(a, b, None, None)
}

fn gemv(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let (a, b) = (g.input("a", dtype, [1, n])?, g.param("b", dtype, [n, n])?);
    g.matmul(a, b)
}

/// 3×3 filters on an image of sizes as models have them, not those that kernels like best.
fn conv(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let (channels, width) = (24 * n, 13 + 5 * n);
    let x = g.input("x", dtype, [1, channels, width, width])?;
    let w = g.param("w", dtype, [channels, channels, 3, 3])?;
    g.conv(x, w, None, padded(), 1)
}

/// A convolution along one axis with so few positions that reading its filters is what takes time.
fn short_conv(g: &mut Graph, channels: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [1, channels, 4])?;
    let w = g.param("w", dtype, [channels, channels, 3])?;
    g.conv(x, w, None, Window { pads: vec![(1, 1)], ..Window::unit(1) }, 1)
}

/// A convolution of one position, as between depthwise ones.
fn pointwise_conv(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let (channels, width) = (24 * n, 13 + 5 * n);
    let x = g.input("x", dtype, [1, channels, width, width])?;
    let w = g.param("w", dtype, [32 * n, channels, 1, 1])?;
    g.conv(x, w, None, Window::unit(2), 1)
}

/// A model's first convolution: colours of an image of twice the width of its result.
fn first_conv(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [1, 3, n, n])?;
    let w = g.param("w", dtype, [16, 3, 3, 3])?;
    g.conv(x, w, None, Window { strides: vec![2; 2], ..padded() }, 1)
}

fn pool(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [1, 32, n, n])?;
    let window = Window { strides: vec![2; 2], ..Window::unit(2) };
    g.max_pool(x, &[2, 2], window, false)
}

fn functions(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [n])?;
    let y = g.sigmoid(x)?;
    let y = g.log(y)?;
    let y = g.tanh(y)?;
    g.exp(y)
}

fn depthwise(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [1, 32, n, n])?;
    let w = g.param("w", dtype, [32, 1, 3, 3])?;
    g.conv(x, w, None, padded(), 32)
}

fn padded() -> Window {
    Window { pads: vec![(1, 1); 2], ..Window::unit(2) }
}

pub(crate) fn rows(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [n, 128])?;
    g.softmax(x, -1)
}

fn movement(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [n, n])?;
    // An output must be contiguous, so the transpose is a copy.
    g.transpose(x, &[1, 0])
}

fn recurrence(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let x = g.input("x", dtype, [8, 1, 4])?;
    let (w, r) = (g.param("w", dtype, [1, 4 * n, 4])?, g.param("r", dtype, [1, 4 * n, n])?);
    let spec = Recurrent::new(RecurrentKind::Lstm, Direction::Forward);
    let results = g.recurrent(spec, x, &RecurrentLayer::new(w, r), None)?;
    results
        .first()
        .copied()
        .ok_or_else(|| Error::Invalid { location: "lstm".into(), problem: "no result".into() })
}

fn attention(g: &mut Graph, n: usize, dtype: DType) -> Result<ValueId, Error> {
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, dtype, [1, 4, n, 64]));
    g.attention(Attention::new(HeadLayout::Bhsd), q?, k?, v?, &[])
}

/// Steps that each wait for the one before.
pub(crate) fn dependent(steps: usize) -> Result<Graph, Error> {
    let mut g = Graph::new("dependent");
    let mut y = g.input("x", DType::F32, [4, 4])?;
    for _ in 0..steps {
        y = g.softmax(y, -1)?;
    }
    g.output("y", y)?;
    Ok(g)
}

/// Small steps of several kinds that each wait for the one before, as in a model.
pub(crate) fn mixed() -> Result<Graph, Error> {
    let mut g = Graph::new("mixed");
    let mut y = g.input("x", DType::F32, [1, 8, 16])?;
    let (filter, weight) = (g.param("f", DType::F32, [8, 8, 3])?, g.param("w", DType::F32, [16, 16])?);
    for _ in 0..2 {
        let padded = g.pad(y, &[(0, 0), (0, 0), (1, 1)], PadMode::Reflect, 0.0)?;
        y = g.conv(padded, filter, None, Window::unit(1), 1)?;
        y = g.softmax(y, -1)?;
        y = g.matmul(y, weight)?;
        let both = g.concat(&[y, y], 1)?;
        let most = g.reduce(ReduceKind::Max, both, &[1], true)?;
        let most = g.tanh(most)?;
        y = g.mul(y, most)?;
    }
    g.output("y", y)?;
    Ok(g)
}

/// Steps none of which waits for another.
pub(crate) fn independent(steps: usize) -> Result<Graph, Error> {
    let mut g = Graph::new("independent");
    for i in 0..steps {
        let x = g.input(&format!("x{i}"), DType::F32, [4, 4])?;
        let y = g.softmax(x, -1)?;
        g.output(&format!("y{i}"), y)?;
    }
    Ok(g)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_is_a_graph_at_its_sizes_and_rows_have_names_of_their_own() -> Result<(), Error> {
        for probe in PROBES {
            for size in probe.sizes {
                probe.graph(*size)?.verify()?;
            }
        }
        let mut names: Vec<&str> = PROBES.iter().map(|probe| probe.row).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROBES.len());
        mixed()?.verify()?;
        assert_eq!((dependent(9)?.nodes().len(), independent(9)?.nodes().len()), (9, 9));
        Ok(())
    }
}
