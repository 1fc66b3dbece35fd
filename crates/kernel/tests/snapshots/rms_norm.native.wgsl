// rms_norm
@group(0) @binding(0) var<storage, read_write> a0_x: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> a1_y: array<vec2<u32>>;
struct Params {
    p0_n: u32,
    p1_eps: f32,
}
var<immediate> params: Params;
var<workgroup> s0: array<f32, 2>;

fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (size >= 0x47800000u) {
        return sign | 0x7c00u;
    }
    if (size < 0x38800000u) {
        let down = min(126u - (size >> 23u), 25u);
        let whole = (size & 0x7fffffu) | 0x800000u;
        let kept = whole >> down;
        let rest = whole & ((1u << down) - 1u);
        let half = 1u << (down - 1u);
        let up = rest > half || (rest == half && (kept & 1u) == 1u);
        return sign | (kept + select(0u, 1u, up));
    }
    return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local_index: u32, @builtin(workgroup_id) group_id: vec3<u32>) {
    var x0: f32;
    let v3 = group_id.x * params.p0_n;
    let v6 = local_index * 4u;
    x0 = 0.0f;
    for (var v9: u32 = v6; v9 < params.p0_n; v9 += 256u) {
        let v10 = v3 + v9;
        let t0 = a0_x[v10 >> 2u];
        let v11 = vec4<f32>(unpack2x16float(t0.x).x, unpack2x16float(t0.x).y, unpack2x16float(t0.y).x, unpack2x16float(t0.y).y);
        let v12 = v11.x;
        let v13 = v11.y;
        let v14 = v11.z;
        let v15 = v11.w;
        let v16 = x0;
        let v17 = fma(v12, v12, v16);
        x0 = v17;
        let v18 = x0;
        let v19 = fma(v13, v13, v18);
        x0 = v19;
        let v20 = x0;
        let v21 = fma(v14, v14, v20);
        x0 = v21;
        let v22 = x0;
        let v23 = fma(v15, v15, v22);
        x0 = v23;
    }
    let v24 = x0;
    let v26 = subgroupShuffleXor(v24, 1u);
    let v27 = v24 + v26;
    let v29 = subgroupShuffleXor(v27, 2u);
    let v30 = v27 + v29;
    let v31 = subgroupShuffleXor(v30, 4u);
    let v32 = v30 + v31;
    let v34 = subgroupShuffleXor(v32, 8u);
    let v35 = v32 + v34;
    let v37 = subgroupShuffleXor(v35, 16u);
    let v38 = v35 + v37;
    workgroupBarrier();
    let v40 = local_index % 32u;
    let v42 = v40 == 0u;
    if (v42) {
        let v43 = local_index / 32u;
        s0[v43] = v38;
    }
    workgroupBarrier();
    let v44 = s0[0u];
    let v45 = s0[1u];
    let v46 = v44 + v45;
    let v47 = f32(params.p0_n);
    let v48 = v46 / v47;
    let v49 = v48 + params.p1_eps;
    let v50 = inverseSqrt(v49);
    for (var v51: u32 = v6; v51 < params.p0_n; v51 += 256u) {
        let v52 = v3 + v51;
        let t1 = a0_x[v52 >> 2u];
        let v53 = vec4<f32>(unpack2x16float(t1.x).x, unpack2x16float(t1.x).y, unpack2x16float(t1.y).x, unpack2x16float(t1.y).y);
        let v54 = v53.x;
        let v55 = v53.y;
        let v56 = v53.z;
        let v57 = v53.w;
        let v58 = v54 * v50;
        let v59 = v55 * v50;
        let v60 = v56 * v50;
        let v61 = v57 * v50;
        let v62 = v3 + v51;
        let v63 = vec4<f32>(v58, v59, v60, v61);
        a1_y[v62 >> 2u] = vec2<u32>(half_bits(v63.x) | (half_bits(v63.y) << 16u), half_bits(v63.z) | (half_bits(v63.w) << 16u));
    }
}
