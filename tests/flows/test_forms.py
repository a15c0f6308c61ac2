"""What Prefect's form shows of every flow: its descriptions are rendered as Markdown, in which what
looks like a tag is not shown."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prefect.utilities.callables import parameter_schema

from tasks_lib.config import PROJECT

FLOWS = {"batch", "build_tasks", "evaluate", "promote", "regrade", "simulate", "sweep", "train", "warm_start"}


def texts(schema: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every title and description of a schema, by where it is."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("title", "description") and isinstance(value, str):
                yield f"{path}.{key}", value
            yield from texts(value, f"{path}.{key}")
    elif isinstance(schema, list):
        for number, value in enumerate(schema):
            yield from texts(value, f"{path}[{number}]")


@pytest.mark.parametrize("name", sorted(FLOWS))
def test_nothing_that_the_form_shows_looks_like_a_tag(name: str) -> None:
    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    shown = dict(texts(parameter_schema(flow).model_dump())) | {"flow": flow.description or ""}
    assert len(shown) > 10
    assert {where: text for where, text in shown.items() if "<" in text or "&lt;" in text} == {}


@pytest.mark.parametrize("name", sorted(FLOWS))
def test_the_form_has_a_titled_group_for_each_part(name: str) -> None:
    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    schema = parameter_schema(flow).model_dump()
    assert "config" not in schema["properties"] and "general" in schema["properties"]
    for key, shown in schema["properties"].items():
        assert shown["title"] == key
        kinds = [
            kind["$ref"].rpartition("/")[2]
            for kind in (shown, *shown.get("allOf", ()), *shown.get("anyOf", ()))
            if "$ref" in kind
        ]
        assert len(kinds) == 1, f"{key} is no group"
        assert shown.get("description") or schema["definitions"][kinds[0]]["description"]
        assert schema["definitions"][kinds[0]]["additionalProperties"] is False, (
            "an unknown key is refused by the server"
        )


@pytest.mark.parametrize("name", sorted(FLOWS))
def test_every_flow_ends_with_its_sentence(name: str) -> None:
    body = ast.parse((PROJECT / "flows" / f"{name}.py").read_text()).body
    (flow,) = [each for each in body if isinstance(each, ast.FunctionDef) and each.decorator_list]
    returned = [ast.unparse(each.value) for each in ast.walk(flow) if isinstance(each, ast.Return) and each.value]
    assert returned and all(value.startswith("completed(") for value in returned)


def test_every_deployment_is_of_these_flows_and_has_no_markup() -> None:
    deployments = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
    commands = {path.stem for path in (PROJECT / "flows").glob("[!_]*.py")} - {
        "doctor",
        "monitor",
        "replay",
        "serve",
        "serve_environments",
        "sites",
        "view",
    }
    assert commands == FLOWS
    assert {each["entrypoint"].rpartition(":")[2] for each in deployments} == FLOWS | {"build_sites"}
    assert not [each["name"] for each in deployments if "<" in each["description"]]
