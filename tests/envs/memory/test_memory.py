"""The memory of an episode, and of a family: entries, limits, secrets, and a merge that does not
depend on who comes first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.memory import MAX_ENTRIES, MAX_KEY, MAX_VALUE, Contribution, EpisodeMemory, merge_memories, typed_secret
from envs.types import Click, Element, ErrorCode, Forget, Memory, MemoryChange, MemoryEntry, Remember, Type
from envs.types.actions import MemoryAction
from tests.builders import make_observation


def made(**entries: str) -> Memory:
    return tuple(MemoryEntry(key=key, value=value) for key, value in entries.items())


keys = st.sampled_from("abcd")
words = st.sampled_from(["1", "2", "3"])
actions = st.one_of(
    st.builds(Remember, key=keys, value=words), st.builds(Forget, key=keys), st.builds(Remember, key=keys, value=words)
)


@given(st.dictionaries(keys, words), st.lists(actions, max_size=12))
def test_it_is_a_dictionary_whose_last_written_entry_stands_last(
    start: dict[str, str], done: list[MemoryAction]
) -> None:
    memory, model = EpisodeMemory(made(**start)), dict(start)
    for action in done:
        error = memory.apply(action)
        old = model.pop(action.key, None)
        if isinstance(action, Remember):
            assert error is None
            model[action.key] = action.value
        else:
            assert (error is None) == (old is not None)
            assert error is None or error.code is ErrorCode.NO_SUCH_ENTRY
    assert [(entry.key, entry.value) for entry in memory.entries] == list(model.items())
    replayed = dict(start)
    for change in memory.changes():
        assert start.get(change.key) != change.value
        replayed.pop(change.key, None)
        if change.value is not None:
            replayed[change.key] = change.value
    assert replayed == model


def test_what_it_does_not_take_has_a_code_and_changes_nothing() -> None:
    memory = EpisodeMemory(made(total="42.50"))
    for action, line in (
        (Remember(key="k" * (MAX_KEY + 1), value="v"), "too_long: the key has 65 characters, and may have 64; keep what matters"),
        (Remember(key="k", value="v" * (MAX_VALUE + 1)), "too_long: the value has 501 characters, and may have 500"),
        (Remember(key=" ", value="v"), "bad_action: remember: the key is blank"),
        (Remember(key="k", value="\n"), "bad_action: remember: the value is blank"),
        (Forget(key="totals"), 'no_such_entry: the memory has no entry \'totals\'; use a key that it shows (did you mean "total"?)'),
    ):  # fmt: skip
        error = memory.apply(action)
        assert error is not None and error.line().startswith(line)
    assert memory.entries == made(total="42.50") and memory.changes() == ()
    empty = EpisodeMemory().apply(Forget(key="a"))
    assert empty is not None and "it is empty" in empty.line()


def test_a_full_memory_takes_no_new_key_until_one_is_forgotten() -> None:
    memory = EpisodeMemory()
    for number in range(MAX_ENTRIES):
        assert memory.apply(Remember(key=f"k{number}", value="v")) is None
    error = memory.apply(Remember(key="more", value="v"))
    assert error is not None and error.code is ErrorCode.MEMORY_FULL
    assert memory.apply(Remember(key="k0", value="w")) is None, "a key that is there is written again"
    assert memory.apply(Forget(key="k1")) is None
    assert memory.apply(Remember(key="more", value="v")) is None
    assert len(memory.entries) == MAX_ENTRIES and memory.entries[-1].key == "more"


def test_copies_of_one_start_do_not_see_each_other() -> None:
    start = made(a="1")
    one, other = EpisodeMemory(start), EpisodeMemory(start)
    one.apply(Remember(key="a", value="2"))
    one.apply(Remember(key="b", value="3"))
    assert other.entries == start == made(a="1")


def test_secrets_are_kept_out_and_thrown_out() -> None:
    memory = EpisodeMemory(made(login="juan / hunter2", town="Bern"))
    memory.apply(Remember(key="pass", value="hunter2"))
    memory.hide("hunter2")
    assert memory.entries == made(town="Bern")
    assert memory.changes() == (MemoryChange(key="login", value=None),), (
        "what was there before is forgotten, for the family too"
    )
    for action in (Remember(key="p", value="it is hunter2!"), Remember(key="hunter2", value="x")):
        error = memory.apply(action)
        assert error is not None and error.code is ErrorCode.SECRET and "hunter2" not in error.line()
    memory.hide("a1")  # short: only as a whole
    assert memory.apply(Remember(key="road", value="a1 to Bern")) is None
    assert memory.apply(Remember(key="p", value=" a1 ")) is not None
    memory.hide("  ")
    assert memory.apply(Remember(key="q", value="two words")) is None


def test_what_is_typed_into_a_password_field_is_a_secret() -> None:
    elements = (
        Element(index=1, tag="input", text="User", box=(0, 0, 100, 20), id="form.user"),
        Element(index=2, tag="password", text="Password", box=(0, 50, 100, 20), id="form.password"),
    )
    seen = make_observation(elements=elements, viewport=(200, 100))

    def secret(**values: object) -> str:
        return typed_secret(Type.model_validate({"text": "pw"} | values), seen)

    assert secret(element=2) == secret(element="form.password") == secret(mark=2) == secret(at=(250, 600)) == "pw"
    assert secret(element=1) == secret(element="form.user") == secret(mark=1) == secret(at=(250, 100)) == ""
    assert secret() == "pw", "nobody says where it goes"
    focused = elements[0].model_copy(update={"focused": True})
    assert typed_secret(Type(text="x"), seen.model_copy(update={"elements": (focused, elements[1])})) == ""
    assert typed_secret(Type(text="x"), seen.model_copy(update={"elements": elements[:1]})) == ""
    assert typed_secret(Click(element=2), seen) == ""


# ----------------------------------------------------------------------------
# families

changes = st.lists(st.builds(MemoryChange, key=keys, value=words | st.none()), max_size=4).map(tuple)
contributions = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), changes), max_size=6).map(
    lambda found: [Contribution(score, f"i000000-g0000-s{n:02d}-a0", each) for n, (score, each) in enumerate(found)]
)


@given(st.dictionaries(keys, words), contributions, st.randoms())
def test_a_merge_does_not_depend_on_who_comes_first(
    start: dict[str, str], found: list[Contribution], chances: random.Random
) -> None:
    memory = made(**start)
    expected = merge_memories(memory, found)
    chances.shuffle(found)
    assert merge_memories(memory, found) == expected
    assert len({entry.key for entry in expected}) == len(expected)
    touched = {change.key for one in found for change in one.changes}
    assert {entry for entry in memory if entry.key not in touched} <= set(expected)


def test_the_better_episode_s_value_stays() -> None:
    def wrote(score: float, sample: int, **values: str | None) -> Contribution:
        changes = tuple(MemoryChange(key=key, value=value) for key, value in values.items())
        return Contribution(score, f"i000000-g0000-s{sample:02d}-a0", changes)

    memory = made(old="x", kept="y")
    after = merge_memories(
        memory, [wrote(1.0, 0, way="left"), wrote(0.0, 1, way="right", old=None), wrote(0.0, 2, way="up")]
    )
    assert after == made(kept="y", way="left")
    assert merge_memories(memory, [wrote(0.0, 1, way="right"), wrote(0.0, 2, way="up")])[-1].value == "up"
    assert merge_memories(memory, [wrote(0.0, 0, old=None), wrote(1.0, 1, old="z")]) == made(kept="y", old="z")


def test_a_family_s_memory_is_bounded_too() -> None:
    many = [Contribution(1.0, f"e{n:03d}", (MemoryChange(key=f"k{n}", value="v"),)) for n in range(MAX_ENTRIES + 5)]
    after = merge_memories(made(first="x"), many)
    assert [entry.key for entry in after] == [f"k{n}" for n in range(5, MAX_ENTRIES + 5)]


@pytest.mark.parametrize("action", [Remember(key="a", value="b"), Forget(key="a")])
def test_an_action_of_the_memory_is_written_and_read_as_any_other(action: MemoryAction) -> None:
    assert type(action).model_validate(action.model_dump()) == action
