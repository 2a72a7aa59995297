"""How fast the recurrent baselines are: sixfold's `bahdanau` and `lstm` against the same models in plain PyTorch.

    python benchmarks/recurrent.py --json results.json

Training steps, decoding with a beam, and the cost of a token in short and in long outputs. lstm_yardstick.py has the
models in plain PyTorch; README.md says what is measured and how.
"""

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from decoders import AtItsTime, Decoder, Task, ours
from decoding import fastest, writing
from lstm_yardstick import Seq2Seq, beam_search, copied
from torch import Tensor, nn
from training_step import machine, markdown

from sixfold.bench.race import OURS, RESAMPLES, SEED, Contender, Ratio, race, ratio
from sixfold.core.batch import Batch
from sixfold.core.ids import BOS, EOS, MASK, PAD
from sixfold.core.place import Sizes
from sixfold.core.threads import cores
from sixfold.decoding.cpu.step import make_step
from sixfold.decoding.engine import Job, search
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.session import CONTROLS_NEVER_WRITTEN
from sixfold.decoding.step import padded
from sixfold.models.build import build

THEIRS = "yardstick"
WORDS, LAYERS, DROPOUT = 8000, 2, 0.1
LENGTH = 32  # of the longest source and target in training; in decoding, of a source with BOS
BEAM, SHORT, LONG = 4, 50, 400  # tokens written
BATCHES = [2048, 4096, 8192]  # tokens of a batch in decoding; each takes the one that suits it best
WARM_UP = 2  # steps
RATE, NORM = 1e-5, 1.0  # of AdamW, and to which gradients are clipped
CLOSE = 1e-4  # how far apart the losses of the same weights may be, relative to the loss
GOALS = {"training": 0.9, "decoding": 1.0}  # what the lower end of the interval must reach


class Case(NamedTuple):
    """A baseline, and its width."""

    baseline: str
    width: int

    def sizes(self) -> Sizes:
        d = self.width
        layers = {"encoder_layers": LAYERS, "decoder_layers": LAYERS}
        return Sizes(vocab=WORDS, d_model=d, d_ff=4 * d, heads=4, dropout=DROPOUT, **layers)

    def pair(self) -> tuple[Any, Seq2Seq]:
        """sixfold's model, and the yardstick with its weights."""
        model = build(self.sizes(), [self.baseline], seed=SEED)
        return model, copied(model, attentive=self.baseline == "bahdanau")


CASES = {f"{name}-d{width}": Case(name, width) for name in ("bahdanau", "lstm") for width in (128, 256)}


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    report: dict[str, Any] = {"machine": machine(), "method": method(options), "cases": []}
    print("\n".join(f"{key}: {value}" for key, value in report["machine"].items()))
    for name in options.cases:
        print(f"\n{name}", flush=True)
        report["cases"].append({"case": name, **run(CASES[name], options)})
        gc.collect()
        if options.json:  # after each case: a long run that is stopped leaves what it has
            options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\n{race_table(report['cases'])}\n\n{length_table(report['cases'])}")


def run(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """All that is measured of one case."""
    model, yardstick = case.pair()
    shapes = {"full": False, "padded": True}
    batches = {name: random_batch(options.rows, padded) for name, padded in shapes.items()}
    for name, batch in batches.items():
        check_losses(name, model, yardstick, batch)
    training = {name: train(model, yardstick, batch, options.rounds) for name, batch in batches.items()}
    model.eval().requires_grad_(False)
    yardstick.eval().load_state_dict(copied(model, attentive=case.baseline == "bahdanau").state_dict())
    decoding = decode(model, yardstick, options)
    return {"training": training, "decoding": decoding, "lengths": by_length(model, options)}


# Training ---------------------------------------------------------------------------------------------------


def random_batch(rows: int, padded: bool) -> Batch:
    """Rows of random words. With `padded`, texts have 16 to 32 words, and the first of each side has 32."""
    generator = torch.Generator().manual_seed(SEED)
    source, targets = torch.randint(MASK + 1, WORDS, (2, rows, LENGTH), generator=generator)
    inputs = torch.cat([torch.full((rows, 1), BOS), targets[:, :-1]], dim=1)
    if padded:
        lengths = torch.randint(LENGTH // 2, LENGTH + 1, (2, rows, 1), generator=generator)
        lengths[:, 0] = LENGTH
        is_padding = torch.arange(LENGTH) >= lengths
        source = source.masked_fill(is_padding[0], PAD)
        inputs, targets = (ids.masked_fill(is_padding[1], PAD) for ids in (inputs, targets))
    return Batch(source, inputs, targets)


def losses_of(model: Any, yardstick: Seq2Seq, batch: Batch) -> dict[str, Callable[[], Tensor]]:
    """What each computes the loss by: sixfold's as its trainer does, which checks the ids."""

    def own() -> Tensor:
        found = model(batch)
        return found.sum / found.tokens + found.auxiliary

    return {OURS: own, THEIRS: lambda: yardstick(batch.source, batch.inputs, batch.targets)}


@torch.no_grad()
def check_losses(name: str, model: Any, yardstick: Seq2Seq, batch: Batch) -> None:
    """Stop unless both have the same loss, without dropout."""
    model.eval()
    yardstick.eval()
    own, theirs = (loss().item() for loss in losses_of(model, yardstick, batch).values())
    print(f"loss of {name} rows: {own:.6f} of {OURS}, {theirs:.6f} of the {THEIRS}")
    if abs(own - theirs) > CLOSE * own:
        raise SystemExit("the losses of the same weights differ, so the models are not the same")


def training_step(name: str, model: nn.Module, loss: Callable[[], Tensor]) -> Contender:
    """Forward, backward, clipping, AdamW, and dropping the gradients."""
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=RATE, fused=True)

    def step() -> float:
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.item()

    return Contender(name, step, sum(p.numel() for p in parameters))


def train(model: Any, yardstick: Seq2Seq, batch: Batch, rounds: int) -> dict[str, Any]:
    """Training steps in turn."""
    losses = losses_of(model, yardstick, batch)
    models = {OURS: model, THEIRS: yardstick}
    racers = [training_step(name, models[name], loss) for name, loss in losses.items()]
    noted = {racer.name: [racer.step() for _ in range(WARM_UP)] for racer in racers}
    times = race(racers, rounds, 1, noted)
    return found(times, {racer.name: int((batch.targets != PAD).sum()) for racer in racers})


# Decoding ---------------------------------------------------------------------------------------------------


def random_task(sentences: int, length: int) -> Task:
    """Sources of random words, for each of which so many tokens are to be written."""
    generator = torch.Generator().manual_seed(SEED)
    words = torch.randint(MASK + 1, WORDS, (sentences, LENGTH - 2), generator=generator)
    return Task([[*each, EOS] for each in words.tolist()], [length] * sentences)


def theirs(yardstick: Seq2Seq) -> Decoder:
    def decode(task: Task, beam: int, batch_tokens: int) -> int:
        return sum(map(len, texts(task, beam, batch_tokens)))

    def texts(task: Task, beam: int, batch_tokens: int) -> list[list[int]]:
        parts = task.batches(batch_tokens // beam)
        return [text for part in parts for text in written_by(yardstick, part, beam)]

    return decode


def written_by(yardstick: Seq2Seq, task: Task, beam: int) -> list[list[int]]:
    return beam_search(yardstick, padded(task.sources, torch.device("cpu")), torch.tensor(task.lengths), beam)


def check_texts(model: Any, yardstick: Seq2Seq, task: Task) -> float:
    """The share of texts that both write alike; where two hypotheses are nearly equal, rounding decides."""
    jobs = (Job(source=source, limit=length + 1) for source, length in zip(*task, strict=True))
    written = search(AtItsTime(make_step(model), task), jobs, Beam(BEAM), never=CONTROLS_NEVER_WRITTEN)
    own = {tuple(job.source): hypotheses[0].tokens for job, hypotheses in written}
    others = written_by(yardstick, task, BEAM)
    same = [[*own[tuple(source)], EOS] == other for source, other in zip(task.sources, others, strict=True)]
    return sum(same) / len(same)


def decode(model: Any, yardstick: Seq2Seq, options: argparse.Namespace) -> dict[str, Any]:
    """The same sources and the same number of tokens, by both, in turn."""
    task = random_task(options.sentences, SHORT)
    share = check_texts(model, yardstick, task.thinned(16))
    print(f"texts that both write alike: {share:.0%}")
    decoders = {OURS: ours(make_step(model)), THEIRS: theirs(yardstick)}
    best = {name: fastest(decoder, task, BEAM, BATCHES) for name, decoder in decoders.items()}
    racers = [Contender(name, writing([task], each, BEAM, best[name])) for name, each in decoders.items()]
    times = race(racers, options.rounds, 1, {racer.name: [] for racer in racers})
    return {**found(times, dict.fromkeys(decoders, task.tokens)), "batch_tokens": best, "same_texts": share}


def by_length(model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds per token of sixfold's search, for outputs of two lengths, in turn: the same sentences in one batch."""
    tasks = {str(length): random_task(options.few, length) for length in (SHORT, LONG)}
    capacity = BEAM * options.few * 2 * (LENGTH + LONG)  # so that all run from the beginning
    racers = [Contender(n, writing([task], ours(make_step(model)), BEAM, capacity)) for n, task in tasks.items()]
    racers[0].step()  # to warm up
    times = race(racers, options.rounds, 1, {racer.name: [] for racer in racers})
    per_token = {name: [t / tasks[name].tokens for t in times[name]] for name in times}
    milliseconds = {name: 1000 * statistics.median(each) for name, each in per_token.items()}
    against = ratio(per_token[str(LONG)], per_token[str(SHORT)])._asdict()
    print(f"milliseconds per token by output length: {milliseconds}", flush=True)
    return {"milliseconds_per_token": milliseconds, "ratio": against, "seconds_by_round": times}


# How it is told -----------------------------------------------------------------------------------------


def found(times: dict[str, list[float]], tokens: dict[str, int]) -> dict[str, Any]:
    """What is reported of two racers that do the same."""
    seconds = {name: statistics.median(each) for name, each in times.items()}
    print(", ".join(f"{name} {1000 * each:.0f} ms" for name, each in seconds.items()), flush=True)
    return {
        "milliseconds": {name: 1000 * each for name, each in seconds.items()},
        "tokens_per_second": {name: tokens[name] / each for name, each in seconds.items()},
        "ratio": ratio(times[THEIRS], times[OURS])._asdict(),
        "seconds_by_round": times,
    }


def race_table(cases: list[dict[str, Any]]) -> str:
    rows = []
    for case in cases:
        parts = [("training", shape, each) for shape, each in case["training"].items()]
        for part, shape, each in [*parts, ("decoding", f"beam {BEAM}", case["decoding"])]:
            against, goal = Ratio(**each["ratio"]), GOALS[part]
            reached = "yes" if against.low is not None and against.low >= goal else "no"
            speeds = [f"{each['tokens_per_second'][name]:,.0f}" for name in (OURS, THEIRS)]
            rows.append([case["case"], f"{part}, {shape}", *speeds, str(against), f"{goal:g}", reached])
    head = ["case", "what", "sixfold, tokens/s", f"{THEIRS}, tokens/s", "its time / sixfold's", "goal", "reached"]
    return markdown(head, rows)


def length_table(cases: list[dict[str, Any]]) -> str:
    rows = []
    for case in cases:
        each = case["lengths"]
        milliseconds = [f"{each['milliseconds_per_token'][str(length)]:.3f}" for length in (SHORT, LONG)]
        rows.append([case["case"], *milliseconds, str(Ratio(**each["ratio"]))])
    return markdown(["case", *(f"ms per token, {length} tokens" for length in (SHORT, LONG)), "long / short"], rows)


def method(options: argparse.Namespace) -> dict[str, Any]:
    names = ("rounds", "rows", "sentences", "few", "threads")
    return {**{n: getattr(options, n) for n in names}, "resamples": RESAMPLES, "seed": SEED, "goals": GOALS}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=64, help="of a training step; default: %(default)s")
    parser.add_argument("--sentences", type=int, default=128, help="in decoding; default: %(default)s")
    parser.add_argument("--few", type=int, default=16, help="sentences whose output is long; default: %(default)s")
    parser.add_argument("--threads", type=int, default=cores(), help="default: all cores, here %(default)s")
    parser.add_argument("--json", type=Path, help="a JSON file for everything")
    options = parser.parse_args()
    options.cases = options.cases.split(",")
    for name in options.cases:
        if name not in CASES:
            parser.error(f"there is no {name!r}; there are {', '.join(CASES)}")
    if min(options.rounds, options.rows, options.sentences, options.few, options.threads) < 1:
        parser.error("all numbers must be at least 1")
    return options


if __name__ == "__main__":
    main()
