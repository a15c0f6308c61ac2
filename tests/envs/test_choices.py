"""Lists and pickers: what a person sees is listed and chosen, and no window of its own stays open
over the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from envs.actions import ActionError, Effect
from envs.types import Action, Click, ErrorCode, Needs, Press, Select, Type
from envs.types.options import OPTION_CHARS, find_options, option_names
from tests.builders import page_task

from .acting import on

LISTS = """<style>.off { display: none } .base, .base::picker(select) { appearance: base-select }</style>
<select data-t=size><option value=s label="Small (2 kg)"></option><option value=m label="Medium (5 kg)">md</option><option value=l>Large</select>
<select data-t=city><optgroup label=Illinois><option value=il1>Springfield<option value=il2>Other</optgroup><optgroup label=Ohio>
<option value=oh1>Springfield<option value=oh2>Other</optgroup><optgroup label=Gone hidden><option value=g>Springfield</optgroup></select>
<select data-t=land><option>Choose…<option value=nz>New&nbsp;Zealand<option value=de>Daten&shy;land<option value=ci>C&ocirc;te d&rsquo;Ivoire
<option value=zw>Zero&#8203;width<option value=nf>Zu&#776;rich<option value=us>us<option value=US>US<option value=r>9&ndash;17</select>
<select data-t=plan><option value=x>Basic<option value=y hidden>Secret<option value=z style="display:none">Gone<option value=c class=off>Off
<option value=d disabled>Later<option value=p>Pro</select>
<select data-t=time><option value=1>10:00<option value=2>10:00 (last seat)<option value=3>10:00<option value=4>10:00</select>
<select data-t=box size=4><option value=1 label="One (1)"><option value=2>Two<option value=3>Two<option value=4>Four</select>
<select data-t=many multiple size=4><option value=1 label="One (1)"><option value=2>Two<option value=3>Two<option value=4 hidden>Four</select>
<select data-t=big class=base><option value=s>Small<option value=h hidden>Huge<option value=m>Medium<option value=d disabled>Never
<option value=l>Large <b>bold</b><option value=m2>Medium</select>
<select data-t=pets class=base><optgroup><legend>Cats</legend><option value=c>Tom</optgroup><optgroup><legend>Dogs</legend><div>
<option value=d>Tom</div></optgroup></select>
<select data-t=more onchange="added = this.value; this.value = ''"><option value="">Add…<option value=a>Alpha<option value=b>Beta</select>
<select data-t=holder><option value="" disabled selected hidden>Pick one<option value=1>First</select>
<script>hear("input change", document);
const value = (name) => [...document.querySelector(`[data-t=${name}]`).selectedOptions].map((o) => o.value).join();</script>"""
CHOSEN: list[tuple[str, str, str]] = [
    ("size", "Small (2 kg)", "s"),
    ("size", "Medium (5 kg)", "m"),
    ("size", "large", "l"),
    ("city", "Springfield (Ohio)", "oh1"),
    ("city", "Other (Illinois)", "il2"),
    ("city", "springfield (illinois)", "il1"),
    ("land", "Datenland", "de"),
    ("land", "Z\u00fcrich", "nf"),
    ("land", "Co\u0302te d'Ivoire", "ci"),
    ("land", "Zerowidth", "zw"),
    ("land", "New Zealand", "nz"),
    ("land", "US", "US"),
    ("land", "us", "us"),
    ("land", "9-17", "r"),
    ("plan", "Pro", "p"),
    ("time", "10:00 [2]", "3"),
    ("time", "10:00", "1"),
    ("time", "10:00 [3]", "4"),
    ("box", "Two [2]", "3"),
    ("box", "One (1)", "1"),
    ("many", "Two [2]", "3"),
    ("many", "One (1)", "1"),
    ("big", "Large bold", "l"),
    ("big", "Medium", "m"),
    ("big", "Medium [2]", "m2"),
    ("big", "Small", "s"),
    ("pets", "Tom (Dogs)", "d"),
    ("more", "Alpha", ""),  # the page has put it elsewhere
    ("land", "ｃôｔe d'ivoire", "ci"),
    ("holder", "First", "1"),
]
REFUSED: list[tuple[str, str, ErrorCode]] = [
    ("city", "Springfield", ErrorCode.NO_SUCH_OPTION),  # of which group?
    ("city", "Springfield (Gone)", ErrorCode.NO_SUCH_OPTION),
    ("land", "Us", ErrorCode.NO_SUCH_OPTION),
    ("size", "md", ErrorCode.NO_SUCH_OPTION),
    ("plan", "Secret", ErrorCode.NO_SUCH_OPTION),
    ("plan", "Gone", ErrorCode.NO_SUCH_OPTION),
    ("plan", "Off", ErrorCode.NO_SUCH_OPTION),
    ("plan", "Later", ErrorCode.DISABLED),
    ("many", "Four", ErrorCode.NO_SUCH_OPTION),
    ("big", "Huge", ErrorCode.NO_SUCH_OPTION),
    ("big", "Never", ErrorCode.DISABLED),
    ("holder", "Pick one", ErrorCode.NO_SUCH_OPTION),
]


async def test_an_option_is_chosen_by_what_a_person_sees() -> None:
    async with on(LISTS) as here:
        for name, text, value in CHOSEN:
            before = await here.cdp.value(f"value('{name}')")
            assert isinstance(await here.act(Select(element=name, text=text)), Effect), (name, text)
            assert await here.cdp.value(f"value('{name}')") == value, (name, text)
            heard = await here.log()
            assert (before == value and name != "more") or heard == [f"input:{name}", f"change:{name}"], (name, text)
            assert not await here.cdp.value("document.querySelectorAll('select:open').length")
        assert await here.cdp.value("added") == "a"
        values = "[...document.querySelectorAll('select')].map((each) => value(each.dataset.t))"
        before = await here.cdp.value(values)
        for name, text, code in REFUSED:
            refused = await here.act(Select(element=name, text=text))
            assert isinstance(refused, ActionError) and refused.code == code, (name, text, refused)
        refused = await here.act(Select(element="city", text="Springfield"))
        assert isinstance(refused, ActionError) and refused.candidates == (
            '"Springfield (Illinois)"',
            '"Springfield (Ohio)"',
        )
        assert await here.cdp.value(values) == before and not await here.log()


LABELS = st.lists(
    st.tuples(st.sampled_from(["a", "A", "b", "a [2]", "a (g)", "\u00e9", "e\u0301", "x" * 90, "x" * 95]), st.sampled_from(["", "g", "h"])),
    max_size=9,
)  # fmt: skip


@given(LABELS)
def test_every_name_of_an_option_means_that_option(options: list[tuple[str, str]]) -> None:
    names = option_names(tuple(options))
    assert [find_options(tuple(options), name) for name in names] == [[place] for place in range(len(options))]
    assert all(len(name) <= OPTION_CHARS for name in names)


async def test_observations_list_what_a_list_shows(pages: Callable[..., Any]) -> None:
    page = LISTS.replace("data-t=", "aria-label=").partition("<script>")[0]
    async with pages({"index.html": page}) as (pool, site), pool.lease(site) as session:
        first = await session.reset(page_task("/index.html"), 0)
        listed = {each.text: each for each in first.observation.elements if each.tag == "select"}
        assert {name: listed[name].options for name in ("size", "city", "plan", "time", "big", "pets", "holder")} == {
            "size": ("Small (2 kg)", "Medium (5 kg)", "Large"),
            "city": ("Springfield (Illinois)", "Other (Illinois)", "Springfield (Ohio)", "Other (Ohio)"),
            "plan": ("Basic", "Later", "Pro"),
            "time": ("10:00", "10:00 (last seat)", "10:00 [2]", "10:00 [3]"),
            "big": ("Small", "Medium", "Never", "Large bold", "Medium [2]"),
            "pets": ("Tom (Cats)", "Tom (Dogs)"),
            "holder": ("First",),
        }
        assert (listed["size"].value, listed["holder"].value) == ("Small (2 kg)", "Pick one")
        assert {"One (1)", "Two", "Four"} <= {each.text for each in first.observation.elements if each.tag == "option"}
        result = await session.step(Select(element=listed["city"].index, text="Springfield (Ohio)"))
        (city,) = [each for each in result.observation.elements if each.text == "city"]
        assert city.value == "Springfield (Ohio)" and result.error is None


DRAWN = """<style>#size, #size::picker(select) { appearance: base-select }</style><label for=size>Size</label>
<select id=size onchange="said.textContent = 'size ' + this.value"><option value=s>Small<option value=m>Medium<option value=l>Large</select>
<p id=said>nothing</p>"""


async def test_a_list_that_the_page_draws_opens_on_a_click(pages: Callable[..., Any]) -> None:
    async with pages({"index.html": DRAWN}) as (pool, site), pool.lease(site) as session:
        first = await session.reset(page_task("/index.html"), 0)
        (size,) = [each.index for each in first.observation.elements if each.tag == "select"]
        opened = await session.step(Click(element=size))
        (large,) = [each for each in opened.observation.elements if each.text == "Large"]
        assert not opened.observation.notices
        chosen = await session.step(Click(element=large.index))
        assert "size l" in chosen.observation.text
        (size,) = [each.index for each in chosen.observation.elements if each.tag == "select"]
        chosen = await session.step(Select(element=size, text="Medium"))
        assert chosen.error is None and "size m" in chosen.observation.text
        said = await session.evidence(Needs(scripts=("document.querySelectorAll(':open').length === 0",)))
        assert [each.value for each in said.scripts.values()] == [True]


PLACE = "position:absolute;height:26px;top:0;left:"
PICKERS = f"""<input type=date id=day style="{PLACE}0;width:120px"><input type=color style="{PLACE}130px;width:40px">
<label style="{PLACE}180px;width:90px">Label<input type=color></label><select style="{PLACE}280px;width:60px"><option>A<option>B</select>
<button style="{PLACE}350px;width:60px" onclick="day.showPicker()">Pick</button><div id=host style="{PLACE}420px;width:50px"></div>
<script>host.attachShadow({{mode: "open"}}).innerHTML = "<input type=color>"</script>"""
OPENING: list[tuple[str, Action | float]] = [
    ("date picker", 108),
    ("color picker", 150),
    ("color picker", 190),
    ("list", 310),
    ("date picker", 380),
    ("color picker", 440),
    ("color picker", Press(element=2, key="Enter")),
    ("list", Press(element=4, key="Alt+ArrowDown")),
]


async def test_a_native_picker_is_closed_and_the_step_says_so(pages: Callable[..., Any]) -> None:
    async with pages({"index.html": PICKERS}) as (pool, site), pool.lease(site) as session:
        first = await session.reset(page_task("/index.html"), 0)
        width, height = first.observation.viewport
        for kind, opening in OPENING:
            action = Click(at=(opening / width * 1000, 13 / height * 1000)) if isinstance(opening, int) else opening
            result = await session.step(action)
            assert len(result.observation.notices) == 1, (opening, result.observation.notices)
            assert f"the {kind} was closed again" in result.observation.notices[0]
            said = await session.evidence(Needs(scripts=("document.querySelectorAll(':open').length === 0",)))
            assert [each.value for each in said.scripts.values()] == [True]
            after = await session.step(Type(element=1, text="2024-05-17"))
            assert not after.observation.notices and after.observation.elements[0].value == "2024-05-17"
