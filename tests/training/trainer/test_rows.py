"""A batch that cannot be trained on is refused by name before anything is touched."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace

import pytest

from envs.types import TrainingError
from tests.builders import stored_blob
from training.ledger.store import read_json, write_json
from training.records.groups import shapes_of
from training.trainer.control.link import LinkToOwner, OwnerLink
from training.trainer.loop import wait_for_batch
from training.trainer.rows import read_batch_file, read_rows
from training.trainer.update import own_rows

from .conftest import HandMadeRun, make_spec


def test_rows_are_as_stored(run: HandMadeRun) -> None:
    episode = run.add_episode("e", 2, 1.0, seed=1)
    (found,) = read_rows(run.store, run.add_batch(1, [run.row("e", 1)]))
    step = episode.steps[1]
    assert tuple(found.prompt_ids) == step.prompt_ids and tuple(found.response_ids) == step.response_ids
    assert tuple(found.behaviour) == step.logprobs
    assert found.screenshots == (run.store.blob(step.screenshot),)


def test_processes_read_their_own_rows_and_together_all_of_them(run: HandMadeRun) -> None:
    """Shapes and advantages are known to all; what is missing is noticed by who needs it."""
    batch = run.fill(1, 9)
    whole = read_rows(run.store, batch)
    known, episodes = [row.shape for row in whole], [row.episode_id for row in whole]
    shares = []
    for rank in (0, 1):
        trainer = SimpleNamespace(
            spec=make_spec(trainer={"micro_batch_rows": 2, "minibatch_rows": 5}),
            args=SimpleNamespace(process_index=rank, world_size=2),
        )
        found = read_rows(run.store, batch, own=partial(own_rows, trainer, 1))  # type: ignore[arg-type]
        own = own_rows(trainer, 1, known, episodes)  # type: ignore[arg-type]
        assert [row for index, row in enumerate(found) if index in own] == [whole[index] for index in sorted(own)]
        assert not any(
            row.prompt_ids or row.response_ids or row.screenshots for index, row in enumerate(found) if index not in own
        )
        assert [(row.shape, len(row), row.advantage) for row in found] == [
            (row.shape, len(row), row.advantage) for row in whole
        ]
        shares.append(own)
    assert shares[0] | shares[1] == {*range(9)} and 4 <= len(shares[0]) <= 5 + 1
    step = run.store.trajectory(batch.rows[0].episode_id).steps[0]
    stored_blob(run.store, step.pictures[0]).unlink()
    run.store.trajectory_path(batch.rows[0].episode_id).unlink()
    read_rows(run.store, batch, own=lambda shapes, episodes: range(1, len(shapes)))
    with pytest.raises(TrainingError, match="does not exist"):
        read_rows(run.store, batch, own=lambda shapes, episodes: [0])


def test_a_step_of_another_shape_than_its_batch_says_is_refused(run: HandMadeRun) -> None:
    """Processes would make different plans."""
    (shape,) = shapes_of(run.add_episode("e", 1, 1.0, seed=1))
    batch = run.add_batch(1, [run.row("e").model_copy(update={"shape": shape._replace(prompt=shape.prompt + 1)})])
    with pytest.raises(TrainingError, match=rf"row e/0: it has \({shape.prompt}, {shape.response}\) ids"):
        read_rows(run.store, batch)


def test_a_torn_trajectory_is_named(run: HandMadeRun) -> None:
    run.add_episode("e", 1, 1.0, seed=1)
    batch, path = run.add_batch(1, [run.row("e")]), run.store.trajectory_path("e")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TrainingError, match=r"row e/0: trajectory .*e\.json cannot be read"):
        read_rows(run.store, batch)


def test_ids_that_are_no_ids_are_named(run: HandMadeRun) -> None:
    run.add_episode("e", 1, 1.0, seed=1)
    batch, path = run.add_batch(1, [run.row("e")]), run.store.trajectory_path("e")
    document = read_json(path)
    document["steps"][0]["prompt_ids"] += "A"
    write_json(path, document)
    with pytest.raises(TrainingError, match="row e/0: its prompt's ids cannot be read"):
        read_rows(run.store, batch)


def test_unknown_episode(run: HandMadeRun) -> None:
    with pytest.raises(TrainingError, match=r"batch v1: row ghost/0: trajectory ghost does not exist"):
        read_rows(run.store, run.add_batch(1, [run.row("ghost")]))


def test_unknown_step(run: HandMadeRun) -> None:
    run.add_episode("e", 1, 1.0, seed=1)
    with pytest.raises(TrainingError, match="the episode has 1 steps"):
        read_rows(run.store, run.add_batch(1, [run.row("e", 1)]))


def test_missing_and_torn_blob(run: HandMadeRun) -> None:
    step = run.add_episode("e", 1, 1.0, seed=1).steps[0]
    batch, path = run.add_batch(1, [run.row("e")]), stored_blob(run.store, step.screenshot)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TrainingError, match="does not hold what its name says"):
        read_rows(run.store, batch)
    path.unlink()
    with pytest.raises(TrainingError, match=f"blob {step.screenshot} is missing"):
        read_rows(run.store, batch)


def test_banned_response_id(run: HandMadeRun) -> None:
    step = run.add_episode("e", 1, 1.0, seed=1).steps[0]
    with pytest.raises(TrainingError, match="banned token ids"):
        read_rows(run.store, run.add_batch(1, [run.row("e")]), banned_ids=(step.response_ids[0],))


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
