"""docs/reading-the-transformer.md: its programs print what the page shows, its names are those of transformer.py."""

import re

import torch

from sixfold import transformer
from tests.support import pages

PAGE = "reading-the-transformer.md"


def test_every_program_prints_what_the_page_shows(capsys):
    found, said = pages.programs(PAGE), {}
    assert len(found) > 15
    with torch.random.fork_rng():
        for program in found:
            exec(compile(program.text, PAGE, "exec"), said)
            assert capsys.readouterr().out == program.shown, program.text


def test_the_names_of_the_page_are_in_the_file():
    paragraphs = re.findall(r"^In the file: (.*?)\n\n", pages.read(PAGE), re.DOTALL | re.MULTILINE)
    names = {name for paragraph in paragraphs for name in re.findall(r"`(\w+)`", paragraph)}
    with open(transformer.__file__, encoding="utf-8") as file:
        known = set(re.findall(r"\w+", file.read()))
    assert len(names) > 20
    assert not names - known
