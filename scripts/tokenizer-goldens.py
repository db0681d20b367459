#!/usr/bin/env python3
"""Writes node/engine/tests/data/tokens.json: what llama.cpp makes of texts with models' vocabularies.

  pip install llama-cpp-python==0.3.36
  scripts/tokenizer-goldens.py MODEL.gguf ... > node/engine/tests/data/tokens.json

Models are named by their files' names. llama.cpp's own files of vocabularies are in `models` of its sources.
"""

import json
import random
import sys
from pathlib import Path

import llama_cpp

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\t\n", "\r\n", " \n", "\n ", "a", " a", "a ", "  a  ",
    "Hello world", " Hello world", "Hello, world!", "HELLO", "hElLo", "it's", "It'S we'RE they'Ve I'M he'll she'D don't",
    "'tis 'sup '' ' 's", "isn’t it’s", "The capital of France is", "Once upon a time, there was a small fox.",
    "1", "12", "123", "1234", "12345", "3.14159", "1,000,000", "2024-07-26", "0x1F4A9", "1e-10", "v1.2.3-rc4", "½ ² ₃ Ⅷ",
    "٣٤٥٦", "१२३४", "x1y2z3", "  12  34  ", "$9.99", "100%", "#42", "@user", "a@b.example", "https://example.org/a?b=c&d=%20#e",
    "def f(x):\n    return x ** 2\n", "fn main() {\n\tprintln!(\"{}\", 1 << 3);\n}\n", "if (a&&b||!c) { d[i++] = *p->q; }",
    "<html><body class=\"x\">&amp;</body></html>", "{\"key\": [1, -2.5, true, null], \"other\": {}}", "SELECT * FROM t WHERE a = 'b';",
    "    four\n        eight\n            twelve", "\t\ttabs\n\t\t\tmore", "x=1;y=2;;z", "a->b::c<d>", "// comment\n/* other */", "#!/bin/sh\nset -e\n",
    "```rust\nlet x = 5;\n```", "# Title\n\n- one\n- two\n\n> quote\n", "| a | b |\n|---|---|\n| 1 | 2 |", "\\frac{a}{b} \\alpha_{i}^{2}", "$\\sum_{i=0}^n i^2$",
    "...", "…", "!!!???", "--", "—", "----------", "==========", "***", "___", "~~~", "^_^", ":-)", "¯\\_(ツ)_/¯", "“quoted” ‘single’ «guillemets»",
    "Äpfel Öl Übung ß", "café", "cafe\u0301", "naïve façade", "Ångström", "Москва и Санкт-Петербург", "нещо на Български", "Ελληνικά", "עברית שפה", "اللغة العربية",
    "हिन्दी भाषा", "ไทยภาษา", "တောင်", "ជាភាសាខ្មែរ", "中文分词测试", "日本語のテキストです。", "カタカナ ひらがな", "한국어 텍스트", "你好，世界！", "全角ＡＢＣ１２３",
    "Tiếng Việt có dấu", "İstanbul ıı", "ſtraße", "ﬁ ligature", "ǅ ǆ", "\u212a\u212b", "🙂", "😀😃😄", "🦙.cpp", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "👍🏽", "❤️", "☃", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𐍈", "\U000e0041",
    "\u00a0nbsp\u00a0", "\u2003em\u2003", "\u200bzero\u200bwidth", "\u2028line\u2029para", "\u3000ideographic", "\u0085next", "\ufeffbom", "\u0000nul", "\u0001\u001f\u007f", "\ufffd", "\uffff",
    "\u2581", "\u2581\u2581a", "a\u2581b", " \u2581 ", "<0x41>", "<0xC3><0xA9>", "<s>", "</s>", "<bos>", "<unk>", "<pad>", "<|endoftext|>", "<|im_start|>user\n<|im_end|>", "<start_of_turn>", "<|eot_id|>", "<|begin_of_text|>",
    "<table><tr><td>", "</td></tr></table>", "<h1></h1>", "<unused3>", "[multimodal]", "<mask>", "<", ">", "<|", "|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "abababababababababab", " " * 17, "\n" * 9, " \n \n \n", "a" + " " * 31 + "b", "supercalifragilisticexpialidocious",
    "Donaudampfschifffahrtsgesellschaftskapitän", "antidisestablishmentarianism", "zzzzqqqqxxxx", "qwrtpsdfghjklzxcvbnm", "ThisIsCamelCase and_this_is_snake", "SCREAMING_CASE kebab-case",
    "Mr. Smith's e-mail: j.smith@corp.example (ext. 42); see § 3.", "5 km ≈ 3.1 mi; 20 °C = 68 °F; π ≈ 3.14", "a\tb\tc\r\nd\te\tf\r\n", "w048 7tuijk dsdfhu", "ied 4 ½ months", "3333333", "33333333", "33 333 3333",
    "Cửa Việt", "(a) [b] {c} <d>", "a/b\\c|d", "1/2 + 3*4 = 12.5", "'re''ve", "I'm  sure\n\n  you'd   agree.", "\n  x\n\ty\n", "end. \nNew", "x \n\n  y", "   \n   ", "Hi!\n\n\nBye?\n",
]

SPECIAL = [
    "<|im_start|>system\nYou are a helper.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<bos><start_of_turn>user\nHi  there<end_of_turn>\n<start_of_turn>model\n",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
    "<s>[INST] Hi [/INST] Hello</s><s>[INST] 2 [/INST]",
    "<|endoftext|>a<|endoftext|><|endoftext|> b",
    "a<s>", "<s>", "<s> a", "</s>\n", "x <bos> y", "<|im_start|><|im_end|>", "<|user|>\nHi<|end|>\n<|assistant|>", "<unk><pad>",
]


def generated() -> list[str]:
    """Random mixtures, the same each time."""
    rng = random.Random(6)
    parts = ["a", "The", " the", "  ", "\n", "\t", "7", "42", "2024", ".", ",", "'s", "'LL", "(", "==", "é", "ß", "中", "の", "한", "🙂", "\u0301", "\u00a0", "_", "foo", "Bar", "-", "\r\n", "!", "…", "\u2581", "ж"]
    return ["".join(rng.choice(parts) for _ in range(rng.randint(2, 14))) for _ in range(24)]


def main() -> None:
    texts = TEXTS + generated()
    models = {}
    for path in sys.argv[1:]:
        model = llama_cpp.Llama(model_path=path, vocab_only=True, verbose=False)

        def ids(text: str, special: bool) -> list[int]:
            return model.tokenize(text.encode(), add_bos=False, special=special)

        models[Path(path).name] = {
            "plain": [ids(text, False) for text in texts],
            "special": [ids(text, True) for text in SPECIAL],
        }
    lines = [
        f'"made_by": "llama-cpp-python {llama_cpp.__version__}"',
        f'"texts": {json.dumps(texts)}',
        f'"special": {json.dumps(SPECIAL)}',
    ]
    each = ",\n".join(f"{json.dumps(name)}: {json.dumps(found, separators=(',', ':'))}" for name, found in models.items())
    print("{" + ",\n".join(lines) + ',\n"models": {\n' + each + "\n}}")


if __name__ == "__main__":
    main()
