"""When an episode ends besides by the page's word, over the looks of a session."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from PIL import Image, ImageDraw

from envs.browser import PageStep
from envs.episodes.ending import EndWatch
from envs.types import Click, Element, StopReason
from tasks_lib.config import TrainConfig, resolve
from tests.builders import make_observation


def look(dom: str = "d", box: int = 20, status: int = 200, title: str = "Shop") -> PageStep:
    picture, out = Image.new("L", (96, 96), 255), io.BytesIO()
    ImageDraw.Draw(picture).rectangle((box, 10, box + 30, 60), fill=0)
    picture.save(out, "JPEG")
    element = Element(index=1, tag="button", text="Go", id="go", box=(0, 0, 9, 9))
    seen = make_observation(elements=(element,), url="http://s/", viewport=(96, 96), title=title)
    return PageStep(seen, out.getvalue(), done=False, hash_dom=lambda: dom, status=status)


def ends(*looks: PageStep, repeats: int = 3) -> list[bool]:
    watch = EndWatch(repeats)
    return [watch.repeats(each, Click(element=1)) for each in looks]


def test_the_third_equal_step_is_a_repetition():
    assert ends(look(), look(), look(), look()) == [False, False, True, True]
    assert ends(look(), look(), repeats=2) == [False, True]
    assert ends(*[look()] * 5, repeats=0) == [False] * 5


def test_progress_in_the_document_or_the_picture_is_none():
    assert not any(ends(look(), look(), look(dom="other"), look(), look()))
    assert not any(ends(look(), look(), look(box=50), look(), look()))


def test_other_actions_are_none():
    watch = EndWatch(2)
    assert [watch.repeats(look(), Click(at=(x, 5))) for x in (1, 2, 3)] == [False, False, False]


def test_a_broken_site_and_a_wall_are_not_the_site():
    watch = EndWatch(3)
    assert watch.unusable(look()) is None
    assert watch.unusable(look(status=503))[0] is StopReason.HTTP_ERROR
    assert watch.unusable(look(title="Just a moment..."))[0] is StopReason.BLOCKED


def test_a_wall_with_the_status_of_a_broken_site_is_a_wall():
    found = EndWatch(3).unusable(look(title="Just a moment...", status=503))
    assert (found.reason, found.wall) == (StopReason.BLOCKED, "cloudflare")


def test_a_captcha_is_seen_by_its_frame():
    frame = "https://geo.captcha-delivery.com/captcha/?cid=1"
    found = EndWatch(3).unusable(replace(look(status=403), frames=("https://ads.example/", frame)))
    assert (found.reason, found.wall) == (StopReason.BLOCKED, "datadome")


def test_a_page_that_is_not_there_is_no_beginning():
    watch = EndWatch(3)
    assert watch.unusable(look(status=404)) is None
    found = watch.unusable(look(status=404), first=True)
    assert found[:2] == (StopReason.BROWSER_ERROR, "http://s/ answered 404; expected a page to begin on")
    assert watch.unusable(look(status=503), first=True)[0] is StopReason.HTTP_ERROR
    assert watch.unusable(look(), first=True) is watch.unusable(replace(look(), status=None), first=True) is None


def test_one_repeat_is_refused():
    with pytest.raises(Exception, match=r"rollout\.repeats: .*0, or 2 and more"):
        resolve(TrainConfig, {"rollout": {"repeats": 1}})
