"""Writes a trajectory as a Playwright script that a person can run, read and change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from envs.sites import is_served
from envs.types import (
    Answer,
    Back,
    Check,
    Clear,
    Click,
    CloseTab,
    Dialog,
    DoubleClick,
    Drag,
    Element,
    Forward,
    Goto,
    Hover,
    NewTab,
    Observation,
    Press,
    Refresh,
    Scroll,
    Select,
    Step,
    Submit,
    SwitchTab,
    Terminate,
    Trajectory,
    TripleClick,
    Type,
    Upload,
    Wait,
    WebTask,
)
from envs.types.action_text import format_action
from envs.types.actions import GRID, MaybeTarget, MouseButton
from envs.types.observations import Hidden

ROLES = {
    "button": "button",
    "link": "link",
    "input": "textbox",
    "textarea": "textbox",
    "checkbox": "checkbox",
    "radio": "radio",
    "select": "combobox",
    "tab": "tab",
    "option": "option",
}
"""Playwright's role of an element, by the kind that an observation shows."""

HEAD = '''"""The episode of {task_id} (seed {seed}) as a Playwright script, written by flows.replay."""

import asyncio

{imports}

async def play(page):
{body}

{main}

asyncio.run(main())
'''

SERVED = """async def main():
    async with open_env({task}, seed={seed}) as env:
        await env.reset()
        async with env.page() as page:
            await play(page)
        print(await env.step({{"type": "terminate"}}))"""

LIVE = """async def main():
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(headless=False)
        page = await browser.new_page(viewport={{"width": {width}, "height": {height}}})
        await page.goto({url})
        await play(page)
        await browser.close()"""


def playwright_script(trajectory: Trajectory, task: WebTask, *, task_id: str = "") -> str:
    """Return the source of a script that plays a trajectory's actions.

    An element is found by role, name and place on the page, else by the point that the mouse went
    to, which holds with the same fonts only. A site of ours is served by `envs.open_env`, whose
    ``env.page()`` gives the page; a live page is opened by Playwright alone.

    Args:
        task: The trajectory's task.
        task_id: Id by which `envs.open_env` finds the task; the task's own if not given.
    """
    lines = [line for step in trajectory.steps for line in _step_lines(step)]
    body = "\n".join(f"    {line}" for line in lines or ["pass"])
    if is_served(task.site) or not trajectory.steps:
        main = SERVED.format(task=json.dumps(task_id or task.task_id), seed=trajectory.seed)
        imports = "from envs import open_env"
    else:
        first = trajectory.steps[0].observation
        width, height = first.viewport
        main = LIVE.format(url=json.dumps(first.url), width=width, height=height)
        imports = "from playwright.async_api import async_playwright"
    return HEAD.format(task_id=task.task_id, seed=trajectory.seed, imports=imports, body=body, main=main)


def _step_lines(step: Step) -> Iterator[str]:
    yield f"# {step.index + 1}. {' '.join(format_action(step.action).split())}"
    if step.error is not None:
        yield f"# not carried out: {step.error.value}"
        return
    write = WRITERS.get(type(step.action))
    yield from write(step) if write else ("# no action on the page",)


def _target(step: Step, target: MaybeTarget) -> tuple[str, tuple[float, float] | None]:
    """Return a locator's source, or an empty one and the point of the target."""
    observation = step.observation
    element = _element(observation, target)
    if element is not None and (locator := _locator(observation, element)):
        return locator, None
    if target.at is not None:
        width, height = observation.viewport
        return "", (target.at[0] * width / GRID, target.at[1] * height / GRID)
    if element is not None:
        left, top, across, down = element.box
        return "", step.point or (left + across / 2, top + down / 2)
    return "", step.point


def _element(observation: Observation, target: MaybeTarget) -> Element | None:
    named = target.element if target.element is not None else target.mark
    return next((one for one in observation.elements if named is not None and named in (one.index, one.id)), None)


def _locator(observation: Observation, element: Element) -> str:
    """Return the source of a locator that means this element alone; empty if none does."""
    same = [one.index for one in observation.elements if (one.tag, one.text) == (element.tag, element.text)]
    role, name = ROLES.get(element.tag), element.whole.text if element.whole and element.whole.text else element.text
    # Elements out of view are not listed, so one of several cannot be counted where there are such.
    if not role or not name or name.endswith("…") or (len(same) > 1 and observation.hidden != Hidden()):
        return ""
    place = "" if len(same) == 1 else f".nth({same.index(element.index)})"
    return f"page.get_by_role({json.dumps(role)}, name={json.dumps(name, ensure_ascii=False)}, exact=True){place}"


def _on_target(method: str, mouse: str) -> Callable[[Step], Iterator[str]]:
    """Return a writer that calls a method of the locator, or of the mouse at the target's point."""

    def write(step: Step) -> Iterator[str]:
        assert isinstance(step.action, MaybeTarget)
        locator, point = _target(step, step.action)
        if locator:
            yield f"await {locator}.{method}"
        elif point is not None:
            yield f"await page.mouse.{mouse.format(x=round(point[0], 1), y=round(point[1], 1))}"
        else:
            yield "# the target is not known"

    return write


def _click(count: int) -> Callable[[Step], Iterator[str]]:
    """Return a writer of clicks in a row, with their button and the keys held down."""

    def write(step: Step) -> Iterator[str]:
        action = step.action
        assert isinstance(action, MouseButton)
        button = "" if action.button == "left" else f", button={json.dumps(action.button)}"
        repeated = "" if count == 1 else f", click_count={count}"
        keys = f", modifiers={json.dumps(list(action.modifiers))}" if action.modifiers else ""
        on_locator = f"click({(button + repeated + keys).removeprefix(', ')})"
        yield from _on_target(on_locator, f"click({{x}}, {{y}}{button}{repeated})")(step)

    return write


def _type(step: Step) -> Iterator[str]:
    action = step.action
    assert isinstance(action, Type)
    text = json.dumps(action.text, ensure_ascii=False)
    locator, point = _target(step, action)
    if locator and action.clear:
        yield f"await {locator}.fill({text})"
    elif locator:
        yield f"await {locator}.press_sequentially({text})"
    else:
        if point is not None:
            yield f"await page.mouse.click({round(point[0], 1)}, {round(point[1], 1)})"
            if action.clear:
                yield 'await page.keyboard.press("Control+a")'
        yield f"await page.keyboard.type({text})"
    if action.enter:
        yield 'await page.keyboard.press("Enter")'


def _select(step: Step) -> Iterator[str]:
    action = step.action
    assert isinstance(action, Select)
    locator, _ = _target(step, action)
    labels = json.dumps([action.text, *action.also], ensure_ascii=False)
    yield (
        f"await {locator}.select_option(label={labels})" if locator else f"# choose {labels} by hand: no role and name"
    )


def _press(step: Step) -> Iterator[str]:
    action = step.action
    assert isinstance(action, Press)
    locator, _ = _target(step, action)
    yield f"await {locator or 'page.keyboard'}.press({json.dumps(action.key)})"


def _check(step: Step) -> Iterator[str]:
    action = step.action
    assert isinstance(action, Check)
    yield from _on_target(f"set_checked({action.on})", "click({x}, {y})")(step)


def _scroll(step: Step) -> Iterator[str]:
    action = step.action
    assert isinstance(action, Scroll)
    _, point = _target(step, action)
    width, height = step.observation.viewport
    x, y = point or (width / 2, height / 2)
    far = action.amount * (height if action.direction in ("up", "down") else width)
    signed = round(-far if action.direction in ("up", "left") else far)
    yield f"await page.mouse.move({round(x, 1)}, {round(y, 1)})"
    yield f"await page.mouse.wheel({f'0, {signed}' if action.direction in ('up', 'down') else f'{signed}, 0'})"


def _drag(step: Step) -> Iterator[str]:
    action = step.action
    assert isinstance(action, Drag)
    (from_locator, start), (to_locator, end) = _target(step, action.start), _target(step, action.end)
    if from_locator and to_locator and not action.via:
        yield f"await {from_locator}.drag_to({to_locator})"
        return
    width, height = step.observation.viewport
    points = [start, *((x * width / GRID, y * height / GRID) for x, y in action.via), end]
    for number, point in enumerate(points):
        if point is not None:
            yield f"await page.mouse.move({round(point[0], 1)}, {round(point[1], 1)})"
        if number == 0:
            yield "await page.mouse.down()"
    yield "await page.mouse.up()"


def _upload(step: Step) -> Iterator[str]:
    action = step.action
    assert isinstance(action, Upload)
    locator, _ = _target(step, action)
    field = locator or 'page.locator("input[type=file]")'
    yield f"await {field}.set_input_files({json.dumps(list(action.files))})"


def _line(source: str) -> Callable[[Step], Iterator[str]]:
    """Return a writer of one line, with the action's fields in it."""

    def write(step: Step) -> Iterator[str]:
        fields = {name: json.dumps(value) for name, value in step.action.model_dump(mode="json").items()}
        yield source.format_map({"url": '"about:blank"', "seconds": "1.0", **fields})

    return write


WRITERS: dict[type, Callable[[Step], Iterator[str]]] = {
    Click: _click(1),
    DoubleClick: _click(2),
    TripleClick: _click(3),
    Hover: _on_target("hover()", "move({x}, {y})"),
    Clear: _on_target("clear()", "click({x}, {y}, click_count=3)"),
    Type: _type,
    Select: _select,
    Press: _press,
    Check: _check,
    Scroll: _scroll,
    Drag: _drag,
    Upload: _upload,
    Goto: _line("await page.goto({url})"),
    Back: _line("await page.go_back()"),
    Forward: _line("await page.go_forward()"),
    Refresh: _line("await page.reload()"),
    Wait: _line("await asyncio.sleep({seconds})"),
    NewTab: _line("page = await page.context.new_page(); await page.goto({url})"),
    SwitchTab: _line("page = page.context.pages[{tab} - 1]; await page.bring_to_front()"),
    CloseTab: _line("await page.close(); page = page.context.pages[-1]"),
    Dialog: _line("# a dialog was answered before: page.on('dialog', …)"),
    Answer: _line("# the answer: {text}"),
    Terminate: _line("# the end of the episode"),
    Submit: _line("# the page that was handed in is in the trajectory"),
}
"""Writers of an action's lines, by the action's class."""
