"""Grammars: whatever is sampled under their masks has the form, and what cannot be followed is refused quickly."""

from __future__ import annotations

import json
import re
from random import Random

import pytest
from tests.unit.api.byte_text import byte_text

from plait.core.errors import InvariantError, RequestError
from plait.text.grammar import MAX_CHARS, MAX_CHOICES, Grammar, GrammarCompiler, GrammarKind

TEXT = byte_text()
COMPILER = GrammarCompiler(TEXT.tokenizer)
OBJECT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


def sampled(kind: GrammarKind, text: str, seed: int, limit: int = 400) -> str:
    """A text that follows the grammar to its end, each token drawn among those allowed."""
    state = COMPILER.compile(Grammar(kind, text, "p")).begin()
    random, tokens = Random(seed), []
    for _ in range(limit):
        mask = int.from_bytes(state.mask(), "little")
        allowed = [token for token in range(TEXT.tokenizer.vocab_size) if mask >> token & 1]
        assert allowed
        token = random.choice(allowed)
        if token in TEXT.tokenizer.eos_ids:
            break
        state.accept(token)
        tokens.append(token)
        if state.is_over:
            break
    return TEXT.tokenizer.decode(tokens)


@pytest.mark.parametrize("seed", range(8))
def test_what_follows_the_masks_has_the_form(seed: int) -> None:
    assert re.fullmatch(r"[a-c]{2,5}(x|yz)", sampled(GrammarKind.REGEX, r"[a-c]{2,5}(x|yz)", seed))
    assert sampled(GrammarKind.CHOICE, '["yes","no","é \\"so\\""]', seed) in ("yes", "no", 'é "so"')
    assert re.fullmatch("a[0-9]{1,3}b", sampled(GrammarKind.GRAMMAR, 'root ::= "a" [0-9] [0-9]? [0-9]? "b"', seed))
    assert re.fullmatch("(one|two), end", sampled(GrammarKind.GRAMMAR, 'start: ("one" | "two") ", end"', seed))
    made = json.loads(sampled(GrammarKind.JSON_SCHEMA, json.dumps(OBJECT), seed))
    assert sorted(made) == ["name", "ok"]
    assert isinstance(made["ok"], bool)


def test_a_form_that_is_complete_is_over() -> None:
    state = COMPILER.compile(Grammar(GrammarKind.CHOICE, '["ab"]', "p")).begin()
    for token in TEXT.tokenizer.encode("ab", add_special=False):
        assert not state.is_over
        state.accept(token)
    assert state.is_over


def test_states_of_one_grammar_do_not_touch_each_other() -> None:
    source = COMPILER.compile(Grammar(GrammarKind.REGEX, "ab", "p"))
    first, second = source.begin(), source.begin()
    before = second.mask()
    first.accept(TEXT.tokenizer.encode("a", add_special=False)[0])
    assert second.mask() == before != first.mask()


def test_a_token_that_is_not_allowed_stops_loudly() -> None:
    state = COMPILER.compile(Grammar(GrammarKind.REGEX, "ab", "p")).begin()
    with pytest.raises(InvariantError, match="forbids"):
        state.accept(TEXT.tokenizer.encode("z", add_special=False)[0])


def test_masks_behind_tokens_are_those_that_come_when_they_are_taken() -> None:
    source = COMPILER.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(OBJECT), "p"))
    tokens = TEXT.tokenizer.encode('{"name": "ab", "ok": true}', add_special=False)
    state, slow = source.begin(), source.begin()
    behind = state.masks_behind(tokens)
    # What ends the form has nothing behind it.
    assert len(behind) == len(tokens) - 1
    for token, mask in zip(tokens, behind, strict=False):
        slow.accept(token)
        assert slow.mask() == mask
    assert state.mask() == source.begin().mask()
    wrong = [*tokens[:4], tokens[0], *tokens[4:]]
    assert state.masks_behind(wrong) == behind[:4]


def test_where_a_form_leaves_one_text_its_spelling_is_likely() -> None:
    state = COMPILER.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(OBJECT), "p")).begin()
    likely = state.likely()
    assert TEXT.tokenizer.decode(list(likely)) == '{"name": "'
    assert len(state.masks_behind(likely)) == len(likely)
    for token in likely:
        state.accept(token)
    assert state.likely() == ()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.REGEX, "("),
        (GrammarKind.REGEX, "[a-"),
        (GrammarKind.REGEX, "(?<=x)y"),
        (GrammarKind.REGEX, "\\p{Foo}"),
        (GrammarKind.REGEX, "a" * (MAX_CHARS + 1)),
        (GrammarKind.GRAMMAR, "start: missing"),
        (GrammarKind.GRAMMAR, "root ::= missing"),
        (GrammarKind.GRAMMAR, ""),
        (GrammarKind.JSON_SCHEMA, "[]"),
        (GrammarKind.JSON_SCHEMA, "{"),
        (GrammarKind.JSON_SCHEMA, '{"type":"banana"}'),
        (GrammarKind.JSON_SCHEMA, '{"$ref":"http://example.com/schema"}'),
        (GrammarKind.JSON_SCHEMA, '{"type":"string","minLength":5,"maxLength":2}'),
        (GrammarKind.JSON_SCHEMA, '{"properties":' * 100 + "{}" + "}" * 100),
        (GrammarKind.CHOICE, "[]"),
        (GrammarKind.CHOICE, '[""]'),
        (GrammarKind.CHOICE, "[1]"),
        (GrammarKind.CHOICE, json.dumps([str(number) for number in range(MAX_CHOICES + 1)])),
    ],
)
def test_what_cannot_be_followed_is_refused(kind: GrammarKind, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        COMPILER.compile(Grammar(kind, text, "some.field"))
    assert caught.value.param == "some.field"
    assert caught.value.code == "invalid_grammar"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["a{99999}", "((a{1,1000}){1,1000}){1,1000}", "(a|aa)+$", "(.*a){20}"])
def test_a_costly_grammar_is_refused_or_followed_in_bounded_work(text: str) -> None:
    try:
        state = COMPILER.compile(Grammar(GrammarKind.REGEX, text, "p")).begin()
    except RequestError:
        return
    for token in TEXT.tokenizer.encode("aaaa", add_special=False):
        assert len(state.mask()) == (TEXT.tokenizer.vocab_size + 7) // 8
        state.accept(token)


def test_what_was_compiled_lately_is_remembered() -> None:
    grammar = Grammar(GrammarKind.REGEX, "remembered", "p")
    assert COMPILER.compile(grammar) is COMPILER.compile(grammar)


def test_a_form_that_becomes_too_much_work_ends_its_answer_and_nothing_else() -> None:
    wide = {f"k{number}": {"type": "string", "pattern": "^(a|b){1,50}$"} for number in range(100)}
    names = [{f"{name}{part}": one for name, one in wide.items()} for part in range(8)]
    parts = [{"type": "object", "properties": one} for one in names]
    state = COMPILER.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"allOf": parts}), "p")).begin()
    state.mask()
    state.accept(ord("{"))
    allowed = int.from_bytes(state.mask(), "little")
    assert allowed == sum(1 << token for token in TEXT.tokenizer.eos_ids)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.REGEX, "a{99999}"),
        (GrammarKind.REGEX, "a{1,99999}"),
        (GrammarKind.REGEX, "a{" + "9" * 5000 + "}"),
        (GrammarKind.GRAMMAR, "start: /a{99999}/"),
        (GrammarKind.JSON_SCHEMA, '{"type": "string", "pattern": "a{99999}"}'),
    ],
)
def test_vast_repetitions_are_refused_because_every_step_would_pay_for_them(kind: GrammarKind, text: str) -> None:
    with pytest.raises(RequestError, match=r"repeated 9+ times; at most 4,096"):
        COMPILER.compile(Grammar(kind, text, "p"))
