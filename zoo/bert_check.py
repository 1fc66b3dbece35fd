"""Embeddings of a BERT encoder from a GGUF file beside those from its folder and beside llama.cpp's.

usage: bert_check.py PROGRAM FOLDER      (needs `pip install openai gguf numpy safetensors xllamacpp`)

FOLDER is minilm of the zoo; PROGRAM is `olivine`. llama.cpp approximates gelu by tanh in f16, so that its numbers differ in the fourth digit.
"""
import json, os, subprocess, sys, tempfile

import numpy as np

from bert_gguf import write_bert
from serve_process import WRONG, Server, check

TEXTS = [
    "A cat sits on the mat.", "A kitten is resting on a rug.", "Stock prices fell sharply on Monday.", "naïve café résumé, 北京 is a city! 12.5% off", "x",
    "Unbelievable electroencephalographically pseudopseudohypoparathyroidism", "word " * 200,
]  # fmt: skip


def served(program, model):
    """The vectors of `olivine serve`."""
    server = Server(program, model, "--alias", "bert")
    data = server.client().embeddings.create(model="bert", input=TEXTS, encoding_format="float").data
    server.stop()
    return np.array([entry.embedding for entry in data])


def of_llama(path):
    """Those of llama.cpp, in a process of its own: its server does not end."""
    program = (
        "import json, os, sys, xllamacpp as x\n"
        "p = x.CommonParams()\n"
        "p.model.path, p.embedding, p.n_gpu_layers, p.warmup, p.n_parallel, p.n_ctx = sys.argv[1], True, 0, False, 1, 512\n"
        "p.pooling_type = x.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN\n"
        "server = x.Server(p)\n"
        "rows = [server.handle_embeddings({'input': text, 'model': 'm'})['data'][0]['embedding'] for text in json.load(open(sys.argv[2]))]\n"
        "json.dump(rows, open(sys.argv[3], 'w'))\n"
        "os._exit(0)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        texts, rows = os.path.join(folder, "texts"), os.path.join(folder, "rows")
        with open(texts, "w") as file:
            json.dump(TEXTS, file)
        subprocess.run([sys.executable, "-c", program, path, texts, rows], check=True, capture_output=True)
        with open(rows) as file:
            return np.array(json.load(file))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, source = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bert.gguf")
        write_bert(source, path)
        of_folder, of_file, of_other = served(program, source), served(program, path), of_llama(path)
    difference = lambda a, b: float(np.abs(a - b).max())
    check("a GGUF file has the vectors of its folder", difference(of_folder, of_file) < 1e-5, f"{difference(of_folder, of_file):.1e}")
    check("and nearly those of llama.cpp", difference(of_file, of_other) < 1e-3, f"{difference(of_file, of_other):.1e}")
    if WRONG:
        raise SystemExit(f"{len(WRONG)} checks failed: {WRONG}")


if __name__ == "__main__":
    main()
