"""Which architectures are tried: parts for `covering`, with the kinds of models that each serves.

A test of them gets the arguments `kind` and `modifications`.
"""

from tests.support.covering import Part
from tests.support.small import MODIFICATIONS, NORMS, POSITIONS, applies, combinations

KINDS = ("encoder_decoder", "decoder_only", "encoder_only")
WRITERS = KINDS[:2]


def with_attention(*kinds):
    """Positions before either norm, in models whose self-attention is the plain one."""
    plain = [_part(kinds, {f"sinusoid-{norm}": NORMS[norm]}) for norm in NORMS]  # each of them in every test
    others = [position for position in POSITIONS if POSITIONS[position]]
    return plain + [
        _part(kinds, {f"{position}-{norm}".replace(" ", "_"): (*POSITIONS[position], *NORMS[norm]) for norm in NORMS})
        for position in others
    ]


def alone(*kinds):
    """Each modification that is neither a position nor a norm."""
    known = {wish for several in (*POSITIONS.values(), *NORMS.values()) for wish in several}
    return parts(kinds, [(wish,) for wish in MODIFICATIONS if wish not in known])


def together(*kinds, one_in=1):
    """Some three at once."""
    return parts(kinds, combinations(), one_in)


def architectures(*kinds):
    """All of these."""
    return [*with_attention(*kinds), *alone(*kinds), *together(*kinds)]


def encoder_decoders(wishes, one_in=1):
    """Encoder-decoders with these modifications, for tests that know the kind."""
    return [Part("+".join(each), {"modifications": {"+".join(each): each}}, one_in) for each in wishes]


def registered(*kinds):
    """The plain model, and each modification as it is registered."""
    return parts(kinds, [(), *((wish,) for wish in MODIFICATIONS)])


def parts(kinds, wishes, one_in=1):
    """Models with these modifications, in the kinds that they serve."""
    made = (_part(kinds, {"+".join(each) or "vanilla": each}, one_in) for each in wishes)
    return [part for part in made if part.axes["kind"]]


def _part(kinds, modifications, one_in=1):
    (name, wishes), *_ = modifications.items()
    served = [kind for kind in kinds if applies(kind, *wishes)]
    return Part(name, {"kind": served, "modifications": modifications}, one_in)
