"""Language models with weights that a formula gives, so that a record of a model needs its configuration and shapes alone.

An element of a tensor is a hash of the tensor's name and of its index, so that Python and Rust make the same bits:
`crates/lm/tests/common/recorded.rs` has the formula too.
"""
import json, os

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RECORDS = os.path.join(ROOT, "crates/lm/tests/references")
MASK = (1 << 64) - 1


def hashes(name, count):
    """SplitMix64 at the positions after FNV-1a of the name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) & MASK
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def tensor(name, shape, kind, first, second):
    """f32: uniform within `second` around `first`. u8: one of `second` numbers from `first` on."""
    z = hashes(name, int(np.prod(shape)))
    if kind == "u8":
        return (z % np.uint64(second) + np.uint64(first)).astype(np.uint8).reshape(shape)
    unit = (z >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0
    return (first + second * unit).astype(np.float32).reshape(shape)


def records(names=()):
    """The recorded models, or those named."""
    files = sorted(name for name in os.listdir(RECORDS) if name.endswith(".json"))
    for file in files:
        name = file.removesuffix(".json")
        if not names or name in names:
            with open(os.path.join(RECORDS, file)) as text:
                yield name, json.load(text)


def weights(record):
    """The tensors of a record, by their names."""
    return {name: tensor(name, shape, kind, first, second) for name, shape, kind, first, second in record["tensors"]}


def write_folder(record, folder):
    """A Hugging Face folder of a record."""
    from safetensors.numpy import save_file

    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as out:
        out.write(record["config"])
    save_file(weights(record), os.path.join(folder, "model.safetensors"))
