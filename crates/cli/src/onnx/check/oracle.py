"""Runs an ONNX model in ONNX Runtime with inner values as outputs.

Arguments: the model, and a folder with `request.json`: {"inputs": {name: file}, "values": [name, ...], "threads": n}.
Every value that comes out as a plain array is saved as `value_<index>.npy`; `answer.json` lists the indices.
"""

import json
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort


def open_session(model, folder, options):
    source = model.SerializeToString() if model.ByteSize() < 1 << 31 else None
    if source is None:
        source = os.path.join(folder, "model.onnx")
        onnx.save(model, source, save_as_external_data=True, location="model.bin")
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def main():
    path, folder = sys.argv[1:3]
    with open(os.path.join(folder, "request.json")) as file:
        request = json.load(file)
    model = onnx.load(path)
    values = request["values"]
    outputs = {output.name for output in model.graph.output}
    for name in values:
        if name not in outputs:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
            outputs.add(name)
    options = ort.SessionOptions()
    # Optimised graphs lose the names of what they fuse.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    if request["threads"]:
        options.intra_op_num_threads = request["threads"]
    try:
        session = open_session(model, folder, options)
    except Exception as error:
        if "IR version" not in str(error):
            raise
        # The operators decide what a model means, not the version of the file's format.
        model.ir_version = 10
        session = open_session(model, folder, options)
    inputs = {name: np.load(os.path.join(folder, file)) for name, file in request["inputs"].items()}
    results = session.run(values, inputs)
    saved = []
    for index, result in enumerate(results):
        if isinstance(result, np.ndarray) and result.dtype.kind in "fiub":
            np.save(os.path.join(folder, f"value_{index}.npy"), result)
            saved.append(index)
    with open(os.path.join(folder, "answer.json"), "w") as file:
        json.dump({"version": ort.__version__, "saved": saved}, file)


main()
