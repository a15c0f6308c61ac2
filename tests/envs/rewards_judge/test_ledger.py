"""One budget for all judges of a run: exact for requests whoever asks at once, dies, or is started
again."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.chat import CallError, DamagedLedger, Ledger, SpendingLimits, Spent
from envs.chat import ledger as module
from envs.chat.ledger import Budget
from envs.rewards.judge import Judge, Judgement
from envs.types import StorageError
from tests.envs.rewards_judge.fake_judge import (
    FakeJudge,
    completion,
    config,
    episode,
    fake_judge,
    judged,
    purpose_of,
    says,
)

ROOT = Path(__file__).parents[3]
NONE = SpendingLimits(None, None)


async def soon(fake: FakeJudge, request: dict[str, Any]) -> bytes:
    await asyncio.sleep(0.005)
    return says("NOT BLOCKED" if purpose_of(request) == "blocking" else "SUCCESS")


async def start(fake: FakeJudge, ledger: Path, episodes: int, **limits: int) -> Process:
    """A worker, when it is about to ask."""
    words = [fake.url, str(ledger), str(episodes), json.dumps(limits)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.envs.rewards_judge.spender", *words, stdout=PIPE, cwd=ROOT
    )
    assert process.stdout is not None and await process.stdout.readline() == b"begins\n"
    return process


async def sent(process: Process) -> dict[str, int]:
    out, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, int] = json.loads(out)
    return found


def test_limits_say_what_is_used_up_and_what_is_left() -> None:
    limits = SpendingLimits(3, 500)
    assert limits.refusal(Spent(requests=2, tokens=499)) is None and NONE.refusal(Spent(requests=10**9)) is None
    assert "3 requests" in str(limits.refusal(Spent(requests=3))) and "500 tokens" in str(
        limits.refusal(Spent(tokens=500))
    )
    assert limits.account(Spent(requests=2, tokens=620)) == {
        "requests": {"spent": 2, "left": 1},
        "tokens": {"spent": 620, "left": 0},
    }
    assert NONE.account(Spent(requests=2))["requests"] == {"spent": 2, "left": None}


@settings(max_examples=20)
@given(st.lists(st.one_of(st.none(), st.integers(0, 10**12)), max_size=8), st.integers(0, 9))
def test_the_file_holds_the_sums_of_what_was_claimed_and_paid(
    tmp_path_factory: pytest.TempPathFactory, events: list[int | None], most: int
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("run") / "judge_spent.sqlite")
    assert ledger.read() == Spent() and not ledger.path.exists(), "looking makes no file"
    for tokens in events:
        if tokens is None:
            ledger.claim(SpendingLimits(most, None))
        else:
            ledger.pay(tokens)
    claims = sum(each is None for each in events)
    assert ledger.read() == Spent(requests=min(most, claims), tokens=sum(each or 0 for each in events))


def test_threads_with_ledgers_of_their_own_claim_each_request_once(tmp_path: Path) -> None:
    path, limits = tmp_path / "deep" / "judge_spent.sqlite", SpendingLimits(50, None)

    def claim_all(_: int) -> int:
        ledger, count = Ledger(path), 0
        while ledger.claim(limits) is None:
            count += 1
        return count

    with ThreadPoolExecutor(8) as threads:
        counts = list(threads.map(claim_all, range(8)))
    assert sum(counts) == 50 and Ledger(path).read() == Spent(requests=50)


FORK = multiprocessing.get_context("fork")


class SlowLimits(SpendingLimits):
    """Decide slowly, so that processes which are not kept apart meet here."""

    def refusal(self, spent: Spent) -> str | None:
        time.sleep(0.005)
        return super().refusal(spent)


BETWEEN = 0.05
"""Seconds between the look and the count of a wrong ledger: others look meanwhile, whatever the
machine does."""


class LooksFirst(Ledger):
    """Looks in one transaction and counts in another, which is wrong."""

    def claim(self, limits: SpendingLimits) -> str | None:
        refused = limits.refusal(self.read())
        time.sleep(BETWEEN)
        return refused or super().claim(NONE)


def claim_all(ledger: Ledger, most: int, pause: float, start: Any, said: Path) -> None:
    """Claim until it is refused, and write a byte after each claim."""
    start.wait()
    with said.open("ab", buffering=0) as file:
        while ledger.claim(SlowLimits(most, None)) is None:
            file.write(b".")
            time.sleep(pause)


def claims(ledger: Ledger, most: int) -> list[int]:
    """What each of five processes got that claim at once."""
    start = FORK.Barrier(5)
    said = [ledger.path.with_name(f"said-{number}") for number in range(5)]
    started = [FORK.Process(target=claim_all, args=(ledger, most, 0.02, start, each)) for each in said]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    assert all(process.exitcode == 0 for process in started)
    return [each.stat().st_size for each in said]


def test_processes_that_claim_at_once_get_exactly_the_budget(tmp_path: Path) -> None:
    claimed = claims(Ledger(tmp_path / "spent"), 40)
    assert sum(claimed) == 40 and Ledger(tmp_path / "spent").read() == Spent(requests=40)
    assert sum(map(bool, claimed)) > 1, "more than one had a share, or nothing was proved"


def test_without_one_transaction_the_budget_would_be_exceeded(tmp_path: Path) -> None:
    """The test above fails for a ledger that looks and counts apart."""
    assert (
        sum(claims(LooksFirst(tmp_path / "spent"), 18)) > 18
    )  # no multiple of the five processes, which may keep step


def test_a_kill_at_any_moment_loses_and_doubles_no_claim(tmp_path: Path) -> None:
    """It writes a byte after a claim, so the claim that it was killed in may have been counted
    without one."""
    ledger, before = Ledger(tmp_path / "spent"), 0
    for number in range(10):
        said = tmp_path / f"said-{number}"
        process = FORK.Process(target=claim_all, args=(ledger, 10**6, 0, FORK.Barrier(1), said))
        process.start()
        while not said.exists():
            time.sleep(0.001)
        time.sleep(0.1 + 0.0131 * number)
        process.kill()
        process.join()
        spent = ledger.read().requests
        assert said.stat().st_size <= spent - before <= said.stat().st_size + 1
        before = spent
    assert (
        before > 0
        and ledger.claim(SpendingLimits(before + 1, None)) is None
        and ledger.claim(SpendingLimits(before + 1, None))
    )


TORN = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_spill = 1")
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE spent SET requests = requests + 40")
connection.execute("CREATE TABLE filler (x)")
connection.executemany("INSERT INTO filler VALUES (?)", [("x" * 4000,)] * 50)
os.kill(os.getpid(), 9)
"""


def test_what_a_process_had_half_written_when_it_was_killed_is_taken_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spent")
    assert ledger.claim(NONE) is None
    subprocess.run([sys.executable, "-c", TORN, str(ledger.path)], check=False)
    torn = ledger.path.read_bytes()
    assert (tmp_path / "spent-journal").exists() and len(torn) > 50_000, "pages of the transaction are in the file"
    assert ledger.read() == Spent(requests=1) and not (tmp_path / "spent-journal").exists()


def test_the_count_survives_a_failing_transaction(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spent")
    ledger.pay(5)
    with closing(sqlite3.connect(ledger.path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    with pytest.raises(StorageError, match="cannot be counted: CHECK constraint failed"):
        ledger.pay(-6)
    with pytest.raises(RuntimeError), ledger._transaction() as (connection, _):
        connection.execute("UPDATE spent SET requests = 9")
        raise RuntimeError
    assert ledger.read() == Spent(tokens=5)


async def test_two_workers_at_once_send_exactly_what_the_budget_allows(tmp_path: Path) -> None:
    """Sixty episodes of four questions each are 240 requests for each of the two; there are 250 for
    both."""

    async with fake_judge(judged()) as fake:
        workers = [await start(fake, tmp_path / "spent", 60, budget_requests=250) for _ in range(2)]
        fake, (one, other) = fake, await asyncio.gather(*map(sent, workers))
    assert len(fake.requests) == 250 == one["requests"] + other["requests"]
    assert Ledger(tmp_path / "spent").read() == Spent(requests=250, tokens=27500)


async def test_tokens_overshoot_by_no_more_than_was_under_way(tmp_path: Path) -> None:
    """A request costs 110. With at most four paid there is room for another; eight may then be
    under way (four of each worker)."""

    async with fake_judge(judged(criterion_a=soon, criterion_b=soon, blocking=soon)) as fake:
        workers = [await start(fake, tmp_path / "spent", 8, budget_tokens=550) for _ in range(2)]
        await asyncio.gather(*map(sent, workers))
        count = len(fake.requests)
    assert 5 <= count <= 4 + 8
    assert Ledger(tmp_path / "spent").read() == Spent(requests=count, tokens=110 * count)


async def test_a_killed_worker_loses_nothing_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    enough = asyncio.Event()

    async def answer(fake: FakeJudge, request: dict[str, Any]) -> bytes:
        if len(fake.requests) >= 7:
            enough.set()
        return await soon(fake, request)

    async with fake_judge(judged(criterion_a=answer, criterion_b=answer, blocking=answer)) as fake:
        killed = await start(fake, tmp_path / "spent", 20, budget_requests=40)
        await asyncio.wait_for(enough.wait(), 20)
        killed.kill()
        await killed.wait()
        before = Ledger(tmp_path / "spent").read().requests
        after = await sent(await start(fake, tmp_path / "spent", 20, budget_requests=40))
        seen = len(fake.requests)
    assert 7 <= before < 40 and after["requests"] == 40 - before, "nothing is given twice"
    assert 40 - 4 <= seen <= 40, "counted before it is sent: only what was on its way at the kill may be missing"


async def test_tokens_are_counted_if_the_caller_is_cancelled_early(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    free = threading.Event()
    busy = asyncio.create_task(asyncio.to_thread(free.wait, 20))
    paying = asyncio.create_task(Budget(NONE, Ledger(tmp_path / "spent")).pay(110))
    for _ in range(3):  # until both are with the pool
        await asyncio.sleep(0)
    paying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await paying
    free.set()
    await busy
    assert Ledger(tmp_path / "spent").read() == Spent(tokens=110)


def judge_again(folder: Path, **limits: Any) -> tuple[Judgement, FakeJudge]:
    """The next process of a run."""

    async def main() -> tuple[Judgement, FakeJudge]:
        ledger = Ledger(folder / "spent")
        async with fake_judge(judged()) as fake, Judge(config(fake.url, **limits), ledger) as judge:
            return await judge.judge(episode(1)), fake

    return asyncio.run(main())


def test_a_run_that_is_resumed_goes_on_with_what_is_left(tmp_path: Path) -> None:
    first, fake = judge_again(tmp_path, budget_requests=6)
    assert first.state == "passed" and len(fake.requests) == 4
    second, fake = judge_again(tmp_path, budget_requests=6)
    assert second.state == "abstained" and len(fake.requests) == 2
    third, fake = judge_again(tmp_path, budget_requests=6)
    assert not fake.requests and {call.error for call in third.calls} == {CallError.BUDGET}
    assert "the budget of 6 requests is used up (budget_requests)" in third.reason
    assert Ledger(tmp_path / "spent").read() == Spent(requests=6, tokens=660)
    more, fake = judge_again(tmp_path)
    assert more.state == "passed" and len(fake.requests) == 4, "counted also without a budget"
    assert Ledger(tmp_path / "spent").read().requests == 10


async def test_absurd_token_counts_of_an_endpoint_are_not_added(tmp_path: Path) -> None:
    def answer(fake: FakeJudge, request: dict[str, Any]) -> bytes:
        return completion("hm", usage=(10**60, 10**60))

    ledger = Ledger(tmp_path / "spent")
    async with fake_judge(answer) as fake, Judge(config(fake.url, retries=1), ledger) as judge:
        judgement = await judge.judge(episode(1))
    assert judgement.calls and all(call.estimated for call in judgement.calls)
    spent = Ledger(tmp_path / "spent").read()
    assert spent == Spent(requests=judgement.requests, tokens=judgement.tokens) and 0 < spent.tokens < 10**6


@pytest.mark.parametrize("content", ["{}x", '{"requests": -1}', "[]", "\0" * 96, '{"requests": 1, "x": 2}'])
@pytest.mark.parametrize("name", ["spent", "spent.json"])
def test_what_cannot_be_counted_is_not_sent(tmp_path: Path, content: str, name: str) -> None:
    (tmp_path / name).write_text(content)
    judgement, fake = judge_again(tmp_path)
    assert judgement.state == "abstained" and not fake.requests
    assert f"{tmp_path / name}: " in judgement.reason and "delete the file" in judgement.reason


def test_another_database_in_its_place_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "spent")) as connection:
        connection.execute("CREATE TABLE spent (dollars REAL)")
    with pytest.raises(DamagedLedger, match=r"no ledger of what was spent \(no such column: requests\)"):
        Ledger(tmp_path / "spent").read()


def test_a_file_of_numbers_is_where_the_count_begins(tmp_path: Path) -> None:
    """It is read once, when the ledger is made."""
    old = tmp_path / "judge_spent.json"
    old.write_text('{"requests":7,"tokens":770}\n')
    ledger = Ledger(tmp_path / "judge_spent.sqlite")
    assert ledger.read() == Spent(requests=7, tokens=770) and not ledger.path.exists()
    assert ledger.claim(SpendingLimits(8, None)) is None and ledger.claim(SpendingLimits(8, None)) is not None
    ledger.pay(110)
    assert Ledger(ledger.path).read() == Spent(requests=8, tokens=880)
    old.unlink()
    assert ledger.read() == Spent(requests=8, tokens=880)
    with pytest.raises(ValueError, match="another suffix"):
        Ledger(old)


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "spent").mkdir()
    judgement, fake = judge_again(tmp_path)
    assert judgement.state == "abstained" and not fake.requests and "cannot be counted" in judgement.reason


@pytest.mark.parametrize("name", ["spent", "spent.json"])
def test_a_file_that_was_made_and_never_written_is_an_empty_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert Ledger(tmp_path / "spent").read() == Spent()
    assert Ledger(tmp_path / "spent").claim(NONE) is None and Ledger(tmp_path / "spent").read().requests == 1


HOLDS = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE spent SET requests = 99")
print("holds", flush=True)
time.sleep(60)
"""


@contextmanager
def stopped_owner(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that was stopped in the middle of a transaction."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"holds\n"
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_stopped_lock_owner_is_an_error_for_the_budget_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty at once: those behind the first do not wait as long once more, and the loop's threads
    are free all the time."""
    monkeypatch.setattr(module, "LOCK_SECONDS", 1.0)
    ledger = Ledger(tmp_path / "spent")
    ledger.pay(1)

    async def main(process: subprocess.Popen[bytes]) -> list[str]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        budget = Budget(SpendingLimits(9, None), ledger)
        claims = [asyncio.create_task(budget.claim()) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert await asyncio.to_thread(lambda: "free") == "free" and not any(claim.done() for claim in claims)
        async with asyncio.timeout(12):
            errors = await asyncio.gather(*claims, return_exceptions=True)
        assert all(type(error) is StorageError for error in errors)
        process.kill()
        process.wait()
        assert await budget.claim() is None and budget.requests == 1, "when it is gone all is as before"
        return list(map(str, errors))

    with stopped_owner(ledger.path) as process:
        said = asyncio.run(main(process))
        assert said[0].startswith(f"{ledger.path}: another process has held the lock for 1 s or more; ")
        assert f"'fuser -v {ledger.path}' names it" in said[0]
    assert ledger.read() == Spent(requests=1, tokens=1), "what it had begun is taken back"


def test_a_judge_abstains_while_the_lock_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.1)
    Ledger(tmp_path / "spent").pay(1)
    with stopped_owner(tmp_path / "spent"):
        judgement, fake = judge_again(tmp_path)
    assert judgement.state == "abstained" and not fake.requests
    assert {call.error for call in judgement.calls} == {CallError.UNCOUNTED}
    assert f"{tmp_path / 'spent'}: another process has held the lock" in judgement.reason


async def test_a_damaged_ledger_is_told_until_it_is_mended(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spent")
    ledger.claim(NONE)

    budget = Budget(NONE, ledger)
    assert await budget.claim() is None and budget.damage is None
    ledger.path.write_text('{"requests":2,"tok')
    with pytest.raises(DamagedLedger, match=r"spent: this is no ledger .* write .* into spent\.json .*delete the file"):
        await budget.claim()
    assert budget.damage is not None and str(ledger.path) in str(budget.damage) and budget.requests == 1
    ledger.start_path.write_text('{"requests":2,"tok')
    ledger.path.unlink()
    with pytest.raises(
        DamagedLedger, match=r"spent\.json: expected what was spent, not b.* or delete the file to begin"
    ):
        await budget.claim()
    assert budget.damage is not None and str(ledger.start_path) in str(budget.damage)
    ledger.start_path.write_text('{"requests":2,"tokens":0}')
    assert await budget.claim() is None and budget.damage is None
    assert ledger.read() == Spent(requests=3)


def test_a_paid_answer_is_used_if_its_tokens_cannot_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Ledger, tokens: int) -> None:
        raise StorageError("spent: no space left")

    monkeypatch.setattr(Ledger, "pay", full)
    judgement, _ = judge_again(tmp_path)
    assert judgement.state == "passed" and judgement.calls[0].trouble == "spent: no space left"
    assert "no space left" in caplog.text
