"""Flow parameters: configuration groups, so that Prefect's form has titled sections.

Each field that is a group of settings is a parameter of its own; the other fields are together in ``general``.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, TypeVar

from prefect.runtime import flow_run
from pydantic import Field, create_model

from tasks_lib.config.cluster_spec import ambient_settings
from tasks_lib.config.reading import merge, resolve
from training.config import Settings

Result = TypeVar("Result")
GENERAL = "general"


def takes_groups(model: type[Settings]) -> Callable[[Callable[[Any], Result]], Callable[..., Result]]:
    """Make a function of one configuration a function of its groups, for ``@flow`` to read.

    A group may be given in part, as keys and values or as its model. What is not given is the preset's, or the default.

    Args:
        model: Class of the configuration that the function takes.
    """

    def decorate(function: Callable[[Any], Result]) -> Callable[..., Result]:
        @wraps(function)
        def with_groups(**groups: Any) -> Result:
            return function(_resolved(model, groups))

        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=kind,
                default=Field(default, description=said),
            )
            for name, (kind, default, said) in groups_of(model).items()
        ]
        with_groups.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return with_groups

    return decorate


def parameters_of(config: Settings) -> dict[str, Any]:
    """The parameters that say the same as a whole configuration, as JSON values: for a flow that is called or a deployment that is run."""
    return grouped(type(config), config.model_dump(mode="json"))


def values_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The values that parameters give, without those that are defaults only."""
    values: dict[str, Any] = {}
    for name, group in parameters.items():
        given = group.model_dump(exclude_unset=True) if isinstance(group, Settings) else group
        if name == GENERAL:
            values |= given
        elif given:
            values[name] = given
    return values


def _resolved(model: type[Settings], parameters: Mapping[str, Any]) -> Any:
    """The configuration that a flow's parameters give, on the cluster that ``ROLLWRIGHT_CLUSTER`` names."""
    return resolve(model, merge(ambient_settings(model), values_of(parameters)))


def named_after(model: type[Settings]) -> Callable[[], str]:
    """A ``flow_run_name``: the run's id, as its configuration gives it or makes it from other values."""

    def run_name() -> str:
        return str(_resolved(model, flow_run.parameters).run_id)

    return run_name


@cache
def groups_of(model: type[Settings]) -> dict[str, tuple[Any, Any, str]]:
    """Type, default and description of each parameter, by name."""
    groups: dict[str, tuple[Any, Any, str]] = {}
    rest: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kinds = [kind for kind in _kinds(field.annotation) if isinstance(kind, type) and issubclass(kind, Settings)]
        if len(kinds) == 1:
            said = field.description or inspect.getdoc(kinds[0]) or ""
            groups[name] = (field.annotation, field.get_default(call_default_factory=True), said.partition("\n\n")[0])
        else:
            rest[name] = (field.annotation, field)
    general = create_model("General", __base__=Settings, __doc__=model.__doc__, **rest)
    required = any(field.is_required() for field in general.model_fields.values())
    return {GENERAL: (general, ... if required else general(), "What is not in a group below."), **groups}


def grouped(model: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a configuration, all or some of them, by parameter."""
    groups = groups_of(model)
    general = {name: value for name, value in values.items() if name not in groups}
    return {GENERAL: general, **{name: value for name, value in values.items() if name in groups and value is not None}}


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
