"""Writes ONNX files with nothing but the standard library: the few messages of onnx.proto that a convolutional model needs."""

import pathlib
import struct

# Numbers of TensorProto.DataType.
FLOAT, FLOAT16 = 1, 10
IR_VERSION, OPSET = 9, 17
# Values of one tensor come again after so many: a prime, so that no row of a matrix equals another.
PERIOD = 65_521


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _attribute(name: str, value: int | list[int]) -> bytes:
    if isinstance(value, int):
        return _bytes(1, name) + _number(3, value) + _number(20, 2)
    return _bytes(1, name) + b"".join(_number(8, v) for v in value) + _number(20, 7)


class File:
    """A graph whose nodes have one output each."""

    def __init__(self, dtype: int) -> None:
        self.dtype = dtype
        self.nodes: list[bytes] = []
        self.weights: list[bytes] = []

    def node(self, op: str, *inputs: str, output: str | None = None, **attributes: int | list[int]) -> str:
        """Appends a node and returns the name of its output."""
        output = output or f"{op.lower()}_{len(self.nodes)}"
        parts = [_bytes(1, name) for name in inputs] + [_bytes(2, output), _bytes(3, output), _bytes(4, op)]
        parts += [_bytes(5, _attribute(name, value)) for name, value in attributes.items()]
        self.nodes.append(b"".join(parts))
        return output

    def weight(self, name: str, shape: tuple[int, ...], bound: float) -> str:
        """Appends a tensor of numbers between -bound and bound, the same in every file, and returns its name."""
        count = 1
        for size in shape:
            count *= size
        state, numbers = len(self.weights) + 1, []
        for _ in range(min(count, PERIOD)):
            # Knuth's 64-bit linear congruential generator; its upper bits are uniform.
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            numbers.append(((state >> 40) / 2**23 - 1) * bound)
        raw = struct.pack(f"<{len(numbers)}{'e' if self.dtype == FLOAT16 else 'f'}", *numbers)
        size = len(raw) // max(len(numbers), 1) * count
        raw = (raw * (size // max(len(raw), 1) + 1))[:size]
        dims = b"".join(_number(1, d) for d in shape)
        self.weights.append(dims + _number(2, self.dtype) + _bytes(8, name) + _bytes(9, raw))
        return name

    def write(self, path: pathlib.Path, name: str, inputs: dict[str, list], outputs: dict[str, list]) -> None:
        """Writes the file. Inputs and outputs have a size or a name for each dimension."""

        def port(name: str, dims: list) -> bytes:
            sizes = [_number(1, d) if isinstance(d, int) else _bytes(2, d) for d in dims]
            shape = b"".join(_bytes(1, size) for size in sizes)
            return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, self.dtype) + _bytes(2, shape)))

        graph = [_bytes(1, node) for node in self.nodes] + [_bytes(2, name)]
        graph += [_bytes(5, weight) for weight in self.weights]
        graph += [_bytes(11, port(n, dims)) for n, dims in inputs.items()]
        graph += [_bytes(12, port(n, dims)) for n, dims in outputs.items()]
        opset = _bytes(1, "") + _number(2, OPSET)
        path.write_bytes(_number(1, IR_VERSION) + _bytes(8, opset) + _bytes(7, b"".join(graph)))
