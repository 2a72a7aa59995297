"""Texts with one mistake of each kind, and files of them."""

GOOD = [("The house is small.", "Das Haus ist klein."), ("A cat", "Eine Katze"), ("We eat bread.", "Wir essen Brot.")]
BAD = {  # kind of suspicion → a pair that has it, and no other
    "undecodable": ("a b\ufffdd line", "eine schlechte Zeile"),
    "mojibake": ("He has a cafÃ© there.", "Er hat dort ein Café."),
    "control": ("red \x1b[31m line", "rote Zeile"),
    "empty": ("Nothing on the other side", "  "),
    "copied": ("This was never translated.", "This was never translated."),
    "script": ("Click to close the window.", "Кликните, чтобы закрыть."),
    "length": ("Short.", "Diese Zeile ist viel zu lang für ein einziges Wort, " * 2),
}


def pairs():
    """GOOD and BAD pairs in turn, then the first one again."""
    return [*GOOD, *BAD.values(), *((f"{s} {i}", f"{t} {i}") for i in range(9) for s, t in GOOD), GOOD[0]]


def write_pairs(folder, rows=None, name="train"):
    """NAME.en and NAME.de; → the prefix"""
    rows = pairs() if rows is None else rows
    for side, ending in enumerate(("en", "de")):
        (folder / f"{name}.{ending}").write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")
    return folder / name
