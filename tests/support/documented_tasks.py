"""The programs of docs/tasks.md, and the task with a `before` that one of them registers."""

import re
from pathlib import Path

from sixfold.tasks.task import find_task

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


def program(with_words: str) -> str:
    """The one program of the page that has these words."""
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (text,) = [each for each in found if with_words in each]
    return text


exec(compile(program("my_words.py"), str(PAGE), "exec"), {"__name__": __name__})
own_words = find_task("own_words")
