"""Two ranks write states, and one is killed between any two of its steps: the last whole state is
always there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from envs.types import TrainingError
from training.trainer.resume import check_state
from training.trainer.state_writer import StateWriter, copy_to_host

RANKS = 2
PATIENCE = 300.0
FORKS = multiprocessing.get_context("forkserver")
STEPS = {"os.rename", "shutil.rmtree"}
"""Events of Python's audit hooks, besides files that are opened to be written."""


def write_states(rank: int, folder: Path, killed_at: int | None, missing: str = "") -> None:
    """Write three states and keep two; die by SIGKILL before a step of the third."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'ranks'}", rank=rank, world_size=RANKS)
    writer, steps = StateWriter(2), count()

    def watch(event: str, values: tuple[Any, ...]) -> None:
        is_opened = event == "open" and isinstance(values[1], str) and "w" in values[1]
        is_step = (is_opened or event in STEPS) and str(folder) in str(values[0])
        if is_step and next(steps) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    for version in (1, 2, 3):
        target = folder / "state" / f"v{version:06d}"
        temporary = target.with_name(f".tmp-{target.name}")
        if rank == 0:
            temporary.mkdir(parents=True)
            (temporary / "latest").write_text(str(version))
        distributed.barrier()
        if version == 3:
            sys.addaudithook(watch)
        names = [f"model-{rank}.pt", f"{missing}moments-{rank}.pt"]
        files = {temporary / name: {"values": torch.full((8,), float(version))} for name in names}
        writer.start(files, temporary, target, 100)
        try:
            writer.wait()
        except TrainingError as error:
            (folder / f"error-{rank}").write_text(str(error))
            break
    os._exit(0)


def run_ranks(folder: Path, killed: int | None, killed_at: int | None, missing: tuple[str, str] = ("", "")) -> bool:
    """Run both ranks, and end the other one when one is killed; return whether one was."""
    folder.mkdir()
    FORKS.set_forkserver_preload([__name__])
    ranks: list[BaseProcess] = [
        FORKS.Process(target=write_states, args=(rank, folder, killed_at if rank == killed else None, missing[rank]))
        for rank in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    try:
        order = ranks if killed is None else [ranks[killed], ranks[1 - killed]]
        order[0].join(PATIENCE)
        if order[0].exitcode:
            assert order[0].exitcode == -signal.SIGKILL
            return True
        order[1].join(PATIENCE)
        assert [rank.exitcode for rank in ranks] == [0, 0]
        return False
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def states(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "state").glob("v*"))


@pytest.mark.parametrize("killed", range(RANKS))
def test_a_kill_between_any_two_files_leaves_a_whole_state(tmp_path: Path, killed: int) -> None:
    newest = list[str]()
    for step in count():
        folder = tmp_path / str(step)
        was_killed = run_ranks(folder, killed, step)
        *_, last = states(folder)
        newest.append(last)
        check_state(folder / "state" / last)
        files = {path.name for path in (folder / "state" / last).iterdir()}
        assert files == {"latest", "manifest.json", *(f"{name}-{n}.pt" for name in ("model", "moments") for n in "01")}
        if not was_killed:
            break
    assert states(folder) == ["v000002", "v000003"]
    # Rank 0 writes two files, manifest and names, and removes the oldest state. Rank 1 writes two.
    before, after = newest.count("v000002"), newest.count("v000003")
    assert (before >= 5 and after >= 2) if killed == 0 else (before, after) == (2, 1), newest


def test_a_rank_that_cannot_write_is_said_on_all(tmp_path: Path) -> None:
    assert not run_ranks(tmp_path / "run", None, None, ("", "none/"))
    said = {(tmp_path / f"run/error-{rank}").read_text() for rank in range(RANKS)}
    assert len(said) == 1 and "v000001: FileNotFoundError: " in said.pop()
    assert not list((tmp_path / "run/state").iterdir())


def test_a_copy_holds_what_the_state_held(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    state = {"module": {"head": weight, "tied": weight.detach()}, "shapes": [weight.shape], "row": (weight[1], 3)}
    copied = copy_to_host(state)
    weight.zero_()
    assert copied["module"]["head"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert copied["module"]["head"] is copied["module"]["tied"] and copied["row"][0].tolist() == [3.0, 4.0, 5.0]
    assert isinstance(copied["shapes"][0], torch.Size) and copied["row"][1] == 3 and state["row"][1] == 3
