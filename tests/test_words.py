"""The words of the code: docstrings that are sentences, and names that say what they hold."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from .test_layout import PACKAGES, ROOT, tracked

ROOMS = ("envs", "flows", "tasks_lib", "training")
"""Folders whose words are checked: all of the product."""
NO_FIRST_WORDS = frozenset(
    [
        "about",
        "after",
        "against",
        "as",
        "at",
        "before",
        "beside",
        "besides",
        "between",
        "by",
        "for",
        "from",
        "how",
        "if",
        "in",
        "into",
        "of",
        "on",
        "over",
        "per",
        "than",
        "that",
        "through",
        "to",
        "under",
        "until",
        "what",
        "when",
        "where",
        "whether",
        "which",
        "while",
        "who",
        "whose",
        "why",
        "with",
        "within",
        "without",
    ]
)
"""Prepositions, conjunctions and question words: a docstring that begins so is the tail of a
sentence."""
NO_NAMES = frozenset(["at", "each", "found", "lot", "said", "spare", "told", "wave"])
"""Names of variables and parameters that do not say what they hold."""
NO_PARTS = frozenset(["lot", "said", "spare", "told", "wave"])
"""Words that no name may hold, between its underscores. Limits are called ``MAX_``, not
``MOST_``."""
MAX_TEST_NAME = 70
"""Characters of a test's name: a sentence of ten words."""
ENTRY = re.compile(r"^\s+\*{0,2}\w+(?: \([^)]*\))?: (\w+)", re.MULTILINE)
"""An entry under ``Args:``, and the first word that it says."""


def modules(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    for path in tracked(*(f"{room}/*.py" for room in rooms)):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """The docstrings of a module, its classes, its functions, its constants and its fields."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            documents = (before is None and isinstance(node, DOCUMENTED)) or isinstance(
                before, ast.Assign | ast.AnnAssign
            )
            match statement:
                case ast.Expr(value=ast.Constant(value=str()) as text) if documents:
                    yield text


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def stumps(text: str) -> list[str]:
    """The words that the docstring and its entries under ``Args:`` begin with and may not."""
    first = re.match(r"\W*([A-Za-z]+)", text)
    arguments = re.search(
        r"^\s*(?:Args|Attributes):\n(.*?)(?=^\s*(?:Returns|Raises|Yields|Example)|\Z)", text, re.S | re.M
    )
    words = [first[1] if first else "", *ENTRY.findall(arguments[1] if arguments else "")]
    return [word for word in words if word.lower() in NO_FIRST_WORDS]


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a module gives to variables, parameters, fields, functions and classes."""
    fields = {id(node.target) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)}  # records' own formats
    for node in ast.walk(tree):
        match node:
            case ast.Name() if id(node) in fields:
                continue
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


def parts(name: str) -> set[str]:
    """The words of a name: ``MaxSpare`` and ``max_spare`` both give ``{"max", "spare"}``."""
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_are_sentences(room: str) -> None:
    stumped = [
        f"{path}:{text.lineno} begins with {word!r}"
        for path, tree in modules(room)
        for text in docstrings(tree)
        for word in stumps(str(text.value))
    ]
    assert stumped == []


@pytest.mark.parametrize("room", ROOMS)
def test_names_say_what_they_hold(room: str) -> None:
    vague = [
        f"{path}:{line} {name}"
        for path, tree in modules(room)
        for name, line in names(tree)
        if name in NO_NAMES or name.startswith("MOST_") or NO_PARTS & parts(name)
    ]
    assert vague == []


def test_no_two_classes_have_one_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in modules(*PACKAGES):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_test_names_are_short() -> None:
    long = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in modules("tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) > MAX_TEST_NAME
    ]
    assert long == []
