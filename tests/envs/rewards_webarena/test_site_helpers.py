"""WebArena's helpers that ask sites: a shop and a GitLab on loopback, asked and graded; and what
they are without a log-in or an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.browser import BrowserPool
from envs.episodes.read_end import read_end
from envs.rewards import GradingEvidence
from envs.rewards.webarena import KNOWN, WebArenaParts, lacking, read_eval, site_helpers
from envs.rewards.webarena.members import project_member_role
from envs.rewards.webarena.shop import Shop, read_account
from envs.sites import LiveOptions, make_site
from envs.types import Answer, PageScriptError, Recorded, SiteError, WebTask
from envs.types.webarena import PageCheck, evaluators_hash
from tasks_lib.config import EvaluateConfig, resolve, resolve_path
from tasks_lib.rollouts.evaluation import evaluation_groups
from tasks_lib.rollouts.shards import Rollouts
from tasks_lib.worker import actors
from tasks_lib.worker.rollout_worker import RolloutWorker
from tests.builders import make_task
from tests.loopback import serving
from training.ledger.store import RunStore

from .fake_sites import ACCOUNT, FakeGitLab, FakeShop, review

ORDER = "func:shopping_get_latest_order_url()"
AUTHOR = "func:shopping_get_sku_latest_review_author('B1')"
RATING = "func:shopping_get_sku_latest_review_rating('B1')"
TOKEN = "/store/rest/default/V1/integration/admin/token"
REVIEWS = "/rest/V1/products/B1/reviews"

Question = Callable[[Shop], Awaitable[str]]


@pytest.fixture
def account(tmp_path: Path) -> Path:
    path = tmp_path / "admin.json"
    path.write_text(json.dumps(ACCOUNT))
    return path


async def ask(shop: FakeShop, account: Path | str, *questions: Question, **more: Any) -> list[str]:
    """The answers to questions, one after another, of one asker."""
    with shop.served() as address:
        asker = Shop(f"{address}/", str(account), **more)
        return [(await question(asker)).replace(address, "SHOP") for question in questions]


def author(sku: str = "B1") -> Question:
    return lambda shop: shop.review_author(sku)


def rating(sku: str = "B1") -> Question:
    return lambda shop: shop.review_rating(sku)


# ----------------------------------------------------------------------------
# the shop


async def test_the_newest_order_and_review_as_the_benchmark_has_them(account: Path) -> None:
    shop = FakeShop()
    assert await ask(shop, account, Shop.order_url, author(), rating()) == [
        "SHOP/sales/order/view/order_id/191/", "Emma & Co", "60",
    ]  # fmt: skip
    assert shop.asked == [
        f"POST {TOKEN}", "GET /store/rest/V1/orders", f"GET /store{REVIEWS}", f"GET /store{REVIEWS}",
    ], "one token for all"  # fmt: skip
    assert await ask(FakeShop(), account, author("B/2 x"), rating("B/2 x")) == ["", ""], "no review is an empty text"


async def test_a_token_that_is_not_taken_any_more_is_renewed_once(account: Path) -> None:
    shop = FakeShop()

    async def forgotten(asker: Shop) -> str:
        shop.tokens.clear()
        return await asker.review_author("B1")

    assert await ask(shop, account, author(), forgotten, author()) == ["Emma & Co"] * 3
    assert shop.made == 2 and len(shop.asked) == 2 + 3 + 1
    barred = FakeShop(instead={REVIEWS: (401, '{"message": "hidden"}')})
    with pytest.raises(SiteError, match=r"answered 401; may the account of tasks\.logins\.shopping_site_admin"):
        await ask(barred, account, author())
    assert barred.made == 2


async def test_many_episodes_share_one_token(account: Path) -> None:
    shop = FakeShop(slow=0.05)

    async def many(asker: Shop) -> str:
        return ",".join(await asyncio.gather(*(asker.review_rating("B1") for _ in range(8))))

    assert await ask(shop, account, many) == [",".join(["60"] * 8)] and shop.made == 1


async def test_a_refused_account_is_sent_again_only_when_it_changes(account: Path) -> None:
    account.write_text(json.dumps({**ACCOUNT, "password": "hidden-wrong"}))
    shop, said = FakeShop(), list[str]()

    async def told(asker: Shop) -> str:
        with pytest.raises(SiteError) as caught:
            await asker.order_url()
        said.append(str(caught.value))
        return ""

    async def corrected(asker: Shop) -> str:
        account.write_text(json.dumps(ACCOUNT))
        return await asker.review_author("B1")

    assert await ask(shop, account, told, told, told, corrected) == ["", "", "", "Emma & Co"]
    assert shop.asked == [f"POST {TOKEN}", f"POST {TOKEN}", f"GET /store{REVIEWS}"]
    assert all("tasks.logins.shopping_site_admin" in each and "hidden" not in each for each in said)


REFUSED: list[tuple[dict[str, Any], Question, str]] = [
    ({"instead": {REVIEWS: (500, "hidden")}}, author(), "answered 500; expected 200"),
    ({"instead": {REVIEWS: (302, "")}}, author(), "answered 302; expected 200"),
    ({"instead": {REVIEWS: (200, "<p>hidden")}}, author(), "is no JSON"),
    ({"instead": {REVIEWS: (200, '{"message": "hidden"}')}}, author(), "expected a list of reviews"),
    ({"reviews": {"B1": [{"detail": "hidden"}]}}, author(), "expected reviews with a nickname"),
    ({"reviews": {"B1": [review("hidden", name="Price")]}}, rating(), "first rating is named Rating"),
    ({"reviews": {"B1": [{**review("hidden"), "ratings": []}]}}, rating(), "first rating is named Rating"),
    ({"reviews": {"B1": ["hidden"]}}, rating(), "first rating is named Rating"),
    ({}, author("none"), "answered 404; expected 200"),
    ({}, author(""), "expected a text"),
    ({"orders": []}, Shop.order_url, r"the shop has no orders.*tasks\.addresses\.shopping"),
    ({"orders": [{"created_at": "", "increment_id": "x/../hidden"}]}, Shop.order_url, "an increment_id of digits"),
    ({"instead": {"/rest/V1/orders": (200, '{"items": null}')}}, Shop.order_url, "an increment_id of digits"),
    ({"instead": {"/rest/V1/orders": (200, '"' + "x" * 4_000_001)}}, Shop.order_url, "longer than 4,000,000 bytes"),
    ({"instead": {TOKEN: (503, "hidden")}}, author(), f"POST {TOKEN.removeprefix('/store')}: answered 503"),
    ({"instead": {TOKEN: (200, '{"token": "hidden"}')}}, author(), "the answer is no token"),
    ({"instead": {TOKEN: (200, '"hidden\\r\\nX-Other: 1"')}}, author(), "the answer is no token"),
    ({"instead": {TOKEN: (200, '""')}}, author(), "the answer is no token"),
    ({"instead": {TOKEN: (200, "hidden")}}, author(), "the answer is no token"),
]  # fmt: skip


@pytest.mark.parametrize(("shop", "question", "cause"), REFUSED)
async def test_what_is_no_answer_is_an_error_without_secrets(
    account: Path, shop: dict[str, Any], question: Question, cause: str
) -> None:
    with pytest.raises(SiteError, match=cause) as caught:
        await ask(FakeShop(**shop), account, question)
    assert "hidden" not in str(caught.value)


async def test_a_question_ends_within_its_deadline_log_in_included(account: Path) -> None:
    with pytest.raises(SiteError, match=r"no answer within 0\.3 s"):
        await ask(FakeShop(slow=0.2), account, author(), deadline=0.3)
    with pytest.raises(SiteError, match="ConnectError"):
        await Shop("http://127.0.0.1:1", str(account)).order_url()


async def test_without_an_address_or_a_log_in_the_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"set tasks\.addresses\.shopping=http"):
        await Shop("", "x").order_url()
    shop = FakeShop()
    with pytest.raises(SiteError, match=r"set tasks\.logins\.shopping_site_admin to a file"):
        await ask(shop, "", Shop.order_url)
    assert shop.asked == []
    with pytest.raises(SiteError, match=r"tasks\.logins\.shopping_site_admin: .*gone\.json cannot be read"):
        await ask(shop, tmp_path / "gone.json", Shop.order_url)


@pytest.mark.parametrize(
    "text", ["", "[]", '"hidden"', '{"username": "hidden"}', '{"username": "hidden", "password": 7}', '{"username": "a", "password": ""}'],
)  # fmt: skip
def test_a_file_that_is_no_account_is_refused_without_its_values(tmp_path: Path, text: str) -> None:
    path = tmp_path / "admin.json"
    path.write_text(text)
    with pytest.raises(SiteError, match="is no account; expected an object with username and password") as caught:
        read_account(path)
    assert "hidden" not in str(caught.value)
    path.write_text(json.dumps(ACCOUNT))
    assert "hidden" not in repr(read_account(path))


LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=3)


def some(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of these, or something else."""
    return st.fixed_dictionaries({}, optional=values) | LEAF


RATED = some(rating_name=st.just("Rating") | LEAF, percent=LEAF)
REVIEW = some(nickname=LEAF, ratings=st.lists(RATED, max_size=2) | LEAF)
JSON = st.lists(REVIEW, max_size=2) | some(items=st.lists(some(increment_id=LEAF), max_size=2) | LEAF)


@given(JSON)
async def test_any_json_is_an_answer_or_an_error(found: Any) -> None:
    class Says(Shop):
        async def _ask(self, path: str) -> Any:
            return found

    for question in (Shop.order_url, author(), rating()):
        with suppress(SiteError):
            assert isinstance(await question(Says("", "")), str)


# ------------------------------------------------------------------------------------------------
# what is lacking

EVERYWHERE = {"shopping": "http://s.test", "gitlab": "http://g.test"}


@pytest.mark.parametrize(
    ("url", "locator", "addresses", "logins", "what"),
    [
        ("last", "", {}, {}, ""),
        ("last", AUTHOR, EVERYWHERE, {}, "tasks.logins.shopping_site_admin"),
        ("last", AUTHOR, {}, {}, "tasks.addresses.shopping="),
        (ORDER, "", EVERYWHERE, {"shopping_site_admin": "x"}, ""),
        (ORDER, RATING, EVERYWHERE, {}, "tasks.logins.shopping_site_admin"),
        ("__MAP__/", "", EVERYWHERE, {}, "tasks.addresses.map="),
        ("http://g.test/", "func:gitlab_get_project_memeber_role(__page__, 'kim')", {}, {}, ""),
        ("func:reddit_get_post_url('__last_url__')", "", {}, {}, ""),
        ("last", "func:guess_it()", {}, {}, "the helper 'guess_it', which is not known"),
        (
            "last",
            "func:shopping_get_latest_order_ulr()",
            {},
            {},
            "did you mean shopping_get_latest_order_url or ",
        ),
        ("func:reddit_get_post_ulr('x')", "", {}, {}, "is not known; did you mean reddit_get_post_url? there are"),
        ("func:a.b()", "", {}, {}, "a helper that can be called"),
    ],
)
def test_what_a_check_lacks_is_known_before_a_run(
    url: str, locator: str, addresses: dict[str, str], logins: dict[str, str], what: str
) -> None:
    check = PageCheck.model_validate({"url": url, "locator": locator, "required_contents": {"exact_match": "x"}})
    found = lacking(check, addresses, logins)
    assert what in found and bool(what) == bool(found)
    assert site_helpers(addresses, logins).keys() == KNOWN


# ------------------------------------------------------------------------------------------------
# GitLab, and a run


class Shown:
    def __init__(self, url: str, value: object) -> None:
        self._url, self._value = url, value
        self.ran: list[str] = []

    async def url(self) -> str:
        return self._url

    async def evaluate(self, expression: str) -> object:
        self.ran.append(expression)
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


async def test_a_name_is_data_and_a_failing_script_finds_no_member() -> None:
    page = Shown("http://g.test/p/-/project_members", "Guest")
    assert (await project_member_role(page, 'a"); alert("')) == "Guest"
    assert '=== "@a\\"); alert(\\""' in page.ran[0]
    assert (await project_member_role(Shown("http://g.test/", PageScriptError("clobbered")), "a")) == ""
    with pytest.raises(SiteError, match="expected a text"):
        await project_member_role(page, 7)  # type: ignore[arg-type]


def look(locator: str, url: str = "__GITLAB__/plants/-/project_members", **wanted: Any) -> dict[str, Any]:
    return {"url": url, "locator": locator, "required_contents": wanted or {"must_include": ["Guest"]}}


def role(name: str) -> str:
    return f"func:gitlab_get_project_memeber_role(__page__, {name!r})"


def task_of(site: str, checks: list[dict[str, Any]]) -> WebTask:
    evaluators = read_eval({"eval_types": ["program_html"], "program_html": checks})
    return make_task("webarena/1", site=site, evaluators=evaluators, evaluators_hash=evaluators_hash(evaluators))


@pytest.fixture(scope="module")
def gitlab() -> Iterator[str]:
    with serving(FakeGitLab) as origin:
        yield origin


async def test_the_role_of_a_member_is_read_with_the_episodes_log_in(gitlab: str, tmp_path: Path) -> None:
    login = tmp_path / "login.json"
    login.write_text(
        json.dumps({"cookies": [{"name": "_gitlab_session", "value": "in", "domain": "127.0.0.1"}], "origins": []})
    )
    checks = [look(role(name)) for name in ("kim", "kim2", "nobody", "ada")]
    checks += [look(role("o'hara"), must_include=["Developer"]), look(role("kim"), url="__GITLAB__/nowhere")]
    addresses = {"gitlab": gitlab}

    async def seen(logins: dict[str, str]) -> Recorded:
        site, task = make_site("gitlab", LiveOptions(addresses, logins=logins)), task_of("gitlab", checks)
        await site.start()
        async with BrowserPool(max_sessions=1) as pool, pool.lease(site) as session:
            await session.reset(task, 0)
            await session.step(Answer(text="done"))
            recorded = await read_end(session, task, LiveOptions(addresses), site_helpers(addresses, logins))
            assert recorded is not None
            return recorded

    async def values(recorded: Recorded) -> list[float | None]:
        evidence = GradingEvidence(looked=recorded.looked)
        return [part.value for part in await WebArenaParts(addresses).parts(task_of("gitlab", checks), evidence)]

    within, without = await asyncio.gather(seen({"gitlab": str(login)}), seen({}))
    assert within.looked is not None
    assert [each.text for each in within.looked] == ["Guest", "Owner", "", "Maintainer", "Developer", ""]
    assert await values(within) == [1, 0, 0, 0, 1, 0]
    assert without.looked is not None and await values(without) == [None] * 6, "a log-in's page is no zero"
    assert all("set tasks.logins.gitlab" in each.trouble for each in without.looked)


def test_a_worker_asks_the_shop_and_grades_by_its_answers(
    account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One episode that answers at once, played, looked at and graded by a worker, as a run has
    it."""
    checks = [
        look("document.querySelector('.items').outerText", ORDER, exact_match="order 191"),
        look(AUTHOR, "last", must_include=["Emma & Co"]),
        look(RATING, "last", must_include=["100"]),
        look(AUTHOR.replace("B1", "none"), "last", must_include=["Emma & Co"]),
    ]
    monkeypatch.setattr(actors, "oracle_action", lambda *_: Answer(text="done"))
    shop, store = FakeShop(), RunStore(tmp_path / "run")
    with shop.served() as address:
        logins = {"shopping_site_admin": str(account)}
        values = {"run_id": "shop", "tasks": {"addresses": {"shopping": address}, "logins": logins}}
        config: EvaluateConfig = resolve(EvaluateConfig, values)
        store.publish_policy(0, resolve_path(config.policy.checkpoint), {})
        rollouts = Rollouts(store, config.policy, config.rollout, seed=0, live=config.tasks.live)
        groups = evaluation_groups([task_of("shopping", checks)], phase="e000000", episodes=1)
        worker = RolloutWorker()
        worker.setup(None)
        try:
            worker.roll_out(rollouts.request(groups, 0, actor="oracle"))
        finally:
            worker.teardown(None)
    (episode,) = store.episode_ids()
    played = store.trajectory(episode)
    assert played.error is None and [part.value for part in played.reward.parts] == [1, 1, 0, None], played.reward
    assert played.reward.score == pytest.approx(2 / 3) and played.reward.binary == 0.0
    assert "answered 404" in played.reward.parts[3].evidence
    assert shop.asked.count(f"POST {TOKEN}") == 1 and "GET /store/sales/order/view/order_id/191/" in shop.asked
    secrets = [each.encode() for each in (*ACCOUNT.values(), "hidden-token")]
    for path in store.root.glob("**/*"):
        found = path.read_bytes() if path.is_file() else b""
        assert not any(secret in found for secret in secrets), f"a secret is in {path}"
