"""Synthetic samples: well-formed, the same for a seed, and rendered as the shipped reader was
trained on them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from envs.actions.parsing import format_action, parse_action
from envs.prompts import user_text
from envs.types import Click, Type
from training.warm_start import synthetic
from training.warm_start.synthetic import SKILLS, Sample

TRAINED_TEXT = "c0d6947a66ee17690f1040dfa4b0f16a5d7214d93dcd5222e93d008395535f5e"
"""sha256 over the text of 1600 single and 1600 many-task samples as the research code that trained
datasets/policies/reader wrote it."""


def stream() -> Iterator[Sample]:
    for seed in (0, 1):
        yield from islice(synthetic.samples(seed), 800)
        for tasks in islice(synthetic.many_tasks(seed), 100):
            yield from tasks


def test_the_text_is_what_the_shipped_reader_was_trained_on():
    """A change of the prompt's form, or of the sample stream, fails here: the shipped reader would
    not know the new text."""
    digest = hashlib.sha256()
    for sample in stream():
        digest.update(f"{''.join(synthetic.render_sample(sample))}\n{format_action(sample.action)}\n".encode())
    assert digest.hexdigest() == TRAINED_TEXT


def test_the_form_of_a_sample():
    sample = next(sample for sample in synthetic.samples(0) if sample.skill == "fill_two" and len(sample.history) == 2)
    page, task = synthetic.render_sample(sample)
    assert page == (
        'Page:\n[1] textbox "Username" value "ceckvenveat"\n[2] password "Password" value "***"\n[3] button "Login"\n'
    )
    assert task == (
        'Done: type [1] "ceckvenveat"; type [2] "xjc"\n'
        'Task: Enter the username "ceckvenveat" and the password "xjc" into the text fields and press login.'
    )
    assert page + task == user_text(sample.observation, sample.history)
    assert sample.action == Click(element=3)


@given(st.sampled_from(sorted(SKILLS)), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_a_sample_is_well_formed(skill, seed):
    sample = SKILLS[skill][0](random.Random(seed))
    elements = sample.observation.elements
    assert sample.skill == skill
    assert [element.index for element in elements] == list(range(1, len(elements) + 1))
    assert 1 <= len(elements) <= 20
    assert 1 <= sample.action.element <= len(elements)
    assert parse_action(format_action(sample.action)) == sample.action
    assert all(isinstance(parse_action(done), Click | Type) for done in sample.history)
    wanted = elements[sample.action.element - 1]
    if isinstance(sample.action, Type):
        assert wanted.tag in ("input", "password") and not wanted.value
        assert f'"{sample.action.text}"' in sample.observation.instruction
    else:
        assert isinstance(sample.action, Click)
    page, task = synthetic.render_sample(sample)
    assert page.count("\n") == 1 + len(elements) and task.splitlines()[-1].startswith("Task: ")


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_named_element_is_the_only_one_with_its_label(seed):
    sample = synthetic.click_by_name(random.Random(seed))
    wanted = sample.observation.elements[sample.action.element - 1]
    assert wanted.text in sample.observation.instruction
    assert [element.text for element in sample.observation.elements if element.tag != "input"].count(wanted.text) == 1


def test_a_seed_decides_the_stream():
    def first(seed):
        return [*islice(synthetic.samples(seed), 50), *next(synthetic.many_tasks(seed))]

    assert first(3) == first(3)
    assert first(3) != first(4)


def test_a_password_is_never_shown():
    typed = [
        s
        for s in islice(synthetic.samples(5), 2000)
        if any(e.tag == "password" and e.value for e in s.observation.elements)
    ]
    assert typed
    for sample in typed:
        page, _ = synthetic.render_sample(sample)
        assert 'value "***"' in page
