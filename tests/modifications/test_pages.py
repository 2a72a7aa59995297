"""The documentation's pages are those of the docstrings."""

from pathlib import Path

from sixfold.modifications._index import GROUPS
from sixfold.modifications._pages import pages

FOLDER = Path(__file__).parents[2] / "docs"


def test_the_pages_in_the_documentation_are_up_to_date():
    """If this fails: make docs"""
    written = {
        f"{group}/{path.name}": path.read_text(encoding="utf-8")
        for group in GROUPS
        for path in (FOLDER / group).glob("*.md")
    }
    assert written == pages()


def test_every_page_has_a_summary_and_says_its_parameters():
    for name, text in pages().items():
        if not name.endswith("README.md"):
            assert "Parameters:" in text, name
            assert len(text.splitlines()[2]) <= 120, name
