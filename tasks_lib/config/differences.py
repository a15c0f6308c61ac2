"""Differences between two trees of settings, key by key, and those that are allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tasks_lib.config.reading import resolve_checkpoint
from tasks_lib.config.shapes import write_value
from training.policy.templates import derive_template

_ABSENT = object()
NONE = "(none)"
"""Value of a key that one of two trees does not have."""

BUDGETS = frozenset({"budget_requests", "budget_tokens"})
"""Keys of an endpoint that may change on resuming, to raise a budget that is used up."""


KEEPING = frozenset({"state_every", "keep_states", "keep_policies", "keep_best", "loader_workers", "nodes"})
"""Keys of ``trainer`` that may change, because they do not change what is computed."""
SHOWING = frozenset({"alerts", "monitor", "trackers", "view"})
"""Keys of the configuration that may change, because they only show a run."""


def without_budgets(endpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an endpoint that may not change."""
    return {key: value for key, value in endpoint.items() if key not in BUDGETS}


def comparable_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without the values that may change when a run is resumed.

    These include the judge's budgets: they are counted for the whole run, so a run that has used
    them up goes on with greater ones. An empty chat template is replaced by the one that is derived
    from the checkpoint.
    """
    values = {key: value for key, value in values.items() if key not in SHOWING}
    policy = values.get("policy")
    if policy and policy.get("template") == "":
        template = derive_template(resolve_checkpoint(policy["checkpoint"]))
        values = {**values, "policy": {**policy, "template": template}}
    if isinstance(trainer := values.get("trainer"), dict):
        values = {**values, "trainer": {key: value for key, value in trainer.items() if key not in KEEPING}}
    rollout = values.get("rollout")
    if not rollout or not rollout.get("judge"):
        return values
    return {**values, "rollout": {**rollout, "judge": without_budgets(rollout["judge"])}}


def differences(now: Any, then: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield dotted key, value now and value then of each difference, as YAML reads them.

    The value of a key that one of the trees does not have is ``(none)``.

    >>> list(differences({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "c": 2}}))
    [('a.b', '1', 'null')]
    >>> list(differences({"extra": {"mine:short": 0.2}}, {"extra": {}}))
    [('extra.mine:short', '0.2', '(none)')]
    """
    if isinstance(now, dict) and isinstance(then, dict):
        for key in sorted(now.keys() | then.keys()):
            yield from differences(now.get(key, _ABSENT), then.get(key, _ABSENT), f"{path}.{key}" if path else key)
    elif now != then:
        yield path, _plain(now), _plain(then)


def _plain(value: Any) -> str:
    return NONE if value is _ABSENT else write_value(value)
