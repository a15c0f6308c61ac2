"""A batch that cannot be trained on is refused by name before anything is touched."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from envs.types import TrainingError
from training.ledger.store import write_json
from training.records.batches import BatchRow
from training.trainer.control.link import LinkToOwner, OwnerLink
from training.trainer.loop import wait_for_batch
from training.trainer.rows import read_batch_file, read_rows
from training.trainer.update import own_rows

from .conftest import HandMadeRun, make_spec


def row(episode_id: str, step: int = 0) -> BatchRow:
    return BatchRow(episode_id=episode_id, step=step, advantage=1.0)


def test_rows_are_as_stored(run: HandMadeRun) -> None:
    episode = run.add_episode("e", 2, 1.0, seed=1)
    (found,) = read_rows(run.store, run.add_batch(1, [row("e", 1)]))
    step = episode.steps[1]
    assert (found.prompt_ids, found.response_ids, found.behaviour) == (
        step.prompt_ids,
        step.response_ids,
        step.logprobs,
    )
    assert found.screenshots == (run.store.blob(step.screenshot),)


def test_processes_read_their_own_pictures_and_together_all_of_them(run: HandMadeRun) -> None:
    """Lengths, advantages and tokens are known to all; what is missing is noticed by who needs
    it."""
    batch = run.fill(1, 9)
    whole = read_rows(run.store, batch)
    lengths = [len(row) for row in whole]
    shares = []
    for rank in (0, 1):
        trainer = SimpleNamespace(
            spec=make_spec(trainer={"micro_batch_rows": 2, "minibatch_rows": 5}),
            args=SimpleNamespace(process_index=rank, world_size=2),
        )
        found = read_rows(run.store, batch, own=partial(own_rows, trainer, 1))  # type: ignore[arg-type]
        own = own_rows(trainer, 1, lengths)  # type: ignore[arg-type]
        assert [row.screenshots for row in found] == [
            row.screenshots if index in own else () for index, row in enumerate(whole)
        ]
        assert [replace(row, screenshots=()) for row in whole] == [replace(row, screenshots=()) for row in found]
        shares.append(own)
    assert shares[0] | shares[1] == {*range(9)} and 4 <= len(shares[0]) <= 5 + 1
    run.store.blob_path(run.store.trajectory(batch.rows[0].episode_id).steps[0].pictures[0]).unlink()
    read_rows(run.store, batch, own=lambda lengths: range(1, len(lengths)))
    with pytest.raises(TrainingError, match="is missing"):
        read_rows(run.store, batch, own=lambda lengths: [0])


def test_unknown_episode(run: HandMadeRun) -> None:
    with pytest.raises(TrainingError, match=r"batch v1: row ghost/0: trajectory ghost does not exist"):
        read_rows(run.store, run.add_batch(1, [row("ghost")]))


def test_unknown_step(run: HandMadeRun) -> None:
    run.add_episode("e", 1, 1.0, seed=1)
    with pytest.raises(TrainingError, match="the episode has 1 steps"):
        read_rows(run.store, run.add_batch(1, [row("e", 1)]))


def test_missing_and_torn_blob(run: HandMadeRun) -> None:
    step = run.add_episode("e", 1, 1.0, seed=1).steps[0]
    batch, path = run.add_batch(1, [row("e")]), run.store.blob_path(step.screenshot)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TrainingError, match="does not hold what its name says"):
        read_rows(run.store, batch)
    path.unlink()
    with pytest.raises(TrainingError, match=f"blob {step.screenshot} is missing"):
        read_rows(run.store, batch)


def test_banned_response_id(run: HandMadeRun) -> None:
    step = run.add_episode("e", 1, 1.0, seed=1).steps[0]
    with pytest.raises(TrainingError, match="banned token ids"):
        read_rows(run.store, run.add_batch(1, [row("e")]), banned_ids=(step.response_ids[0],))


def test_torn_batch(run: HandMadeRun) -> None:
    run.fill(1, 2)
    path = run.store.batch_path(1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TrainingError, match=r"v000001.json cannot be read"):
        read_batch_file(run.store, 1)


def test_batch_for_another_version(run: HandMadeRun) -> None:
    write_json(run.store.batch_path(1), run.add_batch(2, []))
    with pytest.raises(TrainingError, match="makes version 2 out of 1, but this run is at version 0"):
        read_batch_file(run.store, 1)


def test_a_batch_that_was_announced_and_is_not_there_is_named(run: HandMadeRun) -> None:
    owner = OwnerLink()
    link = LinkToOwner(owner.address, owner.token, "rank 0", lambda reason: None)
    owner.announce_batch(3)
    with pytest.raises(TrainingError, match=r"v000001.json is not there \d+ s after batch 3 was announced"):
        wait_for_batch(run.store, 1, link, visible_seconds=0.1)
    owner.close()


def test_a_batch_is_found_that_appears_after_it_was_announced_or_never_is(run: HandMadeRun) -> None:
    owner = OwnerLink()
    link = LinkToOwner(owner.address, owner.token, "rank 0", lambda reason: None)
    owner.announce_batch(1)
    threading.Timer(0.3, lambda: run.add_batch(1, [])).start()
    assert wait_for_batch(run.store, 1, link) >= 0.2
    run.add_batch(2, [])
    assert wait_for_batch(run.store, 2, link) < 1, "nobody has rung for it"
    owner.close()
