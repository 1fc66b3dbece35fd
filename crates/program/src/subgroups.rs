//! Whether subgroups have the size that a device is taken to have: wgpu says only between which sizes they are on Metal,
//! so the device is asked by a kernel whose invocations report their lane and subgroup.

use olivine_kernel::{Access, Builder, Elem, Kernel, Target};

use crate::driver::Driver;
use crate::fragments::run_once;

/// Subgroups of the workgroup that reports.
const SUBGROUPS: u32 = 4;

/// Whether the subgroups of a device have the size that its caps say, in the order of invocations.
pub fn ask_subgroups<D: Driver>(driver: &D) -> bool {
    let target = &driver.caps().target;
    let Some(size) = target.subgroup else { return false };
    let Ok(kernel) = kernel(size, target) else { return false };
    let group = size * SUBGROUPS;
    run_once(driver, kernel, u64::from(group * 8)).is_ok_and(|bytes| reports(size, &bytes))
}

fn kernel(size: u32, target: &Target) -> Result<Kernel, olivine_kernel::Error> {
    let k = Builder::new("subgroup_sizes", size * SUBGROUPS, target);
    let out = k.arg("out", Elem::U32, Access::Write);
    out.store(k.local_index() * 2u32, k.lane());
    out.store(k.local_index() * 2u32 + 1u32, k.subgroup_id());
    k.finish()
}

/// Whether invocations report what they should.
fn reports(size: u32, bytes: &[u8]) -> bool {
    let expected = (0..size * SUBGROUPS).flat_map(|i| [i % size, i / size]);
    expected.eq(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_subgroups_of_the_right_size_from_others() {
        let target = Target { subgroup: Some(32), ..Target::plain() };
        let kernel = kernel(32, &target).expect("a valid kernel");
        for size in [8, 16, 32, 64] {
            let mut buffers = [vec![0; 32 * SUBGROUPS as usize * 8]];
            let device = olivine_kernel::interpret::Device::EXACT;
            olivine_kernel::interpret::interpret(&kernel, size, [1; 3], &mut buffers, &[], device)
                .expect("it runs");
            assert_eq!(reports(32, &buffers[0]), size == 32, "subgroups of {size}");
        }
    }
}
