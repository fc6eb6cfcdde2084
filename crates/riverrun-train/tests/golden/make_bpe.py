#!/usr/bin/env python3
"""Writes bpe.json: a small vocabulary in the form of GPT-2's vocab.json, and the tokens of some texts by Hugging Face's tokenizers.

    python3 make_bpe.py        (made with tokenizers 0.23)
"""
import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = """First Citizen: Before we proceed any further, hear me speak. You're all resolved rather to die than to famish?
We'll not; they've 1234 reasons, I'd say, and I'm sure: it's the citizens' fault.   Let   us kill him, and we'll have corn
at our own price. Is't a verdict? No more talking on't; let it be done: away, away! \u00e9t\u00e9 d\u00e9j\u00e0 vu na\u00efve
\u4f60\u597d \u4e16\u754c \u0441\u043b\u043e\u0432\u043e \u0441\u043b\u043e\u0432\u0430 the other further rather together
""" * 4
TEXTS = [
    "First Citizen: hear me", "", " ", "  two  spaces ", "tabs\t\tand\nlines\n\n\nend\n", "we'll they've I'm I'd it's You're is't",
    "'s'S ''ll", "x1234y 56 7.89", "d\u00e9j\u00e0 vu \u4f60\u597d, \u4e16\u754c!", "\u0441\u043b\u043e\u0432\u043e\u043c\u00b2\u00bd\u2167",
    "e\u0301 combining, \u00a0no-break\u2003em space  ", "\U0001f600\U0001f469\u200d\U0001f4bb emoji", "!!!... ---___==", "trailing   \n  x",
    "zzz \x00\x07 control \u0085 next", "<|endoftext|>", "further rather together",
]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator([CORPUS], trainers.BpeTrainer(
    vocab_size=400, special_tokens=[], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
cases = [dict(text=text, tokens=tokenizer.encode(text).ids) for text in TEXTS]
assert all(tokenizer.decode(case["tokens"]) == case["text"] for case in cases)
path = pathlib.Path(__file__).with_name("bpe.json")
path.write_text(json.dumps(dict(vocabulary=tokenizer.get_vocab(), cases=cases), sort_keys=True) + "\n")
