//! Writes of parts of words: wgpu copies whole ones only, and the bytes beside must stay as they are.

use std::sync::OnceLock;

use olivine_program::Error;

use crate::Device;
use crate::memory::Buffer;

const SOURCE: &str = "
@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@group(0) @binding(1) var<uniform> edit: vec4<u32>;

@compute @workgroup_size(1)
fn main() {
    words[edit.x] = (words[edit.x] & ~edit.y) | edit.z;
}
";

/// A kernel that replaces some bytes of one word, built when first needed.
#[derive(Debug, Default)]
pub(crate) struct Patch {
    pipeline: OnceLock<wgpu::ComputePipeline>,
}

impl Patch {
    /// Writes at most three bytes of one word. Later submissions see them; nothing waits.
    pub(crate) fn merge(
        &self,
        device: &Device,
        buffer: &Buffer,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let (mut mask, mut bits) = (0_u32, 0_u32);
        for (byte, at) in bytes.iter().zip(offset % 4..) {
            mask |= 0xff << (8 * at);
            bits |= u32::from(*byte) << (8 * at);
        }
        let word = offset & !3;
        let bound = word - word % u64::from(device.limits.min_storage_buffer_offset_alignment.max(4));
        let size = wgpu::BufferSize::new(word + 4 - bound);
        let edit: Vec<u8> =
            [((word - bound) / 4) as u32, mask, bits, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
        device
            .scoped("write", || {
                let pipeline = self.pipeline.get_or_init(|| build(&device.raw));
                let uniform = device.raw.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("patch"),
                    size: 16,
                    usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
                    mapped_at_creation: false,
                });
                device.queue.write_buffer(&uniform, 0, &edit);
                let range = wgpu::BufferBinding { buffer: &buffer.raw, offset: bound, size };
                let group = device.raw.create_bind_group(&wgpu::BindGroupDescriptor {
                    label: Some("patch"),
                    layout: &pipeline.get_bind_group_layout(0),
                    entries: &[
                        wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(range) },
                        wgpu::BindGroupEntry { binding: 1, resource: uniform.as_entire_binding() },
                    ],
                });
                let mut encoder = device.raw.create_command_encoder(&Default::default());
                let mut pass = encoder.begin_compute_pass(&Default::default());
                pass.set_pipeline(pipeline);
                pass.set_bind_group(0, &group, &[]);
                pass.dispatch_workgroups(1, 1, 1);
                drop(pass);
                device.queue.submit([encoder.finish()]);
            })
            .map_err(|c| c.into_error("write"))
    }
}

fn build(device: &wgpu::Device) -> wgpu::ComputePipeline {
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some("patch"),
        source: wgpu::ShaderSource::Wgsl(SOURCE.into()),
    });
    device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some("patch"),
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    })
}
