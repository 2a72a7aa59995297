"""How fast a trained run writes: against the same model without a cache, and against Hugging Face's `generate`.

    python benchmarks/decoding.py RUN --out results.json --markdown results.md

Everybody writes the same number of tokens for each sentence. README.md says what is measured and how.
"""

import argparse
import contextlib
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from decoders import HUGGING_FACE, Decoder, Task, hugging_face, ours
from training_step import machine, markdown, numbers

from sixfold.bench.race import OURS, RESAMPLES, SEED, Contender, Ratio, race, ratio
from sixfold.config.schema import Config, change_decoding
from sixfold.core.ids import EOS
from sixfold.core.threads import cores
from sixfold.decoding.cpu.step import make_step
from sixfold.decoding.ordered import WINDOW
from sixfold.decoding.session import RunOrigin
from sixfold.decoding.translator import Translator
from sixfold.decoding.uncached import UncachedStep
from sixfold.decoding.workers import WorkerPool
from sixfold.models.encoder_decoder import EncoderDecoder
from sixfold.models.model import Model
from sixfold.runs.model_files import load
from sixfold.runs.run import Run
from sixfold.text.preparation import pair_references
from sixfold.text.tokenizer import Tokenizers

UNCACHED, END_TO_END, WORKERS = "without a cache", "end to end", "end to end, by worker processes"
GOALS = {"batch": 1.5, "one at a time": 1.0}  # what the lower end of the interval against Hugging Face must reach


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    run = Run(options.run)
    config, model = run.read_config(), load(run.directory).eval().requires_grad_(False)
    texts, origin = held_out(config, options)
    tokenizers = Tokenizers.load(run.directory)
    task = prepared(texts, tokenizers, model, config)
    if options.lengths == "even":
        task = evened(task)
    peer = hugging_face(model, task)
    report = {"machine": machine(), "method": method(options), "run": described(model, task, origin), "cases": []}
    print("\n".join(f"{key}: {value}" for part in ("machine", "run") for key, value in report[part].items()))
    translator = Translator(model, tokenizers, config.decoding)
    for way in options.ways:
        for beam in options.beams:
            print(f"\n{search_name(beam)}, {way}", flush=True)
            lines = texts if way == "batch" else texts[:: -(-len(texts) // options.latency_sentences)]
            decoders = {OURS: ours(make_step(model)), **peer, UNCACHED: ours(UncachedStep(model))}
            racers = contenders(decoders, task, beam, way, options)
            racers.append((end_to_end(translator, lines, beam, way), None))
            with contextlib.ExitStack() as held:
                if way == "batch" and options.threads > 1:
                    racers.append((by_workers(run, config, lines, beam, options.threads, held), None))
                report["cases"].append(measured(racers, beam, way, options.rounds))
            if options.out:  # after each case: a long run that is stopped leaves what it has
                options.out.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    table = f"{figures(report['cases'])}\n\n{verdicts(report['cases'])}\n"
    print(f"\n{table}")
    if options.markdown:
        options.markdown.write_text(table, encoding="utf-8")


# What is written ----------------------------------------------------------------------------------------


def held_out(config: Config, options: argparse.Namespace) -> tuple[list[str], str]:
    """Sources that were not trained on, and where they are from."""
    if options.file:
        texts, origin = [line for line in options.file.read_text("utf-8").split("\n") if line.strip()], "the given file"
    else:
        texts, origin = [each.source for each in pair_references(config.data, "test")], "the test text"
        if len(texts) < options.sentences:
            texts += [each.source for each in pair_references(config.data, "valid")]
            origin = "the test text, and for want of more the validation text"
    if len(texts) > options.sentences:
        texts = [texts[i * len(texts) // options.sentences] for i in range(options.sentences)]
    if not texts:
        raise SystemExit("there are no sentences; give a file by --file")
    return texts, f"{len(texts):,} sentences of {origin}"


def prepared(texts: list[str], tokenizers: Tokenizers, model: Model, config: Config) -> Task:
    """The task as this model does it by itself, greedily: its own lengths are what all will be held to."""
    written = Translator(model, tokenizers, config.decoding).translate(texts, beam_size=1)
    most = min(config.decoding.max_source, model.limits.get("encoder", config.decoding.max_source)) - 1
    sources = [(*ids[:most], EOS) for ids in tokenizers.source.encode_batch(texts)]
    pairs = dict(zip(sources, (max(len(each.tokens), 1) for each in written), strict=True))  # equal ones once
    in_order = sorted(pairs.items(), key=lambda pair: (-len(pair[0]), -pair[1]))
    return Task([list(source) for source, _ in in_order], [length for _, length in in_order])


def evened(task: Task, neighbours: int = 64) -> Task:
    """Neighbours write equally many tokens, so that no row of a batch waits for another."""
    lengths = []
    for start in range(0, len(task.lengths), neighbours):
        block = task.lengths[start : start + neighbours]
        lengths += [round(sum(block) / len(block))] * len(block)
    return Task(task.sources, lengths)


# How it is measured -------------------------------------------------------------------------------------


def contenders(
    decoders: dict[str, Decoder], task: Task, beam: int, way: str, options: argparse.Namespace
) -> list[tuple[Contender, int | None]]:
    """Each decoder on its task, with the batch size that suits it best."""
    racers: list[tuple[Contender, int | None]] = []
    for name, decode in decoders.items():
        if way == "batch":
            mine = task.thinned(options.uncached_sentences) if name == UNCACHED else task
            tokens = fastest(decode, mine, beam, options.batch_tokens)
            step = writing([mine], decode, beam, tokens)
        else:
            mine, tokens = task.thinned(options.latency_sentences), None
            alone = [Task([source], [length]) for source, length in zip(*mine, strict=True)]
            step = writing(alone, decode, beam, 1)
            step()  # to warm up
        racers.append((Contender(name, step, len(mine.sources)), tokens))
    return racers


def writing(tasks: list[Task], decode: Decoder, beam: int, batch_tokens: int) -> Callable[[], float]:
    """Do these tasks, one after the other. → the tokens written, which must be as many as were asked for"""
    expected = sum(task.tokens for task in tasks)

    def step() -> float:
        written = sum(decode(task, beam, batch_tokens) for task in tasks)
        assert written == expected, f"{written} tokens written, {expected} asked for"
        return written

    return step


def fastest(decode: Decoder, task: Task, beam: int, choices: list[int]) -> int:
    """The number of tokens in a batch with which it is done first. It also warms up."""

    def seconds(tokens: int) -> float:
        begin = time.perf_counter()
        decode(task, beam, tokens)
        return time.perf_counter() - begin

    decode(task.thinned(max(1, len(task.sources) // 10)), beam, choices[0])
    return min(choices, key=seconds) if len(choices) > 1 else choices[0]


def end_to_end(translator: Translator, lines: list[str], beam: int, way: str) -> Contender:
    """From text to text by the Translator, which ends sentences where the model does."""

    def step() -> float:
        calls = [lines] if way == "batch" else [[line] for line in lines]
        found = [each for call in calls for each in translator.translate(call, beam_size=beam)]
        return sum(len(each.tokens) + 1 for each in found)

    return Contender(END_TO_END, step, len(lines))


def by_workers(
    run: Run, config: Config, lines: list[str], beam: int, number: int, held: contextlib.ExitStack
) -> Contender:
    """The same by a process for each core, which run from one call to the next."""
    origin = RunOrigin((str(run.directory),), "cpu", ())
    decoding = change_decoding(config.decoding, {"beam_size": beam})
    pool = WorkerPool(origin, decoding, number)
    held.callback(pool.close)

    def step() -> float:
        window = WINDOW * number
        return sum(len(each.tokens) + 1 for each in pool.stream(lines, window=window, first=window))

    step()  # starts the processes, and warms up
    return Contender(WORKERS, step, len(lines))


def measured(racers: list[tuple[Contender, int | None]], beam: int, way: str, rounds: int) -> dict[str, Any]:
    """One case: let them race, and say what came out. Times are compared per token."""
    written: dict[str, list[float]] = {racer.name: [] for racer, _ in racers}
    times = race([racer for racer, _ in racers], rounds, 1, written)
    per_token = {name: [t / n for t, n in zip(times[name], written[name], strict=True)] for name in times}
    results = {}
    for racer, batch_tokens in racers:
        name, seconds = racer.name, median(times[racer.name])
        results[name] = {
            "sentences": racer.parameters,
            "tokens": written[name][0],
            "batch_tokens": batch_tokens,
            "sentences_per_second": racer.parameters / seconds,
            "tokens_per_second": written[name][0] / seconds,
            "milliseconds_per_sentence": 1000 * seconds / racer.parameters,
            "ratio": None if name in (END_TO_END, WORKERS) else ratio(per_token[name], per_token[OURS])._asdict(),
            "seconds_by_round": times[name],
        }
        if name == HUGGING_FACE and WORKERS in per_token:
            results[name]["ratio_to_workers"] = ratio(per_token[name], per_token[WORKERS])._asdict()
        print(f"{name}: {results[name]['sentences_per_second']:.1f} sentences/s", flush=True)
    gc.collect()
    return {"search": search_name(beam), "way": way, "contenders": results}


# How it is told -----------------------------------------------------------------------------------------


def search_name(beam: int) -> str:
    return "greedy" if beam == 1 else f"beam {beam}"


def figures(cases: Sequence[dict[str, Any]]) -> str:
    head = ["search", "way", "who", "sentences", "batch tokens", "sentences/s", "tokens/s", "ms per sentence"]
    rows = []
    for case in cases:
        for name, r in case["contenders"].items():
            told = "1" if name == OURS else "" if r["ratio"] is None else str(Ratio(**r["ratio"]))
            rows.append(
                [
                    case["search"],
                    case["way"],
                    name,
                    f"{r['sentences']:,}",
                    f"{r['batch_tokens'] or '':}",
                    f"{r['sentences_per_second']:,.1f}",
                    f"{r['tokens_per_second']:,.0f}",
                    f"{r['milliseconds_per_sentence']:.2f}",
                    told,
                ]
            )
    return markdown([*head, "their time per token / sixfold's"], rows)


def verdicts(cases: Sequence[dict[str, Any]]) -> str:
    head = ["search", "way", "sixfold", f"{HUGGING_FACE}'s time / sixfold's", "goal", "reached"]
    rows = []
    for case in cases:
        found = case["contenders"].get(HUGGING_FACE)
        for key, how in {"ratio": "in one process", "ratio_to_workers": WORKERS}.items():
            if found is not None and key in found:
                against, goal = Ratio(**found[key]), GOALS[case["way"]]
                reached = "yes" if against.low is not None and against.low >= goal else "no"
                rows.append([case["search"], case["way"], how, str(against), f"{goal:g}", reached])
    return markdown(head, rows)


def described(model: EncoderDecoder, task: Task, origin: str) -> dict[str, Any]:
    sizes = model.sizes
    return {
        "text": origin,
        "source tokens": sum(map(len, task.sources)),
        "target tokens": task.tokens,
        "d_model": sizes.d_model,
        "d_ff": sizes.d_ff,
        "heads": sizes.heads,
        "layers": f"{sizes.encoder_layers} + {sizes.decoder_layers}",
        "words": f"{sizes.vocabulary('encoder'):,}, {sizes.vocabulary('decoder'):,}",
        "modifications": ", ".join(map(str, model.assembly.modifications)) or "none",
    }


def method(options: argparse.Namespace) -> dict[str, Any]:
    names = ("lengths", "rounds", "batch_tokens", "latency_sentences", "uncached_sentences")
    return {**{name: getattr(options, name) for name in names}, "resamples": RESAMPLES, "seed": SEED, "goals": GOALS}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="a run directory of an encoder_decoder")
    parser.add_argument("--file", type=Path, help="sentences, one a line; default: the run's test text")
    parser.add_argument("--sentences", type=int, default=1000, help="how many; default: %(default)s")
    parser.add_argument(
        "--lengths", choices=("written", "even"), default="written", help="of the outputs; default: %(default)s"
    )
    parser.add_argument("--beams", type=numbers, default="1,4", help="beam sizes; default: %(default)s")
    parser.add_argument("--ways", default=",".join(GOALS), help="default: %(default)s")
    parser.add_argument("--batch-tokens", type=numbers, default="1024,2048,4096", help="to try; default: %(default)s")
    parser.add_argument("--latency-sentences", type=int, default=100, help="one at a time; default: %(default)s")
    parser.add_argument("--uncached-sentences", type=int, default=200, help="without a cache; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=cores(), help="default: all cores, here %(default)s")
    parser.add_argument("--out", type=Path, help="a JSON file for everything")
    parser.add_argument("--markdown", type=Path, help="a Markdown file for the tables")
    options = parser.parse_args()
    options.beams, options.batch_tokens = map(int, options.beams), [int(n) for n in options.batch_tokens]
    options.beams, options.ways = list(options.beams), options.ways.split(",")
    if unknown := set(options.ways) - GOALS.keys():
        parser.error(f"there is no way {unknown.pop()!r}; there are {', '.join(GOALS)}")
    least = [options.rounds, options.threads, options.sentences, options.latency_sentences, options.uncached_sentences]
    if min(*least, *options.beams, *options.batch_tokens) < 1:
        parser.error("all numbers must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
