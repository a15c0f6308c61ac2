"""Work that is cut short by somebody else: it ends in its own task, at once, and nobody else is
cancelled."""

from __future__ import annotations

import asyncio

import pytest

from envs.cancel_scope import CancelScope


async def test_cut_from_outside() -> None:
    async with asyncio.timeout(60):
        scope, cleaned = CancelScope(60), []
        asyncio.get_running_loop().call_later(0.01, scope.cancel)
        with pytest.raises(TimeoutError):
            async with scope:
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0)
                    cleaned.append(True)
        assert scope.was_cancelled and cleaned
        await asyncio.sleep(0.01)  # the task itself goes on
        scope.cancel()


async def test_the_deadline_is_no_cut() -> None:
    async with asyncio.timeout(60):
        scope = CancelScope(0.01)
        with pytest.raises(TimeoutError):
            async with scope:
                await asyncio.Event().wait()
        assert not scope.was_cancelled


async def test_what_ends_first_holds() -> None:
    async with asyncio.timeout(60):
        for cut_before in (False, True):
            scope = CancelScope(60)
            async with scope:
                if cut_before:
                    scope.cancel()
                said = "done"
            assert said == "done" and scope.was_cancelled is cut_before
            scope.cancel()
            await asyncio.sleep(0.01)
            assert scope.was_cancelled is cut_before, "nothing is left to cut"


async def test_cut_before_the_first_wait() -> None:
    async with asyncio.timeout(60):
        scope = CancelScope(60)
        with pytest.raises(TimeoutError):
            async with scope:
                scope.cancel()
                await asyncio.Event().wait()


async def test_the_inner_one_and_the_outer_one() -> None:
    async with asyncio.timeout(60):
        outer, inner = CancelScope(60), CancelScope(60)
        asyncio.get_running_loop().call_later(0.01, inner.cancel)
        async with outer:
            with pytest.raises(TimeoutError):
                async with inner:
                    await asyncio.Event().wait()
        assert not outer.was_cancelled

        outer, inner = CancelScope(60), CancelScope(60)
        asyncio.get_running_loop().call_later(0.01, lambda: (outer.cancel(), inner.cancel()))
        after = []
        with pytest.raises(TimeoutError):
            async with outer:
                async with inner:
                    await asyncio.Event().wait()
                after.append("not reached")
        assert outer.was_cancelled and inner.was_cancelled and not after


async def test_a_cancelled_caller_is_cancelled() -> None:
    async with asyncio.timeout(60):
        scope = CancelScope(60)

        async def work() -> None:
            async with scope:
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not scope.was_cancelled


async def test_other_errors_pass() -> None:
    async with asyncio.timeout(60):
        scope = CancelScope(60)
        with pytest.raises(ValueError, match="its own"):
            async with scope:
                scope.cancel()
                raise ValueError("its own")
