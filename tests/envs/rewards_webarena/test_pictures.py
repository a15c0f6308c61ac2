"""VisualWebArena's pictures: those of an instruction, and the evaluators of those of a page."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from envs import BrowserPool, ConfigError, LiveOptions, StepRenderer, WebTask, make_pool, open_env
from envs.rewards.judge import Judgement
from envs.rewards.webarena.similarity import picture_similarity, structural_similarity
from envs.sites.pictures import PictureReader
from envs.tasks.imports import import_tasks
from envs.types import RewardBundle, SiteError
from tests.envs.tasks.foreign_rows import VISUAL
from tests.loopback import Quiet, serving


def drawn(seed: int, width: int = 40, height: int = 30) -> np.ndarray[Any, np.dtype[np.uint8]]:
    y, x = np.mgrid[:height, :width]
    return ((x * (3 + seed) + y * (5 + 2 * seed) + (x * y) // (7 + seed)) % 256).astype(np.uint8)


def file_of(seed: int, kind: str = "PNG", size: tuple[int, int] = (40, 30)) -> bytes:
    file = BytesIO()
    Image.fromarray(drawn(seed)).convert("RGB").resize(size).save(file, kind)
    return file.getvalue()


LAMP, VASE = file_of(0), file_of(1)
FILES = {"/lamp.png": LAMP, "/vase.png": VASE, "/large.jpg": file_of(0, "JPEG", (80, 60)), "/broken.png": b"no picture"}
ITEM = '<title>Item</title><h1>Item</h1><div class="photos"><img src="{}"></div>'
COMMENTS = """<title>Post</title><main id="main"><a class="fg-inherit">ann</a>
<article class="comment" data-level="1"><div class="comment__main"><header><h1><a class="fg-inherit">ann</a>
<span><time datetime="2024-01-01T10:00:00Z">old</time></span></h1></header>
<div class="comment__content">first</div></div>
<article class="comment" data-level="2"><div class="comment__main"><header><h1><a class="fg-inherit">bob</a>
<span><time datetime="2024-01-02T10:00:00Z">new</time></span></h1></header>
<div class="comment__content">I agree</div></div></article></article></main>"""
ORDER = """<title>Order</title><table id="my-orders-table"><tbody><tr><td class="col name">Tea<dl><dt>Size</dt>
<dd>12 Count</dd></dl></td><td class="col sku"> B01 </td><td class="col qty">Ordered2</td></tr></tbody></table>
<p class="a">Some TEXT</p>"""
PRODUCT = """<title>Product</title><main id="maincontent"><div class="columns"><div>
<div class="product-info-main"><div class="product-info-price"><div class="price-box price-final_price"><span><span>$69.50</span>
</span></div></div><p class="rating-result" title="80%">4</p></div></div></div></main>
<a id="tab-label-reviews-title">Reviews 12</a>
<table id="productDetails_detailBullets_sections1"><tbody><tr><th>Brand Name</th><td>Acme</td></tr></tbody></table>"""
PAGES = {
    "/": "<title>Shop</title><a href='/blue-lamp.html'>lamp</a> <a href='/vase.html'>vase</a> <a href='/none.html'>none</a>",
    "/blue-lamp.html": ITEM.format("lamp.png"),
    "/vase.html": ITEM.format("/vase.png"),
    "/none.html": "<title>None</title><h1>None</h1><img src='/lamp.png'>",
    "/broken.html": ITEM.format("/broken.png"),
    "/post": COMMENTS,
    "/order": ORDER,
    "/product": PRODUCT,
}


class Shop(Quiet):
    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path in FILES:
            self.answer(200, FILES[path], "image/png")
        else:
            self.answer(200 if path in PAGES else 404, PAGES.get(path, "<title>Nothing</title>"))


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    with serving(Shop) as origin:
        yield origin


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with make_pool(max_sessions=1) as made:
        yield made


class Looks:
    """A judge that knows the lamp's picture by its looks."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    async def ask_pictures(self, question: str, answer: str, pictures: Any) -> Judgement:
        self.asked.append((question, answer, len(pictures)))
        held = any(picture_similarity(one, LAMP) > 0.8 for one in pictures)
        return Judgement.model_validate({"state": "passed" if held else "failed", "score": None, "reason": "seen"})


def imported(tmp_path: Path, *, image: Any = None, **of_eval: Any) -> WebTask:
    row = {**VISUAL[0], "image": image, "eval": {"reference_answers": None, "program_html": [], **of_eval}}
    path = tmp_path / "row.json"
    path.write_text(json.dumps([row]))
    (item,) = import_tasks("visualwebarena", path)
    return item.task


def about(check: dict[str, Any]) -> dict[str, Any]:
    query = {"eval_image_url": "last", "eval_image_class": ".photos", **check}
    return {"eval_types": ["page_image_query"], "page_image_query": [query]}


async def play(
    task: WebTask, origin: str, pool: BrowserPool, path: str, judge: Any = None, pictures: str = ""
) -> RewardBundle:
    live = LiveOptions(addresses={"shopping": origin}, pictures=pictures)
    async with open_env(task, live=live, pool=pool, judge=judge) as env:
        await env.reset()
        await env.step({"type": "goto", "url": f"{origin}{path}"})
        await env.step({"type": "answer", "text": "done"})
        assert env.reward is not None
        return env.reward


ALIKE = {"eval_fuzzy_image_match": "__SHOPPING__/nothing.png |OR| __SHOPPING__/large.jpg"}
LOCAL = {"eval_fuzzy_image_match": "coco_images/lamp.jpg"}
FAR = {"eval_fuzzy_image_match": "https://images.example/lamp.png?w=2", "ssim_threshold": 0.6}
VQA = {"eval_vqa": [{"question": "Is this a lamp?", "answer": "yes"}]}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name in ("coco_images/lamp.jpg", "images.example/lamp.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(LAMP)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("check", "path", "binary"),
    [
        (LOCAL, "/blue-lamp.html", 1.0),
        (LOCAL, "/vase.html", 0.0),
        (LOCAL, "/broken.html", None),
        (VQA, "/blue-lamp.html", 1.0),
        (VQA, "/vase.html", 0.0),
    ],
)
async def test_an_episode_is_graded_by_the_pictures_of_its_last_page(
    tmp_path: Path, shop: str, pool: BrowserPool, folder: str, check: dict[str, Any], path: str, binary: float | None
) -> None:
    reward = await play(imported(tmp_path, **about(check)), shop, pool, path, Looks(), folder)
    assert reward.binary == binary and (reward.abstained is not None) == (binary is None)


CHECKS: list[tuple[dict[str, Any], str, float | None, str]] = [
    (LOCAL, "/none.html", 0.0, "no picture at '.photos'"),
    ({**LOCAL, "eval_image_class": ""}, "/none.html", 1.0, "a picture is alike"),
    (ALIKE, "/blue-lamp.html", 1.0, "a picture is alike"),
    (ALIKE, "/vase.html", None, "nothing.png: its host answered 404"),
    (FAR, "/blue-lamp.html", 1.0, "a picture is alike"),
    ({"eval_fuzzy_image_match": "https://images.example/vase.png"}, "/vase.html", None, "may not be fetched"),
    (LOCAL, "/vase.html", 0.0, "no picture is alike"),
    (LOCAL, "/broken.html", None, "no picture that can be read"),
    (VQA, "/blue-lamp.html", 1.0, "Is this a lamp? yes: seen"),
    (VQA, "/vase.html", 0.0, "Is this a lamp? yes: seen"),
    (VQA, "/none.html", 0.0, "the page has no such picture"),
    (VQA, "/broken.html", None, "no picture that can be read"),
    (VQA, "/nowhere", 0.0, "the page has no such picture"),
]


async def test_pictures_of_pages_are_graded(tmp_path: Path, shop: str, pool: BrowserPool, folder: str) -> None:
    queries = [
        {"eval_image_class": ".photos", **check, "eval_image_url": f"__SHOPPING__{path}"} for check, path, *_ in CHECKS
    ]
    task = imported(tmp_path, eval_types=["page_image_query"], page_image_query=queries)
    parts = (await play(task, shop, pool, "/", Looks(), folder)).parts
    assert [part.value for part in parts] == [value for *_, value, _ in CHECKS]
    for part, (*_, evidence) in zip(parts, CHECKS, strict=True):
        assert evidence in part.evidence


async def test_a_question_without_a_judge_abstains(tmp_path: Path, shop: str, pool: BrowserPool) -> None:
    reward = await play(imported(tmp_path, **about(VQA)), shop, pool, "/vase.html")
    assert reward.binary is None and reward.score is None
    assert "needs a judge, and there is none" in (reward.abstained or "")


REDDIT = "func:reddit_get_latest_comment_content_by_username(__page__, 'bob')"
PARENT = "func:reddit_get_parent_comment_username_of_latest_comment_by_username(__page__, 'bob')"
NUMBER = "lambda:(() => parseFloat(document.querySelector('.price-box')?.innerText.slice(1)) || 0)()"
SCRIPT = "lambda:(() => { try { return document.querySelector('h1').textContent } catch { return '' } })()"


HELD: list[tuple[str, dict[str, Any], str]] = [
    (REDDIT, {"must_include": ["agree"]}, "/post"),
    (PARENT, {"exact_match": "ann"}, "/post"),
    ("func:shopping_get_order_product_name_list(__page__)", {"must_include": ["Tea"]}, "/order"),
    ("func:shopping_get_order_product_quantity(__page__, 'A |OR| B01')", {"required_values": ["== 2"]}, "/order"),
    ("func:shopping_get_order_product_option(__page__, 'B01', 'Size')", {"exact_match": "12 Count"}, "/order"),
    ("func:get_query_text_lowercase(__page__, '.a')", {"exact_match": "some text"}, "/order"),
    ("func:shopping_get_product_attributes(__page__, 'maker |OR| brand')", {"exact_match": "Acme"}, "/product"),
    ("func:shopping_get_product_price(__page__)", {"required_values": ["> 60", "< 70"]}, "/product"),
    ("func:shopping_get_num_reviews(__page__)", {"required_values": [">= 12"]}, "/product"),
    ("func:shopping_get_rating_as_percentage(__page__)", {"required_values": ["== 80"]}, "/product"),
    (NUMBER, {"required_values": ["> 60", "< 70"]}, "/product"),
    (SCRIPT, {"must_include": ["Item"], "must_exclude": ["Item"]}, "/vase.html"),  # the first alone, as there
]


@pytest.mark.parametrize("right", [True, False])
async def test_checks_of_a_page_hold_there_and_not_elsewhere(
    tmp_path: Path, shop: str, pool: BrowserPool, right: bool
) -> None:
    checks = [
        {"url": f"__SHOPPING__{path if right else '/none.html'}", "locator": locator, "required_contents": contents}
        for locator, contents, path in HELD
    ]
    reward = await play(imported(tmp_path, eval_types=["program_html"], program_html=checks), shop, pool, "/")
    wanted = [float(right)] * len(HELD)
    if not right:
        wanted[7] = 0.5  # the price 0 is below 70
    assert [part.value for part in reward.parts] == wanted and reward.binary == float(right)


async def test_pictures_of_the_instruction_are_shown(tmp_path: Path, shop: str, pool: BrowserPool) -> None:
    (tmp_path / "homepage").mkdir()
    (tmp_path / "homepage" / "vase.jpg").write_bytes(file_of(1, "JPEG"))
    names = ["__SHOPPING__/lamp.png", "__HOMEPAGE__/vase.jpg"]
    task = imported(tmp_path, image=names, eval_types=["url_match"], reference_url="__SHOPPING__/")
    assert task.images == tuple(names)
    live = LiveOptions(addresses={"shopping": shop}, pictures=str(tmp_path))
    async with open_env(task, live=live, pool=pool) as env:
        step = await env.reset()
        assert step.pictures == (LAMP, file_of(1, "JPEG"))
        for renderer in (
            StepRenderer(screenshot=True),
            *(StepRenderer(mode=one) for one in ("set_of_marks", "coordinates")),
        ):
            kinds = [part["type"] for part in renderer.parts(step)]
            assert kinds == ["image_url", "text", "text", "image_url", "text", "image_url"]
            content = renderer.user_message(step)["content"]
            shown = [part["image_url"]["url"].split(",") for part in content if part["type"] == "image_url"][1:]
            assert [(head, base64.b64decode(data)) for head, data in shown] == [
                ("data:image/png;base64", LAMP),
                ("data:image/jpeg;base64", file_of(1, "JPEG")),
            ]
            assert content[2]["text"] == "Picture 1 of the task:" and "Task: " in content[1]["text"]
        with pytest.raises(
            ConfigError, match="instruction has 2 pictures, and text alone cannot show them: set screenshot"
        ):
            StepRenderer().user_message(step)
        ended = await env.step({"type": "answer", "text": "done"})
        assert ended.done and ended.pictures == step.pictures
    async with open_env(task, live=replace(live, pictures=""), pool=pool) as env:
        with pytest.raises(
            SiteError, match=r"__HOMEPAGE__/vase\.jpg: is no file here .*set tasks\.pictures .*tasks\.addresses"
        ):
            await env.reset()


@pytest.mark.parametrize(
    "name", ["../key.png", "https://x.example/../../key.png", "a/%2e%2e/%2e%2e/key.png", "/etc/key.png"]
)
async def test_pictures_outside_of_the_folder_are_not_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "key.png").write_bytes(LAMP)
    (tmp_path / "in").mkdir()
    with pytest.raises(SiteError, match=r"leads out of tasks\.pictures"):
        await PictureReader(str(tmp_path / "in")).read(name)


@pytest.mark.parametrize("name", ["https://x.example/a.png", "http://127.0.0.1:9/a.png", "file:///etc/hosts", "a.png"])
async def test_only_allowed_hosts_are_asked_for_pictures(name: str) -> None:
    with pytest.raises(
        SiteError, match=r"may not be fetched .*; set tasks\.pictures .* or allow its host \(tasks\.reach\)"
    ):
        await PictureReader().read(name)


@pytest.mark.parametrize(
    ("first", "second", "size", "expected"),
    [
        (0, 1, (40, 30), 0.4657867324790842),
        (0, 0, (16, 16), 1.0),
        (2, 3, (64, 9), 0.4466303557391818),
        (4, 5, (7, 7), 0.9813015576860182),
    ],
)
def test_similarity_is_that_of_scikit_image(first: int, second: int, size: tuple[int, int], expected: float) -> None:
    """Values of ``structural_similarity(a, b, full=True)`` of scikit-image 0.26.0."""
    assert structural_similarity(drawn(first, *size), drawn(second, *size)) == pytest.approx(expected, abs=1e-12)
