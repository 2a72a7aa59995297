"""Programs that use an exported directory without sixfold: the README contains them, and the export's check runs them.

Each is a class, and a few lines that apply it to standard input. The class reads the run's settings from export.json.
It applies the settings that the other engine has no option for: a length limit for each line, and the length formula.
"""

from __future__ import annotations

from typing import Any

_IMPORTS = """\
import json
import re
import sys
from pathlib import Path

import PACKAGE
from tokenizers import Tokenizer


"""

_TEXT = """
    def text(self, ids):
        if self.target.decoder is not None:  # its tokens spell every text
            return self.target.decode(ids, skip_special_tokens=False)
        unknown = self.about["controls"]["<unk>"]["id"]
        words = " ".join("<unk>" if id_ == unknown else self.target.id_to_token(id_) for id_ in ids)
        return re.sub(" ?\\n ?", "\\n", words)
"""

_DIVISOR = '''
    def divisor(self, length):
        """A beam is ranked by log p / divisor; the length counts the end."""
        penalty = self.decoding["length_penalty"]
        if penalty == "none":
            return 1.0
        return length if penalty == "average" else ((5 + length) / 6) ** penalty
'''

_FIT_SOURCE = '''
    def fit(self, row):
        """A source, truncated to the limit, and the most tokens of its translation."""
        run, room = self.decoding, self.about["room"]
        if len(row) > room["read"] and run["too_long"] == "refuse":
            raise ValueError(f"a source has {len(row)} tokens, but at most {room['read']} are allowed")
        row = row[: room["read"]]
        return row, min(max(int(run["max_ratio"] * len(row)) + 10, run["min_length"]), room["written"])
'''

_FIT_PROMPT = '''
    def fit(self, row):
        """The last tokens of a prompt, up to the limit, and the most tokens that may follow."""
        run, known = self.decoding, self.about["limits"].get("only")
        read, written = run["max_source"], run["max_length"]
        if known is not None:  # prompt and output share the positions
            written = min(written, max(known // 2, known - 1 - len(row)), known - 1)
            read = min(read, known - 1 - written)
        if len(row) > read and run["too_long"] == "refuse":
            raise ValueError(f"a prompt has {len(row)} tokens, but at most {read} are allowed")
        return row[max(0, len(row) - read) :], written
'''

_CTRANSLATE2 = '''\
class NAME:
    """DOES as the run does. Keywords change options of CTranslate2: NAME(folder, beam_size=8)."""

    def __init__(self, folder, **changes):
        self.about = json.loads((Path(folder) / "export.json").read_text(encoding="utf-8"))
        self.decoding = self.about["decoding"]  # the run's settings
        self.options = {**self.about["options"], **changes}  # those that CTranslate2 supports
        self.begin, self.end = (self.about["controls"][name]["name"] for name in ("<s>", "</s>"))
        files = [str(Path(folder) / self.about["tokenizers"][side]) for side in ("source", "target")]
        self.source, self.target = map(Tokenizer.from_file, files)
        self.engine = ctranslate2.NAME(str(folder))
        ctranslate2.set_random_seed(self.decoding["seed"] % 2**32)

    def tokens(self, tokenizer, line):
        return tokenizer.encode(line, add_special_tokens=False).tokens
WRITE
    def best(self, row, outputs, scores):
        """The n best texts. Those of a beam all differ, and are ranked by the run's formula."""
        beam = self.options["beam_size"] > 1
        if beam:
            ranked = sorted(zip((-self.rank(row, *output) for output in zip(outputs, scores)), outputs))
            outputs = [output for _, output in ranked]
        outputs = [[token for token in output if token != self.end] for output in outputs]
        texts = [self.text([self.target.token_to_id(token) for token in output]) for output in outputs]
        return (list(dict.fromkeys(texts)) if beam else texts)[: self.decoding["n_best"]]

    def rank(self, row, output, score):
        """log p / divisor. CTranslate2's score is log p / length ** length_penalty, plus the coverage. log p must be
        computed again in two cases: if words are forbidden, because CTranslate2 spreads their probability over the
        others; and if the length limit cuts an output off, because log p of the end is missing."""
        run, scale = self.decoding, len(output) ** self.options["length_penalty"]
        ended, covers = output[-1] == self.end, self.options.get("coverage_penalty", 0) > 0
        if ended and not (covers or run["no_repeat_ngram_size"] or run["min_length"]):
            return score * scale / self.divisor(len(output))
        log_probs = self.log_probs(row, output[:-1] if ended else output)
        rank = sum(log_probs) / self.divisor(len(log_probs))
        return rank + score - sum(log_probs[: len(output)]) / scale if covers else rank
'''

_TRANSLATE_BATCH = '''
    def translate(self, lines):
        """The n best texts for each line. A call of CTranslate2 has one length limit, so lines are grouped by it."""
        texts, rows, groups = [[""] for _ in lines], {}, {}
        for number, line in enumerate(lines):
            if line.strip():
                rows[number], most = self.fit(self.tokens(self.source, line))
                groups.setdefault(most, []).append(number)
        for most, numbers in groups.items():
            sources = [rows[number] for number in numbers]
            found = self.engine.translate_batch(sources, max_decoding_length=most, **self.options)
            for number, result in zip(numbers, found):
                texts[number] = self.best(rows[number], result.hypotheses, result.scores)
        return texts

    def log_probs(self, row, output):
        """The log-probabilities of the output's tokens, and of its end."""
        return self.engine.score_batch([row], [output], max_input_length=0)[0].log_probs
'''

_GENERATE_BATCH = '''
    def generate(self, lines):
        """The n best texts after each prompt. A call of CTranslate2 has one length limit, and reads whole prompts at
        once only if they have one length, so prompts are grouped by both."""
        texts, rows, groups = [[] for _ in lines], {}, {}
        for number, line in enumerate(lines):
            rows[number], most = self.fit(self.tokens(self.target, line))
            groups.setdefault((most, len(rows[number])), []).append(number)
        for (most, _), numbers in groups.items():
            prompts = [[self.begin, *rows[number]] for number in numbers]
            found = self.engine.generate_batch(prompts, max_length=most, **self.options)
            for number, result in zip(numbers, found):
                texts[number] = self.best(rows[number], result.sequences, result.scores)
        return texts

    def log_probs(self, row, output):
        """The log-probabilities of the output's tokens, and of its end."""
        text = [self.begin, *row, *output, self.end]
        return self.engine.score_batch([text], max_input_length=0)[0].log_probs[len(row) :]
'''

_TORCH = '''\
class NAME:
    """DOES as the run does. Keywords change its settings: NAME(folder, beam_size=8)."""

    def __init__(self, folder, **changes):
        self.about = json.loads((Path(folder) / "export.json").read_text(encoding="utf-8"))
        self.decoding = {**self.about["decoding"], **changes}
        files = [str(Path(folder) / self.about["tokenizers"][side]) for side in ("source", "target")]
        self.source, self.target = map(Tokenizer.from_file, files)
LOAD
        self.step = torch.export.load(Path(folder) / "step.pt2").module()
        self.chance = torch.Generator().manual_seed(self.decoding["seed"])

    def ids(self, tokenizer, line):
        return tokenizer.encode(line, add_special_tokens=False).ids
WRITE
    def search(self, ids, mask, kept, most):
        """The n best texts of a beam, or n sampled ones."""
        if self.decoding["sample"]:
            return [self.text(self.beam(ids, mask, kept, most, 1)[0]) for _ in range(self.decoding["n_best"])]
        outputs = self.beam(ids, mask, kept, most, self.decoding["beam_size"])
        return list(dict.fromkeys(map(self.text, outputs)))[: self.decoding["n_best"]]

    @torch.no_grad()
    def beam(self, ids, mask, kept, most, width):
        """Outputs, the best first. The `width` hypotheses are rows of a batch."""
        past = [torch.zeros(shape) for shape in self.about["past"]]  # of one row that has read nothing yet
        hypotheses, found = [((), 0.0)], []  # (tokens, log p), (rank, tokens)
        while hypotheses and not self.decided(hypotheses, found, most, width):
            rows = len(hypotheses)
            masks = None if mask is None else mask.expand(rows, -1)
            log_p, *past = self.step(ids, masks, [state.expand(rows, *state.shape[1:]) for state in kept], past)
            candidates, hypotheses, rows = self.candidates(log_p, hypotheses, most, width), [], []
            for number, (total, tokens, word, row) in enumerate(candidates):
                if word == self.about["eos"] and number < width:
                    found.append((total / (self.divisor(len(tokens) + 1) if width > 1 else 1), tokens))
                elif word != self.about["eos"] and len(rows) < width:
                    hypotheses.append(((*tokens, word), total))
                    rows.append(row)
            ids, past = torch.tensor([[tokens[-1]] for tokens, _ in hypotheses]), [state[rows] for state in past]
        if not found:
            raise ValueError(f"no output of at most {most} tokens fulfils the run's settings")
        return [tokens for _, tokens in sorted(found, key=lambda each: -each[0])]

    def candidates(self, log_p, hypotheses, most, width):
        """The likeliest words after all hypotheses, or the sampled one, as (log p, tokens, word, row)."""
        for row, (tokens, _) in zip(log_p, hypotheses):
            self.rule(row, tokens, most)
        if self.decoding["sample"]:
            word = int(torch.multinomial(self.narrowed(log_p[0]), 1, generator=self.chance))
            return [(0.0, hypotheses[0][0], word, 0)]
        totals = (log_p.double() + torch.tensor([total for _, total in hypotheses])[:, None]).flatten()
        best = totals.topk(min(2 * width, len(totals)))
        places = [divmod(place, log_p.shape[1]) for place in best.indices.tolist()]
        pairs = zip(best.values.tolist(), places)
        return [(total, hypotheses[row][0], word, row) for total, (row, word) in pairs if total > -torch.inf]

    def rule(self, log_p, tokens, most):
        """Change log p of the next word according to the run's settings."""
        run, size, end = self.decoding, self.decoding["no_repeat_ngram_size"], self.about["eos"]
        log_p[self.about["never"]] = -torch.inf
        log_p[list(set(tokens))] *= run["repetition_penalty"]
        if len(tokens) < run["min_length"]:
            log_p[end] = -torch.inf
        if size:
            last = tokens[len(tokens) - size + 1 :]
            said = [tokens[i : i + size] for i in range(len(tokens) - size + 1)]
            log_p[[ngram[-1] for ngram in said if ngram[:-1] == last]] = -torch.inf
        if len(tokens) == most:
            log_p[torch.arange(len(log_p)) != end] = -torch.inf

    def decided(self, hypotheses, found, most, width):
        """Whether no hypothesis can still rank above the outputs found."""
        if len({self.text(tokens) for _, tokens in found}) < self.decoding["n_best"] or width == 1:
            return width == 1 and bool(found)
        ranks = {}
        for rank, tokens in sorted(found):
            ranks[self.text(tokens)] = rank
        to_beat = sorted(ranks.values(), reverse=True)[self.decoding["n_best"] - 1]
        lengths = len(hypotheses[0][0]) + 1, most + 1
        return all(total / self.divisor(length) <= to_beat for _, total in hypotheses for length in lengths)

    def narrowed(self, log_p):
        """The probabilities to sample from."""
        run, p = self.decoding, (log_p.double() / self.decoding["temperature"]).softmax(-1)
        if 0 < run["top_k"] < len(p):
            p = p * (p >= p.topk(run["top_k"]).values[-1])
        ordered, order = p.sort(descending=True)
        p[order[ordered.cumsum(0) - ordered >= run["top_p"] * p.sum()]] = 0
        return p * (p >= run["min_p"] * p.max())
'''

_TRANSLATE_ONE = '''
    def translate(self, lines):
        """The n best texts for each line."""
        return [self.one(line) if line.strip() else [""] for line in lines]

    @torch.no_grad()
    def one(self, line):
        row, most = self.fit(self.ids(self.source, line))
        mask, *kept = self.encoder(torch.tensor([[*row, self.about["eos"]]]))
        return self.search(torch.tensor([[self.about["bos"]]]), mask, kept, most)
'''

_GENERATE_ONE = '''
    def generate(self, lines):
        """The n best texts after each prompt."""
        fitted = [self.fit(self.ids(self.target, line)) for line in lines]
        return [self.search(torch.tensor([[self.about["bos"], *row]]), None, [], most) for row, most in fitted]
'''

_MAIN = """

if __name__ == "__main__":
    lines = [line.rstrip("\\n") for line in sys.stdin]
    for texts in NAME(sys.argv[1]).VERB(lines):
        if len(texts) == 1:
            print(texts[0])
        else:
            for number, text in enumerate(texts, 1):
                print(number, text, sep="\\t")
"""

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


def program(to: str, reads_source: bool) -> str:
    """A Python program whose argument is the directory, and whose input is lines on standard input."""
    if to == "safetensors":
        return _WEIGHTS
    name, verb = _names(reads_source)
    engine = _ctranslate2(reads_source) if to == "ctranslate2" else _torch(reads_source)
    text = _IMPORTS + engine + (_FIT_PROMPT if not reads_source else _FIT_SOURCE) + _DIVISOR + _TEXT + _MAIN
    said = {"PACKAGE": to, "NAME": name, "VERB": verb, "DOES": f"{verb.title()}s"}
    for word, meaning in said.items():
        text = text.replace(word, meaning)
    return text


def _names(reads_source: bool) -> tuple[str, str]:
    return ("Generator", "generate") if not reads_source else ("Translator", "translate")


def _ctranslate2(reads_source: bool) -> str:
    return _CTRANSLATE2.replace("WRITE\n", _GENERATE_BATCH if not reads_source else _TRANSLATE_BATCH)


def _torch(reads_source: bool) -> str:
    if not reads_source:
        return _TORCH.replace("LOAD\n", "").replace("WRITE\n", _GENERATE_ONE)
    load = '        self.encoder = torch.export.load(Path(folder) / "encoder.pt2").module()\n'
    return _TORCH.replace("LOAD\n", load).replace("WRITE\n", _TRANSLATE_ONE)


def run_program(to: str, reads_source: bool, folder: Any, lines: list[str], **changes: Any) -> list[list[str]]:
    """Run the README's program. → the n best texts for each line"""
    name, verb = _names(reads_source)
    space: dict[str, Any] = {"__name__": "readme"}
    exec(compile(program(to, reads_source), f"{folder}/README.md", "exec"), space)
    found: list[list[str]] = getattr(space[name](folder, **changes), verb)(lines)
    return found
