"""docs/configuration.md shows the keys of every block of every configuration, once, where the row
that uses it says."""

from __future__ import annotations

import re
from collections import Counter

from tasks_lib.config import PROJECT
from tests.tasks_lib.config_trees import TREES, walk

PAGE = (PROJECT / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|`")]


def test_a_block_is_called_one_and_leads_to_its_keys() -> None:
    headings = Counter(re.sub(r"[^\w-]", "", each.lower()) for each in re.findall(r"^#+ `(.+)`$", PAGE, re.MULTILINE))
    assert max(headings.values()) == 1
    links = re.findall(r"\[(?:block|list of blocks)\]\(#(.+?)\)", PAGE)
    assert links and set(links) <= headings.keys()
    assert not [row for row in ROWS if re.search(r"\|(value|object|list of objects|None|`None`)\|", row)]


def test_every_key_of_every_block_has_a_row() -> None:
    named = {row.split("`")[1].rpartition(".")[2] for row in ROWS}
    for tree in TREES.values():
        for path, _, shape in walk(tree):
            key = path[-1]
            is_section = len(path) == 1 and shape.kinds and not shape.nullable
            assert isinstance(key, int) or is_section or key in named or "const" in shape.schema, path


def test_every_row_says_what_it_means() -> None:
    for row in ROWS:
        assert len(re.split(r"(?<!\\)\|", row)[-2]) > 8, row
