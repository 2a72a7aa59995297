"""The speed of training steps on this machine: floating-point operations per second, by the width of the model.

On a CPU, the CPU time of this process is measured, not the elapsed time. So another program that runs for a moment does
not change the plan. If the machine stays busy, the run makes fewer steps (pace.py).
"""

from __future__ import annotations

import time
from functools import cache
from math import gcd
from statistics import median

import torch

from sixfold.config.cost import Facts, Size
from sixfold.core.batch import Batch
from sixfold.core.place import Sizes
from sixfold.models.build import build

_ROWS, _LENGTH, _WORDS = 32, 32, 512  # rows of the batch, tokens on each side of a row, words in the vocabulary
_WARM, _TIMED = 1, 3  # steps
_FACTS = Facts(_ROWS, _ROWS * (_LENGTH - 1), _ROWS * (_LENGTH - 1), _WORDS, pairs=True)


def _seconds(device: torch.device) -> float:
    """A clock. On a CPU: the CPU time of this process, divided by its number of threads."""
    return time.process_time() / torch.get_num_threads() if device.type == "cpu" else time.perf_counter()


@cache
def measure_speed(width: int, device: torch.device) -> float:
    """Operations per second of forward and backward through an encoder layer and a decoder layer of this width.

    It takes about a second. The result is cached until the process ends, so that equal runs get equal plans.
    """
    sizes = Sizes(d_model=width, d_ff=4 * width, heads=gcd(4, width), encoder_layers=1, decoder_layers=1, vocab=_WORDS)
    model = build(sizes, seed=1).to(device).train()
    ids = torch.randint(5, _WORDS, (_ROWS, _LENGTH), generator=torch.Generator().manual_seed(1)).to(device)
    batch = Batch(source=ids, inputs=ids, targets=ids)
    seconds = []
    for _ in range(_WARM + _TIMED):
        started = _seconds(device)
        losses = model(batch)
        (losses.sum / losses.tokens).backward()
        float(losses.sum.detach())  # to wait for the device
        model.zero_grad(set_to_none=True)
        seconds.append(_seconds(device) - started)
    return Size(width, 1, 4 * width, pairs=True).operations(_FACTS) / median(seconds[_WARM:])
