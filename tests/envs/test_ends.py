"""Ends of episodes: table tests of horizons, repetition and walls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from envs.ends import (
    Bucket,
    BucketedHorizon,
    FixedHorizon,
    HorizonPolicy,
    RepetitionDetector,
    ScheduledHorizon,
    Sighting,
    blocked,
    bucket_of,
    http_error,
    max_steps,
)
from envs.ends.blocked import SIGNS
from envs.types import Split, StopReason

DIFFICULTIES = [
    (1, Bucket.ONE, 10),
    (2, Bucket.FEW, 10),
    (3, Bucket.FEW, 10),
    (4, Bucket.SOME, 20),
    (5, Bucket.SOME, 20),
    (6, Bucket.SOME, 20),
    (7, Bucket.MANY, 30),
    (9, Bucket.MANY, 30),
    (10, Bucket.MANY, 40),
    (12, Bucket.MANY, 40),
]


@pytest.mark.parametrize(("difficulty", "bucket", "steps"), DIFFICULTIES)
def test_horizon_by_difficulty(difficulty: int, bucket: Bucket, steps: int) -> None:
    assert (bucket_of(difficulty), max_steps(difficulty)) == (bucket, steps)
    policy = BucketedHorizon(test_factor=2.5, most=50)
    assert policy.steps(difficulty, Split.TRAIN) == steps
    assert policy.steps(difficulty, Split.HELD_OUT) == min(round(steps * 2.5), 50)


def test_a_fixed_horizon_has_one_for_training_and_one_for_tests() -> None:
    policy = FixedHorizon(train=8, test=20)
    assert [policy.steps(9, split) for split in Split] == [8, 20, 20, 8]


def test_a_schedule_grows_in_training_only() -> None:
    policy = ScheduledHorizon(first=5, last=25, step=5, every=10)
    assert [policy.steps(7, Split.TRAIN, iteration) for iteration in (0, 9, 10, 25, 40, 1000)] == [5, 5, 10, 15, 25, 25]
    assert {policy.steps(7, Split.VALIDATION, iteration) for iteration in (0, 1000)} == {30}
    assert policy.steps(1, Split.TRAIN, 1000) == 10  # never above the task's own


@given(st.integers(1, 100), st.integers(0, 500), st.integers(0, 500))
def test_a_schedule_never_shrinks(difficulty: int, one: int, other: int) -> None:
    policy = ScheduledHorizon(first=3, last=90, step=4, every=7)
    early, late = sorted((one, other))
    assert 1 <= policy.steps(difficulty, Split.TRAIN, early) <= policy.steps(difficulty, Split.TRAIN, late)


def test_horizons_are_configured_by_kind_and_checked() -> None:
    adapter: TypeAdapter[HorizonPolicy] = TypeAdapter(HorizonPolicy)
    for policy in (FixedHorizon(train=1, test=2), BucketedHorizon(most=30), ScheduledHorizon(first=5, last=30)):
        assert adapter.validate_json(policy.model_dump_json()) == policy
    for wrong in (
        {"kind": "fixed"},
        {"kind": "bucketed", "most": 0},
        {"kind": "other"},
        {"kind": "fixed", "train": 1, "test": 1, "x": 1},
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
    for function in (bucket_of, max_steps):
        with pytest.raises(ValueError, match="at least 1"):
            function(0)


SAME = {"picture": "8f00ff", "dom": "d1", "action": "click button:save"}


def sighting(**changes: str) -> Sighting:
    return Sighting(**{**SAME, **changes})


def test_three_equal_steps_are_a_repetition() -> None:
    detector = RepetitionDetector()
    assert [detector.is_repeated(sighting()) for _ in range(4)] == [False, False, True, True]


@pytest.mark.parametrize("field", SAME)
def test_progress_of_any_kind_is_no_repetition(field: str) -> None:
    detector = RepetitionDetector()
    assert not any(detector.is_repeated(sighting(**{field: str(step)})) for step in range(10))
    # And what was equal before the progress does not count.
    steps = [sighting(), sighting(), sighting(**{field: "other"}), sighting(), sighting()]
    assert not any(detector.is_repeated(step) for step in steps) and detector.count == 2


def test_a_loop_of_two_pages_is_left_to_the_horizon() -> None:
    detector = RepetitionDetector()
    assert not any(detector.is_repeated(sighting(dom=str(step % 2))) for step in range(20))


WALLS = [
    ("cloudflare", {"title": "Just a moment...", "status": 403}),
    ("cloudflare", {"url": "https://shop.example/?__cf_chl_tk=abc"}),
    ("cloudflare", {"text": "shop.example\nVerifying you are human. This may take a few seconds."}),
    ("google", {"url": "https://www.google.com/sorry/index?continue=x"}),
    ("google", {"text": "Our systems have detected unusual traffic from your computer network."}),
    ("datadome", {"frames": ("https://geo.captcha-delivery.com/captcha/?initialCid=x",)}),
    ("perimeterx", {"text": "Press & Hold to confirm you are a human (and not a bot)."}),
    ("perimeterx", {"title": "Access to this page has been denied."}),
    (
        "akamai",
        {
            "text": 'Access Denied You don\'t have permission to access "http://a.example/" on this server. Reference #18.2d'
        },
    ),
    ("imperva", {"text": "Request unsuccessful. Incapsula incident ID: 877000190005"}),
    ("amazon", {"text": "Enter the characters you see below. Sorry, we just need to make sure you're not a robot."}),
    ("amazon", {"url": "https://www.amazon.example/errors/validateCaptcha?x=1"}),
    ("robot_check", {"title": "Robot Check"}),
    ("robot_check", {"text": "Please verify that you are not a robot"}),
    ("robot_check", {"text": "Please solve this captcha to continue"}),
    ("recaptcha", {"frames": ("https://www.google.com/recaptcha/api2/bframe?hl=en",)}),
    (
        "hcaptcha",
        {"frames": ("https://newassets.hcaptcha.com/captcha/v1/x/static/hcaptcha.html#frame=challenge&id=0",)},
    ),
    ("rate_limit", {"text": "Too many requests, slow down.", "status": 429}),
    ("denied", {"title": "403 Forbidden", "status": 403}),
]
PAGE = {"url": "https://shop.example/", "title": "Shop", "text": "Welcome"}


@pytest.mark.parametrize(("name", "seen"), WALLS)
def test_walls_are_seen(name: str, seen: dict[str, object]) -> None:
    sign = blocked(**(PAGE | seen))  # type: ignore[arg-type]
    assert sign is not None and sign.name == name and sign.hint


def test_every_sign_is_reached_by_a_wall() -> None:
    reached = {blocked(**(PAGE | seen)) for _, seen in WALLS}  # type: ignore[arg-type]
    assert reached == set(SIGNS)


PROSE = """A CAPTCHA is a test that tells people from programs. Sites ask you to prove that you are human, to type the characters you see in
this image, or to press and hold to confirm you are a human. Cloudflare shows "Verifying you are human". """
ORDINARY: list[dict[str, object]] = [
    {"title": "CAPTCHA - Wikipedia", "url": "https://wiki.example/CAPTCHA", "text": PROSE * 6},
    {"title": "Captcha plugin settings", "text": "Choose a captcha: reCAPTCHA, hCaptcha, Turnstile. Save"},
    {"title": "Sign up", "text": "Name E-mail I'm not a robot reCAPTCHA Sign up", "frames": ("https://www.google.com/recaptcha/api2/anchor?k=x",)},
    {"title": "Access denied: how to fix it", "text": "An article about errors.", "status": 200},
    {"title": "Forbidden Planet (1956)", "text": "A film.", "status": 200},
    {"title": "Blocked drains - plumbing", "text": "Call us.", "status": 200},
    {"title": "Issue 12: too many requests", "text": "We get rate limit exceeded from the API.", "status": 200},
    {"title": "Just a moment in time - poems", "text": "…", "url": "https://poems.example/just-a-moment"} | {"title": "Poems: just a moment"},
    {"title": "Search: robot check", "url": "https://shop.example/search?q=robot+check", "text": "3 results"},
    {"url": "https://blog.example/?q=/sorry/ https://google.com/sorry/", "title": "Blog"},
]  # fmt: skip


@pytest.mark.parametrize("seen", ORDINARY)
def test_pages_that_only_speak_of_it_are_pages(seen: dict[str, object]) -> None:
    assert blocked(**({"status": 200} | PAGE | seen)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "broken"), [(None, False), (200, False), (404, False), (499, False), (500, True), (503, True)]
)
def test_statuses_of_a_broken_server(status: int | None, broken: bool) -> None:
    assert http_error(status) is broken


def test_stored_reasons_keep_their_names() -> None:
    """Trajectories on disk and series in the metrics hold these words."""
    assert {reason.value for reason in StopReason} == {
        *("done", "answer", "terminated", "horizon", "repetition", "invalid_action", "blocked", "http_error"),
        *("crash", "browser_error", "deadline", "abandoned", "submitted"),
        *("engine_error", "context_overflow"),
    }
