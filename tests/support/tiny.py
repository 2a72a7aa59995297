"""A run so small that it takes part of a second: words and their letters backwards."""

import json
import random
import shutil

from sixfold.config.files import read_config
from sixfold.disk.hashes import with_hash

LETTERS = "abcdefgh"


def corpus(folder, pairs=60, seed=0):
    """train.w/train.r and valid.w/valid.r; → the prefix of each"""
    chance = random.Random(seed)
    words = sorted({"".join(chance.choices(LETTERS, k=chance.randint(2, 7))) for _ in range(2 * pairs)})
    chance.shuffle(words)
    for part, chosen in (("train", words[:pairs]), ("valid", words[pairs : pairs + 10])):
        (folder / f"{part}.w").write_text("".join(f"{w}\n" for w in chosen))
        (folder / f"{part}.r").write_text("".join(f"{' '.join(w[::-1])}\n" for w in chosen))
    return folder


def config(folder, **settings):
    """The configuration of a tiny run on `corpus(folder)`, which leaves nothing to the plan; settings such as
    training__steps=12.
    """
    plain = {
        "data.train": str(folder / "train"),
        "data.valid": str(folder / "valid"),
        "data.source": "w",
        "data.target": "r",
        "data.tokenizer": "{source: characters, target: symbols}",
        "model.d_model": "16",
        "model.d_ff": "32",
        "model.heads": "2",
        "model.layers": "1",
        "model.dropout": "0.1",
        "model.modifications": "[]",
        "training.steps": "12",
        "training.batch_tokens": "120",
        "training.learning_rate": "1e-3",
        "training.schedule": "inverse_sqrt",
        "training.warmup": "4",
        "training.label_smoothing": "0.1",
        "training.validate_every": "6",
        "training.checkpoint_every": "4",
        "training.log_every": "3",
        "training.metric": "exact_match",
        "training.device": "cpu",
        "decoding.max_length": "4",
        "decoding.beam_size": "1",
    }
    changed = {
        key.replace("__", "."): value if isinstance(value, str) else json.dumps(value)
        for key, value in settings.items()
    }
    return read_config(None, {**plain, **changed})


def short(folder, **settings):
    """The same for a run of four steps."""
    four = {"training__steps": 4, "training__checkpoint_every": 2, "training__validate_every": 2}
    return config(folder, **{**four, **settings})


def copied(folder, to):
    """A corpus, and the runs on it that are in the same folder, as if they had always been elsewhere; → where"""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    for path in [*to.rglob("*.json"), *to.rglob("*.yaml")]:
        text = path.read_text().replace(str(folder), str(to))
        if path.name in ("state.json", "index.json"):  # which have a hash of themselves
            text = json.dumps(with_hash(json.loads(text)), indent=2) + "\n"
        path.write_text(text)
    return to


def log_without_times(run):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in run.records()]


def bytes_of(run):
    """Everything that must be the same after a kill: the model, and all checkpoints but the size of the log."""
    files = {p.relative_to(run.directory).as_posix(): p for p in run.directory.glob("training/*/*.safetensors")}
    files["model.safetensors"] = run.directory / "model.safetensors"
    return {name: path.read_bytes() for name, path in sorted(files.items())}
