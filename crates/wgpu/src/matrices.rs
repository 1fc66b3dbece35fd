//! What an adapter says of its subgroups and cooperative matrices, as kernels may count on it.

use olivine_kernel::{Elem, MatrixShape, MatrixSupport};

/// The shapes of cooperative matrices among those that an adapter lists.
pub(crate) fn matrices(
    listed: &[wgpu::CooperativeMatrixProperties],
    support: MatrixSupport,
) -> Vec<MatrixShape> {
    use wgpu::CooperativeScalarType as Component;
    let elem = |component: Component| match component {
        Component::F32 => Elem::F32,
        Component::F16 => Elem::F16,
        Component::I32 => Elem::I32,
        Component::U32 => Elem::U32,
    };
    let shape = |p: &wgpu::CooperativeMatrixProperties| MatrixShape {
        operand: elem(p.ab_type),
        accumulator: elem(p.cr_type),
        m: p.m_size,
        n: p.n_size,
        k: p.k_size,
    };
    // naga has square matrices of floats only.
    let printable = |shape: &MatrixShape| {
        let float = |elem| matches!(elem, Elem::F16 | Elem::F32);
        let square = shape.m == shape.n && shape.n == shape.k && matches!(shape.m, 8 | 16);
        support == MatrixSupport::Full || (float(shape.operand) && float(shape.accumulator) && square)
    };
    listed.iter().filter(|p| !p.saturating_accumulation).map(shape).filter(printable).collect()
}

/// The size of an adapter's subgroups, and whether that is an assumption. wgpu cannot pin it, so others than Apple's GPUs
/// must have one size alone; those always have 32 lanes, but wgpu reports what any GPU on Metal might have.
pub(crate) fn subgroup_size(info: &wgpu::AdapterInfo) -> Option<(u32, bool)> {
    if info.subgroup_min_size == info.subgroup_max_size {
        return Some((info.subgroup_min_size, false));
    }
    let is_apple = info.backend == wgpu::Backend::Metal && info.name.starts_with("Apple ");
    is_apple.then_some((32, true))
}

#[cfg(test)]
mod tests {
    use wgpu::CooperativeScalarType::{F16, F32, I32};

    use super::*;

    fn listed(
        ab_type: wgpu::CooperativeScalarType,
        cr_type: wgpu::CooperativeScalarType,
        [m_size, n_size, k_size]: [u32; 3],
    ) -> wgpu::CooperativeMatrixProperties {
        let saturating_accumulation = false;
        wgpu::CooperativeMatrixProperties {
            m_size,
            n_size,
            k_size,
            ab_type,
            cr_type,
            saturating_accumulation,
        }
    }

    fn shape(operand: Elem, accumulator: Elem, [m, n, k]: [u32; 3]) -> MatrixShape {
        MatrixShape { operand, accumulator, m, n, k }
    }

    #[test]
    fn an_adapter_without_matrices_has_none() {
        assert_eq!(matrices(&[], MatrixSupport::Basic), []);
        assert_eq!(matrices(&[], MatrixSupport::Full), []);
    }

    #[test]
    fn matrices_of_metal_are_square_and_of_floats() {
        let one = [listed(F32, F32, [8; 3])];
        assert_eq!(matrices(&one, MatrixSupport::Basic), [shape(Elem::F32, Elem::F32, [8; 3])]);
        let all = [listed(F32, F32, [8; 3]), listed(F16, F16, [8; 3]), listed(F16, F32, [8; 3])];
        let expected = [
            shape(Elem::F32, Elem::F32, [8; 3]),
            shape(Elem::F16, Elem::F16, [8; 3]),
            shape(Elem::F16, Elem::F32, [8; 3]),
        ];
        assert_eq!(matrices(&all, MatrixSupport::Basic), expected);
    }

    #[test]
    fn shapes_that_naga_cannot_print_are_used_as_spirv_alone() {
        let saturating =
            wgpu::CooperativeMatrixProperties { saturating_accumulation: true, ..listed(F16, F32, [16; 3]) };
        let all =
            [listed(F16, F32, [16; 3]), saturating, listed(F16, F32, [16, 8, 16]), listed(I32, I32, [16; 3])];
        assert_eq!(matrices(&all, MatrixSupport::Basic), [shape(Elem::F16, Elem::F32, [16; 3])]);
        assert_eq!(matrices(&all, MatrixSupport::Full).len(), 3);
    }

    #[test]
    fn subgroups_have_a_size_where_there_is_one_or_on_apple_gpus() {
        let info = |name: &str, backend, min, max| wgpu::AdapterInfo {
            name: name.into(),
            subgroup_min_size: min,
            subgroup_max_size: max,
            ..wgpu::AdapterInfo::new(wgpu::DeviceType::Other, backend)
        };
        let size = |name, backend, min, max| subgroup_size(&info(name, backend, min, max));
        assert_eq!(size("a card", wgpu::Backend::Vulkan, 32, 32), Some((32, false)));
        assert_eq!(size("another", wgpu::Backend::Vulkan, 32, 64), None);
        assert_eq!(size("Apple M3", wgpu::Backend::Metal, 4, 64), Some((32, true)));
        assert_eq!(size("AMD Radeon Pro", wgpu::Backend::Metal, 4, 64), None);
        assert_eq!(size("Apple M1 (G13G B0)", wgpu::Backend::Vulkan, 4, 64), None);
    }
}
