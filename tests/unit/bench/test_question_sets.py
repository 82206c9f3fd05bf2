"""Scoring of question sets: what counts as a right answer, and that orders are repeatable."""

from __future__ import annotations

import pytest
from bench.question_sets import answer_text, in_orders, is_right_choice, is_right_code, is_right_number

NOTHING: dict[str, object] = {}


@pytest.mark.parametrize(
    ("answer", "right"),
    [("C", True), (" C.", True), ("Answer: C", True), ("B or C", False), ("Cat", False), ("", False)],
)
def test_a_choice_is_the_first_letter_that_stands_alone(answer: str, right: bool) -> None:
    assert is_right_choice(answer, {"answer": "C"}, NOTHING) is right


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("3 + 4 = 7. The answer is 45.", True),
        ("The answer is $1,045.00", False),
        ("it is 44, no, 45", True),
        ("The answer is 45 of 50 apples", True),
        ("45 then 12", False),
        ("none", False),
    ],
)
def test_a_number_is_the_one_that_is_called_the_answer_or_the_last(answer: str, right: bool) -> None:
    assert is_right_number(answer, {"answer": "45"}, NOTHING) is right


TEST = {"test": "def check(f):\n    assert f(2) == 4\n", "entry_point": "double"}


@pytest.mark.parametrize(
    ("body", "answer", "right"),
    [
        ({"prompt": "def double(x):\n"}, "    return 2 * x\n", True),
        ({"prompt": "def double(x):\n"}, "    return 3 * x\n", False),
        ({"prompt": "def double(x):\n"}, "    while True: x = [x] * 9\n", False),
        ({"messages": []}, "Here:\n```python\ndef double(x):\n    return x + x\n```\nDone.", True),
        ({"messages": []}, "def double(x): return x + x", True),
        ({"messages": []}, "I cannot", False),
    ],
)
def test_code_is_right_if_its_tests_pass(body: dict[str, object], answer: str, right: bool) -> None:
    assert is_right_code(answer, TEST, {"body": body}) is right


def test_an_error_has_no_text_and_orders_are_the_same_each_time() -> None:
    assert answer_text({"response": {"status_code": 400, "body": {}}, "error": None}) is None
    rows: list[dict[str, object]] = [{"custom_id": str(place)} for place in range(20)]
    orders = in_orders(rows, 3)
    assert orders == in_orders(rows, 3)
    assert orders[0] == rows
    assert orders[1] != rows
