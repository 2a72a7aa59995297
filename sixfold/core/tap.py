"""Look inside a model while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from torch import Tensor

FIELDS = ("weights", "q", "k", "v", "bias", "heads")


class Tap:
    """Collects attention weights, and on request more, of the parts whose names match.

    >>> tap = Tap("decoder.*.cross")
    >>> model.decode(ids, memory, tap=tap)
    >>> tap["decoder.3.cross"][0, 2]        # (L, M): head 2 of layer 3, first sentence of the batch

    `fields` are the tensors to keep: the weights (B, H, L, M); queries, keys and values, after the
    position has acted on them; the bias on the scores; the heads' outputs (B, H, L, K) before the
    output matrix. While a tap watches an attention, it is computed by `attend_explicitly`. A tap that
    is passed to several calls keeps the tensors of the last.
    """

    def __init__(self, *patterns: str, fields: tuple[str, ...] = ("weights",)):
        unknown = set(fields) - set(FIELDS)
        if unknown:
            raise ValueError(f"a tap has no field {sorted(unknown)[0]!r}; it has {', '.join(FIELDS)}")
        self.patterns = patterns or ("*",)
        self.fields = fields
        self.seen: dict[tuple[str, str], Tensor] = {}

    def fresh(self) -> Tap:
        """An empty tap with the same patterns and fields."""
        return Tap(*self.patterns, fields=self.fields)

    def part(self, number: int, parts: int) -> Tap:
        """A copy with one of several equal parts of the rows: those of one sentence of a batch.

        A tensor with fewer rows than parts belongs to all of them.
        """
        own = self.fresh()
        for key, tensor in self.seen.items():
            rows = len(tensor) // parts
            own.seen[key] = (tensor[number * rows : (number + 1) * rows] if rows else tensor).clone()
        return own

    def wants(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def __call__(self, name: str, field: str, tensor: Tensor) -> None:
        if field in self.fields and self.wants(name):
            self.seen[name, field] = tensor

    def __getitem__(self, key: str | tuple[str, str]) -> Tensor:
        """`tap["decoder.3.cross"]` is the weights, `tap["decoder.3.cross", "q"]` another field."""
        name, field = (key, "weights") if isinstance(key, str) else key
        if (name, field) not in self.seen:
            seen = ", ".join(self) or "nothing yet"
            raise KeyError(f"{field} of {name!r} was not seen; seen: {seen}")
        return self.seen[name, field]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self.seen))

    def __repr__(self) -> str:
        return f"Tap({', '.join(map(repr, self.patterns))}; seen: {', '.join(self) or 'nothing yet'})"

    def __len__(self) -> int:
        return len(set(self))


class Taps(Tap):
    """Several taps on one pass; each collects the tensors that it matches."""

    def __init__(self, *taps: Tap):
        super().__init__()
        self.taps = taps

    def wants(self, name: str) -> bool:
        return any(tap.wants(name) for tap in self.taps)

    def __call__(self, name: str, field: str, tensor: Tensor) -> None:
        for tap in self.taps:
            tap(name, field, tensor)
