"""What is refused before anything is rolled out: tasks that can never be graded, sites and log-ins
that cannot be used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from envs.chat import Ledger
from envs.rewards import read_rubric
from envs.tasks import TaskIndex, save_tasks
from envs.types import ConfigError, SeedRange, Split, WebTask
from envs.types.webarena import EvalType, WebArenaEval
from tasks_lib.config import RewardConfig, RolloutConfig, TasksConfig, TrainConfig, resolve
from tasks_lib.preflight.flows import check_training
from tasks_lib.preflight.tasks import SAMPLE, SHOWN, Gradable, ask_judge, check_gradable, check_sites
from tasks_lib.worker.requests import WorkerRequest
from tests.chat_endpoint import Says, completion, endpoint

JUDGE = {"judge": {"base_url": "http://127.0.0.1:1/v1", "models": {"default": "m"}}}
SPLITS = (Split.TRAIN, Split.HELD_OUT)

URL = {"id": "at", "type": "url", "url": "/done"}
JUDGED = {"id": "red", "type": "judge", "description": "the lamp is red"}
SIMILAR = {"id": "like", "type": "domdiff_subscore", "key": "textSimilarity"}
FAST = {"id": "fast", "type": "signal_threshold", "metric": "total_cls", "comparison": "lte", "threshold": 0.1}


def make_task(number: int = 0, **changes: Any) -> WebTask:
    known: dict[str, Any] = {
        "task_id": f"shop/{number}",
        "site": "shop.example",
        "kind": "k",
        "path": "/",
        "difficulty": 1,
        "horizon": 3,
        "seeds": {Split.TRAIN: SeedRange(start=0, stop=1)},
    }
    return WebTask(**(known | changes))


def rubric_task(*facts: dict[str, Any], number: int = 0, reference: str = "", **rest: Any) -> WebTask:
    rubric = read_rubric({"fact_groups": [{"name": "g", "facts": list(facts)}], **rest})
    return make_task(number, rubric=rubric, reference=reference)


def evaluated(*types: str, url: str = "http://h/", **answers: Any) -> WebTask:
    known: dict[str, Any] = {"eval_types": types, "reference_answers": answers or None, "string_note": "no such thing"}
    return make_task(evaluators=WebArenaEval(**known, reference_url=url if "url_match" in types else None))


def refused(task: WebTask, rewards: dict[str, Any] | None = None, **rollout: Any) -> bool | None:
    """``None`` if nothing is missing, else whether the task can then never be graded."""
    found = missing(task, rewards, **rollout)
    return None if found is None else found[0]


def missing(task: WebTask, rewards: dict[str, Any] | None = None, **rollout: Any) -> tuple[bool, str] | None:
    config = TasksConfig(addresses={"gitlab": "http://127.0.0.1:8023"})
    check = Gradable(RolloutConfig(**rollout), RewardConfig(**(rewards or {})), config.live)
    found = check.find_missing(task)
    return None if found is None else (found.never, found.what)


# ----------------------------------------------------------------------------
# one task


def test_facts_for_a_judge_need_one() -> None:
    assert missing(rubric_task(JUDGED)) == (True, "a judge: set rollout.judge (docs/rewards.md)")
    assert refused(rubric_task(JUDGED), **JUDGE) is None
    assert refused(rubric_task(URL, JUDGED)) is False, "it is left out of the mean"
    assert refused(rubric_task(URL, JUDGED, pass_requirements={"required_fact_ids": ["red"]})) is True
    assert refused(rubric_task(URL, gates=[JUDGED])) is True, "a gate is needed"
    two = {"fact_groups": [{"name": "a", "facts": [URL]}, {"name": "b", "facts": [JUDGED]}]}
    assert refused(make_task(rubric=read_rubric(two))) is False
    needed = {**two, "pass_requirements": {"required_group_ids": ["b"]}}
    assert refused(make_task(rubric=read_rubric(needed))) is True
    assert refused(make_task(rubric=read_rubric(needed)), **JUDGE) is None


def test_similarities_need_the_nodes_and_a_reference() -> None:
    floor = {"pass_requirements": {"floors": {"textSimilarity": 0.8}}}
    for task in (rubric_task(SIMILAR, reference="/good"), rubric_task(URL, reference="/good", **floor)):
        assert missing(task) == (True, "the nodes of the last page: set rollout.dom_diffs=true")
        assert refused(task, dom_diffs=True) is None
    for task in (rubric_task(SIMILAR), rubric_task(URL, **floor)):
        found = missing(task, dom_diffs=True)
        assert found is not None and found[0] and "give the task a reference" in found[1]
    assert refused(rubric_task(URL, SIMILAR, reference="/good")) is False
    plain = make_task(reference="/good")
    assert missing(plain) == (True, "the nodes of the last page: set rollout.dom_diffs=true")
    assert refused(plain, dom_diffs=True) is None
    assert refused(plain, {"semantic": 0}, dom_diffs=True) is True, "nobody is asked how like it is"


def test_signals_are_needed_and_all_that_is_missing_is_named() -> None:
    assert missing(rubric_task(FAST)) == (True, "the browser's signals: set rollout.signals=true")
    assert refused(rubric_task(FAST), signals=True) is None
    assert refused(rubric_task(URL, FAST)) is False
    found = missing(rubric_task(FAST, JUDGED))
    assert found is not None and found[0] and "rollout.signals" in found[1] and "rollout.judge" in found[1]
    assert refused(rubric_task(FAST, JUDGED), signals=True) is False


def test_evaluators_that_need_a_judge_or_an_address() -> None:
    fuzzy = evaluated("string_match", fuzzy_match=("red",))
    assert missing(fuzzy) == (True, "a judge: set rollout.judge (docs/rewards.md)")
    assert refused(fuzzy, **JUDGE) is None
    assert refused(evaluated("string_match", fuzzy_match="red")) is True
    assert refused(evaluated("string_match", fuzzy_match="N/A")) is False, "N/A itself is right"
    assert refused(evaluated("string_match", fuzzy_match=("red",), must_include=("12",))) is False
    assert refused(evaluated("string_match", "url_match", fuzzy_match=("red",))) is False
    assert refused(evaluated("string_match", exact_match="12")) is None
    assert refused(evaluated("url_match")) is None
    assert refused(evaluated("url_match", url="__GITLAB__/a")) is None
    found = missing(evaluated("url_match", url="__SHOPPING_ADMIN__/a"))
    assert found is not None and found[0] and "tasks.addresses.shopping_admin=http" in found[1]


def looking(*checks: tuple[str, str]) -> WebTask:
    rows = [{"url": url, "locator": locator, "required_contents": {"exact_match": "x"}} for url, locator in checks]
    return make_task(evaluators=WebArenaEval.model_validate({"eval_types": ["program_html"], "program_html": rows}))


def test_evaluators_that_look_at_what_cannot_be_had() -> None:
    order = "func:shopping_get_latest_order_url()"
    assert refused(looking(("last", ""))) is None
    assert refused(looking(("__GITLAB__/a", "document.title"))) is None
    found = missing(looking(("__MAP__/a", "")))
    assert found == (True, "the address of __MAP__: set tasks.addresses.map=http://…")
    found = missing(looking((order, ""), ("last", "")))
    assert found is not None and not found[0] and "tasks.addresses.shopping" in found[1]
    assert refused(looking((order, ""), ("last", order))) is True
    both = looking(("__MAP__/a", "")).evaluators
    assert both is not None
    types = (EvalType.URL_MATCH, EvalType.PROGRAM_HTML)
    there = both.model_copy(update={"eval_types": types, "reference_url": "http://h/"})
    assert refused(make_task(evaluators=there)) is False, "a wrong address is a zero all the same"


def test_evaluators_that_need_a_package_or_a_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"eval_types": ["state_match"], "state": [{"query": "a", "expected": 1}]}
    task = make_task(evaluators=WebArenaEval.model_validate(state))
    monkeypatch.setitem(sys.modules, "jmespath", None)
    assert missing(task) == (True, "the package jmespath, where the browsers run: pip install jmespath")
    state = {"eval_types": ["state_match"], "state": [{"script": "eval_a_1.py"}]}
    monkeypatch.setitem(sys.modules, "agisdk", None)
    found = missing(make_task(evaluators=WebArenaEval.model_validate(state)))
    assert found is not None and found[0] and "the package agisdk, where the browsers run: pip install" in found[1]
    page = {"url": "last", "required_contents": {"fuzzy_match": ["a"]}}
    judged = {"eval_types": ["program_html"], "program_html": [page]}
    task = make_task(evaluators=WebArenaEval.model_validate(judged))
    assert missing(task) == (True, "a judge: set rollout.judge (docs/rewards.md)")
    assert refused(task, **JUDGE) is None


def test_pages_that_declare_nothing_need_a_rubric() -> None:
    for site in ("shop.example", "gitlab", "shop"):
        found = missing(make_task(site=site))
        assert found is not None and found[0] and "a rubric or evaluators" in found[1]
        assert refused(rubric_task(URL).model_copy(update={"site": site})) is None
    assert refused(make_task(site="miniwob")) is None
    assert refused(make_task(site="design2code")) is None
    assert refused(make_task(site="design2code"), {"visual": 0}) is True


# ----------------------------------------------------------------------------
# a set


def checked(tasks: list[WebTask], **rollout: Any) -> list[str]:
    said: list[str] = []
    check = Gradable(RolloutConfig(**rollout), RewardConfig(), TasksConfig().live)
    check_gradable(TaskIndex.build(tasks), check, SPLITS, said.append)
    return said


def test_a_set_with_tasks_that_can_never_be_graded_is_refused_by_the_first() -> None:
    good, bad = rubric_task(URL, number=0), [rubric_task(JUDGED, number=number) for number in (1, 2, 3)]
    with pytest.raises(ConfigError, match=r"task shop/1 could never be graded.*rollout\.judge.*2 more of the 4 tasks"):
        checked([good, *bad])
    assert checked([good, *bad], **JUDGE) == []
    demo = {Split.DEMO: SeedRange(start=0, stop=1)}
    assert checked([good, bad[0].model_copy(update={"seeds": demo})]) == [], "it is never rolled out"
    assert checked([]) == []


def test_parts_that_are_left_out_are_one_line() -> None:
    said = checked([rubric_task(URL, number=0), *(rubric_task(URL, JUDGED, number=number) for number in (1, 2))])
    assert len(said) == 1 and said[0].startswith("2 of 3 tasks") and "shop/1 needs a judge" in said[0]


def test_of_a_large_set_a_sample_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_lib.preflight.tasks.ALL", 100)
    monkeypatch.setattr("tasks_lib.preflight.tasks.SAMPLE", 50)
    assert SAMPLE == 1000
    looked: list[str] = []

    class Counting(Gradable):
        def find_missing(self, task: WebTask) -> None:
            looked.append(task.task_id)

    check = Counting(RolloutConfig(), RewardConfig(), TasksConfig().live)
    index = TaskIndex.build([rubric_task(URL, number=number) for number in range(101)])
    check_gradable(index, check, SPLITS, lambda _: None)
    once = list(looked)
    check_gradable(index, check, SPLITS, lambda _: None)
    assert len(set(once)) == 50 and looked == once * 2, "the same ones each time"
    with pytest.raises(ConfigError, match="task shop/"):
        checked([rubric_task(JUDGED, number=number) for number in range(101)])


# --------------------------------------------------------------------------------------------------
# sites, log-ins


def sites_of(*names: str) -> TaskIndex:
    return TaskIndex.build([make_task(number, site=name) for number, name in enumerate(names)])


def test_all_sites_that_cannot_be_used_are_named_at_once() -> None:
    config = TasksConfig(addresses={"gitlab": "http://127.0.0.1:8023"})
    check_sites(sites_of("miniwob", "shop.example", "gitlab"), config, read_logins=True)
    with pytest.raises(ConfigError) as caught:
        check_sites(sites_of("miniwob", "shopping", "10.0.0.1", "shop.example"), config, read_logins=True)
    said = str(caught.value)
    assert "2 of the tasks' sites" in said and "'shopping'" in said and "10.0.0.1" in said and "miniwob" not in said
    with pytest.raises(ConfigError, match=r"(?s)25 of the.*and 5 more$") as caught:
        check_sites(sites_of(*(f"nowhere{number}" for number in range(25))), config, read_logins=True)
    assert str(caught.value).count("\n") == SHOWN + 1


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gitlb", "did you mean gitlab? "),
        ("GitLab", "did you mean gitlab? "),
        ("shop.exmaple", "did you mean shop.example? "),
        ("redit", "did you mean reddit? "),  # no task is there, and checks of WebArena may ask it
        ("reddit", None),
        ("shopping-admin", "did you mean shopping_admin? "),
        ("another.test", None),  # of another set of tasks
        ("mail.exampl", None),  # near to one that has an address, and no task is there either
    ],
)
def test_a_mistyped_site_of_an_address_gets_a_suggestion(name: str, meant: str | None) -> None:
    """Also where the site could be used without: its tasks would be played on the open web."""
    addresses = {name: "http://127.0.0.1:8023", "mail.example": "http://127.0.0.1:8024"}
    index = sites_of("shop.example", *(["gitlab"] if meant and "gitlab" in meant else []))
    try:
        check_sites(index, TasksConfig(addresses=addresses), read_logins=True)
    except ConfigError as error:
        assert meant is not None
        said = f"tasks.addresses.{name}: no task is on a site of that name; {meant}correct it, or leave it out"
        assert str(error).count(said) == 1
    else:
        assert meant is None


def test_log_ins_are_read_once_and_belong_to_sites_of_the_tasks(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"cookies": [{"name": "a", "value": "1", "domain": "shop.example"}]}))
    bad.write_text('{"cookies": ["hidden"]}')
    index = sites_of("shop.example", "mail.example", "miniwob")

    def problems(read: bool = True, **logins: Path) -> str:
        config = TasksConfig(logins={name.replace("_", "."): str(file) for name, file in logins.items()})
        try:
            check_sites(index, config, read_logins=read)
        except ConfigError as error:
            return str(error)
        return ""

    assert problems(shop_example=good) == ""
    said = problems(shop_example=bad, mail_example=tmp_path / "none.json", shpo_example=good, miniwob=good)
    assert said.startswith("4 of the") and "tasks.logins.shpo.example: no task is on a site of that name" in said
    assert "bad.json" in said and "none.json" in said and "which has no log-in" in said and "hidden" not in said
    assert problems(read=False, shop_example=tmp_path / "none.json") == "", "the files of a cluster elsewhere"


def test_the_account_that_asks_the_shop_belongs_to_no_site(tmp_path: Path) -> None:
    account = tmp_path / "admin.json"
    config = TasksConfig(logins={"shopping_site_admin": str(account)})
    account.write_text('{"username": "admin", "password": "hidden"}')
    check_sites(sites_of("miniwob"), config, read_logins=True)
    account.write_text('{"username": "admin", "passwort": "hidden"}')
    with pytest.raises(ConfigError, match=r"tasks\.logins\.shopping_site_admin: .*expected an object") as caught:
        check_sites(sites_of("miniwob"), config, read_logins=True)
    assert "hidden" not in str(caught.value)
    check_sites(sites_of("miniwob"), config, read_logins=False)


def test_a_run_is_refused_for_its_tasks_before_it_has_a_folder(tmp_path: Path) -> None:
    def open_checked(task: WebTask, name: str) -> None:
        seeds = {Split.TRAIN: SeedRange(start=0, stop=1), Split.HELD_OUT: SeedRange(start=1, stop=2)}
        save_tasks(tmp_path / f"{name}.jsonl", [task.model_copy(update={"seeds": seeds})])
        values = {
            "run_id": name,
            "evaluation": {"episodes": 1},
            "root": str(tmp_path),
            "tasks": {"file": str(tmp_path / f"{name}.jsonl")},
        }
        config: TrainConfig = resolve(TrainConfig, values)
        check_training(config)

    open_checked(rubric_task(URL), "good")
    with pytest.raises(ConfigError, match=r"rollout\.judge"):
        open_checked(rubric_task(JUDGED), "judged")
    with pytest.raises(ConfigError, match="'nowhere'"):
        open_checked(make_task(site="nowhere"), "nowhere")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


# ------------------------------------------------------------------------------------------- the
# judge's first question


def asked(folder: Path, task: WebTask, *, here: bool = True, **judge: Any) -> list[str]:
    """What a run with this judge and task is warned of."""
    known = {"models": {"default": "big", "keyframe": "small"}, "backoff": 0.01, "api_key_env": "JUDGE_KEY"}
    rollout = RolloutConfig.model_validate({"judge": known | judge})
    return ask_judge(WorkerRequest(run_dir=str(folder), rollout=rollout), [make_task(), task], here=here)


def knows(*models: str, status: int = 404) -> Says:
    return lambda body: (200, completion("yes")) if body["model"] in models else (status, {"error": "wrong: sesame"})


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sesame")


def test_each_model_of_a_judge_is_asked_once_where_a_task_needs_it(tmp_path: Path, key: None) -> None:
    with endpoint(knows("big", "small")) as (address, served):
        assert asked(tmp_path, rubric_task(URL), base_url=address) == [] and not served.asked, "nobody needs it"
        cache = tmp_path / "answers"
        for _ in range(2):  # an answer of before would prove nothing
            assert asked(tmp_path, rubric_task(URL, JUDGED), base_url=address, cache=cache) == []
    assert [body["model"] for body in served.asked] == ["big", "small"] * 2 and set(served.keys) == {"Bearer sesame"}
    assert Ledger(tmp_path / "judge_spent.sqlite").read().requests == 4, "counted as all that the run asks"


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    ("says", "correction"),
    [
        (knows("big", status=404), r"model 'small': HTTP 404: .*correct rollout\.judge\.models or rollout\.judge\.base_url"),
        (knows(status=401), r"model 'big': HTTP 401: .*wrong: \[key\].*give its key by rollout\.judge\.api_key_env"),
        (knows("big", status=400), r"model 'small': HTTP 400: .*change rollout\.judge as it says"),
    ],
)  # fmt: skip
def test_a_judge_that_refuses_for_good_ends_the_run_at_its_start(
    tmp_path: Path, key: None, says: Says, correction: str, here: bool
) -> None:
    with (
        endpoint(says) as (address, served),
        pytest.raises(ConfigError, match=rf"^rollout\.judge: .*{address}, {correction}$"),
    ):
        asked(tmp_path, rubric_task(JUDGED), base_url=address, here=here)
    assert len(served.asked) <= 2, "trying again changes nothing"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_of_a_failure_that_may_pass_the_run_is_warned(tmp_path: Path, key: None, status: int) -> None:
    with endpoint(knows("big", status=status)) as (address, served):
        (warning,) = asked(tmp_path, rubric_task(JUDGED), base_url=address)
    assert warning.startswith("warning: rollout.judge: no answer to a first question")
    assert f"{address}, model 'small': HTTP {status}" in warning
    assert [body["model"] for body in served.asked] == ["big", "small", "small"]


def test_a_judge_that_is_not_there_ends_the_run_unless_others_may_reach_it(tmp_path: Path, key: None) -> None:
    with endpoint(knows()) as (address, _):
        pass  # its port is free again
    match = rf"^rollout\.judge: no judge answers \({address}, model 'big': ConnectError.*start it, or correct rollout\.judge\.base_url$"
    with pytest.raises(ConfigError, match=match):
        asked(tmp_path, rubric_task(JUDGED), base_url=address)
    warnings = asked(tmp_path, rubric_task(JUDGED), base_url=address, here=False)
    assert len(warnings) == 2 and all(f"({address}, model" in each for each in warnings)


def test_the_key_of_a_judge_is_needed_where_it_is_asked(tmp_path: Path) -> None:
    match = r"^rollout\.judge\.api_key_env: the variable JUDGE_KEY is not set; export it or leave it out$"
    with pytest.raises(ConfigError, match=match):
        asked(tmp_path, rubric_task(JUDGED), base_url="http://judge.test/v1")
    (warning,) = asked(tmp_path, rubric_task(JUDGED), base_url="http://judge.test/v1", here=False)
    assert warning.startswith("warning: the judge was not asked from this machine: rollout.judge.api_key_env")
