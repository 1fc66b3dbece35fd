// count
@group(0) @binding(0) var<storage, read_write> a0_x: array<u32>;
@group(0) @binding(1) var<storage, read_write> a1_y: array<atomic<u32>>;
struct Params {
    dispatch: u32,
    p0_n: u32,
}
@group(0) @binding(2) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> report: array<atomic<u32>>;

fn inside(arg: u32, index: u32, count: u32, size: u32) -> bool {
    if (index < size && count <= size - index) {
        return true;
    }
    if (atomicExchange(&report[0], 1u) == 0u) {
        atomicStore(&report[1], params.dispatch);
        atomicStore(&report[2], arg);
        atomicStore(&report[3], index);
        atomicStore(&report[7], size);
    }
    return false;
}

fn bound(arg: u32, index: u32, count: u32, size: u32) -> u32 {
    return select(0u, index, inside(arg, index, count, size));
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local_index: u32, @builtin(workgroup_id) group_id: vec3<u32>) {
    let v2 = group_id.x * 64u;
    let v4 = v2 + local_index;
    let v6 = v4 < params.p0_n;
    if (v6) {
        let t0 = bound(0u, v4, 1u, arrayLength(&a0_x) * 4u);
        let t1 = a0_x[t0 >> 2u] >> ((t0 & 3u) * 8u);
        let v7 = (t1 & 0xffu);
        let v8 = countOneBits(v7);
        if (inside(1u, v4, 1u, arrayLength(&a1_y) * 4u)) {
            let t2 = v4 >> 2u;
            let t3 = (v4 & 3u) * 8u;
            atomicAnd(&a1_y[t2], ~(0xffu << t3));
            atomicOr(&a1_y[t2], ((v8 & 0xffu)) << t3);
        }
    }
}
