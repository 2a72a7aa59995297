"""What each modification costs: its training step against that of the plain Transformer, at d_model 256.

    python benchmarks/modifications.py --out modifications.json --markdown modifications.md

Pairs of steps, one of each, in turn; the ratio is the median over pairs, with a 95 % interval by bootstrap.
"""

import argparse
import gc
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from contenders import BOS, FIRST_WORD, WORDS, Data, contender
from training_step import WARM_UP, machine, markdown

from sixfold import Batch, Sizes, all_modifications, build
from sixfold.bench.race import SEED, Contender, Ratio, ratio

SIZES = Sizes(vocab=WORDS, d_model=256, d_ff=1024, heads=4, encoder_layers=3, decoder_layers=3, dropout=0.0)
# Settings for three layers of width 256; the defaults are the study's, for twelve of 768.
OPTIONS = {
    "mixture_of_experts": "experts=8,every=3",
    "switch": "experts=8,every=3",
    "product_keys": "keys=128",
}
EVERYWHERE = ("mixture_of_experts:experts=8,every=1", "switch:experts=8,every=1")  # not in one layer of three only
NARROWER = {"glu", "geglu", "reglu", "swiglu", "liglu"}  # three matrices: two thirds of the width
# Long texts, where attention's square shows.
LONG = ("lightweight_convolution", "dynamic_convolution", "synthesizer_random")


def main() -> None:
    options = parse()
    report: dict[str, Any] = {"machine": machine(), "rounds": options.rounds, "rows": []}
    names = [n for n in all_modifications() if not options.only or n in options.only]
    wishes = [f"{n}:{OPTIONS[n]}" if n in OPTIONS else n for n in names]
    wishes += [wish for wish in EVERYWHERE if wish.partition(":")[0] in names]
    for wish, rows, length in [(w, 64, 32) for w in wishes] + [(n, 4, 512) for n in names if n in LONG]:
        report["rows"].append(measure(wish, rows, length, options.rounds))
        print(report["rows"][-1], flush=True)
        if options.out:
            options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(text := table(report["rows"]))
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")


def measure(wish: str, rows: int, length: int, rounds: int) -> dict[str, Any]:
    """One modification against the plain model, over batches of rows × length source and target tokens."""
    sizes = replace(SIZES, d_ff=SIZES.d_ff * 2 // 3) if wish in NARROWER else SIZES
    data = random_data(rows, length)
    plain, modified = step_of(SIZES, (), data), step_of(sizes, (wish,), data)
    for c in (plain, modified):
        for _ in range(WARM_UP):
            c.step()
    times: dict[str, list[float]] = {"plain": [], "modified": []}
    for r in range(rounds):
        pair = [("plain", plain), ("modified", modified)]
        for key, c in pair if r % 2 == 0 else reversed(pair):
            begin = time.perf_counter()
            c.step()
            times[key].append(time.perf_counter() - begin)
    gc.collect()
    return {
        "name": wish,
        "rows": rows,
        "length": length,
        "parameters": modified.parameters,
        "ratio": ratio(times["modified"], times["plain"])._asdict(),
        "seconds": times,
    }


def step_of(sizes: Sizes, modifications: tuple[str, ...], data: Data) -> Contender:
    model, batch = build(sizes, modifications, seed=SEED), Batch(*data)

    def loss() -> torch.Tensor:
        losses = model(batch)
        return losses.sum / losses.tokens + losses.auxiliary

    return contender("+".join(modifications) or "plain", model, loss)


def random_data(rows: int, length: int) -> Data:
    generator = torch.Generator().manual_seed(SEED)
    source, targets = torch.randint(FIRST_WORD, WORDS, (2, rows, length), generator=generator)
    return Data(source, torch.cat([torch.full((rows, 1), BOS), targets[:, :-1]], dim=1), targets)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        [r["name"], f"{r['rows']} × {r['length']}", f"{r['parameters']:,}", str(Ratio(**r["ratio"]))] for r in rows
    ]
    return markdown(["modification", "batch", "parameters", "its time / vanilla's"], lines) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of steps; default: %(default)s")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="names; default: all")
    parser.add_argument("--out", type=Path, help="a JSON file for everything")
    parser.add_argument("--markdown", type=Path, help="a Markdown file for the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
