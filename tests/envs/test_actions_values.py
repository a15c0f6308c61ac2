"""Lists that take several options, and fields whose value is picked: colour, range, dates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from envs.actions import ActionError, Effect
from envs.types import ErrorCode, Needs, Select, Type, Upload
from tests.builders import page_task

from .acting import on

LISTS = """<select data-t=many multiple><option>Red<option selected>Green<option>Blue<option disabled>Off<option>Last</select>
<select data-t=row multiple size=1><option>One<option>Two<option>Three</select>
<select data-t=one><option>A<option>B</select>
<select data-t=long multiple size=3></select>
<select data-t=guarded multiple onmousedown='event.preventDefault()'><option>A<option>B</select>
<script>hear("input change", document);
for (let k = 0; k < 40; k++) document.querySelector("[data-t=long]").add(new Option("Row " + k))</script>"""


async def test_options_of_a_list_that_takes_several() -> None:
    async with on(LISTS) as here:

        async def chosen(name: str) -> list[str]:
            return list(
                await here.cdp.value(
                    f"[...document.querySelector('[data-t={name}]').selectedOptions].map((o) => o.text)"
                )
            )

        for action, wanted in (
            (Select(element="many", text="Blue", add=True), ["Green", "Blue"]),
            (Select(element="many", text="Red"), ["Red"]),
            (Select(element="many", text="red", also=("Last", "Blue")), ["Red", "Blue", "Last"]),
            (Select(element="many", text="Last"), ["Last"]),
            (Select(element="long", text="Row 33", also=("Row 2", "Row 17")), ["Row 2", "Row 17", "Row 33"]),
            (Select(element="row", text="Three", also=("Two",)), ["Two", "Three"]),
            (Select(element="row", text="One", add=True), ["One", "Two", "Three"]),
        ):
            assert isinstance(await here.act(action), Effect), action
            assert await chosen(str(action.element)) == wanted
            # The page hears of it once, and from a person (but for the list whose options are a
            # window of their own).
            end = "!" if action.element == "row" else ""
            assert await here.log() == [f"input:{action.element}{end}", f"change:{action.element}{end}"], action
        assert isinstance(await here.act(Select(element="many", text="Last")), Effect)  # it is so already
        assert await here.log() == []
        for action, code in (
            (Select(element="many", text="Off"), ErrorCode.DISABLED),
            (Select(element="many", text="Red", also=("Pink",)), ErrorCode.NO_SUCH_OPTION),
            (Select(element="one", text="A", also=("B",)), ErrorCode.BAD_ACTION),
            (Select(element="guarded", text="B"), ErrorCode.NOT_EDITABLE),
        ):
            refused = await here.act(action)
            assert isinstance(refused, ActionError) and refused.code == code, refused
        assert await chosen("many") == ["Last"] and await chosen("guarded") == []


VALUES = """<input data-t=colour type=color value='#000000'> <input data-t=level type=range min=-1 max=1 step=0.1 value=0>
<input data-t=whole type=range value=50> <input data-t=free type=range step=any> <input data-t=off type=color disabled>
<input data-t=date type=date> <input data-t=week type=week>
<script>hear("input change", document)</script>"""


async def test_values_that_are_picked() -> None:
    async with on(VALUES) as here:

        async def held(name: str) -> str:
            return str(await here.cdp.value(f"document.querySelector('[data-t={name}]').value"))

        for name, text, wanted in (
            ("colour", "#FF8800", "#ff8800"),
            ("level", "0.3", "0.3"),
            ("level", "-1", "-1"),
            ("level", "1", "1"),
            ("whole", "7", "7"),
            ("whole", "100", "100"),
            ("free", "33.25", "33.25"),
        ):
            assert isinstance(await here.act(Type(element=name, text=text)), Effect)
            assert await held(name) == wanted
            told = await here.log()
            assert [each.rstrip("!") for each in told] == [f"input:{name}", f"change:{name}"], (name, told)
            assert name in ("colour", "free") or not any("!" in each for each in told)
        for name, text, part in (
            ("colour", "red", "#ff8800"),
            ("colour", "", "#ff8800"),
            ("level", "2", "a number from -1 to 1 in steps of 0.1"),
            ("level", "0.35", "steps of 0.1"),
            ("whole", "nan", "a number from 0 to 100"),
            ("whole", "many", "a number from 0 to 100"),
            ("date", "17.5.2024", "2024-05-17"),
            ("week", "20", "2024-W20"),
        ):
            refused = await here.act(Type(element=name, text=text))
            assert isinstance(refused, ActionError) and refused.code == ErrorCode.BAD_ACTION
            assert part in refused.line(), refused.line()
        refused = await here.act(Type(element="off", text="#ffffff"))
        assert isinstance(refused, ActionError) and refused.code == ErrorCode.DISABLED
        assert await here.log() == []


PAGE = """<label>File<input type=file id=file></label> <label>Many<select multiple size=1><option selected>One<option>Two</select></label>
<p id=said>nothing</p><script>file.onchange = () => { said.textContent = file.files[0].name + " " + file.files[0].size; };</script>"""


async def test_an_episode_uploads_from_its_task_s_folder_alone(pages: Callable[..., Any], tmp_path: Path) -> None:
    for folder, text in (("mine", "four"), ("other", "others")):
        (tmp_path / "shared" / folder).mkdir(parents=True)
        (tmp_path / "shared" / folder / f"{folder}.txt").write_text(text)

    async with pages({"index.html": PAGE}, files=tmp_path / "shared") as (pool, site):
        async with pool.lease(site) as session:
            seen = await session.reset(page_task("/index.html", files="mine"), 0)
            lists = [element for element in seen.observation.elements if element.tag == "select"]
            assert [(each.value, each.options) for each in lists] == [("One", ("One", "Two"))]  # a list of one row
            for name in ("other.txt", "../other/other.txt", "/etc/passwd"):
                refused = await session.step(Upload(element="file", files=(name,)))
                assert refused.error == ErrorCode.NO_SUCH_FILE and "mine.txt" in str(refused.observation.error)
            assert (await session.step(Upload(element="file", files=("mine.txt",)))).error is None
            both = await session.step(Select(element=lists[0].index, text="Two", add=True))
            assert [each.value for each in both.observation.elements if each.tag == "select"] == ["One, Two"]
            said = await session.evidence(Needs(scripts=('said.textContent === "mine.txt 4"',)))
            assert [each.value for each in said.scripts.values()] == [True]
        async with pool.lease(site) as session:
            await session.reset(page_task("/index.html"), 0)  # a task without files
            assert (await session.step(Upload(element="file", files=("mine.txt",)))).error == ErrorCode.NO_SUCH_FILE
