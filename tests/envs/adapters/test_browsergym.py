"""BrowserGym's shape: its action strings, its observation, and AgentLab's own agent on both."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import subprocess
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from envs import SeedRange, Split, StaticSite, WebTask, list_tasks
from envs.actions.parsing import parse
from envs.adapters import close_hosts
from envs.adapters.browsergym import BrowserGymEnv
from envs.adapters.browsergym_actions import NAMES, BrowserGymActions, map_call, read_calls
from envs.adapters.browsergym_calls import MappingError
from envs.browser import WebSession
from envs.types import BrowserError, Terminate
from envs.types.actions import ACTIONS
from tests.chat_endpoint import completion, endpoint

from .json_lines import ask
from .reference import CANARY, RECIPES, SCRIPTS, TERMINATE, digest, reference

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-frameworks/browsergym/bin/python"
POOL = {"max_sessions": 3, "lease_deadline": 10.0}

PAGE = """<!DOCTYPE html><title>Shapes</title>
<button onclick="this.textContent = 'Asked: ' + confirm('Sure?')">Ask</button>
<input type=password value="hunter2"><input id=free value=before><input type=checkbox aria-label=Box>
<iframe src="inner.html" style="border:0"></iframe>"""
INNER = """<!DOCTYPE html><title>Inner</title><button onclick="this.textContent='Pressed'">Within</button>"""


@cache
def shapes_site() -> StaticSite:
    """A page with a dialog, a password and a frame."""
    folder = Path(mkdtemp(prefix="shapes-"))
    (folder / "index.html").write_text(PAGE)
    (folder / "inner.html").write_text(INNER)
    return StaticSite(f"{__name__}:shapes_site", folder)


SHAPES = WebTask(
    task_id="shapes/all",
    site=f"{__name__}:shapes_site",
    kind="shapes",
    path="/index.html",
    instruction="Do nothing.",
    difficulty=1,
    horizon=30,
    seeds={Split.TRAIN: SeedRange(start=0, stop=9)},
)


@pytest.fixture(scope="module", autouse=True)
def hosts() -> Iterator[None]:
    yield
    close_hosts()


def opened(task: Any, seed: int | None = None, **options: Any) -> tuple[BrowserGymEnv, dict[str, Any]]:
    env = BrowserGymEnv(task, pool=POOL, **options)
    return env, env.reset(seed=seed)[0]


def mapped(text: str) -> list[dict[str, Any]]:
    shown = BrowserGymActions((200, 100), (1, 4))
    return [action.model_dump(mode="json") for call in read_calls(text) for action in map_call(call, shown)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("click('12')", [{"type": "click", "element": 12}]),
        (
            'click("3", button="right", modifiers=["ControlOrMeta"])',
            [{"type": "click", "element": 3, "button": "right", "modifiers": ["Control"]}],
        ),
        ("I type (quickly):\n```\nfill('1', 'a) b(\\'c')\n```", [{"type": "type", "element": 1, "text": "a) b('c"}]),
        ("fill('1', '')", [{"type": "clear", "element": 1}]),
        ("# click('1')\nhover('2')  # click('3')", [{"type": "hover", "element": 2}]),
        ("fill('1', '# no comment') press('1', 'Enter')", [
            {"type": "type", "element": 1, "text": "# no comment"},
            {"type": "press", "element": 1, "key": "Enter"},
        ]),
        ("select_option('5', ['a', 'b'])", [{"type": "select", "element": 5, "text": "a", "also": ["b"]}]),
        ("scroll(0, -50)", [{"type": "scroll", "direction": "up", "amount": 0.5}]),
        ("scroll_at(100, 50, 20, 0)", [{"type": "scroll", "direction": "right", "amount": 0.1, "at": [500.0, 500.0]}]),
        ("mouse_click(50, 25)", [{"type": "click", "at": [250.0, 250.0]}]),
        ("drag_and_drop('1', '2')", [{"type": "drag", "start": {"element": 1}, "end": {"element": 2}}]),
        ("tab_focus(-1)", [{"type": "switch_tab", "tab": 4}]),
        ("noop(2500)", [{"type": "wait", "seconds": 2.5}]),
        ("send_msg_to_user('42')", [{"type": "answer", "text": "42"}]),
        ("report_infeasible('no form')", [{"type": "terminate", "status": "failure"}]),
        ("keyboard_type('x')", [{"type": "type", "text": "x", "clear": False}]),
        ("uncheck('9')", [{"type": "check", "element": 9, "on": False}]),
    ],
)  # fmt: skip
def test_action_strings_are_our_actions(text: str, expected: list[dict[str, Any]]) -> None:
    assert mapped(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Received an empty action"),
        ("click", "Received an empty action"),
        ("page.click('1')\nfly('1')", "Invalid action type 'fly'"),
        ("click(12)", "expected a string, got 12"),
        ("click()", "missing 1 required positional argument: 'bid'"),
        ("click('1', speed=2)", "unexpected keyword argument 'speed'"),
        ("click('1', button='side')", "click: Input should be 'left', 'right' or 'middle'"),
        ("mouse_click(900, 1)", "less than or equal to 1000"),
        ("tab_focus(2)", "there is no tab 2; choose 0 to 1"),
        ("mouse_down(1, 2)", "no counterpart in this environment; use mouse_drag_and_drop"),
        ("keyboard_up('a')", "no counterpart in this environment; use keyboard_press"),
    ],
)
def test_what_cannot_be_mapped_says_why(text: str, message: str) -> None:
    with pytest.raises(MappingError) as refused:
        mapped(text)
    assert message in str(refused.value)


def test_no_text_is_run(tmp_path: Path) -> None:
    for code in (
        f"open({str(tmp_path / 'made')!r}, 'w').close()",
        f"__import__('os').mkdir({str(tmp_path / 'made')!r})",
    ):
        for text in (code, f"click({code})", f"click('1', button={code})"):
            with pytest.raises(MappingError):
                mapped(text)
    with pytest.raises(MappingError):
        mapped("click(" + "(" * 5000 + ")" * 5000)
    assert not list(tmp_path.iterdir())


def call_of(text: str) -> str:
    """The call that does what a text of a script says."""
    action = parse(text, ACTIONS).action.model_dump()
    match action["type"]:
        case "click":
            return f"click('{action['element']}')"
        case "type":
            return f"fill('{action['element']}', {action['text']!r})"
    assert action["type"] == "terminate"
    return "report_infeasible('')"


OWN = [task for task in SCRIPTS if task not in ("design2code/1", *RECIPES)]
"""Tasks of the scripts without those of recipes; no call submits a page."""


@pytest.mark.parametrize("task", OWN)
def test_an_episode_is_the_reference(task: str) -> None:
    expected = reference(task)
    env = gym.make(f"envs.adapters.browsergym:rollwright-browsergym/{task.replace('/', '.')}", pool=POOL)
    infos = [env.reset(seed=expected.seed)[1]]
    for call in map(call_of, expected.texts):
        observation, reward, terminated, truncated, info = env.step(call)
        infos.append(info)
        assert observation in env.observation_space
        assert observation["last_action_error"] == (info["observation"].error or "")
    assert [digest(info["observation"]) for info in infos] == expected.observations
    assert reward == expected.reward and (terminated or truncated)
    spoken = {"response": "", "form": "json"}  # records have no text that they were read from
    steps = [step.model_copy(update=spoken) for step in expected.trajectory.steps]
    played = expected.trajectory
    if expected.texts[-1] == TERMINATE:  # BrowserGym's agents end so alone
        steps[-1] = steps[-1].model_copy(update={"action": Terminate(status="failure")})
        played = played.model_copy(update={"answer": "failure"})
    assert digest(info["trajectory"]) == digest(played.model_copy(update={"steps": tuple(steps)}))
    env.close()


def test_every_task_has_an_id_and_the_checker_has_nothing_to_say() -> None:
    assert all(f"rollwright-browsergym/{task.replace('/', '.')}" in gym.registry for task in list_tasks())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make("rollwright-browsergym/miniwob.enter-text", pool=POOL)
        check_env(env.unwrapped)
        env.close()


def named(observation: dict[str, Any], role: str, name: str) -> dict[str, Any]:
    """The node of the accessibility tree with a role and a name."""
    nodes = observation["axtree_object"]["nodes"]
    (node,) = (
        node
        for node in nodes
        if not node["ignored"] and (node["role"]["value"], node.get("name", {}).get("value")) == (role, name)
    )
    assert isinstance(node, dict)
    return node


def test_ids_are_those_of_our_observation_in_frames_too() -> None:
    env, first = opened(SHAPES)
    bid = named(first, "button", "Within")["browsergym_id"]
    elements = {str(element.index): element for element in env.seat.env.page_step.observation.elements}
    assert elements[bid].text == "Within" and set(first["extra_element_properties"]) == set(elements)
    frame = named(first, "RootWebArea", "Inner")
    assert [
        node["role"]["value"] for node in first["axtree_object"]["nodes"] if frame["nodeId"] in node["childIds"]
    ] == ["Iframe"]
    second = env.step(f"click({bid!r})")[0]
    assert named(second, "button", "Pressed")["browsergym_id"] == bid == second["focused_element_bid"]
    x, y, width, height = second["extra_element_properties"][bid]["bbox"]
    third = env.step(f"mouse_click({x + width / 2}, {y + height / 2})")[0]
    assert third["last_action_error"] == "" and third["screenshot"].shape == first["screenshot"].shape
    json.dumps([first["dom_object"], first["axtree_object"]])  # plain values alone
    env.close()


def test_the_snapshot_says_what_fields_hold_but_no_password() -> None:
    def attributes(observation: dict[str, Any]) -> list[dict[str, str]]:
        strings = observation["dom_object"]["strings"]
        words = [
            [strings[one] for one in pairs]
            for pairs in observation["dom_object"]["documents"][0]["nodes"]["attributes"]
        ]
        return [dict(zip(pairs[::2], pairs[1::2], strict=True)) for pairs in words]

    env, observation = opened(SHAPES)
    (free,) = (one for one in attributes(observation) if one.get("id") == "free")
    (box,) = (one for one in attributes(observation) if one.get("type") == "checkbox")
    observation = env.step(f"fill({free['bid']!r}, 'after') check({box['bid']!r})")[0]
    assert [one["value"] for one in attributes(observation) if one.get("id") == "free"] == ["after"]
    assert [one.get("checked") for one in attributes(observation) if one.get("type") == "checkbox"] == [""]
    (secret,) = (one for one in attributes(observation) if one.get("type") == "password")
    env.step(f"fill({secret['bid']!r}, 'swordfish')")
    observation = env.step("noop()")[0]
    nodes, strings = observation["dom_object"]["documents"][0]["nodes"], observation["dom_object"]["strings"]
    assert "swordfish" not in str([attributes(observation), [strings[one] for one in nodes["nodeValue"] if one >= 0]])
    assert "swordfish" not in json.dumps(observation["axtree_object"])
    env.close()


def test_dialogs_are_dismissed_and_tabs_are_followed() -> None:
    env, observation = opened(SHAPES)
    observation = env.step(f"click({named(observation, 'button', 'Ask')['browsergym_id']!r})")[0]
    assert named(observation, "button", "Asked: false")
    page = observation["url"]
    observation = env.step("new_tab()")[0]
    assert observation["open_pages_urls"] == (page, "about:blank") and observation["active_page_index"] == [1]
    observation = env.step("tab_focus(0)")[0]
    assert observation["url"] == page and observation["open_pages_titles"][0] == "Shapes"
    assert observation["active_page_index"] == [0]
    observation = env.step("tab_close()")[0]
    assert observation["open_pages_urls"] == ("about:blank",)
    env.close()


def test_a_call_that_fails_ends_a_text_and_says_why() -> None:
    env, observation = opened("miniwob/enter-text", 7, horizon=9)
    observation = env.step("fill('9', 'x') click('2')")[0]
    assert observation["last_action_error"] == "unknown_element: there is no element 9; choose 1 to 2"
    observation, _, terminated, truncated, _ = env.step("mouse_down(1, 1) click('2')")
    assert "use mouse_drag_and_drop" in observation["last_action_error"] and not (terminated or truncated)
    assert observation["last_action"] == "mouse_down(1, 1) click('2')"
    observation, _, terminated, _, info = env.step("send_msg_to_user('done')")
    assert terminated and info["stop"] == "answer" and info["trajectory"].answer == "done"
    assert [message["role"] for message in observation["chat_messages"]] == ["assistant", "user", "assistant"]
    assert observation["last_action_error"] == "" and observation["goal_object"][0]["text"] == observation["goal"]
    env.close()


def test_an_abstention_is_no_reward_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    env, _ = opened("miniwob/enter-text", 7)

    async def fails(self: WebSession, *args: Any, **options: Any) -> Any:
        raise BrowserError("the browser is gone")

    monkeypatch.setattr(WebSession, "step", fails)
    observation, reward, terminated, truncated, info = env.step("click('1')")
    assert math.isnan(reward) and (terminated, truncated) == (False, True)
    assert info["abstained"] == observation["last_action_error"] == "the browser is gone"
    env.close()


def test_environments_share_nothing() -> None:
    first, observation = opened(CANARY)
    bid = named(observation, "button", "Write")["browsergym_id"]
    first.step(f"click({bid!r})")
    second, observation = opened(CANARY)
    assert "found: nothing" in json.dumps(observation["axtree_object"])
    assert "found: nothing" in json.dumps(first.reset()[0]["axtree_object"])
    first.close(), second.close()


def test_the_snippet_of_the_docs_runs() -> None:
    section = (ROOT / "docs/frameworks.md").read_text().partition("## BrowserGym's shape")[2]
    snippet = section.split("```python\n")[1].split("```")[0]
    assert len(snippet.splitlines()) <= 12
    exec(snippet, {})


def fills(body: dict[str, Any]) -> tuple[int, Any]:
    """A model that fills the field of the prompt's page with the task's word, then submits."""
    prompt = "".join(part.get("text", "") for message in body["messages"] for part in message["content"])
    (field,) = re.findall(r"\[(\d+)\] textbox '[^']*'", prompt)
    (button,) = re.findall(r"\[(\d+)\] button 'Submit'", prompt)
    (word,) = re.findall(r'Enter "(\w+)"', prompt.partition("# Currently")[0])
    call = f'click("{button}")' if f"value='{word}'" in prompt else f'fill("{field}", "{word}")'
    answer = completion(f"I go on with the task.\n```{call}```")
    answer["choices"][0]["index"] = 0
    return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m", **answer}


@pytest.mark.frameworks
@pytest.mark.skipif(
    "BROWSERGYM" not in os.environ, reason="BROWSERGYM: no checkout of github.com/ServiceNow/BrowserGym"
)
def test_browsergyms_demo_agent_runs_unchanged() -> None:
    if not PYTHON.exists():
        pytest.skip("BrowserGym is not there: scripts/setup_frameworks browsergym")
    folder = Path(os.environ["BROWSERGYM"]) / "demo_agent"
    command = [str(PYTHON), str(Path(__file__).with_name("demo_agent.py")), str(folder)]
    env, observation = opened("miniwob/enter-text", 7)
    with endpoint(fills) as (address, served):
        given = {**os.environ, "OPENAI_BASE_URL": address, "OPENAI_API_KEY": "none", "PYTHONPATH": ""}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=given) as agent:
            reward, done = 0.0, False
            while not done:
                observation, reward, done, truncated, _ = env.step(ask(agent, observation))
                assert not truncated and observation["last_action_error"] == ""
            assert agent.stdin is not None
            agent.stdin.close()
    assert reward == 1.0 and len(served.asked) == 2


@pytest.mark.frameworks
def test_agentlabs_generic_agent_runs_unchanged() -> None:
    if not PYTHON.exists():
        pytest.skip("BrowserGym is not there: scripts/setup_frameworks browsergym")
    quiet = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
    command = [str(PYTHON), str(Path(__file__).with_name("generic_agent.py"))]
    env, observation = opened("miniwob/enter-text", 7)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet) as agent:
        assert agent.stdin is not None and agent.stdout is not None
        actions = json.loads(agent.stdout.readline())
        assert set(actions["names"]) == NAMES - {"check", "uncheck"}  # these two are in none of its subsets
        for name, parameters in actions["names"].items():
            ours = [*inspect.signature(getattr(BrowserGymActions, name)).parameters.values()][1:]
            assert [parameter.name for parameter in ours] == [parameter for parameter, _ in parameters]
            assert [parameter.default is parameter.empty for parameter in ours] == [
                one is None for _, one in parameters
            ]
        for example in actions["examples"]:
            (call,) = read_calls(example)
            try:
                assert map_call(call, BrowserGymActions((2000, 2000), (1, 2, 3)))
            except MappingError as error:
                assert "no counterpart" in str(error)
        answers, terminated = [], False
        while not terminated:
            answers.append(ask(agent, observation))
            observation, reward, terminated, truncated, _ = env.step(answers[-1]["action"])
            assert not truncated and observation["last_action_error"] == ""
        agent.stdin.close()
    assert reward == 1.0 and [answer["action"] for answer in answers] == ["fill('1', 'Nathalie')", "click('2')"]
    assert "[2] button 'Submit', clickable, visible" in answers[0]["axtree_txt"]
    assert "[1] textbox '' value='Nathalie', focused" in answers[1]["plain"]
    assert '<button bid="2"' in answers[0]["pruned_html"] and 'value="Nathalie"' in answers[1]["dom_txt"]
    assert answers[0]["marked_pixels"] > 100 and "InlineTextBox" not in answers[0]["axtree_txt"]
    env.close()
