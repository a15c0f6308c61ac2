"""What is wrong with a draft, found by program; what several drafts agree on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards.judge.verdict import MalformedReply
from envs.tasks.authoring.agreement import agree, fact_similarity
from envs.tasks.authoring.checks import explain_ungradable, find_flaws
from envs.tasks.authoring.draft import RubricDraft, RubricDraftFact, read_draft, to_rubric
from envs.tasks.authoring.words import content_words, numbers, tokens, word_overlap
from envs.types import JudgeFact

TASK = "Find the two cheapest black kettles under $1,500 sorted by price, and tell me the price of the first."


def draft(*facts: tuple[str, str]) -> RubricDraft:
    return RubricDraft.model_validate(
        {
            "fact_groups": [
                {"description": "Find kettles", "facts": [{"text": text, "asked": asked} for text, asked in facts]}
            ]
        }
    )


GOOD = draft(
    ("The list is sorted by price", "sorted by price"),
    ("Only black kettles are shown", "black kettles"),
    ("Only kettles under $1500 are shown", "kettles under $1,500"),
    ("The answer gives the price of the first kettle", "tell me the price of the first"),
)


def test_words_by_hand() -> None:
    assert tokens("Two lamps, the boss's 1,234.50 €; bus status is 3,5") == [
        "2", "lamp", "the", "boss", "1234.50", "bus", "status", "is", "3.5",
    ]  # fmt: skip
    assert content_words("All of the Lamps are red") == {"lamp", "red"}
    assert numbers("one of twelve, and 7") == {"12", "7"}
    assert word_overlap(frozenset("abc"), frozenset("bcd")) == 0.5 and word_overlap(frozenset(), frozenset()) == 1


def test_a_good_draft_has_no_flaws() -> None:
    assert find_flaws(GOOD, TASK, "19.99", 12) == []


@pytest.mark.parametrize(
    ("fact", "says"),
    [
        (("The list is sorted by rating", "sorted by rating"), "asked: 'sorted by rating' are no words of the instruction"),
        (("The list is sorted", "the"), "asked: 'the' are no words"),
        (("Everything went fine", "sorted by price"), "text: has no word of the instruction"),
        (("Kettles under 2000 are shown", "kettles under"), "text: names 2000, which the instruction does not"),
        (("Three kettles are shown", "cheapest black kettles"), "text: names 3, which"),
        (('The price is headed "Deal of the day"', "price"), "text: quotes 'Deal of the day', which"),
        (("The list is sorted by price and the first kettle is opened", "sorted by price"), "text: is 2 facts in one"),
        (("The list is sorted by price; it shows kettles", "sorted by price"), "text: is 2 facts in one"),
        (("The list is sorted by price. It shows kettles", "sorted by price"), "text: is 2 facts in one"),
        (("price " * 41, "price"), "text: has 41 words, at most 40"),
        (("The price in the answer is 19.99", "price"), "text: says the right answer, '19.99'"),
    ],
)  # fmt: skip
def test_each_flaw_is_named_with_its_place(fact: tuple[str, str], says: str) -> None:
    (found,) = find_flaws(draft(("The answer gives the price", "the price of the first"), fact), TASK, "19.99", 12)
    assert found.startswith(f"fact_groups.0.facts.1.{says}"), found


@pytest.mark.parametrize(
    "text",
    [
        "The colour of the kettles is set to black and white",
        "The price is between 2 and 1,500",
        "Kettles and prices are listed",
        "The title “This kettle is good and is cheap” is no demand of a kettle",
        "The two kettles are black",
    ],
)
def test_what_is_one_fact_is_not_taken_for_two(text: str) -> None:
    found = find_flaws(draft((text, "black kettles")), TASK, None, 12)
    assert not [each for each in found if "facts in one" in each]


def test_the_same_twice_too_many_and_an_answer_nobody_gives() -> None:
    twice = draft(("The list is sorted by price", "sorted by price"), ("List sorted by the price", "sorted by price"))
    assert find_flaws(twice, TASK, None, 12) == [
        "fact_groups.0.facts.1.text: says the same as 'The list is sorted by price'"
    ]
    assert find_flaws(GOOD, TASK, None, 3) == ["fact_groups: 4 facts; at most 3"]
    (found,) = find_flaws(draft(("The list is sorted by price", "sorted by price")), TASK, "19.99", 12)
    assert found == "fact_groups: the task has a right answer, and no fact says that the agent answers"


@pytest.mark.parametrize(
    ("instruction", "reference", "says"),
    [
        (None, None, "instruction: there are no words"),
        (" … ", None, "instruction: there are no words"),
        (TASK, "N/A", "reference_answer: 'N/A' says that the task cannot be done"),
        (TASK, " not achievable. ", "reference_answer:"),
        (TASK, "19.99", None),
    ],
)
def test_what_no_facts_can_grade(instruction: str | None, reference: str | None, says: str | None) -> None:
    found = explain_ungradable(instruction, reference)
    assert found is None if says is None else str(found).startswith(says)


def reply(change: Any = None) -> str:
    found: dict[str, Any] = GOOD.model_dump(mode="json")
    if change is not None:
        change(found)
    return json.dumps(found)


def test_a_draft_is_read_bare_in_a_block_and_after_thoughts() -> None:
    for text in (reply(), f"```json\n{reply()}\n```", f"<think>let me see {{}}</think>\n{reply()}"):
        assert read_draft(text) == GOOD


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Here is the rubric: {}", "expected one JSON object"),
        (reply()[:-5], "begins as JSON but is none"),
        ("[]", "expected one JSON object"),
        ("", "empty"),
        ("{}", "fact_groups: Field required"),
        (reply(lambda one: one.update(notes="x")), "notes: Extra inputs"),
        (reply(lambda one: one.update(fact_groups=[])), "fact_groups: Tuple should have at least 1 item"),
        (reply(lambda one: one["fact_groups"][0].update(facts=["x"])), r"fact_groups\.0\.facts\.0: Input should be"),
        (reply(lambda one: one["fact_groups"][0]["facts"][1].pop("asked")), r"fact_groups\.0\.facts\.1\.asked: Field"),
        (reply(lambda one: one["fact_groups"][0]["facts"][1].update(text=" ")), r"facts\.1\.text: Value error, is blank"),
        (reply(lambda one: one["fact_groups"][0]["facts"][1].update(text=3)), r"facts\.1\.text: Input should be"),
        (reply().replace('"asked"', '"text"', 1), "a key is there twice"),
    ],
)  # fmt: skip
def test_malformed_drafts_are_refused_with_the_place(text: str, says: str) -> None:
    with pytest.raises(MalformedReply, match=says):
        read_draft(text)


@given(st.text(max_size=200))
def test_no_reply_is_an_exception_of_another_kind(text: str) -> None:
    try:
        found = read_draft(text)
    except MalformedReply:
        return
    assert found.fact_groups


def test_likeness_by_hand() -> None:
    one = RubricDraftFact(text="The list is sorted by price", asked="sorted by price")
    other = RubricDraftFact(text="Results are ordered by price", asked="sorted by price")
    # text: {list, sorted, price} and {result, ordered, price}: 1 of 5; asked: the same words
    assert fact_similarity(one, other) == pytest.approx(0.6 * 1 / 5 + 0.4)
    assert fact_similarity(one, RubricDraftFact(text="The kettle is black", asked="sorted by price")) == pytest.approx(
        0.4
    )


def test_facts_that_most_samples_have_stay() -> None:
    first = draft(
        ("The list is sorted by price", "sorted by price"),
        ("Only black kettles are shown", "black kettles"),
        ("The page is about kettles", "kettles"),
    )
    second = draft(
        ("Only kettles that are black are shown", "black kettles"), ("The list is sorted by price", "sorted by price")
    )
    third = draft(
        ("The price list is sorted", "sorted by price"), ("The first kettle is named", "tell me the price of the first")
    )
    found = agree([first, second, third], 3, 0.4)
    assert (found.agreed, found.written, found.draft) == (2, 4, second)
    # of the first alone, what nobody else has is left out
    found = agree([first, draft(*[(fact.text, fact.asked) for _, fact in first.facts()][:2])], 3, 0.4)
    assert found.draft is not None and [fact.text for _, fact in found.draft.facts()] == [
        "The list is sorted by price",
        "Only black kettles are shown",
    ]
    found = agree([first, third], 3, 0.6)
    assert found.draft is None and found.reason == "samples agree on 1 of 4 facts only"  # fmt: skip


def test_no_sample_is_enough_alone_and_lost_ones_vote_for_nothing() -> None:
    assert agree([GOOD], 3, 0.0).draft is None
    assert agree([GOOD], 1, 1.0).draft == GOOD
    assert agree([GOOD, GOOD], 3, 1.0).draft == GOOD
    assert agree([], 3, 0.0).reason == "samples agree on none of 0 facts"


def test_samples_that_share_no_whole_are_refused() -> None:
    one, two, three = (
        ("The list is sorted by price", "sorted by price"),
        ("Only black kettles are shown", "black kettles"),
        ("The answer gives the first", "tell me the price of the first"),
    )
    found = agree([draft(one, two), draft(two, three), draft(three, one)], 3, 0.0)
    assert found.draft is None and found.reason == "no sample has all 3 facts that most have"


@given(st.permutations([0, 1, 2, 3]), st.integers(1, 4))
def test_a_draft_agrees_with_itself_in_any_order(order: list[int], count: int) -> None:
    facts = [(fact.text, fact.asked) for _, fact in GOOD.facts()]
    found = agree([GOOD, *[draft(*[facts[place] for place in order])] * count], count + 1, 1.0)
    assert found.draft == GOOD and found.share == 1


def test_the_rubric_of_a_draft() -> None:
    rubric = to_rubric(GOOD, None)
    assert [fact.id for fact in rubric.facts()] == ["1.1", "1.2", "1.3", "1.4", "grounded"]
    assert rubric.fact_count == 4 and rubric.pass_threshold == 1
    with_answer = to_rubric(GOOD, " 19.99 ")
    assert with_answer.fact_groups[:1] == rubric.fact_groups and with_answer.fact_count == 5
    group = with_answer.fact_groups[1]
    assert "19.99" not in group.description and isinstance(group.facts[0], JudgeFact)
    assert group.facts[0].description.endswith("reference answer: 19.99")
    assert with_answer.gates == rubric.gates
