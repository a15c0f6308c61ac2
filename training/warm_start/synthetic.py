"""Seeded synthetic pages, tasks and answers that teach a tiny policy to read.

The samples mimic the *shape* of MiniWoB++ (templates, label styles, tasks of several steps) but
never its content. Labels are random strings, invented words and common interface words, so that a
score on fresh samples measures matching and not memory. A sample is an ``Observation`` and an
``Action``, never a string; ``training.policy`` renders the text that the policy reads and writes.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from envs.prompts import user_text
from envs.types import Click, Element, Observation, Type, format_action

VIEWPORT = (168, 224)
"""Width and height in pixels of a sample's page, as of MiniWoB++ in our browser."""
MAX_LABEL = 24
"""Largest number of characters of a label, as in the browser's observations."""

_ALNUM = string.ascii_letters + string.digits
_ONSET_TEXT = "|b|c|d|f|g|h|j|k|l|m|n|p|qu|r|s|t|v|z|st|tr|pl|br|ch"
_ONSETS = _ONSET_TEXT.split("|")
_VOWELS = ["a", "e", "i", "o", "u", "ia", "ie", "ea", "y", "ae"]
_CODAS = ["", "", "", "n", "r", "s", "t", "m", "l", "nd", "ss", "x", "ck"]
_WORD_TEXT = (
    "ok okay yes no cancel next previous submit close open save delete edit view back home help more less start "
    "stop add remove search login logout send reply forward print share copy paste undo apply accept decline "
    "continue skip finish done reset update upload download settings profile account contact about news blog shop "
    "cart order price sale red green blue black white small large day week month year one two three four five six "
    "first last left right up down in on at to of and the"
)
_WORDS = _WORD_TEXT.split()
_NUMBER_WORDS = ["ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT"]
_ORDINALS = ["1st", "2nd", "3rd", "4th", "5th"]
_LABELLED = ("button", "link", "tab", "checkbox", "radio")


@dataclass(frozen=True, slots=True)
class Sample:
    """One decision: page and task, earlier answers, and the right action."""

    skill: str
    """Name of the skill in `SKILLS`, or ``many``."""
    observation: Observation
    action: Click | Type
    history: tuple[str, ...] = ()
    """Earlier answers, oldest first."""


class _Part(NamedTuple):
    """An element of a page under construction; its number is its place."""

    tag: str
    text: str = ""
    value: str = ""
    checked: bool = False


def render_sample(sample: Sample) -> tuple[str, str]:
    """Return the prompt in two parts: the page, which tasks may share, and the task."""
    lines = user_text(sample.observation, sample.history).split("\n")
    page = 1 + len(sample.observation.elements)
    return "".join(f"{line}\n" for line in lines[:page]), "\n".join(lines[page:])


def _sample(
    skill: str, task: str, parts: Sequence[_Part], action: Click | Type, history: Sequence[Click | Type] = ()
) -> Sample:
    return _sample_on(_elements(parts), skill, task, action, history)


def _sample_on(
    elements: tuple[Element, ...], skill: str, task: str, action: Click | Type, history: Sequence[Click | Type] = ()
) -> Sample:
    observation = Observation(instruction=task, elements=elements, url="about:blank", viewport=VIEWPORT)
    return Sample(skill, observation, action, tuple(map(format_action, history)))


def _elements(parts: Sequence[_Part]) -> tuple[Element, ...]:
    return tuple(
        Element(index=index, tag=part.tag, text=part.text, value=part.value, checked=part.checked, box=(0, 0, 1, 1))
        for index, part in enumerate(parts, 1)
    )


# ------------------------------------------------------------------------------------------- labels


def random_string(rng: random.Random, low: int = 1, high: int = 8) -> str:
    """Return a string of ``low`` to ``high`` letters and digits."""
    return "".join(rng.choices(_ALNUM, k=rng.randint(low, high)))


def invented_word(rng: random.Random) -> str:
    """Return a pronounceable word that is in no list."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randint(1, 3)))


def _any_word(rng: random.Random) -> str:
    word = rng.choice(_WORDS) if rng.random() < 0.3 else invented_word(rng)
    return word.capitalize() if rng.random() < 0.4 else word


def _phrase(rng: random.Random) -> str:
    return " ".join(_any_word(rng) for _ in range(rng.randint(2, 3)))


def labels(rng: random.Random, count: int) -> list[str]:
    """Return ``count`` different labels of one style.

    Some are near misses of others: another case, a longer or a shorter form.
    """
    style = rng.choices(["string", "word", "phrase", "numbered"], [0.4, 0.4, 0.1, 0.1])[0]
    stem, offset = rng.choice(["Tab #", "Item ", "Section #", "Page ", "Step "]), rng.randint(0, 2)
    texts: list[str] = []
    while len(texts) < count:
        if style == "numbered":
            label = f"{stem}{len(texts) + 1 + offset}"
        elif texts and rng.random() < 0.12:
            base = rng.choice(texts)
            label = rng.choice([base.swapcase(), base.capitalize(), base + rng.choice(_ALNUM), base[:-1]])
        else:
            label = {"string": random_string, "word": _any_word, "phrase": _phrase}[style](rng)
        label = label[:MAX_LABEL].strip()
        if label and label not in texts:
            texts.append(label)
    if style == "numbered" and rng.random() < 0.3:
        rng.shuffle(texts)
    return texts


def _typed_text(rng: random.Random) -> str:
    kind = rng.random()
    return random_string(rng) if kind < 0.6 else (_any_word(rng) if kind < 0.95 else _phrase(rng))


# -------------------------------------------------------------------------- skills of a single step

_CLICK = {
    "button": [
        'Click on the "{}" button.',
        'Click the button in the dialog box labeled "{}".',
        'Press the button "{}".',
        "Click button {}.",
    ],
    "link": [
        'Click on the link "{}".',
        'Open the link "{}".',
        'Click on the "{}" link.',
        "Find the link {} and click on it.",
    ],
    "tab": ["Click on {}.", 'Click on the tab "{}".', "Open {}.", "Switch to {}."],
    "checkbox": ["Select {}.", 'Check "{}".', "Check {}."],
    "radio": ["Select {}.", 'Choose "{}".', "Choose the option {}."],
}


def click_by_name(rng: random.Random) -> Sample:
    """Make a task to click the element with a given label, among up to 14."""
    tag = rng.choice(_LABELLED)
    names = labels(rng, rng.randint(1, 14) if rng.random() < 0.3 else rng.randint(1, 6))
    parts = [_Part(tag if rng.random() < 0.9 else rng.choice(_LABELLED), name) for name in names]
    wanted = rng.randrange(len(parts))
    parts[wanted] = parts[wanted]._replace(tag=tag)
    page: list[_Part] = []
    number = 0
    for index, part in enumerate(parts):
        if rng.random() < 0.2 and len(parts) < 10:
            page.append(_Part("input", "" if rng.random() < 0.6 else _any_word(rng)))
        page.append(part)
        if index == wanted:
            number = len(page)
    task = rng.choice(_CLICK[tag]).format(names[wanted])
    return _sample("click_by_name", task, page[:20], Click(element=number))


def click_by_role(rng: random.Random) -> Sample:
    """Make a task to click the first of a kind: ``Click on a "checkbox" widget.``"""
    tags = {"radio": "radio", "checkbox": "checkbox", "text": "input", "textarea": "textarea", "button": "button"}
    asked = [rng.choice(list(tags)) for _ in range(rng.randint(1, 6))]
    page = []
    for kind in asked:
        text = random_string(rng, 1, 6) if rng.random() < 0.8 else _any_word(rng)
        page.append(_Part(tags[kind], value=text) if kind.startswith("text") else _Part(tags[kind], text))
    wanted = rng.choice(asked)
    template = rng.choice(['Click on a "{}" widget.', 'Click on a "{}" widget.', "Click on the {}.", 'Click a "{}".'])
    return _sample("click_by_role", template.format(wanted), page, Click(element=asked.index(wanted) + 1))


def focus(rng: random.Random) -> Sample:
    """Make a task to click a text box: the only one, or the nth."""
    count = rng.randint(1, 4)
    page = [_Part("input") for _ in range(count)]
    nth = rng.randrange(count)
    if count == 1:
        task = rng.choice(["Focus into the textbox.", "Click into the input textbox.", "Focus into the text field."])
    else:
        task = rng.choice(["Focus into the {} input textbox.", "Click the {} textbox."]).format(_ORDINALS[nth])
    number = nth + 1
    if rng.random() < 0.2:
        page.insert(0, _Part("button", _any_word(rng)))
        number += 1
    return _sample("focus", task, page, Click(element=number))


# --------------------------------------------------------------------------- tasks of several steps


def _at_random_step(rng: random.Random, skill: str, task: str, page: list[_Part], plan: list[Click | Type]) -> Sample:
    """Return the sample of a random step of a plan, with that step's page."""
    step = rng.randrange(len(plan))
    page = list(page)
    for action in plan[:step]:
        assert isinstance(action.element, int)  # plans name elements by numbers
        part = page[action.element - 1]
        if isinstance(action, Type):
            page[action.element - 1] = part._replace(value=action.text)
        elif part.tag in ("checkbox", "radio"):
            page[action.element - 1] = part._replace(checked=True)
    return _sample(skill, task, page, plan[step], plan[:step])


def _submit(rng: random.Random, usual: str = "Submit") -> str:
    return usual if rng.random() < 0.6 else rng.choice(["Submit", "Login", "OK", "Send", "Save", "Go", "Search"])


def enter_text(rng: random.Random) -> Sample:
    """Make a task to copy quoted text into a box and press a button."""
    text, button = _typed_text(rng), _submit(rng)
    verb = rng.choice(
        ['Enter "{}" into the text field and press {}.', 'Type "{}" and click {}.', 'Enter "{}" and press {}.']
    )
    page, box = [_Part("input"), _Part("button", button)], 1
    if rng.random() < 0.15:
        page, box = page[::-1], 2
    plan: list[Click | Type] = [Type(element=box, text=text), Click(element=3 - box)]
    return _at_random_step(rng, "enter_text", verb.format(text, button), page, plan)


def enter_twice(rng: random.Random) -> Sample:
    """Make a task to type one string into both fields, then press the button."""
    text, button = random_string(rng, 2, 7), _submit(rng)
    name, second = rng.choice([("Password", "Verify password"), ("Email", "Confirm email"), ("", "")])
    tag = "password" if name == "Password" or rng.random() < 0.3 else "input"
    task = f'Enter the {name.lower() or "text"} "{text}" into both text fields and press {button.lower()}.'
    page = [_Part(tag, name), _Part(tag, second), _Part("button", button)]
    plan: list[Click | Type] = [Type(element=1, text=text), Type(element=2, text=text), Click(element=3)]
    return _at_random_step(rng, "enter_twice", task, page, plan)


def fill_two(rng: random.Random) -> Sample:
    """Make a task to type two strings into the two fields that the task names."""
    names = rng.choice([("Username", "Password"), ("Username", "Password"), ("Name", "Email"), ("City", "Country")])
    texts = (_any_word(rng).lower(), random_string(rng, 2, 7))
    button = _submit(rng, "Login")
    task = (
        f'Enter the {names[0].lower()} "{texts[0]}" and the {names[1].lower()} "{texts[1]}" '
        f"into the text fields and press {button.lower()}."
    )
    page = [_Part("password" if name == "Password" else "input", name) for name in names]
    numbers = [1, 2]
    if rng.random() < 0.15:
        page, numbers = page[::-1], [2, 1]
    page.append(_Part("button", button))
    plan: list[Click | Type] = [
        Type(element=numbers[0], text=texts[0]),
        Type(element=numbers[1], text=texts[1]),
        Click(element=3),
    ]
    return _at_random_step(rng, "fill_two", task, page, plan)


def choose_one(rng: random.Random) -> Sample:
    """Make a task to click the named radio button, then the submit button."""
    names, button = labels(rng, rng.randint(1, 6)), _submit(rng)
    wanted = rng.randrange(len(names))
    page = [*(_Part("radio", name) for name in names), _Part("button", button)]
    task = rng.choice(["Select {} and click {}.", 'Choose "{}" and press {}.']).format(names[wanted], button)
    return _at_random_step(rng, "choose_one", task, page, [Click(element=wanted + 1), Click(element=len(page))])


def choose_many(rng: random.Random) -> Sample:
    """Make a task to tick the named check-boxes from the top, then press submit."""
    names, button = labels(rng, rng.randint(2, 6)), _submit(rng)
    wanted = [index for index in range(len(names)) if rng.random() < 0.5]
    page = [*(_Part("checkbox", name) for name in names), _Part("button", button)]
    listed = ", ".join(names[index] for index in wanted) or "nothing"
    plan: list[Click | Type] = [*(Click(element=index + 1) for index in wanted), Click(element=len(page))]
    return _at_random_step(rng, "choose_many", f"Select {listed} and click {button}.", page, plan)


def click_sequence(rng: random.Random) -> Sample:
    """Make a task to click two buttons; only the history tells which is next."""
    names = rng.sample(_NUMBER_WORDS, 2) if rng.random() < 0.6 else labels(rng, 2)
    placed = rng.sample(names, 2)
    page = [_Part("button", name) for name in placed]
    plan: list[Click | Type] = [Click(element=placed.index(name) + 1) for name in names]
    template = rng.choice(["Click button {}, then click button {}.", 'Click "{}" and then "{}".'])
    return _at_random_step(rng, "click_sequence", template.format(*names), page, plan)


SKILLS: dict[str, tuple[Callable[[random.Random], Sample], float]] = {
    "click_by_name": (click_by_name, 5.0),
    "click_by_role": (click_by_role, 1.5),
    "focus": (focus, 0.7),
    "enter_text": (enter_text, 2.5),
    "enter_twice": (enter_twice, 1.5),
    "fill_two": (fill_two, 2.5),
    "choose_one": (choose_one, 1.5),
    "choose_many": (choose_many, 2.5),
    "click_sequence": (click_sequence, 0.8),
}
"""Maker and relative training share of each skill."""


def samples(seed: int | str) -> Iterator[Sample]:
    """Yield endless samples of all skills in their training shares."""
    rng = random.Random(f"samples-{seed}")
    makers, weights = zip(*SKILLS.values(), strict=True)
    while True:
        yield rng.choices(makers, weights)[0](rng)


def many_tasks(seed: int | str, tasks: int = 8) -> Iterator[list[Sample]]:
    """Yield endless pages with several tasks each.

    With many answers per token of page, the matching circuit forms early.
    """
    rng = random.Random(f"many-{seed}")
    while True:
        names = labels(rng, rng.randint(2, 14))
        tags = rng.choices([*_LABELLED, "input"], k=rng.randint(1, 3))
        page = _elements([_Part(rng.choice(tags), name) for name in names])
        yield [_task_on(rng, page) for _ in range(tasks)]


def _task_on(rng: random.Random, page: tuple[Element, ...]) -> Sample:
    number = rng.randint(1, len(page))
    element = page[number - 1]
    if element.tag == "input":
        text = _typed_text(rng)
        task = rng.choice(['Enter "{}" into the {} field.', 'Type "{}" into "{}".']).format(text, element.text)
        return _sample_on(page, "many", task, Type(element=number, text=text))
    return _sample_on(page, "many", rng.choice(_CLICK[element.tag]).format(element.text), Click(element=number))
