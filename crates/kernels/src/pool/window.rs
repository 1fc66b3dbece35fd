//! Windows of any kind: an invocation, or a cluster of them, to each.

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Builder, Scalar, Val, Var};

use super::fold::Fold;
use super::windows::{Bounds, Windows};
use crate::cells::{CellBuf, Cells};
use crate::launch::{Launch, bytes};
use crate::reduce::admit;
use crate::rows::{Clusters, GROUP, State};
use crate::site::{Site, linear_group};

/// Invocations that keep a large device busy; with fewer windows, several share one.
const BUSY: usize = 1 << 17;

/// Windows of fewer elements are never shared.
const SHARED: usize = 32;

/// Invocations to a window: as many as keep the device busy and read neighbouring elements together.
fn width(windows: &Windows, outputs: Dim, group: u32) -> u32 {
    let area = windows.area();
    if area < SHARED {
        return 1;
    }
    let apart = windows.axes[2].stride.min(SHARED);
    let wanted = Dim::from(BUSY).div_floor(outputs.max(1)).max(apart);
    let most = area.div_floor(4).min(group);
    // Few widths, so that few kernels are built.
    [256u32, 64, 16].into_iter().find(|w| most >= *w && wanted >= *w).unwrap_or(1)
}

/// Lowers windows of any kind.
pub(super) fn emit(fold: Fold, windows: &Windows, site: &mut Site<'_>) -> Result<(), String> {
    admit(fold.dtype, site)?;
    let (operand, targets) = (site.operands[0].clone(), site.targets.clone());
    let n = targets[0].ty.shape.sizes().numel();
    if n == 0 {
        return Ok(());
    }
    let table = windows.table(site)?;
    let group = site.group_size(GROUP);
    let width = width(windows, n, group);
    let cells = Cells::new(8, site.caps);

    let k = site.builder(&fold.name(), group);
    let l = Launch::new(&k);
    let kernel = WindowKernel { k: &k, fold, x: l.read("x", &operand), bounds: windows.declare(&l, table) };
    let y = l.write("y", &targets[0]);
    let positions = targets.get(1).map(|t| cells.bind(&l, "positions", Access::Write, t.memory));
    let count = l.size("n", n);

    let work = linear_group(&k) * group + k.local_index();
    if width == 1 {
        k.if_(work.lt(count), || {
            let window = kernel.window(work);
            let state = kernel.alone(&window);
            kernel.store(work, &window, &state, y, positions, cells);
        });
    } else {
        let at = work / width;
        // Clusters past the last window take part in the joins of their workgroup.
        let window = kernel.window(at.min(count - 1u32));
        let own = kernel.shared(&window, work - at * width, width);
        let state = Clusters::new(&k, width).join(own, |a, b| fold.join(a, b));
        k.if_(at.lt(count) & (work - at * width).eq(0u32), || {
            kernel.store(at, &window, &state, y, positions, cells);
        });
    }

    let moved = bytes(&operand.ty) + targets.iter().map(|t| bytes(&t.ty)).sum::<Dim>();
    let flops = n * windows.area();
    let bound = l.done();
    let groups = (n * width).div_ceil(group);
    site.dispatch(k, bound, groups, (flops, moved))
}

/// The declared kernel.
struct WindowKernel<'k> {
    k: &'k Builder,
    fold: Fold,
    x: Buf<'k>,
    bounds: Bounds<'k>,
}

/// One window: its plane, and its bounds on every axis.
struct Window<'k> {
    plane: Val<'k>,
    first: [Val<'k>; 3],
    taps: [Val<'k>; 3],
    count: [Val<'k>; 3],
}

impl<'k> WindowKernel<'k> {
    fn window(&self, at: Val<'k>) -> Window<'k> {
        let [depth, height, width] = [0, 1, 2].map(|a| self.bounds.axes[a].output);
        let rows = at / width;
        let column = at - rows * width;
        let slices = rows / height;
        let row = rows - slices * height;
        let plane = slices / depth;
        let slice = slices - plane * depth;
        let [z, y, x] = [self.bounds.of(0, slice), self.bounds.of(1, row), self.bounds.of(2, column)];
        let word = |i: usize| [z[i], y[i], x[i]];
        Window { plane, first: word(0), taps: word(1), count: word(2) }
    }

    /// The index of a window's element at a step along every axis.
    fn index(&self, w: &Window<'k>, step: [Val<'k>; 3]) -> Val<'k> {
        let axes = &self.bounds.axes;
        let at = |a: usize| w.first[a] + axes[a].step(step[a]);
        ((w.plane * axes[0].input + at(0)) * axes[1].input + at(1)) * axes[2].input + at(2)
    }

    fn variables(&self) -> Vec<Var<'k>> {
        self.fold.identity(self.k).into_iter().map(|v| self.k.var(v)).collect()
    }

    fn add(&self, state: &[Var<'k>], index: Val<'k>) {
        let element = self.fold.lift(self.x.load(index), index);
        let now: State<'k> = state.iter().map(|v| v.get()).collect();
        for (var, value) in state.iter().zip(self.fold.join(&now, &element)) {
            var.set(value);
        }
    }

    /// A whole window by one invocation.
    fn alone(&self, w: &Window<'k>) -> State<'k> {
        let k = self.k;
        let state = self.variables();
        let (zero, one) = (k.u32(0), k.u32(1));
        k.for_(zero, w.taps[0], one, |z| {
            k.for_(zero, w.taps[1], one, |y| {
                let start = self.index(w, [z, y, zero]);
                k.for_(zero, w.taps[2], one, |x| self.add(&state, start + self.bounds.axes[2].step(x)));
            });
        });
        state.iter().map(|v| v.get()).collect()
    }

    /// The part of a window that one invocation of its cluster folds: every `width`-th element from its own on.
    fn shared(&self, w: &Window<'k>, lane: Val<'k>, width: u32) -> State<'k> {
        let k = self.k;
        let state = self.variables();
        // A window without elements still divides by something.
        let [_, rows, columns] = w.taps.map(|t| t.max(1u32));
        let split = |n: Val<'k>| {
            let (whole, x) = (n / columns, n % columns);
            [whole / rows, whole % rows, x]
        };
        let at = split(lane).map(|v| k.var(v));
        let step = split(k.u32(width));
        let total = w.taps[0] * w.taps[1] * w.taps[2];
        k.for_(lane, total, k.u32(width), |_| {
            let [z, y, x] = at.map(|v| v.get());
            self.add(&state, self.index(w, [z, y, x]));
            let carried = |v: Val<'k>, size: Val<'k>| {
                let over = v.ge(size);
                (over.select(v - size, v), over.convert(Scalar::U32))
            };
            let (x, carry) = carried(x + step[2], columns);
            let (y, carry) = carried(y + step[1] + carry, rows);
            at[0].set(z + step[0] + carry);
            at[1].set(y);
            at[2].set(x);
        });
        state.iter().map(|v| v.get()).collect()
    }

    fn store(
        &self,
        at: Val<'k>,
        w: &Window<'k>,
        state: &[Val<'k>],
        y: Buf<'k>,
        positions: Option<CellBuf<'k>>,
        cells: Cells,
    ) {
        let k = self.k;
        let (Some(positions), [_, position, ..]) = (positions, state) else {
            let scalar = y.elem().scalar();
            let count = if scalar.is_float() {
                let [a, b, c] = w.count.map(|c| c.convert(scalar));
                a * b * c
            } else {
                k.number(scalar, 1.0)
            };
            return y.store(at, self.fold.finish(state, count));
        };
        let none = position.eq(u32::MAX);
        let value = self.x.load(none.select(k.u32(0), *position));
        let least = self.fold.least(k);
        y.store(at, crate::math::pick(none, least, value));
        let high = none.select(k.u32(u32::MAX), k.u32(0));
        positions.store(at, &[cells.of_words(*position, high)]);
    }
}
