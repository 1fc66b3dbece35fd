"""Writes bpe.json: texts and their tokens by Hugging Face's tokenizers, with the vocabulary and merges of smollm2's GGUF file.

usage: python3 web/test/bpe_fixture.py target/zoo/smollm2/model.gguf > web/test/bpe.json      (needs gguf and tokenizers from PyPI)
"""
import json, sys
from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

TEXTS = [
    "The capital of France is", "Once upon a time", "def fibonacci(n):\n    return n  if n<2 else 0\n", "What is 2+2?",
    "  two spaces, three   spaces\tand a tab ", "It's we're I'LL don't 'tis", "In 2024, 1234567 people paid $9.99 (5 %).",
    "naïve café — “quotes” … Ünïcödé", "日本語のテキスト と 한국어", "emoji 👩‍👩‍👧 🇩🇪 and ½ ² Ⅻ", "line\r\nbreaks\n\n\n and trailing\n",
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n", "half <|im_start of a mark|> and <|endoftext|>x", "a\u00a0b\u2003c\u0085d",
    "https://example.org/path?q=1&r=%20#x", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "", " ", "\n", "3.14159e-10 0x1F", "ТЕКСТ по-русски, ёж",
]

fields = GGUFReader(sys.argv[1]).fields
tokens = fields["tokenizer.ggml.tokens"].contents()
kinds = fields["tokenizer.ggml.token_type"].contents()
merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(tokens)}, merges=merges))
digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
tokenizer.add_special_tokens([AddedToken(piece, normalized=False) for piece, kind in zip(tokens, kinds) if kind == 3])
rows = [json.dumps([text, tokenizer.encode(text).ids]) for text in TEXTS]
print("[\n" + ",\n".join(rows) + "\n]")
