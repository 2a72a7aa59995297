"""Where the time of a training step goes: by kinds of operations, over the first batches of a run or recipe.

    python benchmarks/step_profile.py RUN|RECIPE [--model.d_model 512 …] --steps 4

The step is that of `sixfold train`. The profiler itself takes time for each operation, so the share of small ones is a
little too large.
"""

import argparse
from collections.abc import Iterable, Iterator

import torch
from torch.profiler import ProfilerActivity, profile
from training_step import markdown

from sixfold.bench.subject import opened
from sixfold.bench.training import first_steps
from sixfold.bench.training_contenders import ours
from sixfold.core.threads import cores

# An operation belongs to the first kind of which it has a part of the name.
KINDS = {
    "matrix products": ("mm", "linear", "matmul"),
    "attention": ("scaled_dot_product", "_softmax", "masked_fill"),
    "the loss": ("log_softmax", "logsumexp", "exp", "gather", "scatter", "nll", "amax"),
    "norms": ("layer_norm", "norm"),
    "dropout": ("dropout", "bernoulli", "random", "uniform"),
    "embeddings": ("embedding", "index_select", "index_add", "index_put"),
    "optimiser": ("adam", "_foreach", "addcdiv", "addcmul", "lerp", "sqrt"),
    "activations": ("threshold", "relu", "clamp", "gelu"),
    "sums and products of elements": ("add", "mul", "div", "sub", "sum", "neg", "where"),
    "copies and fills": ("copy", "fill", "zero", "cat", "clone", "contiguous", "empty"),
}
OTHER = "all else, and Python between operations"


def main() -> None:
    options, settings = parse()
    torch.set_num_threads(options.threads)
    with opened(options.what, settings) as subject:
        steps = first_steps(subject, options.steps)
        learner = ours(subject, steps).contender
        learner.step()  # to warm up
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
            learner.step()
        events = [(event.key, event.self_cpu_time_total / 1e3) for event in found.key_averages()]
    print(table(events, len(steps), sum(event.self_cpu_time_total for event in found.key_averages()) / 1e3))


def kind(operation: str) -> str:
    name = operation.removeprefix("aten::").lower()
    if "::" not in operation and "backward" not in name:  # what is not an operation at all, as the optimiser's hook
        return "optimiser" if "optimizer" in name else OTHER
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), OTHER)


def table(events: Iterable[tuple[str, float]], steps: int, total: float) -> str:
    """Milliseconds of a step by kind, and the largest operations of each."""
    by_kind: dict[str, dict[str, float]] = {}
    for operation, milliseconds in events:
        by_kind.setdefault(kind(operation), {})[operation] = milliseconds
    rows = []
    for name, operations in sorted(by_kind.items(), key=lambda item: -sum(item[1].values())):
        spent = sum(operations.values())
        rows.append([name, f"{spent / steps:.1f}", f"{spent / total:.1%}", ", ".join(largest(operations))])
    return markdown(["kind", "ms per step", "share", "most of it"], rows)


def largest(operations: dict[str, float], number: int = 3) -> Iterator[str]:
    for operation in sorted(operations, key=lambda name: -operations[name])[:number]:
        yield operation.removeprefix("aten::")


def parse() -> tuple[argparse.Namespace, dict[str, str]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", help="a run directory, or a recipe")
    parser.add_argument("--steps", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=cores(), help="default: all cores, here %(default)s")
    options, rest = parser.parse_known_args()
    if options.steps < 1 or len(rest) % 2 or not all("." in key and key.startswith("--") for key in rest[::2]):
        parser.error(f"expected settings as --model.d_model 512, got {' '.join(rest)}")
    return options, {key.removeprefix("--"): value for key, value in zip(rest[::2], rest[1::2], strict=True)}


if __name__ == "__main__":
    main()
