"""Instances of a site: each episode has a server and a state of its own, and nothing is left.

The application (`canary`) leaves marks in every place that another episode might see.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from envs.sites.recipes.check import SiteCheck, check_site
from envs.sites.recipes.recipe import CheckSteps, RecordedRequest
from envs.sites.recipes.site import MEMORY_SECONDS, RecipeSite
from envs.sites.recipes.template import START_SECONDS, SiteTemplate, remove_leftovers
from envs.types import SiteError, WebTask

from .making import Visitor, started, visited, write_recipe

TASK = WebTask.model_validate(
    {
        "task_id": "canary/1",
        "site": "canary",
        "kind": "canary",
        "path": "/look",
        "instruction": "Look.",
        "difficulty": 1,
        "horizon": 5,
        "seeds": {"train": {"start": 0, "stop": 1}},
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("recipes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLWRIGHT_SITE_BUILDS", str(place / "builds"))
        yield place


@pytest.fixture(scope="module", params=["isolated", "plain"])
async def site(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[RecipeSite]:
    isolate = request.param == "isolated"
    async with started(write_recipe(folder), isolate=isolate) as made:
        assert made.report is not None
        if isolate and not made.report.isolated:
            pytest.skip(f"no namespaces here: {made.report.notices}")
        yield made


async def test_an_episode_sees_nothing_of_another(site: RecipeSite) -> None:
    async with visited(site) as one, visited(site) as two:
        await one.ask("/leave?value=mark")
        assert (await one.text("/look")).split(",").count("mark") == 5
        assert await two.text("/look") == "of the seed,"
        assert (await site.hash_state(one.instance)).keys() - (await site.hash_state(two.instance)).keys() == {
            "note.txt"
        }
        assert await two.text("/random") == await one.text("/random"), "equal until they act"


async def test_an_isolated_instance_reaches_no_port_and_no_process(site: RecipeSite) -> None:
    assert site.report is not None
    async with visited(site) as one, visited(site) as two:
        port = await one.text("/listen")
        assert await one.text(f"/reach?value={port}") == "True"
        if site.report.isolated:
            assert await two.text(f"/reach?value={port}") == "False"
            assert await two.text(f"/reach?value={site.origin.rpartition(':')[2]}") == "False"
            assert await two.text("/processes") == "1"
        else:
            assert any("share this machine's" in notice for notice in site.report.notices)


async def test_a_reset_is_exact_and_leaves_nothing(site: RecipeSite) -> None:
    async with visited(site) as fresh:
        wanted = await site.hash_state(fresh.instance)
        folder = site._template._folder  # type: ignore[union-attr]
        assert folder is not None
        before = sorted(path.name for path in folder.iterdir())
        processes = len(psutil.Process(fresh.instance.template.pid).children(recursive=True))
        for _ in range(4):
            async with visited(site) as used:
                await used.ask("/leave?value=mark")
                await used.text("/spawn")
                assert await site.hash_state(used.instance) != wanted
        async with visited(site) as again:
            assert await site.hash_state(again.instance) == wanted
        assert sorted(path.name for path in folder.iterdir()) == before
        assert len(psutil.Process(fresh.instance.template.pid).children(recursive=True)) == processes
    assert site.instances == 0


async def test_a_monitor_sees_instances_launches_resets_and_memory(site: RecipeSite) -> None:
    before = site.counters()[site.name]
    async with visited(site) as one, visited(site):
        await one.ask("/eat?value=50")
        site._memory_read = -MEMORY_SECONDS  # as if so much time had passed
        site.counters()
        async with asyncio.timeout(30):
            while (now := site.counters()[site.name])["memory"] < 50 << 20:
                await asyncio.sleep(0.02)
        assert (now["playing"], now["waiting"], now["launches"] - before["launches"]) == (2, 0, 2)
        assert now["memory"] < 500 << 20
    after = site.counters()[site.name]
    assert (after["playing"], after["resets"] - before["resets"]) == (0, 2)


async def test_only_its_own_episode_is_answered(site: RecipeSite) -> None:
    async with visited(site) as one:
        assert (await one.ask("/cookies")).text == ""
        answer = await one.ask("/buy", item="tea")
        assert answer.headers.get_list("set-cookie") == ["basket=1", "seen=1"] and answer.status_code == 303
        assert (await one.ask("/-/begin/guessed?to=/")).status_code == 403
        assert (await one.ask(f"/-/begin/{one.instance.token}?to=//other.example")).status_code == 403
        assert (await one.ask("/nowhere")).status_code == 404
    assert (await one.ask("/look")).status_code == 403


async def test_grading_reads_the_state_of_its_episode(site: RecipeSite) -> None:
    episode, other = await site.open_episode(TASK, 0), await site.open_episode(TASK, 1)
    try:
        assert episode.path.endswith("?to=/look") and episode.state is not None and other.state is not None
        assert episode.instance is not None
        from .making import Visitor

        await Visitor(site, episode.instance).ask("/buy", item="tea")
        query = "SELECT item FROM orders ORDER BY item"
        assert await episode.state.sql(query, "") == [("of the seed",), ("tea",)]
        assert await other.state.sql(query, "") == [("of the seed",)]
        with pytest.raises(SiteError, match="only one SELECT"):
            await episode.state.sql("DELETE FROM orders", "")
        with pytest.raises(SiteError, match="no database 'users'"):
            await episode.state.sql(query, "users")
    finally:
        await episode.close()
        await other.close()
        await other.close()


async def test_a_dead_server_or_template_harms_no_later_episode(site: RecipeSite) -> None:
    async with visited(site) as one:
        await one.text("/spawn")
        assert (await one.ask("/die")).status_code == 502
        assert "ended with status 3" in await site.failure_of(one.instance.token)
        assert len(psutil.Process(one.instance.template.pid).children(recursive=True)) == 1, "its daemon has ended"
        async with visited(site) as two:
            assert await two.text("/look") == "of the seed,"
        os.kill(psutil.Process(one.instance.template.pid).children()[0].pid, signal.SIGKILL)
        async with visited(site) as after:
            assert await after.text("/look") == "of the seed,"
            assert after.instance.template is not one.instance.template
            assert (await one.ask("/look")).status_code == 403


async def test_an_instance_that_ended_while_it_waited_is_not_taken(folder: Path) -> None:
    async with started(write_recipe(folder, "ahead", limits={"free_memory_mb": 64, "ahead": 1})) as site:
        await asyncio.gather(*site._filling)
        (waiting,) = site._ready_ones
        assert (await Visitor(site, waiting).ask("/die")).status_code == 502
        episode = await site.open_episode(TASK, 0)
        try:
            assert episode.instance is not waiting
            assert await Visitor(site, episode.instance).text("/look") == "of the seed,"
        finally:
            await episode.close()


async def test_a_check_names_what_differs_between_instances(site: RecipeSite) -> None:
    async def checked(*paths: str, ignore: tuple[str, ...] = (), body: dict[str, str] | None = None) -> SiteCheck:
        requests = tuple(RecordedRequest(path=path, body=body) for path in paths)
        check = CheckSteps(requests=requests, ignore=ignore)
        return await check_site(site, site.recipe.model_copy(update={"check": check}))

    good = await checked("/", "/leave?value=mark")
    assert good.ok and good.requests == 2 and "shop.sqlite:orders" in good.changed, good.differences
    assert (await checked("/buy", body={"item": "tea"})).changed == ["shop.sqlite:orders"]
    wrong = await checked("/clock", "/secret")
    assert [line.split(":")[1].strip() for line in wrong.differences] == ["a clock", "a random id"]
    assert (await checked("/secret", ignore=("[0-9a-f]{32}",))).ok
    place, session = "location: .*", "set-cookie: session=.*"
    for ignore, named in (((session,), "tion: "), ((place,), "cookie: session=")):  # ids may begin alike
        (difference,) = (await checked("/enter", ignore=ignore)).differences
        assert difference.startswith("answer 1 (/enter): a random id: '") and named in difference
    assert (await checked("/enter", ignore=(place, session))).ok
    drawn = await checked("/draw")
    assert [line.partition(":")[0] for line in drawn.differences] == ["state note.txt"]
    lost = await checked("/leave?value=mark", "/look")
    assert len(lost.differences) == 1 and lost.differences[0].startswith("a fork: answer 2 (/look): a count")
    assert lost.differences[0].endswith("set state.memory if the process holds what no file has")


async def test_a_check_names_state_that_is_never_the_seeds(folder: Path) -> None:
    start = {"application": "canary:application", "after_fork": "canary:draw"}
    async with started(write_recipe(folder, "drawn", start=start)) as site:
        (left, new) = (await check_site(site, site.recipe)).differences
        assert left.startswith("state note.txt: the same requests leave other content")
        assert new == "state note.txt: a new instance does not have the seed's"


async def test_an_end_of_a_template_while_it_starts_is_seen_at_once(folder: Path) -> None:
    with pytest.raises(SiteError, match="ending: its template has ended before its application was loaded"):
        async with asyncio.timeout(START_SECONDS / 2), started(write_recipe(folder, "ending", warm=["/die"])) as site:
            assert site.report is not None
            pytest.skip(f"no template loads the application here: {site.report.notices}")


async def test_a_launch_is_refused_while_memory_is_short(folder: Path) -> None:
    recipe = write_recipe(folder, "large", limits={"free_memory_mb": 1 << 30, "disk_mb": 256})
    async with started(recipe) as site:
        with pytest.raises(SiteError, match=r"MB of memory are free and limits\.free_memory_mb is \d+; run fewer"):
            await site.launch()
        assert site.instances == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": {"application": "canary:app"}}, "has no attribute 'app'"),
        (
            {"start": {"application": "canary:application", "after_fork": "canary:made"}},
            "ended before it was ready(?s:.*)has no attribute 'made'",
        ),
        ({"ready": {"path": "/nowhere", "seconds": 1}}, "/nowhere answers status 404 after 1 s"),
        (
            {"kind": "process", "start": {"command": ["python", "-c", "raise SystemExit('no port')"]}, "warm": []},
            "ended before it was ready(?s:.*)no port",
        ),
    ],
)
async def test_a_site_that_does_not_start_says_why(folder: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(SiteError, match=words):
        async with started(write_recipe(folder, "wrong", **changes)) as site:
            await site.launch()


async def test_a_program_and_an_asgi_application_are_served_too(folder: Path) -> None:
    command = ["python", "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
    program = write_recipe(folder, "program", kind="process", start={"command": command}, warm=[], limits={"ahead": 1})
    async with started(program) as site, visited(site) as one:
        assert "shop.sqlite" in await one.text("/")
    (folder / "asgi").mkdir()
    (folder / "asgi" / "app.py").write_text(
        "from starlette.responses import PlainTextResponse as application_answer\n"
        "application = application_answer('served by ASGI')\n"
    )
    asgi = write_recipe(folder, "asgi", kind="asgi", build={"code": "asgi"}, start={"application": "app:application"})
    async with started(asgi) as site, visited(site) as one:
        assert await one.text("/") == "served by ASGI"


async def test_no_more_are_launched_at_a_time_than_the_recipe_says(
    site: RecipeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, running, counts = SiteTemplate.launch, set[str](), list[int]()

    async def counted(template: SiteTemplate, name: str) -> bool:
        running.add(name)
        counts.append(len(running))
        try:
            return await launch(template, name)
        finally:
            running.remove(name)

    monkeypatch.setattr(SiteTemplate, "launch", counted)
    made = await asyncio.gather(*(site.launch() for _ in range(6)))
    site.keep_answers(made[0])
    forks = await site.fork(made[0], 4)
    assert max(counts[:6]) == max(counts[6:]) == site.recipe.limits.launches == 2
    for one in (*made, *forks):
        await site.drop(one)


LOSING = """
import os, threading, time

HELD = open(os.environ["SITE_STATE"] + "/held.txt", "w")
threading.Thread(target=time.sleep, args=(900,), daemon=True).start()

def application(environ, start):
    start("200 OK", [])
    return [b"here"]
"""


async def test_a_template_names_what_its_forks_lose_or_share(folder: Path) -> None:
    (folder / "losing").mkdir()
    (folder / "losing" / "losing.py").write_text(LOSING)
    changes = {"build": {"code": "losing"}, "start": {"application": "losing:application"}, "state": {}}
    notices = list[str]()
    for recipe in (write_recipe(folder, "losing", **changes), write_recipe(folder)):
        async with started(recipe) as site:
            assert site.report is not None
            if not site.report.warm:
                pytest.skip("no template loads the application here")
            notices += [notice for notice in site.report.notices if "the template" in notice]
    threads, held = notices
    assert "has 1 threads besides its own" in threads and "/held.txt open; close it in start.after_fork" in held


WORKER = """
import asyncio, sys
from pathlib import Path
from tests.envs.sites.recipes.making import started, visited

async def main():
    async with started(Path(sys.argv[1]), isolate=sys.argv[2] == "True") as site, visited(site) as one:
        await one.text("/spawn")
        print(one.instance.template.pid, one.instance.template._folder, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("victim", ["worker", "supervisor", "template"])
@pytest.mark.parametrize("isolate", [True, False])
def test_nothing_is_left_after_a_kill(folder: Path, victim: str, isolate: bool) -> None:
    """With a daemon of the application, which ignores SIGTERM."""
    root = Path(__file__).resolve().parents[4]
    command = [sys.executable, "-c", WORKER, str(write_recipe(folder)), str(isolate)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root)
    assert worker.stdout is not None
    supervisor, place = worker.stdout.readline().split()
    tree = [psutil.Process(int(supervisor)), *psutil.Process(int(supervisor)).children(recursive=True)]
    assert len(tree) >= 4, "supervisor, template, instance and daemon; without namespaces a keeper"
    mounts = Path("/proc/mounts").read_text()
    {"worker": worker, "supervisor": tree[0], "template": tree[1]}[victim].kill()
    try:
        asyncio.run(_ended(tree))
        assert Path("/proc/mounts").read_text() == mounts, "mounts of templates are not seen from here"
        assert place not in subprocess.run(["losetup", "--all"], capture_output=True, text=True, check=True).stdout
    finally:
        worker.kill()
        worker.wait()
    if victim == "supervisor":
        remove_leftovers()
    asyncio.run(_gone(Path(place)))


async def _ended(processes: list[psutil.Process]) -> None:
    async with asyncio.timeout(30):
        while [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]:
            await asyncio.sleep(0.02)


async def _gone(place: Path) -> None:
    async with asyncio.timeout(30):
        while place.exists():
            await asyncio.sleep(0.02)


NOT_ROOT = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""Runs a command as another user, who has no right of root and owns this user's files."""
PLAY = """
import asyncio, os, sys
from pathlib import Path
from tests.envs.sites.recipes.making import started, visited

async def play():
    assert os.geteuid() == 1000
    async with started(Path(sys.argv[1])) as site:
        print(site.report.isolated, site.report.warm, *site.report.notices, sep=";")
        async with visited(site) as one, visited(site) as two:
            await one.ask("/leave?value=mark")
            print(await one.text("/look"), await two.text("/look"))
        async with visited(site) as again:
            print(await again.text("/look"), site.counters()["canary"]["playing"])

asyncio.run(play())
"""


def test_a_process_without_root_says_what_is_missing(folder: Path) -> None:
    if subprocess.run([*NOT_ROOT, "true"], capture_output=True).returncode:
        pytest.skip("no user namespace can be made here")
    place = folder / "not-root"
    place.mkdir()
    command = [*NOT_ROOT, sys.executable, "-c", PLAY, str(write_recipe(place))]
    played = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[4])
    assert played.returncode == 0, played.stderr
    report, both, again = played.stdout.strip().splitlines()
    assert report.startswith("False;False;") and "share this machine's processes, network and user" in report
    assert both.count("mark") == 5 and both.endswith(" of the seed,") and again == "of the seed, 1"
