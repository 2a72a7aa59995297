"""Recurrent networks in place of the stacks: the simple one, the GRU and the LSTM."""

from __future__ import annotations

from functools import partial

from sixfold.baselines._shared.cells import GRUCell, LSTMCell, RNNCell
from sixfold.baselines._shared.recurrent_stacks import added_parameters, with_recurrent_stacks
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


@modification("1409.3215", adds=partial(added_parameters, cell=LSTMCell))
def lstm(spec: Spec, *, bidirectional: bool = True) -> Spec:
    """A stacked LSTM in place of every stack; the decoder knows of the source only the encoder's last state.

        f_t = σ(W_f h_{t−1} + U_f x_t + b_f)        c̃_t = tanh(W_c h_{t−1} + U_c x_t + b_c)
        i_t = σ(W_i h_{t−1} + U_i x_t + b_i)        c_t = f_t ⊙ c_{t−1} + i_t ⊙ c̃_t
        o_t = σ(W_o h_{t−1} + U_o x_t + b_o)        h_t = o_t ⊙ tanh(c_t)

    x_t is the embedding, or h_t of the layer below, with dropout between layers and after the last. At the end of the
    source, h and c of each encoder layer are those with which a decoder layer starts (with fewer or more layers there,
    counted from the top): a bottleneck of fixed size for a text of any length.

         ●  →  ●  →  ●    h, c     ●  →  ●  →  ●
         ●  →  ●  →  ●     ⟶       ●  →  ●  →  ●
        the   cat   sat           BOS    le   chat

    An encoder reads in both directions, with d_model/2 units each, and a language model in one. With
    `bidirectional=false` an encoder reads from left to right only. The order of words is the order in which they are
    read, so there are no positions; heads and d_ff are not used. Biases of forget gates start at 1, W orthogonal.
    A token costs the same however long the text is, but tokens are read one after the other.
    Parameters: 4 H (I + H + 1) for each layer and direction, where I inputs lead to H units.
    """
    return with_recurrent_stacks(spec, LSTMCell, bidirectional)


@modification("1406.1078", adds=partial(added_parameters, cell=GRUCell))
def gru(spec: Spec, *, bidirectional: bool = True) -> Spec:
    """A stacked GRU in place of every stack: two gates, and no cell beside the state that the layers hand on.

        r_t = σ(W_r h_{t−1} + U_r x_t + b_r)        h̃_t = tanh(r_t ⊙ (W_h h_{t−1} + b′) + U_h x_t + b_h)
        z_t = σ(W_z h_{t−1} + U_z x_t + b_z)        h_t = (1 − z_t) ⊙ h̃_t + z_t ⊙ h_{t−1}

    Where the reset gate r is 0, the new content h̃ forgets the old state; where the update gate z is 1, the state stays
    as it is. As in torch, r acts after the product with W_h, which has a bias of its own, b′; other texts apply r
    before it, W_h (r_t ⊙ h_{t−1}), or exchange z and 1 − z. W starts orthogonal, biases at 0. The layers, directions,
    and the bottleneck between encoder and decoder are those of lstm, with h alone. There are no positions; heads and
    d_ff are not used.
    Parameters: 3 H (I + H + 1) + H for each layer and direction, where I inputs lead to H units.
    """
    return with_recurrent_stacks(spec, GRUCell, bidirectional)


@modification(adds=partial(added_parameters, cell=RNNCell))
def rnn(spec: Spec, *, bidirectional: bool = True) -> Spec:
    """A stacked simple recurrent network in place of every stack, without gates.

        h_t = tanh(W h_{t−1} + U x_t + b)

    The gradient of h_t with respect to h_{t−k} is a product of k factors Wᵀ diag(1 − h²): it vanishes or explodes as k
    grows, which is what gates are for (lstm, gru). W starts orthogonal, so that at first a product of W alone keeps
    its norm; b starts at 0. The layers, directions, and the bottleneck between encoder and decoder are those of lstm,
    with h alone. There are no positions; heads and d_ff are not used.
    Parameters: H (I + H + 1) for each layer and direction, where I inputs lead to H units.
    """
    return with_recurrent_stacks(spec, RNNCell, bidirectional)
