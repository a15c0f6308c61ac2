"""A judge endpoint that misbehaves in every way: no exception, the right state, the right
record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest

from envs.chat import CallError
from envs.chat.endpoint import endpoint_client
from envs.rewards.judge import Judge, Judgement, Purpose
from tests.envs.rewards_judge.fake_judge import (
    FakeJudge,
    completion,
    config,
    episode,
    fake_judge,
    http,
    judge_once,
    judged,
    says,
)

EPISODE = episode(1)
"""One step: no keyframe calls, so the order is blocking, criterion B, facts."""


def run(answer: Any, **changes: Any) -> tuple[Judgement, FakeJudge]:
    return asyncio.run(judge_once(answer, EPISODE, **changes))


async def _slow(fake: FakeJudge, request: dict[str, Any]) -> bytes:
    await asyncio.sleep(30)
    return says("SUCCESS")


def slow(fake: FakeJudge, request: dict[str, Any]) -> Awaitable[bytes]:
    return _slow(fake, request)


TRUNCATED = http(200, json.dumps({"choices": [{"message": {"content": "Verd"}}]})[:-9])


def error_in_200(code: Any) -> bytes:
    """As gateways pass on what the provider behind them answered."""
    return http(200, json.dumps({"error": {"message": "Provider returned error", "code": code}}))


ERROR_IN_CHOICE = http(
    200, '{"choices": [{"finish_reason": "error", "error": {"code": 502, "message": "upstream broke"}}]}'
)

ALWAYS = [
    ("timeout", slow, CallError.TIMEOUT, "no answer within"),
    ("reset", lambda fake, request: None, CallError.UNREACHABLE, "Error"),
    ("500", http(500, "boom"), CallError.SERVER_ERROR, "HTTP 500: boom"),
    ("429", http(429, "slow down", "Retry-After: 0"), CallError.RATE_LIMITED, "HTTP 429: slow down"),
    ("truncated json", TRUNCATED, CallError.MALFORMED, "no JSON"),
    ("short body", says("SUCCESS")[:-5], CallError.UNREACHABLE, "RemoteProtocolError"),
    ("html", http(200, "<html>login</html>", kind="text/html"), CallError.MALFORMED, "<html>"),
    ("empty", completion(""), CallError.MALFORMED, "empty"),
    ("null content", completion(None), CallError.MALFORMED, "empty"),
    ("cut off", completion("Verdict: SUCCESS", finish="length"), CallError.MALFORMED, "max_tokens"),
    ("truncated verdict", completion('{"verdict": "SUCCESS", "rea'), CallError.MALFORMED, "begins as JSON"),
    ("prose", completion("It looks fine to me."), CallError.MALFORMED, "neither a JSON object"),
    ("wrong words", says("MAYBE"), CallError.MALFORMED, "'MAYBE'"),
    ("wrong schema", completion('{"success": true}'), CallError.MALFORMED, "expected the keys"),
    ("wrong types", completion('{"verdict": true, "reason": "x"}'), CallError.MALFORMED, "expected str, not bool"),
    ("a list", http(200, "[1, 2]"), CallError.MALFORMED, "choices"),
    ("no choices", http(200, '{"choices": []}'), CallError.MALFORMED, "choices"),
    ("deep json", http(200, "[" * 100_000), CallError.MALFORMED, "no JSON"),
    ("half a pair", http(200, '{"choices": [{"message": {"content": "\\ud800"}}]}'), CallError.MALFORMED, "neither"),
    ("gateway's error", error_in_200(502), CallError.SERVER_ERROR, "Provider returned error"),
    ("gateway's error without a code", error_in_200(None), CallError.SERVER_ERROR, "Provider returned error"),
    ("gateway's error in words", http(200, '{"error": "no capacity"}'), CallError.SERVER_ERROR, "no capacity"),
    ("gateway's limit", error_in_200("429"), CallError.RATE_LIMITED, "Provider returned error"),
    ("error in the choice", ERROR_IN_CHOICE, CallError.SERVER_ERROR, "upstream broke"),
    ("not http", b"SSH-2.0-OpenSSH\r\n\r\n", CallError.UNREACHABLE, "Error"),
    ("bad encoding", http(200, "no gzip at all", "Content-Encoding: gzip"), CallError.UNREACHABLE, "DecodingError"),
]


@pytest.mark.parametrize(("answer", "error", "said"), [each[1:] for each in ALWAYS], ids=[each[0] for each in ALWAYS])
def test_what_never_works_is_an_abstention_with_its_cause(answer: Any, error: CallError, said: str) -> None:
    answer = answer if callable(answer) else lambda fake, request, data=answer: data
    judgement, fake = run(answer, retries=1, timeout=0.1 if error is CallError.TIMEOUT else 5)
    assert judgement.state == "abstained" and judgement.score is None and not judgement.blocked
    assert judgement.reason.startswith(f"blocking: {error}: ") and said in judgement.reason
    (call,) = judgement.calls
    assert call.error is error and said in call.trouble
    assert call.requests == 2 == len(fake.requests) and call.retries == 1 and not call.cached
    assert (call.purpose, call.model, call.images) == (Purpose.BLOCKING, "m", 1)


@pytest.mark.parametrize(
    "answer", [each[1] for each in ALWAYS if each[0] != "timeout"], ids=[each[0] for each in ALWAYS[1:]]
)
def test_what_works_the_second_time_is_a_verdict(answer: Any) -> None:
    good = judged()

    def flaky(fake: FakeJudge, request: dict[str, Any]) -> Any:
        if fake.requests.count(request) == 1:
            return answer(fake, request) if callable(answer) else answer
        return good(fake, request)

    judgement, _ = run(flaky, retries=1)
    assert judgement.state == "passed" and judgement.score == 1.0
    assert [call.retries for call in judgement.calls] == [1, 1, 1, 1]
    assert all(call.error is None and call.trouble for call in judgement.calls)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422])
def test_a_refusal_is_not_tried_again(status: int) -> None:
    judgement, fake = run(lambda fake, request: http(status, "no"))
    assert judgement.state == "abstained" and len(fake.requests) == 1
    assert judgement.calls[0].error is CallError.REFUSED and f"HTTP {status}: no" in judgement.reason


async def test_nobody_listens() -> None:
    async with fake_judge(judged()) as fake:
        address = fake.url
    async with Judge(config(address, retries=2)) as judge:
        judgement = await judge.judge(EPISODE)
    assert judgement.state == "abstained" and judgement.calls[0].error is CallError.UNREACHABLE
    assert judgement.calls[0].requests == 3 and "ConnectError" in judgement.reason


def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.chat.endpoint.MAX_ANSWER", 1000)
    judgement, _ = run(lambda fake, request: completion("x" * 2000), retries=0)
    assert judgement.calls[0].error is CallError.MALFORMED and "over 1000 bytes" in judgement.reason


def test_a_lost_fact_leaves_the_others_and_no_score() -> None:
    def facts(fake: FakeJudge, request: dict[str, Any]) -> bytes:
        lost = "sorted by price" in request["messages"][1]["content"][0]["text"]
        return http(500, "boom") if lost else says("SUCCESS")

    judgement, _ = run(judged(criterion_a=facts), retries=0)
    assert judgement.state == "abstained" and judgement.score is None
    assert judgement.facts == {"sorted": None, "price": True}
    assert judgement.reason == "criterion_a sorted: server_error: HTTP 500: boom"


def test_a_lost_fact_does_not_save_an_episode_that_fails_another() -> None:
    def facts(fake: FakeJudge, request: dict[str, Any]) -> bytes:
        lost = "sorted by price" in request["messages"][1]["content"][0]["text"]
        return http(500, "boom") if lost else says("NOT SUCCESS", "it is the second")

    judgement, _ = run(judged(criterion_a=facts), retries=0)
    assert judgement.state == "failed" and judgement.score is None and "it is the second" in judgement.reason


def test_votes_that_contradict_are_counted_and_the_majority_decides() -> None:
    def by_seed(*ayes: int) -> Any:
        return lambda fake, request: says("SUCCESS" if request["seed"] - 42 in ayes else "NOT SUCCESS", "it is so")

    passed, fake = run(judged(criterion_a=by_seed(0, 2), criterion_b=by_seed(0, 1, 2)), votes=3)
    check = next(check for check in passed.checks if check.subject == "price")
    assert passed.state == "passed" and check.contradicted and (check.ayes, check.noes, check.lost) == (2, 1, 0)
    assert {call.vote for call in passed.calls} == {0, 1, 2} and len(fake.requests) == 3 * 4
    failed, _ = run(judged(criterion_a=by_seed(1)), votes=3)
    assert failed.state == "failed" and failed.facts == {"sorted": False, "price": False}


def test_a_tie_that_a_lost_vote_leaves_is_an_abstention() -> None:
    def one_each(fake: FakeJudge, request: dict[str, Any]) -> bytes:
        vote = request["seed"] - 42
        return [says("SUCCESS"), says("NOT SUCCESS"), completion("hm")][vote]

    judgement, _ = run(judged(criterion_b=one_each), votes=3, retries=0)
    check = judgement.checks[-1]
    assert judgement.state == "abstained" and check.holds is None and (check.ayes, check.noes, check.lost) == (1, 1, 1)
    two, _ = run(
        judged(criterion_b=lambda f, r: completion("hm") if r["seed"] == 42 else says("SUCCESS")), votes=3, retries=0
    )
    assert two.state == "passed"  # two of three is a majority of all


def test_one_vote_that_is_left_of_three_decides_nothing() -> None:
    judgement, _ = run(
        judged(criterion_b=lambda f, r: says("SUCCESS") if r["seed"] == 43 else completion("hm")), votes=3, retries=0
    )
    assert judgement.state == "abstained" and (judgement.checks[-1].ayes, judgement.checks[-1].lost) == (1, 2)


def test_the_budget_ends_in_an_abstention_and_nothing_more_is_sent() -> None:
    judgement, fake = run(judged(), budget_requests=2)
    assert len(fake.requests) == 2 and judgement.state == "abstained"
    lost = [call for call in judgement.calls if call.error is CallError.BUDGET]
    assert len(lost) == 2 and all(call.requests == 0 for call in lost)
    assert "the budget of 2 requests is used up" in judgement.reason
    by_tokens, fake = run(judged(), budget_tokens=110, concurrency=1)
    assert len(fake.requests) == 1 and by_tokens.tokens == 110 and "110 tokens" in by_tokens.reason


def test_malformed_answers_are_paid_for() -> None:
    judgement, _ = run(lambda fake, request: completion("hm", usage=(70, 7)), retries=2)
    assert judgement.tokens == 3 * 77 and judgement.calls[0].prompt_tokens == 210


def test_the_deadline_of_an_episode_keeps_what_was_asked() -> None:
    judgement, _ = run(judged(criterion_a=slow), deadline=0.3)
    assert judgement.state == "abstained" and judgement.reason == "not judged within 0.3 s (deadline)"
    assert [check.purpose for check in judgement.checks] == [Purpose.BLOCKING, Purpose.CRITERION_B]
    assert [call.error for call in judgement.calls] == [None, None, CallError.CANCELLED, CallError.CANCELLED]


def test_waiting_for_a_turn_is_no_timeout() -> None:
    async def answer() -> bytes:
        await asyncio.sleep(0.06)
        return says("SUCCESS")

    judgement, fake = run(
        lambda fake, request: answer(), style="webvoyager", votes=9, concurrency=1, timeout=0.4, retries=0
    )
    assert judgement.state == "passed" and judgement.checks[0].ayes == 9 and fake.most_busy == 1


async def test_a_cancellation_is_passed_on() -> None:
    async with fake_judge(slow) as fake, Judge(config(fake.url)) as judge:
        running = asyncio.ensure_future(judge.judge(EPISODE))
        while not fake.requests:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.parametrize(
    ("address", "proxies"),
    [
        ("http://127.0.0.1:8000/v1", False),
        ("http://127.9.9.9/v1", False),
        ("http://LOCALHOST:8000/v1", False),
        ("http://judge.localhost/v1", False),
        ("http://[::1]:8000/v1", False),
        ("http://0.0.0.0:8000/v1", False),
        ("http://10.0.0.5:8000/v1", True),
        ("https://judge.test/v1", True),
        ("http://localhost.test/v1", True),
    ],
)
async def test_only_an_endpoint_elsewhere_is_asked_through_the_proxies(address: str, proxies: bool) -> None:
    async with endpoint_client(address, "") as client:
        assert client.trust_env == proxies


async def test_a_judge_of_this_machine_is_reached_where_a_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    judgement, _ = await judge_once(judged(), episode(1), retries=0)
    assert judgement.state == "passed"


def refusing(
    *names: str, status: int = 400, said: str = "Unsupported parameter: {!r} is not supported with this model."
) -> Any:
    """An endpoint that refuses parameters by name, one at a time, as hosted models do."""

    def answer(fake: FakeJudge, request: dict[str, Any]) -> bytes:
        bad = next((name for name in names if name in request), None)
        if bad is not None:
            return http(status, json.dumps({"error": {"message": said.format(bad), "param": bad}}))
        found = judged()(fake, request)
        assert isinstance(found, bytes)
        return found

    return answer


@pytest.mark.parametrize(
    ("refused", "sent"),
    [
        (["temperature"], {"max_tokens", "seed"}),
        (["seed"], {"max_tokens", "temperature"}),
        (["max_tokens"], {"max_completion_tokens", "seed", "temperature"}),
        (["max_tokens", "temperature"], {"max_completion_tokens", "seed"}),
        (["max_tokens", "max_completion_tokens", "seed"], {"temperature"}),
    ],
)
def test_a_parameter_that_the_endpoint_refuses_is_left_out_from_then_on(refused: list[str], sent: set[str]) -> None:
    judgement, fake = run(refusing(*refused), retries=0)
    assert judgement.state == "passed"
    known = {"temperature", "seed", "max_tokens", "max_completion_tokens"}
    assert fake.requests[-1].keys() & known == sent
    assert len(fake.requests) == len(judgement.calls) + len(refused), "asked once more for each, and never again"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (422, "Extra inputs are not permitted: body.{}"),
        (400, "Unsupported value: {!r} does not support 0 with this model. Only the default (1) value is supported."),
        (400, "Unrecognized request argument supplied: {}"),
        (400, "`{}` is deprecated for this model."),
    ],
)
def test_refusals_are_understood_as_several_endpoints_write_them(status: int, said: str) -> None:
    judgement, _ = run(refusing("temperature", status=status, said=said), retries=0)
    assert judgement.state == "passed"


def test_a_refusal_for_another_reason_is_final_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    too_large = "'max_tokens' is too large: 800. This model's maximum context length is 512 tokens."
    judgement, fake = run(refusing("max_tokens", said=too_large), retries=3)
    assert judgement.state == "abstained" and judgement.reason.startswith("blocking: refused: HTTP 400")
    assert len(fake.requests) == 1
    (line,) = [each for each in caplog.messages if "refuses the first question" in each]
    assert too_large[:40] in line and "Check base_url, models and api_key_env" in line


def test_parameters_are_left_out_by_their_keys() -> None:
    changes = {"temperature": None, "seed": None, "length_parameter": "max_completion_tokens", "votes": 3}
    judgement, fake = run(judged(), **changes)
    assert judgement.state == "passed"
    for request in fake.requests:
        assert not request.keys() & {"temperature", "seed", "max_tokens"} and request["max_completion_tokens"] == 800
    keys = [call.key for call in judgement.calls]
    assert len(set(keys)) == len(keys), "votes have cache entries of their own"


def test_the_texts_of_a_content_in_parts_are_joined() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": '{"verdict": "SUC'},
        {"type": "text", "text": 'CESS", "reason": "seen"}'},
    ]
    judgement, _ = run(judged(criterion_a=completion(parts)), retries=0)
    assert judgement.state == "passed"
