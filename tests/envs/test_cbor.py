"""Messages in Chromium's dialect of CBOR: what is written, what a real Chromium writes, and what
only looks like an envelope."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import cbor2
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.browser.process.chromium import LAUNCH_ARGS, ChromiumProcess, find_chromium
from envs.cdp import Rectangles, Rows, binary, cbor, tables
from envs.cdp.client import CdpClient, CdpError, connect_client
from envs.cdp.envelopes import ARRAY, BREAK, ENVELOPE, MAP
from envs.cdp.tables import SNAPSHOT
from envs.observation.dom import STYLES, Dom
from envs.observation.snapshot import decode
from envs.settle import SettleReason
from tests.envs.raw_chromium import debugging_address

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def result_of(value: Any) -> bytes:
    """An answer's result as `cbor.read` leaves it."""
    result: bytes = cbor.read(cbor.write({"id": 1, "result": value}))["result"]
    return result


def envelope(content: bytes) -> bytes:
    return ENVELOPE + len(content).to_bytes(4, "big") + content


@given(st.dictionaries(st.text(), JSON_VALUES))
def test_what_is_written_is_read(value: dict[str, Any]) -> None:
    assert cbor.read_result("Runtime.evaluate", result_of(value), {}) == value
    assert cbor.read(cbor.write({"method": "Page.event", "params": value, "sessionId": "s"})) == {
        "method": "Page.event",
        "params": value,
        "sessionId": "s",
    }


def test_enum_members_are_their_values_and_nan_is_null() -> None:
    assert cbor.write({"it": SettleReason.RESTED}) == cbor.write({"it": "rested"})
    assert cbor.write({"it": float("nan")}) == cbor.write({"it": None})


def test_a_number_of_more_than_32_bits_is_a_float() -> None:
    assert b"\xfb" in cbor.write({"id": 2**31})


@pytest.mark.parametrize("thing", [b"bytes", {1, 2}, object(), np.float32(1), {1: 2}, {None: 1}, 10**400, "\ud83d"])
def test_what_json_does_not_have_cannot_be_sent(thing: object) -> None:
    with pytest.raises(TypeError, match="to a browser"):
        cbor.write({"params": {"it": thing}})


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"id":1}\0', cbor2.dumps({"id": 1}), b"\xd8\x18\x5a\0\0\0\1\x9f"])
def test_what_is_no_message_is_told(raw: bytes) -> None:
    with pytest.raises(ValueError, match="no message of Chromium's"):
        cbor.read(raw)


def test_a_message_that_ends_too_early_is_told() -> None:
    whole = cbor.write({"id": 1, "params": {"a": [1, 2, 3]}})
    with pytest.raises(ValueError, match="cannot be read"):
        cbor.read(whole[:-1])


def test_byte_strings_are_utf_16_text_and_bytes_with_the_tag() -> None:
    parts = [cbor2.dumps("é\ud83d".encode("utf-16-le", "surrogatepass")), cbor2.dumps(cbor2.CBORTag(22, b"\xff\xd8"))]
    raw = MAP + cbor2.dumps("all") + envelope(ARRAY + b"".join(parts) + BREAK) + BREAK
    text, data = cbor.read_result("Some.method", raw, {})["all"]
    assert text == "é\ufffd" and binary(data) == b"\xff\xd8" == binary("/9g=")


DISTINCT = st.lists(
    st.lists(st.integers(-1, 70_000) | st.sampled_from([216, 90, 24, 0x9F, 0xBF, 255, 0x18D8])), min_size=1
)
ROWS = st.builds(lambda rows, seed: rows + Random(seed).choices(rows, k=80), DISTINCT, st.integers(0, 2**32))


@given(ROWS)
def test_rows_of_a_snapshot_are_those_that_were_written(rows: list[list[int]]) -> None:
    raw = result_of({"documents": [{"attributes": rows}], "strings": []})
    read = cbor.read_result(SNAPSHOT, raw, {})["documents"][0]["attributes"]
    if isinstance(read, Rows):
        assert len(read.distinct) <= len(rows) and [read[at] for at in range(len(read))] == rows == read[:]
    assert list(read) == rows


def test_numbers_that_look_like_an_envelope_are_numbers() -> None:
    fake = [216, 90, 0, 0, 0, 24, 159, 255]  # 18 d8 18 5a: two numbers that hold an envelope's first bytes
    rows = [[1, 2, 3], fake] * 60
    raw = result_of({"documents": rows, "strings": []})
    assert raw.count(ENVELOPE) >= len(rows) + 60
    read = cbor.read_result(SNAPSHOT, raw, {})["documents"]
    assert not isinstance(read, Rows) and read == rows


def test_rectangles_of_a_snapshot_are_an_array() -> None:
    rectangles = [[0.0, 1.5, -2.25, 1e9]] * 30
    read = cbor.read_result(SNAPSHOT, result_of({"documents": rectangles, "strings": []}), {})["documents"]
    assert isinstance(read, Rectangles) and list(read) == rectangles == read[:] and read[1] == rectangles[1]


async def test_an_event_that_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Loose:
        """A wire that leads nowhere."""

        def __init__(self) -> None:
            self.ended = asyncio.get_running_loop().create_future()
            self.on_message: Callable[[bytes], None] = lambda _message: None
            self.send: Callable[[bytes], None] = lambda _message: None
            self.abort: Callable[[], None] = lambda: None

    deep = envelope(MAP + BREAK)
    for _ in range(500):
        deep = envelope(MAP + cbor2.dumps("a") + deep + BREAK)
    broken = envelope(MAP + cbor2.dumps("method") + cbor2.dumps("a.deep") + cbor2.dumps("params") + deep + BREAK)

    wire, heard = Loose(), []
    client = CdpClient(wire, cbor.CBOR)
    client.on_event(lambda method, _session, _params: heard.append(method))
    for message in (broken, cbor.write({"method": "a.plain", "params": {}})):
        wire.on_message(message)
    assert not client.lost.done()
    assert heard == ["a.plain"] and "was left out" in caplog.text


def test_of_a_page_with_too_many_columns_only_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COLUMNS", 2000)
    columns = {str(number): [number] * 400 for number in range(10)}
    raw = result_of({"documents": columns, "strings": []})
    memory: dict[str, Any] = {}
    for _ in range(3):
        assert cbor.read_result(SNAPSHOT, raw, memory)["documents"] == columns
        assert sum(map(len, memory[SNAPSHOT]._columns)) < 3000


async def test_who_closed_does_not_deafen_who_came_after() -> None:
    async with chromium() as (process, first, _session):
        second = process.client()
        first.close()
        async with asyncio.timeout(60):
            assert "product" in await second.call("Browser.getVersion", None, None)


# ----------------------------------------------------------------------------
# a real Chromium


@asynccontextmanager
async def chromium(*args: str) -> Any:
    """A Chromium, the client of its pipe, and a page's session id."""
    process = await ChromiumProcess.start(find_chromium(), (*LAUNCH_ARGS, *args))
    client = process.client()
    try:
        yield process, client, await attached(client)
    finally:
        await process.stop()


async def attached(client: CdpClient, target: str = "") -> str:
    target = target or (await client.call("Target.createTarget", {"url": "about:blank"}, None))["targetId"]
    answer = await client.call("Target.attachToTarget", {"targetId": target, "flatten": True}, None)
    return str(answer["sessionId"])


VALUES = {
    "({'ü': 'é', x: [1, 'ü', {a: ['ß', null]}], 'ä': true})": {"ü": "é", "x": [1, "ü", {"a": ["ß", None]}], "ä": True},
    "'\\ud83d' + 'x'": "\ufffdx",
    "'a\\u0000b'": "a\0b",
    "'😀'": "😀",
    "'\\u18d8Z\\u0001\\u0002\\u9fff'.repeat(200)": "\u18d8Z\x01\x02\u9fff" * 200,  # an envelope's bytes, in text
    "[[1, 2], ['\\u18d8Z\\u0001\\u0002\\u9fff'], []]": [[1, 2], ["\u18d8Z\x01\x02\u9fff"], []],
    "7": 7,
    "[2 ** 40, -0.5, 2 ** 63, 1e22, NaN, -1 / 0]": [2**40, -0.5, 2.0**63, 1e22, None, None],
}


async def test_what_changes_from_snapshot_to_snapshot_is_read_again() -> None:
    """And what does not is the same object: nobody may change it."""
    changes = [
        "document.querySelectorAll('p')[7].textContent = 'changed'",
        "document.querySelectorAll('p')[9].remove()",
        "document.body.style.fontSize = '20px'",
        "scrollTo(0, 500)",
        "document.body.insertAdjacentHTML('afterbegin', '<p>ü new</p>')",
    ]

    async with chromium() as (_process, client, session):
        memory: dict[str, Any] = {}
        params = {"computedStyles": list(STYLES), "includePaintOrder": True}
        frame = (await client.call("Page.getFrameTree", None, session))["frameTree"]["frame"]["id"]
        await client.call("Page.setDocumentContent", {"frameId": frame, "html": PAGE}, session)
        before = await client.call(SNAPSHOT, params, session, memory)
        again = await client.call(SNAPSHOT, params, session, memory)
        assert again["documents"][0]["nodes"]["attributes"] is before["documents"][0]["nodes"]["attributes"]
        for change in changes:
            await client.call("Runtime.evaluate", {"expression": change}, session)
            kept, new = (
                await client.call(SNAPSHOT, params, session, memory),
                await client.call(SNAPSHOT, params, session),
            )
            same_page(decode(kept), decode(new))


def same_page(ours: Dom, theirs: Dom) -> None:
    for name in (each.name for each in dataclasses.fields(ours)):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other, name


async def test_values_of_scripts_come_as_they_are() -> None:
    async with chromium() as (_process, client, session):
        for expression, value in VALUES.items():
            params = {"expression": expression, "returnByValue": True}
            told = (await client.call("Runtime.evaluate", params, session))["result"]["value"]
            assert told == value and type(told) is type(value), expression


async def test_an_answer_that_is_nested_too_deep_fails_its_call_alone() -> None:
    deep = "(() => { const top = {}; let at = top; for (let i = 0; i < 900; i++) at = at.a = {}; return top })()"

    async with chromium() as (_process, client, session):
        with pytest.raises(CdpError, match=r"Runtime\.evaluate: its answer cannot be read: it is .* nested too deeply"):
            await client.call("Runtime.evaluate", {"expression": deep, "returnByValue": True}, session)
        answer = await client.call("Runtime.evaluate", {"expression": "6 * 7", "returnByValue": True}, session)
        assert answer["result"]["value"] == 42


async def test_what_the_browser_refuses_is_told_in_its_words() -> None:
    async with chromium() as (_process, client, session):
        with pytest.raises(CdpError, match=r"No\.such: 'No\.such' wasn't found"):
            await client.call("No.such", None, session)
        with pytest.raises(CdpError, match=r"Runtime\.evaluate: Invalid parameters"):
            await client.call("Runtime.evaluate", {"expression": 5}, session)


PAGE = """<title>Ünïcode</title><style>b::before {content: "→"}</style><body>
<iframe srcdoc="<p>in a frame <input value='ä'>"></iframe><b>bold</b><input type=checkbox checked>
<div id=host></div><script>host.attachShadow({mode: 'closed'}).innerHTML = '<button>in the shadow</button>';
for (let i = 0; i < 300; i++) document.body.insertAdjacentHTML('beforeend', `<p class="row r${i % 7}">Row ${i} <a href="/x${i}">é</a></p>`)
</script>"""


@asynccontextmanager
async def both_wires() -> AsyncIterator[list[tuple[CdpClient, str]]]:
    """The clients of a pipe and of a socket, each with its session of one page."""
    async with chromium("--remote-debugging-port=0") as (process, client, session):
        frame = (await client.call("Page.getFrameTree", None, session))["frameTree"]["frame"]["id"]
        await client.call("Page.setDocumentContent", {"frameId": frame, "html": PAGE}, session)
        socket = await connect_client(await debugging_address(process), 5)
        targets = (await socket.call("Target.getTargets", None, None))["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        yield [(client, session), (socket, await attached(socket, target))]
        socket.close()


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("Page.getLayoutMetrics", {}),
    ("Page.getFrameTree", {}),
    ("Page.getNavigationHistory", {}),
    ("DOM.getDocument", {"depth": -1, "pierce": True}),
    ("CSS.enable", {}),
    ("DOM.getNodeForLocation", {"x": 20, "y": 150}),
    ("DOM.getBoxModel", {"nodeId": 1}),
    (
        "Runtime.evaluate",
        {
            "expression": "({a: 0.1, b: [1e3, -0, 2**53, -(2**63), 2**63, 1e20, 1e21, NaN, 1/0, 'é', null], c: new Array(3)})",
            "returnByValue": True,
        },
    ),
    ("Runtime.evaluate", {"expression": "({é: {x: 1}, f: () => 1, d: new Date(0)})", "generatePreview": True}),
    ("Runtime.evaluate", {"expression": "throw new TypeError('ünknown')"}),
]


async def test_answers_are_the_same_over_the_pipe_and_over_a_socket() -> None:
    """To the type of each number; ids that are counted up are left out."""

    def told(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: told(part)
                for name, part in value.items()
                if name not in ("objectId", "nodeId", "parentId", "scriptId", "exceptionId")
            }
        return [told(part) for part in value] if isinstance(value, list) else value

    async with both_wires() as sides:
        for domain in ("DOM", "Page"):
            for side, session in sides:
                await side.call(f"{domain}.enable", None, session)
        for method, params in METHODS:
            answers: list[Any] = []
            for side, session in sides:
                try:
                    answers.append(told(await side.call(method, params, session)))
                except CdpError as error:
                    answers.append(str(error))
            assert orjson.dumps(answers[0]) == orjson.dumps(answers[1]), method


async def test_a_snapshot_is_the_same_over_the_pipe_and_over_a_socket() -> None:
    async with both_wires() as sides:
        await asyncio.sleep(0.3)  # the frame is loaded
        params = {"computedStyles": list(STYLES), "includePaintOrder": True}
        over_pipe, over_socket = [await side.call(SNAPSHOT, params, session) for side, session in sides]
    assert isinstance(over_pipe["documents"][0]["nodes"]["attributes"], Rows)
    assert isinstance(over_pipe["documents"][0]["layout"]["bounds"], Rectangles)
    ours, theirs = decode(over_pipe), decode(over_socket)
    assert len(ours.documents) == 2 and ours.closed and len(ours.parent) > 1000 and ours.title == "Ünïcode"
    same_page(ours, theirs)
