"""Score a run on its test text, by greedy decoding: what training never saw, and is looked at once.

python benchmarks/score_run.py RUN [--metric pronunciation,exact_match]
"""

from __future__ import annotations

import argparse

from sixfold import load
from sixfold.decoding.translator import Translator
from sixfold.run import Run
from sixfold.scoring.metrics import METRICS
from sixfold.text.corpus import references
from sixfold.text.tokenizer import Tokenizers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Run)
    parser.add_argument("--metric", help="names; default: the one the run was validated by")
    options = parser.parse_args()
    config = options.run.read_config()
    names = (options.metric or config.training.metric).split(",")
    test = references(config.data, "test", config.model.kind)
    translator = Translator(
        load(options.run.directory), Tokenizers.load(options.run.directory), **config.decoding.model_dump()
    )
    hypotheses = [translation.text for translation in translator.translate([each.source for each in test])]
    truth = [each.targets for each in test]
    print(f"{len(test):,} texts")
    for name in names:
        for score, value in METRICS[name].score(hypotheses, truth).items():
            print(f"{score} {value:.2f}  {METRICS[name].signature(truth)}".rstrip())


if __name__ == "__main__":
    main()
