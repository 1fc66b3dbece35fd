"""Texts to tokenise: ordinary, random and hostile, always the same for a seed."""
import random, unicodedata

SAMPLES = [
    "", " ", "  ", "\n", "\r\n\r\n", "\t \n ", "Hello world", " Hello  world ", "I'm you're we'LL they'd it'S 'tis", "1234567890 3.14 1,000,000",
    "def f(x):\n    return x ** 2\n\n\n# done", "Der Fluß ist schön; l'été à Paris", "你好，世界！今天天气很好。", "こんにちは カタカナ ひらがな",
    "안녕하세요 세계", "नमस्ते दुनिया", "مرحبا بالعالم", "שלום עולם", "สวัสดีชาวโลก", "Привет, мир! ЁЖ", "Γειά σου Κόσμε", "e\u0301 o\u0308 \u0301x",
    "👋🏽 👨‍👩‍👧‍👦 🇩🇪 ☃️", "ﬁ ﬂ ½ ² Ⅷ ① ℌ ㎏ ｆｕｌｌ", "\u200b\u200d\ufeff\u00ad", "a\u00a0b\u2003c\u3000d\u2028e", "ſ K İ ı ß ẞ ŉ ǅ", "\x00\x01\x7f\x85",
    "CamelCaseHTTPServer2XMLParser snake_case_name kebab-case", "https://example.org/a/b?c=d&e=f#g", "<|im_start|>user\n<|im_end|>", "<s>[INST] hi [/INST]</s>",
    "▁▁ ▁a <0x0A> Ġ Ċ ##ing [CLS] [MASK] [UNK]", "'" * 9, "=" * 40, "-" * 77, "a" * 300, " " * 100 + "x", "\n" * 50, "ab" * 200, "9" * 100, "é" * 60, "字" * 90,
    "!?" * 30 + "\n\n", "\u0300" * 20, "x\u0300\u0301\u0302y", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𒀀", "\ud7ff\ue000\uffff", "don't DON'T Don'T", "  \n  \n", "a  b   c    d", "\u0e33\u0eb3", "ᄀᄀᄀ각ᆨᆨ",
]
WORDS = "the of and to in a is that for it Hello WORLD iPhone don't we've I'll 2024 007 1st naïve café über señor 東京 北京市 모두 привет ΑΒΓ".split()
BLOCKS = [(0x20, 0x7E)] * 8 + [(0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1FFF),
    (0x2000, 0x206F), (0x20A0, 0x23FF), (0x2460, 0x27BF), (0x2E80, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFEF), (0x1F300, 0x1FAFF), (0x10000, 0x1077F), (0x10800, 0x10FFF)]
PIECES = [" ", "  ", "\n", "\n\n", "\r\n", "\t", "'s", "'T", "'ll", "'RE", ".", ",", "...", "!", "?!", "/", "//", "\\", "_", "-", "(", ")", "[", "]", "{}", "\"", "=", "==", "+", "#", "1", "23", "456",
    "7890", "a", "B", "Ab", "aB", "\u0301", "\u200d", "\u3000", "\u00a0", "字", "か", "カ", "가", "ё", "Ω", "ſ", "²", "½", "😀", "§", "$", "€", "\x1f", "▁"]


def assigned(code):
    """Characters that tables of Unicode of different age agree on: those of Unicode 3.2, and emoji."""
    return 0x1F300 <= code < 0x1F5FB or unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs")


def texts(count, seed=1, special=()):
    rng = random.Random(seed)
    out = list(SAMPLES)
    pieces = PIECES + list(special)
    while len(out) < count:
        kind = rng.randrange(5)
        if kind == 0:
            text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 20)))
        elif kind == 1:
            text = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 30)))
        elif kind == 2:
            text = "".join(rng.choice(pieces if rng.random() < 0.5 else WORDS) for _ in range(rng.randrange(1, 30)))
        elif kind == 3:
            low, high = rng.choice(BLOCKS)
            codes = (rng.randint(low, high) for _ in range(rng.randrange(1, 30)))
            text = "".join(chr(code) for code in codes if assigned(code))
        else:
            text = "".join(rng.choice(pieces) * rng.choice([1, 1, 1, 2, 3, 7, 40]) + rng.choice(["", " ", rng.choice(WORDS)]) for _ in range(rng.randrange(1, 8)))
        out.append(text)
    return out[:count]
