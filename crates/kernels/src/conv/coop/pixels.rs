//! An image with its channels as the inner axis, in whole slots, and zeros where windows reach outside.
//!
//! A workgroup turns a tile of neighbouring pixels and some channels in workgroup memory: it loads along pixels, as
//! they lie, and stores slots of eight channels. Other workgroups of the same dispatch write the zeros.

use olivine_kernel::{Access, Buf, Elem, Val};

use crate::conv::coop::Plan;
use crate::conv::taps::Taps;
use crate::launch::{Launch, number};
use crate::matmul::coop::staging::SLOT;
use crate::matmul::problem::Problem;
use crate::site::{Memory, Site, linear_group};

/// Elements of a tile.
const TILE: u32 = 4096;
/// Neighbouring pixels of an invocation, in each of two channels.
const RUN: u32 = 8;

/// Emits the new image.
pub(crate) fn spread(
    problem: &Problem<'_>,
    taps: &Taps,
    plan: &Plan,
    to: Memory,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let x = &problem.b.operand;
    let widths = [64, 32, 16].into_iter();
    let across = widths.clone().find(|c| plan.padded.is_multiple_of(*c)).unwrap_or(SLOT as usize) as u32;
    let along = TILE / across;
    let plane = number(taps.plane);
    let (down, chunks) = (plan.padded / across as usize, plane.div_ceil(along as usize));
    let tiles = taps.images * (down * chunks);
    let group = site.group_size(256);
    // Neighbouring invocations write neighbouring slots of a pixel's zeros.
    let beside = [8, 4, 2].into_iter().find(|b| plan.padded / SLOT as usize >= *b).unwrap_or(1);
    let edges = (taps.images * (plan.plane() * beside)).div_ceil(group);
    let run = RUN as usize;
    let whole = [plane.into(), taps.image.0, x.offset].iter().all(|size| size.is_multiple_of(run));

    let k = site.builder("conv_pixels", group);
    let l = Launch::new(&k);
    let from = l.bind("x", if whole { Elem::U32 } else { Elem::U16 }, Access::Read, x.memory);
    let out = l.bind("pixels", Elem::U32, Access::Write, to);
    let image = Image::declare(&l, taps, plan);
    let base = l.size("offset", x.offset);
    let (channels, slots) = (l.size("channels", plan.channels), l.size("slots", plan.padded / SLOT as usize));
    let (down, chunks) = (l.size("down", down), l.size("chunks", chunks));
    let tiles_bound = l.size("tiles", tiles);
    // Pixels of an invocation that are not loaded together are apart, so that its neighbours load their neighbours.
    let apart = if whole { 1 } else { along / RUN };
    let source = PixelSource { buffer: from, whole, apart, plane: image.plane };
    // A word is two channels of a pixel; lines are an odd number of words apart.
    let pitch = across / 2 + 1;
    let memory = k.shared(Elem::U32, 1, along * pitch);

    let (id, me) = (linear_group(&k), k.local_index());
    k.if_(id.lt(tiles_bound), || {
        let rest = id / down;
        let channel = (id - rest * down) * across;
        let number = rest / chunks;
        let first = (rest - number * chunks) * along;
        let start = base + number * image.elements;
        let near = if whole { 1 } else { RUN };
        let mut loaded = Vec::new();
        for round in 0..TILE / (2 * RUN) / group {
            let item = me + round * group;
            let (octet, pair) = (item % (along / RUN), item / (along / RUN));
            let one = |i: u32| {
                let c = channel + pair * 2u32 + i;
                let row = start + c.min(channels - 1u32) * image.plane;
                (source.run(row, first + octet * (RUN / near)), c.lt(channels))
            };
            loaded.push((octet * (RUN / near * pitch) + pair, one(0), one(1)));
        }
        for (at, (low, is_low), (high, is_high)) in loaded {
            let zero = k.u32(0);
            for (i, (low, high)) in (0u32..).zip(low.into_iter().zip(high)) {
                let word = is_low.select(low, zero) | (is_high.select(high, zero) << 16u32);
                memory.store(at + i * (apart * pitch), word);
            }
        }
        k.barrier();
        let wide = across / SLOT;
        for round in 0..TILE / SLOT / group {
            let item = me + round * group;
            let (pixel, slot) = (item / wide, item % wide);
            let words: Vec<Val<'_>> =
                (0..SLOT / 2).map(|i| memory.load(pixel * pitch + slot * (SLOT / 2) + i)).collect();
            let (place, inside) = image.place(first + pixel);
            k.if_(inside, || {
                let at = (number * image.padded + place) * slots + channel / SLOT + slot;
                out.store_vec(at * 4u32, &words);
            });
        }
    });
    k.if_(id.ge(tiles_bound), || {
        let item = (id - tiles_bound) * group + me;
        let (pixel, zero) = (item / beside, k.u32(0));
        k.if_(image.is_edge(pixel), || {
            let (first, step) = (pixel * slots, k.u32(beside as u32));
            k.for_(first + item % beside, first + slots, step, |slot| out.store_vec(slot * 4u32, &[zero; 4]));
        });
    });
    let bound = l.done();
    let moved = 2 * (plan.elements(taps.images) + x.sizes().numel());
    site.dispatch(k, bound, tiles + edges, (0, moved))
}

/// The input's elements.
struct PixelSource<'k> {
    /// Words where runs of pixels are aligned, otherwise elements.
    buffer: Buf<'k>,
    whole: bool,
    /// Distance between the pixels of a run.
    apart: u32,
    plane: Val<'k>,
}

impl<'k> PixelSource<'k> {
    /// A run of pixels from the `first` of a channel on that begins at `row`; those past the last are others.
    fn run(&self, row: Val<'k>, first: Val<'k>) -> Vec<Val<'k>> {
        if self.whole {
            let at = (row + first.min(self.plane - RUN)) / 2u32;
            let words = self.buffer.load_vec(at, (RUN / 2) as u8);
            return words.into_iter().flat_map(|w| [w & 0xffffu32, w >> 16u32]).collect();
        }
        (0..RUN).map(|i| self.buffer.load(row + (first + i * self.apart).min(self.plane - 1u32))).collect()
    }
}

/// An axis: its sizes in the input and in the new image, and by how much the latter begins before.
struct PixelAxis<'k> {
    size: Val<'k>,
    padded: Val<'k>,
    lead: Val<'k>,
}

/// The sizes of both images.
struct Image<'k> {
    axes: Vec<PixelAxis<'k>>,
    /// Pixels of an image.
    plane: Val<'k>,
    padded: Val<'k>,
    /// Pixels of all new images.
    all: Val<'k>,
    /// Elements of an image of the input.
    elements: Val<'k>,
}

impl<'k> Image<'k> {
    fn declare(l: &Launch<'k>, taps: &Taps, plan: &Plan) -> Self {
        let axis = |i: usize| PixelAxis {
            size: l.size(&format!("size{i}"), taps.axes[i].size),
            padded: l.size(&format!("padded{i}"), plan.sizes[i]),
            lead: l.size(&format!("lead{i}"), taps.axes[i].lead),
        };
        Image {
            axes: (0..taps.axes.len()).map(axis).collect(),
            plane: l.size("plane", taps.plane),
            padded: l.size("padded", plan.plane()),
            all: l.size("all", taps.images * plan.plane()),
            elements: l.size("image", taps.image.0),
        }
    }

    /// A pixel's coordinates, innermost first, in an image of such sizes.
    fn coordinates(&self, pixel: Val<'k>, size: impl Fn(&PixelAxis<'k>) -> Val<'k>) -> Vec<Val<'k>> {
        let mut rest = pixel;
        let each = self.axes.iter().enumerate().rev().map(|(i, axis)| {
            let size = size(axis);
            let outer = if i == 0 { rest.builder().u32(0) } else { rest / size };
            let at = rest - outer * size;
            rest = outer;
            at
        });
        each.collect()
    }

    /// Where a pixel of the input is in the new image, and whether it is there.
    fn place(&self, pixel: Val<'k>) -> (Val<'k>, Val<'k>) {
        let k = pixel.builder();
        let (mut place, mut step) = (k.u32(0), k.u32(1));
        let mut inside = pixel.lt(self.plane);
        for (at, axis) in self.coordinates(pixel, |a| a.size).into_iter().zip(self.axes.iter().rev()) {
            let at = at + axis.lead;
            inside = inside & at.lt(axis.padded);
            place = place + at * step;
            step = step * axis.padded;
        }
        (place, inside)
    }

    /// Whether a pixel of the new images is there and not one of the input.
    fn is_edge(&self, pixel: Val<'k>) -> Val<'k> {
        let within = pixel - pixel / self.padded * self.padded;
        let at = self.coordinates(within, |a| a.padded);
        // Before the first it wraps to above all sizes.
        let axes = at.into_iter().zip(self.axes.iter().rev());
        let outside = axes.fold(pixel.builder().bool(false), |outside, (at, axis)| {
            outside | (at - axis.lead).ge(axis.size)
        });
        pixel.lt(self.all) & outside
    }
}
