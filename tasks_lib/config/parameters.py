"""Flow parameters: configuration groups, so that Prefect's form has titled sections.

Each field that is a group of settings is a parameter of its own. The other fields are together in
the parameter ``general``.
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
from training.settings import Settings

Result = TypeVar("Result")
GENERAL = "general"


def takes_groups(model: type[Settings]) -> Callable[[Callable[[Any], Result]], Callable[..., Result]]:
    """Turn a function of one configuration into a function of its groups, for ``@flow`` to read.

    A group may be given in part, as keys and values or as its model. The other values are those of
    the preset, or the defaults.

    Args:
        model: Class of the configuration that the function takes.
    """

    def decorate(function: Callable[[Any], Result]) -> Callable[..., Result]:
        @wraps(function)
        def with_groups(**groups: Any) -> Result:
            return function(_resolved(model, groups))

        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=kind,
                default=Field(default, description=description),
            )
            for name, (kind, default, description) in groups_of(model).items()
        ]
        with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return with_groups

    return decorate


def parameters_of(config: Settings) -> dict[str, Any]:
    """Return a whole configuration as flow parameters, with JSON values.

    They are for a flow that is called, or a deployment that is run.
    """
    return grouped(type(config), config.model_dump(mode="json"))


def values_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that parameters give, without those that are only defaults."""
    values: dict[str, Any] = {}
    for name, group in parameters.items():
        keys = group.model_dump(exclude_unset=True) if isinstance(group, Settings) else group
        if name == GENERAL:
            values |= keys
        elif keys:
            values[name] = keys
    return values


def _resolved(model: type[Settings], parameters: Mapping[str, Any]) -> Any:
    """Return the configuration from parameters, on the cluster of ``ROLLWRIGHT_CLUSTER``."""
    return resolve(model, merge(ambient_settings(model), values_of(parameters)))


def named_after(model: type[Settings]) -> Callable[[], str]:
    """Return a ``flow_run_name`` function, which returns the ``run_id`` of the configuration."""

    def run_name() -> str:
        return str(_resolved(model, flow_run.parameters).run_id)

    return run_name


@cache
def groups_of(model: type[Settings]) -> dict[str, tuple[Any, Any, str]]:
    """Return type, default and description of each parameter, by name."""
    groups: dict[str, tuple[Any, Any, str]] = {}
    rest: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kinds = [kind for kind in _kinds(field.annotation) if isinstance(kind, type) and issubclass(kind, Settings)]
        if len(kinds) == 1:
            text = (field.description or inspect.getdoc(kinds[0]) or "").partition("\n\n")[0]
            groups[name] = (field.annotation, field.get_default(call_default_factory=True), text)
        else:
            rest[name] = (field.annotation, field)
    general = create_model("General", __base__=Settings, __doc__=model.__doc__, **rest)
    required = any(field.is_required() for field in general.model_fields.values())
    return {GENERAL: (general, ... if required else general(), "What is not in a group below."), **groups}


def grouped(model: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a configuration, all or some of them, by parameter."""
    groups = groups_of(model)
    general = {name: value for name, value in values.items() if name not in groups}
    return {GENERAL: general, **{name: value for name, value in values.items() if name in groups and value is not None}}


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
