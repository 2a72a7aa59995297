"""What the README in an exported directory says: a program that uses it, without sixfold."""

from __future__ import annotations

_TEXT = """\
def text(tokenizer, ids):
    if tokenizer.decoder is not None:  # it spells, and knows every text
        return tokenizer.decode(ids, skip_special_tokens=False)
    unknown = about["controls"]["<unk>"]["id"]
    words = " ".join("<unk>" if id_ == unknown else tokenizer.id_to_token(id_) for id_ in ids)
    return re.sub(" ?\\n ?", "\\n", words)"""

_TRANSLATE = """\
import json
import re
import sys
from pathlib import Path

import ctranslate2
from tokenizers import Tokenizer

folder = Path(sys.argv[1])
about = json.loads((folder / "export.json").read_text(encoding="utf-8"))
source, target = (Tokenizer.from_file(str(folder / about["tokenizers"][side])) for side in ("source", "target"))
translator = ctranslate2.Translator(str(folder))


{text}

lines = [line.rstrip("\\n") for line in sys.stdin]
tokens = [source.encode(line, add_special_tokens=False).tokens for line in lines]
for found in translator.translate_batch(tokens, **about["options"]):
    print(text(target, [target.token_to_id(token) for token in found.hypotheses[0]]))
"""

_GENERATE = """\
import json
import re
import sys
from pathlib import Path

import ctranslate2
from tokenizers import Tokenizer

folder = Path(sys.argv[1])
about = json.loads((folder / "export.json").read_text(encoding="utf-8"))
tokenizer = Tokenizer.from_file(str(folder / about["tokenizers"]["target"]))
generator = ctranslate2.Generator(str(folder))
begin = about["controls"]["<s>"]["name"]


{text}

lines = [line.rstrip("\\n") for line in sys.stdin]
tokens = [tokenizer.encode(line, add_special_tokens=False).tokens for line in lines]
prompts = [[begin, *row[max(0, len(row) - about["room"]["read"]) :]] for row in tokens]
for found in generator.generate_batch(prompts, **about["options"]):
    print(text(tokenizer, found.sequences_ids[0]))
"""

_PROGRAMS = """\
import json
import re
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

folder = Path(sys.argv[1])
about = json.loads((folder / "export.json").read_text(encoding="utf-8"))
source, target = (Tokenizer.from_file(str(folder / about["tokenizers"][side])) for side in ("source", "target"))
{load}
step = torch.export.load(folder / "step.pt2").module()


{text}

for line in sys.stdin:
    line = line.rstrip("\\n")
{begin}
    past = [torch.zeros(shape) for shape in about["past"]]  # of one row, which has read nothing yet
    written = []
    while len(written) < about["room"]["written"]:
        log_probs, *past = step(ids, mask, kept, past)
        log_probs[:, about["never"]] = -torch.inf
        word = int(log_probs[0].argmax())
        if word == about["eos"]:
            break
        written.append(word)
        ids = torch.tensor([[word]])
    print(text(target, written))
"""
_READ_SOURCE = """\
    read = source.encode(line, add_special_tokens=False).ids[: about["room"]["read"]]
    mask, *kept = encoder(torch.tensor([[*read, about["eos"]]]))
    ids = torch.tensor([[about["bos"]]])"""
_READ_PROMPT = """\
    mask, kept = None, []
    read = target.encode(line, add_special_tokens=False).ids
    ids = torch.tensor([[about["bos"], *read[max(0, len(read) - about["room"]["read"]) :]]])"""

_WEIGHTS = """\
import json
import sys
from pathlib import Path

from safetensors.numpy import load_file
from tokenizers import Tokenizer

folder = Path(sys.argv[1])
about = json.loads((folder / "export.json").read_text(encoding="utf-8"))
weights = load_file(folder / "model.safetensors")
target = Tokenizer.from_str(json.dumps(about["tokenizers"]["target"]))
for name, weight in weights.items():
    print(name, weight.shape)
"""


def program(to: str, kind: str) -> str:
    """A Python program that is given the directory, and lines on its standard input."""
    if to == "safetensors":
        return _WEIGHTS
    if to == "ctranslate2":
        return (_GENERATE if kind == "decoder_only" else _TRANSLATE).format(text=_TEXT)
    if kind == "decoder_only":
        return _PROGRAMS.format(load="", begin=_READ_PROMPT, text=_TEXT).replace("\n\nstep", "\nstep")
    load = 'encoder = torch.export.load(folder / "encoder.pt2").module()'
    return _PROGRAMS.format(load=load, begin=_READ_SOURCE, text=_TEXT)


_SAID = {
    "ctranslate2": """\
A model for CTranslate2, written by sixfold: tokens in, tokens out. Its vocabularies call tokens as the tokenizer files
do, so `Tokenizer.encode(…).tokens` are what the engine reads; it adds what ends a source by itself.

`options` in export.json make it choose as sixfold does, greedily. `limits` are the most tokens it can read, with the
one that ends them: beyond, the engine throws. `max_input_length` cuts longer sources off before that; of a prompt, the
last tokens are read that `room` has place for.
""",
    "torch": """\
Programs of torch.export, written by sixfold.

    encoder.pt2   source (B, n) ids, padded with 0 at the end   →  mask (B, n), kept …
    step.pt2      ids (B, L), mask, [kept …], [past …]          →  log p (B, V) of the next token, past …

All rows of a batch have read the same number of tokens. `past` in export.json are the shapes of one row that has read
nothing yet; its last axis but one grows. A language model has no encoder: its mask is None, and nothing is kept.
""",
    "safetensors": """\
The weights of a model, written by sixfold, each tensor once. export.json has its sizes, its modifications, its
tokenizers (files of the library `tokenizers`; the source has none of its own where both share one), and in `tables`
which table reads the source, which reads the target, and which writes.
""",
}


def readme(to: str, kind: str) -> str:
    return f"{_SAID[to]}\n```python\n{program(to, kind)}```\n"
