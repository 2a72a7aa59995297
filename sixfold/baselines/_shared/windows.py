"""Windows of tokens side by side. A linear map of them is a convolution.

Letters: B rows, L tokens, C channels, w tokens in a window, r dilation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sixfold.core.call import Call
from sixfold.core.place import Place
from sixfold.modifications._shared.convolution import lay_out


def windows(x: Tensor, call: Call, place: Place, width: int, dilation: int = 1) -> Tensor:
    """For each token t the tokens of its window, r apart, in one vector: (B, L, C) → (B, L, w·C).

        causal     [x_{t−(w−1)r}; …; x_{t−r}; x_t]
        otherwise  [x_{t−cr}; …; x_t; …; x_{t+cr}],   w = 2c + 1

    Beyond the text there are zeros. While decoding, the last (w−1)·r tokens are carried under the name of `place`.
    """
    length, strip = x.shape[1], lay_out(x, call, place, (width - 1) * dilation + 1)
    taps = [strip.reached[:, first : first + length] for first in range(0, width * dilation, dilation)]
    return strip.new.back(torch.cat(taps, -1))
