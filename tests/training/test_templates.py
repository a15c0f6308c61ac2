"""The names of chat templates, as they are read from LLaMA-Factory's source and as it knows them
itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from training.policy import templates
from training.policy.templates import registered_names, template_names

ONE = 'register_template(\n    name="one",\n    slots=["{{content}}"],\n)\n'


def test_they_are_those_that_it_has_when_it_is_imported() -> None:
    from training.quiet import quiet_model_libraries

    quiet_model_libraries()
    from llamafactory.data import TEMPLATES

    assert template_names() == frozenset(TEMPLATES)


def test_nothing_is_imported_for_them() -> None:
    asked = "import sys; from training.policy.templates import template_names as names; assert 'qwen2_vl' in names(); "
    told = "print([name for name in ('llamafactory', 'torch', 'transformers') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", asked + told], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (ONE + 'register_template("two")\n', {"one", "two"}),
        (f"def register_template(name): ...\n{ONE}", {"one"}),
        (ONE + "register_template(name=made_up)\n", set()),
        (ONE + "for name in MORE:\n    pass\nregister_template(**more)\n", set()),
        ("TEMPLATES = {'one': 1}\n", set()),
        ("it is (no Python\n", set()),
    ],
)
def test_a_file_of_another_form_has_no_names(source: str, names: set[str]) -> None:
    assert registered_names(source) == names


def test_where_it_is_not_installed_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(templates, "PACKAGE", "rollwright_has_no_such_package")
    assert templates.template_source() is None
    assert template_names.__wrapped__() == frozenset()
    monkeypatch.setattr(templates, "PACKAGE", "llamafactory")
    monkeypatch.setattr(templates, "SOURCE", Path("data", "nix.py"))
    assert template_names.__wrapped__() == frozenset()
