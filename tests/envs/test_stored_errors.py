"""An error that is stored and raised for everybody is a new exception each time."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from envs.browser.context import BrowserContext, PageCrashed
from envs.browser.options import ContextOptions, Device
from envs.cdp.client import CdpError, ConnectionLost
from envs.episodes import reference_page as module
from envs.episodes.reference_page import ReferenceSource
from envs.types import BrowserError, SiteError, WebTask
from envs.types.errors import again
from tests.builders import make_task


async def caught(make: Callable[[], Any]) -> BaseException:
    try:
        await make()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def differ(errors: list[BaseException], kind: type[BaseException], text: str) -> None:
    assert len({id(error) for error in errors}) == len(errors)
    assert {(type(error), str(error)) for error in errors} == {(kind, text)}
    assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors}) == 1, "they collect nothing"


@pytest.mark.parametrize("stored", [PageCrashed("it crashed"), ConnectionLost("it is gone")], ids=["crash", "lost"])
async def test_a_lost_context_raises_a_new_error_each_time(stored: BrowserError) -> None:
    connection: Any = SimpleNamespace()
    context = BrowserContext(connection, "1", ContextOptions("", Device(width=100, height=100)))
    context.fail(stored)
    errors = [await caught(lambda: context.guard(asyncio.sleep(0), 1, "it")) for _ in range(3)]
    differ(errors, type(stored), str(stored))


@pytest.mark.parametrize("known", [None, OSError("no such file")], ids=["no cause", "a cause"])
async def test_a_context_lost_in_a_call_keeps_the_error_of_the_call(known: OSError | None) -> None:
    connection: Any = SimpleNamespace()
    context = BrowserContext(connection, "1", ContextOptions("", Device(width=100, height=100)))
    stored, fault = BrowserError("it is gone"), KeyError("a fault of ours")
    stored.__cause__ = known

    async def fails() -> None:
        context.fail(stored)
        raise fault

    error = await caught(lambda: context.guard(fails(), 1, "it"))
    assert str(error) == "it is gone" and error.__cause__ is (known or fault) and stored.__cause__ is known


async def test_references_that_cannot_be_loaded_are_told_anew_and_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_CACHED", 4)

    opened = list[int]()

    async def fails(_task: WebTask, seed: int) -> Any:
        await asyncio.sleep(0)
        opened.append(seed)
        raise SiteError("no page")

    site: Any = SimpleNamespace(open_episode=fails)
    source, task = ReferenceSource(SimpleNamespace(), {"shop": site}, lambda _: b""), make_task(reference="/")  # type: ignore[arg-type]
    errors = await asyncio.gather(*(caught(lambda: source.similarity(task, "page")) for _ in range(3)))
    later = [await caught(lambda: source.similarity(task, "page")) for _ in range(3)]
    differ(later, SiteError, "no page")
    assert len({id(error) for error in errors}) == 3 and opened == [0]
    for seed in (*range(20), 19, 16, 15):
        await caught(lambda seed=seed: source.similarity(task, "page", seed))  # type: ignore[misc]
    assert opened == [*range(20), 15], "the last four failures are remembered"
    assert source._loading == {}


def test_errors_of_the_protocol_can_be_copied_and_pickled() -> None:
    error = CdpError("Page.navigate", "no such page", -32000)
    for other in (again(error), pickle.loads(pickle.dumps(error))):
        assert (str(other), other.method, other.message, other.code) == (
            "Page.navigate: no such page", "Page.navigate", "no such page", -32000
        )  # fmt: skip
