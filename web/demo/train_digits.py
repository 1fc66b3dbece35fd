#!/usr/bin/env python3
"""Trains the digit classifier of the demo and writes digits.onnx beside this file.

    pip install scikit-learn scipy onnx && python3 web/demo/train_digits.py

The data are scikit-learn's 1,797 digits of 8 by 8 pixels, each 0 to 16. Copies that are shifted, turned and scaled a
little make the classifier forgiving of what people draw.
"""
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

SEED = 7
COPIES = 12


def varied(image, rng):
    """A copy that is turned, scaled, shifted and of another stroke weight."""
    angle = np.deg2rad(rng.uniform(-14, 14))
    zoom = rng.uniform(0.85, 1.15, 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / zoom
    centre = np.array([3.5, 3.5])
    offset = centre - turn @ (centre + rng.uniform(-0.7, 0.7, 2))
    moved = ndimage.affine_transform(image, turn, offset=offset, order=1)
    return np.clip(moved * rng.uniform(0.8, 1.3), 0, 16)


def graph(classifier):
    """pixels[batch, 64] -> probabilities[batch, 10]"""
    nodes, weights, value = [], [], "scaled"
    nodes.append(helper.make_node("Div", ["pixels", "sixteen"], ["scaled"]))
    weights.append(numpy_helper.from_array(np.float32(16), "sixteen"))
    last = len(classifier.coefs_) - 1
    for i, (weight, bias) in enumerate(zip(classifier.coefs_, classifier.intercepts_)):
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"weight{i}"))
        weights.append(numpy_helper.from_array(bias.astype(np.float32), f"bias{i}"))
        nodes.append(helper.make_node("Gemm", [value, f"weight{i}", f"bias{i}"], [f"sum{i}"]))
        value = f"sum{i}"
        if i < last:
            nodes.append(helper.make_node("Relu", [value], [f"hidden{i}"]))
            value = f"hidden{i}"
    nodes.append(helper.make_node("Softmax", [value], ["probabilities"], axis=1))
    inputs = [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 64])]
    outputs = [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])]
    made = helper.make_graph(nodes, "digits", inputs, outputs, weights)
    model = helper.make_model(made, producer_name="olivine", opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def main():
    rng = np.random.default_rng(SEED)
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=SEED, stratify=labels
    )
    copies = [varied(image.reshape(8, 8), rng).ravel() for image in train for _ in range(COPIES)]
    x = np.concatenate([train, copies]) / 16
    y = np.concatenate([train_labels, np.repeat(train_labels, COPIES)])
    classifier = MLPClassifier((64, 32), alpha=1e-3, max_iter=60, random_state=SEED)
    classifier.fit(x, y)
    print(f"{classifier.score(test / 16, test_labels):.3f} of {len(test)} digits that it has not seen are right")
    path = pathlib.Path(__file__).with_name("digits.onnx")
    onnx.save(graph(classifier), path)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
