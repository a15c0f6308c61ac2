"""What tasks upload: found beside the task file, copied into the run, and put into a page by the
run's own browsers."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.browser import BrowserPool
from envs.sites import StaticSite
from envs.tasks import save_parquet, save_tasks, write_tree
from envs.types import ConfigError, ErrorCode, SeedRange, Split, TaskError, Upload, WebTask
from tasks_lib.config import EvaluateConfig, TasksConfig, resolve
from tasks_lib.folder.task_sets import freeze_tasks
from tasks_lib.preflight.flows import check_evaluation
from tasks_lib.rollouts.shards import Rollouts
from training.ledger.store import RunStore
from training.records.groups import GroupSpec

PAGE = """<!DOCTYPE html><title>t</title><input type=file aria-label=CV><p id=out></p>
<script>addEventListener("change", async (e) => { out.textContent = e.target.files[0].name + ": " + await e.target.files[0].text() })</script>"""


def upload_task(number: int, files: str) -> WebTask:
    return WebTask(
        task_id=f"pages/{number}",
        site="pages",
        kind="upload",
        path="/index.html",
        instruction="Send the CV.",
        difficulty=1,
        horizon=3,
        seeds={Split.TRAIN: SeedRange(start=0, stop=1)},
        files=files,
    )


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder for task files, with the files of two tasks in it."""
    for name, text in {
        "cvs/1/cv.txt": "Ada",
        "cvs/2/cv.txt": "Bob",
        "cvs/2/more/b.txt": "b",
        "secret.txt": "s",
    }.items():
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "set"


async def test_each_task_of_a_run_uploads_its_own_files_and_no_others(beside: Path, tmp_path: Path) -> None:
    save_tasks(beside / "tasks.jsonl", [upload_task(1, "cvs/1"), upload_task(2, "cvs/2"), upload_task(3, "")])
    store = RunStore(tmp_path / "run")
    tasks = list(freeze_tasks(TasksConfig(file=str(beside / "tasks.jsonl")), store))
    (beside / "cvs/1/cv.txt").write_text("changed after the run began")
    config: EvaluateConfig = resolve(EvaluateConfig, {"run_id": "uploads"})
    groups = [GroupSpec(group_id=f"e000000-g{n:04d}", task=task, seeds=(0,)) for n, task in enumerate(tasks)]
    request = Rollouts(store, config.policy, config.rollout, seed=0).request(groups, 0)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/index.html").write_text(PAGE)

    site = StaticSite("pages", tmp_path / "pages")
    await site.start()
    try:
        found = []
        async with BrowserPool(request.pool_options()) as pool:
            for group in request.groups:
                async with pool.lease(site) as session:
                    first = await session.reset(group.task, 0)
                    (field,) = first.observation.elements
                    for names in (("cv.txt",), ("../2/cv.txt",), ("more/b.txt",), ("/etc/hostname",)):
                        result = await session.step(Upload(element=field.index, files=names))
                        found.append((result.error or "", result.observation.text))
    finally:
        await site.close()
    none = ErrorCode.NO_SUCH_FILE
    codes = [code for code, _ in found]
    assert codes == ["", none, none, none, "", none, "", none, none, none, none, none]
    assert "cv.txt: Ada" in found[0][1] and "cv.txt: Bob" in found[4][1] and "b.txt: b" in found[6][1]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "tree"])
def test_files_are_found_from_every_form_of_a_set_and_checked_on_resuming(
    beside: Path, tmp_path: Path, form: str
) -> None:
    tasks = [upload_task(1, "cvs/1"), upload_task(2, "cvs/2")]
    if form == "tree":
        write_tree(beside, tasks)
        file = str(beside)
    elif form == "parquet":
        save_parquet(beside / "tasks.parquet", tasks)
        file = str(beside / "tasks.parquet")
    else:
        save_tasks(beside / "tasks.jsonl", tasks)
        file = f"{beside}/*.jsonl"
    store, config = RunStore(tmp_path / "run"), TasksConfig(file=file)
    frozen = list(freeze_tasks(config, store))
    assert [task.files for task in frozen] == ["cvs/1", "cvs/2"]
    copies = sorted(str(path.relative_to(store.task_files_path)) for path in store.task_files_path.rglob("*.txt"))
    assert copies == ["cvs/1/cv.txt", "cvs/2/cv.txt", "cvs/2/more/b.txt"]
    assert list(freeze_tasks(config, store)) == frozen
    (store.task_files_path / "cvs/2/more/b.txt").write_text("c")
    with pytest.raises(ConfigError, match="cvs/2 are not what they were"):
        freeze_tasks(config, store)
    (store.task_files_path / "cvs/2/more/b.txt").write_text("b")  # as the error says
    assert list(freeze_tasks(config, store)) == frozen


@pytest.mark.parametrize("files", ["/etc", "..", "cvs/../..", "./cvs", "cvs//1", "cvs\\1", "cvs/1/"])
def test_a_folder_outside_of_the_task_file_s_is_refused_with_its_line(beside: Path, files: str) -> None:
    save_tasks(beside / "tasks.jsonl", [upload_task(1, files)])
    with pytest.raises(TaskError, match=r"tasks\.jsonl:1: files: .* must name a folder below"):
        freeze_tasks(TasksConfig(file=str(beside / "tasks.jsonl")), RunStore(beside.parent / "run"))


@pytest.mark.parametrize("fault", ["missing", "empty", "linked folder", "linked file"])
def test_missing_or_outside_files_are_refused_before_any_write(beside: Path, tmp_path: Path, fault: str) -> None:
    folder = beside / "new"
    if fault == "empty":
        folder.mkdir()
    elif fault == "linked folder":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere/a.txt").write_text("a")
        folder.symlink_to(tmp_path / "elsewhere")
    elif fault == "linked file":
        folder.mkdir()
        (folder / "a.txt").symlink_to("/etc/hostname")
    save_tasks(beside / "tasks.jsonl", [upload_task(7, "new")])
    file = str(beside / "tasks.jsonl")
    store = RunStore(tmp_path / "runs" / "run")
    message = "leads out of" if "linked" in fault else "there are no files in"
    with pytest.raises(TaskError, match=f"pages/7: .*{message}"):
        freeze_tasks(TasksConfig(file=file), store)
    config: EvaluateConfig = resolve(
        EvaluateConfig, {"run_id": "run", "root": str(tmp_path / "runs"), "tasks": {"file": file}}
    )
    with pytest.raises(TaskError, match=f"pages/7: .*{message}"):
        check_evaluation(config)
    assert not store.task_files_path.exists() and not store.config_path.exists()
