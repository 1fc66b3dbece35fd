#!/usr/bin/env python3
"""Whisper's decoder, token by token, beside ONNX Runtime on the same processor in one run.

    cargo xtask zoo whisper asrfront speech
    cargo build --release -p olivine --example whisper
    pip install onnxruntime numpy
    bench/whisper.py target/release/examples/whisper target/zoo

Both decode greedily with the caches of the merged decoder: Olivine with caches that grow in place, ONNX Runtime with the
loop that its users write, which hands each run's `present` to the next as `past`. The two take turns; the figure is the
median over the turns of ONNX Runtime's time for a token over ours.
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import time
import wave

import numpy
import onnxruntime

PROMPT = [50258, 50259, 50359, 50363]
END_OF_TEXT = 50257
PARTS = ["decoder.key", "decoder.value", "encoder.key", "encoder.value"]


def session(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options)


def heard(zoo, wav):
    """The encoder's states of half a minute."""
    with wave.open(str(wav)) as file:
        samples = numpy.frombuffer(file.readframes(file.getnframes()), numpy.int16).astype(numpy.float32) / 32768
    waves = numpy.zeros((1, 480_000), numpy.float32)
    waves[0, : len(samples[:480_000])] = samples[:480_000]
    front = session(zoo / "asrfront/whisper80_conv.onnx")
    features = front.run(["features"], {"waveforms": waves, "waveforms_lens": numpy.array([480_000])})[0]
    encoder = session(zoo / "whisper/encoder_model_quantized.onnx")
    return encoder.run(["last_hidden_state"], {"input_features": features})[0]


def decode(decoder, states):
    """Decodes once; the tokens, and milliseconds for each."""
    names = [o.name for o in decoder.get_outputs() if o.name == "logits" or o.name.startswith("present")]
    empty = numpy.zeros((1, 6, 0, 64), numpy.float32)
    past = {f"past_key_values.{layer}.{part}": empty for layer in range(4) for part in PARTS}
    following, tokens = PROMPT, []
    begun = time.perf_counter()
    for step in range(224):
        given = {"input_ids": numpy.array([following]), "encoder_hidden_states": states}
        given["use_cache_branch"] = numpy.array([step > 0])
        out = dict(zip(names, decoder.run(names, {**given, **past})))
        token = int(out["logits"][0, -1].argmax())
        for name in past:
            if step == 0 or "decoder" in name:
                past[name] = out["present" + name.removeprefix("past_key_values")]
        if token == END_OF_TEXT:
            break
        tokens.append(token)
        following = [token]
    return tokens, 1e3 * (time.perf_counter() - begun) / (len(tokens) + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", help="the built example `whisper`")
    parser.add_argument("zoo", type=pathlib.Path, help="the folder of `cargo xtask zoo`")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    wav = args.zoo / "speech/beckett.wav"
    states = heard(args.zoo, wav)
    decoder = session(args.zoo / "whisper/decoder_model_merged_quantized.onnx")
    decode(decoder, states)
    ours, theirs = [], []
    for turn in range(args.turns):
        run = subprocess.run([args.example, args.zoo, wav, "cpu"], capture_output=True, text=True, check=True)
        ours.append(float(re.search(r"again: ([\d.]+) ms a token", run.stderr).group(1)))
        tokens, each = decode(decoder, states)
        theirs.append(each)
        print(f"turn {turn}: olivine {ours[-1]:.2f} ms a token, onnxruntime {each:.2f} ms, {len(tokens)} tokens")
    ratio = statistics.median(b / a for a, b in zip(ours, theirs))
    print(f"median: olivine {statistics.median(ours):.2f} ms, onnxruntime {statistics.median(theirs):.2f} ms a token;"
          f" onnxruntime {onnxruntime.__version__} / olivine {ratio:.2f}")


if __name__ == "__main__":
    main()
