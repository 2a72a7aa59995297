"""The documentation's pages are those of the docstrings."""

from pathlib import Path

from sixfold.modifications._pages import pages

FOLDER = Path(__file__).parents[2] / "docs" / "modifications"


def test_the_pages_in_the_documentation_are_up_to_date():
    """If this fails: make docs"""
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert written == pages()


def test_every_page_has_a_summary_and_says_its_parameters():
    for name, text in pages().items():
        if name != "README.md":
            assert "Parameters:" in text, name
            assert len(text.splitlines()[2]) <= 120, name
