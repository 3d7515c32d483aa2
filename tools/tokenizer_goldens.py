#!/usr/bin/env python3
"""Encodes varied strings with tiktoken as goldens for crates/chat's tests of the real vocabulary.

Usage: zstd -dc models/qwen3.6-35b-a3b/ranks.tiktoken.zst > ranks
       tools/tokenizer_goldens.py ranks > crates/chat/tests/fixtures/tiktoken_goldens.json   (needs: pip install tiktoken)

The file is a list of [text, ids].
"""

import base64
import json
import random
import sys
import unicodedata

import tiktoken

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BASE = [
    'Hello, world!',
    '  two  spaces\t\ttabs',
    'a\n\n\nb \r\n c',
    "don't DON'T we'LL it'\u017f",
    '\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u6f22\u5b57\u3002',
    '\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645',
    '\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0451\u043b\u043a\u0430',
    '\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e',
    '\u05e9\u05dc\u05d5\u05dd',
    '\u0e44\u0e17\u0e22\u0e20\u0e32\u0e29\u0e32',
    '\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4.',
    '\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466\U0001f3f3\ufe0f\u200d\U0001f308 \u2764\ufe0f',
    'e\u0301le\u0300ve \xe9',
    'x = y**2 + 3.14e-10; // ok',
    '<html><body class="a">&amp;</body>',
    'fn main() {\n    println!("{}", 1_000);\n}\n',
    '     ',
    '\n',
    '\u3000\xa0 x',
    '1234567890',
    '\xbd \xb2 \u2167 \u0663',
    '\U0001d518\U0001d52b\U0001d526\U0001d520\U0001d52c\U0001d521\U0001d522',
    '\uff21\uff46\uff55\uff4c\uff4c',
    '\u200b\u200d\ufeff',
    '\ufb01 \ufb02 \xc5 \u03a9',
    '\xe1\u0302b\u0327',
    '\x00\x01\x7f',
    'CamelCaseSnake_case-kebab',
    'https://example.com/a?b=c&d=%20',
    "''''s 's 'S 'RE",
    '\U0001f600\U0001f600\U0001f600\U0001f600',
    'Za\u017c\xf3\u0142\u0107 g\u0119\u015bl\u0105 ja\u017a\u0144',
    '\u0130stanbul \u0131',
    '\u1100\u1161\u11a8',
    '\ufdfa',
    '\u0958 \u2126 \u212b',
    '\u2260 =\u0338 <\u0338',
]


def character():
    ranges = [(32, 127), (0xA0, 0x250), (0x300, 0xD7FF), (0x1F300, 0x1FAFF), (9, 11), (13, 14), (32, 33)]
    return chr(random.randrange(*random.choice(ranges)))


def main():
    ranks = {}
    for line in open(sys.argv[1]):
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    encoding = tiktoken.Encoding("qwen3_6", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    random.seed(7)
    words = " ".join(BASE).split(" ")
    gaps = ["", " ", "  ", "\n", "\t", " \n "]
    texts = list(BASE)
    texts += ["".join(random.choice(words) + random.choice(gaps) for _ in range(random.randint(1, 9))) for _ in range(150)]
    texts += ["".join(character() for _ in range(random.randint(1, 20))) for _ in range(60)]
    cases = [[text, encoding.encode(unicodedata.normalize("NFC", text))] for text in texts]
    print("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]")


main()
