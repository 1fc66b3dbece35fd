//! What a workgroup transforms together: some lines of a length that its memory holds.

use olivine_ir::Dim;
use olivine_kernel::Elem;
use olivine_numerics::fft::radices;

use crate::launch::number;
use crate::site::Site;

/// The largest radix: sixteen complex numbers and their roots stay in registers.
const RADIX: usize = 16;

/// Complex numbers of a line at most.
const MOST: usize = 4096;

/// Complex numbers that an invocation holds at most.
const HELD: usize = 20;

/// Invocations of a workgroup at most.
const GROUP: u32 = 256;

/// Lines side by side where neighbouring lines are neighbours in memory: 64 bytes of f32 pairs.
const ACROSS: usize = 8;

/// Workgroup memory that is worth taking: with more, fewer workgroups share a processor.
const SHARED_BYTES: usize = 24 << 10;

/// How a workgroup transforms lines of `points`.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    pub(super) points: usize,
    pub(super) radices: Vec<usize>,
    /// Lines of a workgroup.
    pub(super) lines: usize,
    pub(super) group: u32,
    /// Whether real and imaginary parts are exchanged at once, or in turn through half the memory.
    pub(super) together: bool,
    /// Elements of workgroup memory from one line to the next.
    pub(super) pitch: usize,
}

/// A position in a line with room between, so that strides of powers of two meet different banks.
pub(super) fn spread(points: usize) -> usize {
    points + points / 16
}

fn pitch(points: usize, lines: usize) -> usize {
    let wide = spread(points);
    if lines == 1 {
        return wide;
    }
    // Lines side by side begin a part of the 32 banks apart.
    let apart = (32 / lines.min(32)).max(1);
    wide + (apart + 32 - wide % 32) % 32
}

/// The longest line that a workgroup of this device transforms.
pub(super) fn longest(site: &Site<'_>, elem: Elem) -> usize {
    let room = site.caps.target.shared_bytes as usize / elem.size() as usize;
    let held = site.group_size(GROUP) as usize * RADIX;
    MOST.min(held).min(room * 16 / 17)
}

impl Tile {
    /// The tile that wastes least for `count` lines of `points`; `across` where neighbouring lines are neighbours in
    /// memory. `None` if the points have a large prime.
    pub(super) fn new(
        site: &Site<'_>,
        elem: Elem,
        points: usize,
        count: impl Into<Dim>,
        across: bool,
    ) -> Option<Tile> {
        let (radix, held) = if site.caps.wants_short_kernels() { (4, 8) } else { (RADIX, HELD) };
        // A prime above the small radix is a radix of its own.
        let radices = radices(points, radix).or_else(|| radices(points, RADIX))?;
        let size = elem.size() as usize;
        let available = site.caps.target.shared_bytes as usize;
        let budget = SHARED_BYTES.min(available);
        let most = if across { ACROSS } else { (2048 / points).max(1) };
        // Few lines get small tiles; of many, one more or less changes nothing.
        let most = number(count.into().next_power_of_two().min(most)).max(1);
        let best_within = |held: usize| {
            let mut best: Option<(f64, usize, u32)> = None;
            for lines in (1..=most).filter(|l| !across || l.is_power_of_two()) {
                let bytes = lines * pitch(points, lines) * size;
                // Four lines side by side fill a sector; less memory than that is a bad bargain.
                if bytes > if across && lines <= 4 { available } else { budget } && lines > 1 {
                    continue;
                }
                for group in (1..=site.group_size(GROUP) / 32).map(|warps| warps * 32) {
                    let rounds = |r: usize| (lines * points / r).div_ceil(group as usize);
                    if radices.iter().any(|r| rounds(*r) * r > held.max(*r)) {
                        continue;
                    }
                    let lanes: usize = radices.iter().map(|r| rounds(*r) * r * group as usize).sum();
                    let waste = lanes as f64 / (lines * points * radices.len()) as f64;
                    let narrow = if across { (ACROSS as f64 / lines as f64).max(1.0).powf(0.6) } else { 1.0 };
                    // Workgroups of one or two subgroups leave processors idle.
                    let small = (128.0 / f64::from(group)).max(1.0).powf(0.25);
                    let cost = waste * narrow * small;
                    if best.is_none_or(|(least, ..)| cost < least) {
                        best = Some((cost, lines, group));
                    }
                }
            }
            best
        };
        // Small workgroups hold more of lines that do not divide among them well.
        let (_, lines, group) =
            best_within(held).or_else(|| best_within(HELD)).or_else(|| best_within(2 * RADIX))?;
        let pitch = pitch(points, lines);
        let together = 2 * lines * pitch * size <= budget;
        Some(Tile { points, radices, lines, group, together, pitch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine_kernel::Target;
    use olivine_program::{Addressing, DeviceCaps, DeviceKind};

    #[test]
    fn every_smooth_length_has_a_tile_on_the_plainest_device() {
        let caps = DeviceCaps {
            name: String::new(),
            driver: String::new(),
            kind: DeviceKind::Other,
            target: Target::plain(),
            addressing: Addressing::Pointers,
            max_groups: [65535; 3],
            max_buffer_bytes: 1 << 30,
            memory_bytes: 1 << 30,
            processors: None,
            keeps_denormals: true,
            ptx: None,
        };
        let site = Site::new(&caps, Vec::new(), Vec::new());
        for elem in [Elem::F32, Elem::F64] {
            let longest = longest(&site, elem);
            assert!(longest >= 1024, "{longest}");
            for points in (1..=longest).filter(|n| olivine_numerics::fft::is_smooth(*n)) {
                for across in [false, true] {
                    let tile = Tile::new(&site, elem, points, 1000, across);
                    assert!(
                        tile.is_some_and(|t| {
                            let parts = if t.together { 2 } else { 1 };
                            t.lines * t.pitch * parts * elem.size() as usize <= 16384 && t.group <= 128
                        }),
                        "{points} of {elem:?}"
                    );
                }
            }
        }
    }
}
