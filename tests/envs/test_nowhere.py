"""Links that lead to no page: the policy is told what came instead, and the page it is on stays
what it is."""

from __future__ import annotations

import asyncio

from envs.browser import PageStep
from envs.types import Action, Click, Goto
from tests.envs.dynamic import dynamic_pool, page

STAYS = "the page stays as it is"


def steps(*actions: Action) -> list[PageStep]:
    async def play() -> list[PageStep]:
        async with dynamic_pool(step_deadline=30.0) as (pool, site), pool.lease(site) as session:
            await session.reset(page("/nowhere.html"), 0)
            return [await session.step(action) for action in actions]

    return asyncio.run(play())


def test_a_file_and_an_empty_answer_leave_the_page_and_are_told_once() -> None:
    told = {
        "zip": f"a file was sent (application/zip), which is not shown: {STAYS}",
        "pdf": f"a file was sent (application/pdf), which is not shown: {STAYS}",
        "attached": f"a file was sent (text/csv), which is not shown: {STAYS}",
        "moved": f"a file was sent (application/gzip), which is not shown: {STAYS}",
        "kept": f"a file was sent (page.html), which is not shown: {STAYS}",
        "made": f"a file was sent (made.txt), which is not shown: {STAYS}",
        "nothing": f"the answer was empty (HTTP 204): {STAYS}",
        "form": f"the answer was empty (HTTP 204): {STAYS}",
    }
    seen = steps(*(Click(element=name) for name in told), Click(element="stay"), Click(element="gone"))
    notices = [result.observation.notices for result in seen]
    assert [notice for each in notices for notice in each] == [*told.values()], "each once, in order"
    # That a link with `download` was followed is only heard of when the file comes, by then perhaps
    # in the step after.
    late = {name for (name, notice), each in zip(told.items(), notices, strict=False) if notice not in each}
    assert late <= {"kept", "made"}
    assert {result.status for result in seen} == {200}, "of the page that is shown"
    assert [result.observation.title for result in seen[-2:]] == ["nowhere", "done"]


def test_an_error_of_the_browser_is_named() -> None:
    (seen,) = steps(Click(element="loop"))
    assert seen.observation.notices == ("the page was not loaded: net::ERR_TOO_MANY_REDIRECTS",)
    assert seen.status is None


def test_a_link_for_another_program_says_so_however_it_is_named() -> None:
    (first,) = steps(Click(element="stay"))
    viewport, mail = first.observation.viewport, next(at for at in first.observation.elements if at.text == "mail")
    middle = (
        1000 * (mail.box[0] + mail.box[2] / 2) / viewport[0],
        1000 * (mail.box[1] + mail.box[3] / 2) / viewport[1],
    )
    seen = steps(Click(element="mail"), Click(at=middle), Click(element="call"), Click(element="stay"))
    said = "links with {}: open nothing in this browser"
    assert [each.observation.notices for each in seen] == [
        (said.format("mailto"),),
        (said.format("mailto"),),
        (said.format("tel"),),
        (),
    ]
    assert {each.observation.title for each in seen} == {"nowhere"}


def test_a_window_for_a_file_says_so() -> None:
    (seen,) = steps(Click(element="window"))
    assert seen.observation.notices == (f"a file was sent (application/zip), which is not shown: {STAYS}",)
    assert len(seen.observation.tabs) == 2


def test_an_address_that_was_asked_for_is_told_as_an_error_alone() -> None:
    (seen,) = steps(Goto(url="/redirect-loop/0"))
    assert seen.observation.error is not None and "ERR_TOO_MANY_REDIRECTS" in seen.observation.error
    assert seen.observation.notices == ()
