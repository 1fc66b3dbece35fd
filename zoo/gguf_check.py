#!/usr/bin/env python3
"""Compares olivine's GGUF crates with the `gguf` package and with llama.cpp's library (`xllamacpp`).

usage: gguf_check.py FOLDER [ZOO]     FOLDER holds the examples `convert` (olivine-quant), `copy`, `decode` and `kinds` (olivine-gguf);
                                      ZOO is the folder that zoo/fetch filled, with smollm2
"""
import ctypes, glob, os, subprocess, sys, tempfile, warnings

import numpy as np

warnings.simplefilter("ignore")
import gguf
from gguf.constants import GGML_QUANT_SIZES as SIZES, GGMLQuantizationType as Type

EXAMPLES = sys.argv[1]
WORK = tempfile.mkdtemp()
WRONG = []

# What the gguf package cannot decode: types of activations, and one that it lists only.
NOT_THERE = {"Q8_1", "Q8_K", "Q1_0"}
ENCODED = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4 TQ1_0 TQ2_0".split()


def path(name):
    return os.path.join(WORK, name)


def convert(what, kind, data):
    data.tofile(path("in"))
    subprocess.run([os.path.join(EXAMPLES, "convert"), what, kind, path("in"), path("out")], check=True)
    return np.fromfile(path("out"), dtype=np.float32 if what == "decode" else np.uint8)


def report(good, text):
    print(("ok    " if good else "WRONG ") + text)
    if not good:
        WRONG.append(text)


def decoding():
    """Random and extreme blocks of every type, bit for bit."""
    random = np.random.default_rng(1)
    for kind in Type:
        elements, size = SIZES[kind]
        if elements == 1 or kind.name in NOT_THERE:
            continue
        blocks = random.integers(0, 256, size=(8192, size), dtype=np.uint8)
        for i, byte in enumerate([0, 255, 0x7F, 0x80, 0x55, 0xAA]):
            blocks[64 * i : 64 * i + 64] = byte
        theirs = gguf.quants.dequantize(blocks, kind).astype(np.float32).reshape(-1)
        ours = convert("decode", kind.name, blocks)
        same = (ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
        report(same.all(), f"decode {kind.name}: {same.size} elements, {int((~same).sum())} differ")


def encoding():
    """Mean squared error beside llama.cpp's, on four distributions."""
    import xllamacpp

    library = ctypes.CDLL(glob.glob(os.path.join(os.path.dirname(xllamacpp.__file__), "*.so"))[0])
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    quantize.argtypes = [ctypes.c_int, pointer, pointer, integer, integer, integer, pointer]
    random, shape = np.random.default_rng(2), (32, 4096)
    draws = {
        "normal": random.normal(size=shape) * 0.02,
        "heavy tails": random.standard_t(4, size=shape) * 0.02,
        "uniform": random.uniform(0, 1, size=shape),
        "offset": random.normal(size=shape) * 0.1 + 0.5,
    }
    for name, draw in draws.items():
        x = draw.astype(np.float32)
        for kind in (Type[name] for name in ENCODED):
            elements, size = SIZES[kind]
            theirs = np.zeros(x.size // elements * size, dtype=np.uint8)
            quantize(int(kind), x.ctypes.data, theirs.ctypes.data, 0, *shape, None)
            ours = convert("encode", kind.name, x)
            errors = [
                ((gguf.quants.dequantize(packed.reshape(-1, size), kind).reshape(shape) - x).astype(np.float64) ** 2).mean()
                for packed in (ours, theirs)
            ]
            ratio = errors[0] / errors[1]
            report(ratio <= 1.02, f"encode {kind.name}, {name}: {ratio:.3f} of llama.cpp's squared error")


def files():
    """Files of theirs read here and written again, read there."""
    theirs, ours = path("theirs.gguf"), path("ours.gguf")
    writer = gguf.GGUFWriter(theirs, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint64("a.u64", 2**64 - 1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "tёxt")
    writer.add_array("a.strings", ["one", "", "ü"])
    writer.add_array("a.floats", [0.5, 1.5])
    random = np.random.default_rng(3)
    for kind in Type:
        elements, size = SIZES[kind]
        if kind.name in NOT_THERE:
            continue
        raw = random.integers(0, 256, size=(3, 2 * size), dtype=np.uint8)
        writer.add_tensor(f"tensor.{kind.name}", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    subprocess.run([os.path.join(EXAMPLES, "copy"), theirs, ours], check=True)
    one, two = gguf.GGUFReader(theirs), gguf.GGUFReader(ours)
    keys = [key for key in one.fields if not key.startswith("GGUF.")]
    report(all(one.fields[key].contents() == two.fields[key].contents() for key in keys), f"{len(keys)} metadata entries")
    pairs = list(zip(one.tensors, two.tensors))
    same = len(one.tensors) == len(two.tensors) and all(
        a.name == b.name and a.tensor_type == b.tensor_type and list(a.shape) == list(b.shape) and (a.data.view(np.uint8) == b.data.view(np.uint8)).all()
        for a, b in pairs
    )
    report(same, f"{len(pairs)} tensors")


def small_model(file, arch, layers, heads, kv_heads, width=256, experts=0, tied=False, fused=False):
    """A file that llama.cpp quantises, with random weights."""
    writer, random = gguf.GGUFWriter(file, arch), np.random.default_rng(1)
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(512)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    shapes = {"token_embd": (64, width), "output_norm": (width,)}
    if not tied:
        shapes["output"] = (64, width)
    narrow = width * kv_heads // heads
    for layer in range(layers):
        parts = {"attn_norm": (width,), "ffn_norm": (width,), "attn_output": (width, width)}
        if fused:
            parts |= {"attn_qkv": (3 * width, width), "ffn_up": (512, width), "ffn_down": (width, 512)}
        else:
            parts |= {"attn_q": (width, width), "attn_k": (narrow, width), "attn_v": (narrow, width)}
            end = (experts, "_exps") if experts else (None, "")
            for name, shape in (("gate", (512, width)), ("up", (512, width)), ("down", (width, 512))):
                parts[f"ffn_{name}{end[1]}"] = shape if end[0] is None else (end[0], *shape)
            if experts:
                parts["ffn_gate_inp"] = (experts, width)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def presets():
    """The type of every tensor and the number of the file's type, as llama.cpp quantises small models."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench"))
    import llama_library

    folder = llama_library.library(None)
    for name in ("libggml-base*.so", "libggml.*.so", "libllama.*.so"):
        library = ctypes.CDLL(glob.glob(os.path.join(folder, name))[0], mode=ctypes.RTLD_GLOBAL)

    class Params(ctypes.Structure):
        # Threads, the file's type, and room for what else a version has; the defaults are the library's.
        _fields_ = [("threads", ctypes.c_int32), ("ftype", ctypes.c_int32), ("rest", ctypes.c_uint8 * 120)]

    log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    library.llama_log_set(log, None)
    library.llama_model_quantize_default_params.restype = Params
    models = {
        "llama": ("llama", 8, 4, 4, {}),
        "llama, tied, shared heads": ("llama", 17, 8, 2, {"tied": True}),
        "llama, rows of 192": ("llama", 3, 4, 2, {"width": 192}),
        "llama, rows of 288": ("llama", 3, 4, 4, {"width": 288}),
        "8 experts": ("llama", 8, 4, 1, {"experts": 8}),
        "6 experts": ("llama", 8, 4, 2, {"experts": 6}),
        "80 layers": ("llama", 80, 4, 2, {"width": 32}),
        "falcon": ("falcon", 17, 4, 4, {"fused": True}),
        "phi3": ("phi3", 8, 4, 4, {"fused": True}),
    }
    for what, (arch, layers, heads, kv_heads, more) in models.items():
        source, to = path("model.gguf"), path("quantised.gguf")
        small_model(source, arch, layers, heads, kv_heads, **more)
        lines = subprocess.run([os.path.join(EXAMPLES, "kinds"), source], check=True, capture_output=True, text=True)
        ours = {}
        for line in lines.stdout.splitlines():
            preset, ftype, tensor, kind = line.split()
            ours.setdefault((preset, int(ftype)), {})[tensor] = kind.upper()
        compared, differ = 0, []
        for (preset, ftype), kinds in ours.items():
            params = library.llama_model_quantize_default_params()
            params.threads, params.ftype = 1, ftype
            # Presets that need an importance matrix, and those that this version does not have.
            if library.llama_model_quantize(source.encode(), to.encode(), ctypes.byref(params)):
                continue
            reader = gguf.GGUFReader(to)
            theirs = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
            compared += 1
            differ += [f"{preset} {name}: {kinds.get(name)}, not {kind}" for name, kind in theirs.items() if kinds.get(name) != kind]
            if reader.fields["general.file_type"].contents() != ftype:
                differ.append(f"{preset}: file type {ftype}")
        report(compared > 20 and not differ, f"presets of {what}: {compared} compared, {len(differ)} tensors differ {differ[:3]}")


def model(file):
    """Every tensor of a published model, bit for bit."""
    subprocess.run([os.path.join(EXAMPLES, "decode"), file, path("out")], check=True)
    ours, at = np.fromfile(path("out"), dtype=np.uint32), 0
    tensors = gguf.GGUFReader(file).tensors
    for tensor in tensors:
        theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(-1).view(np.uint32)
        found, at = ours[at : at + theirs.size], at + theirs.size
        differ = int((found != theirs).sum()) if found.size == theirs.size else theirs.size
        if differ:
            report(False, f"{tensor.name}, {tensor.tensor_type.name}: {theirs.size} elements, {differ} differ")
    report(at == ours.size, f"{file}: {len(tensors)} tensors, {at} elements, as many decoded here")


decoding()
encoding()
files()
presets()
if len(sys.argv) > 2:
    model(os.path.join(sys.argv[2], "smollm2", "model.gguf"))
else:
    print("not tried: the tensors of smollm2, because no folder of the zoo was given")
print(f"{len(WRONG)} wrong")
sys.exit(bool(WRONG))
