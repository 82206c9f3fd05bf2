"""Grammars: text that must have a form, as constraints on tokens.

Owns the way from a schema, a regular expression, a list of choices or a grammar to masks over one model's tokens; the
parsing is `llguidance`'s. Compiling may take a while and belongs off every loop. Invariants: size and work are bounded;
what cannot be compiled is a `RequestError`; a sequence that follows its masks to the end has the form.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from plait.core.constraint import Constraint
from plait.core.errors import InvariantError, RequestError
from plait.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_CHARS = 64 * 1024
"""Of a grammar or schema; real schemas have a few thousand."""

MAX_DEPTH = 64
MAX_CHOICES = 4096
MAX_CACHED = 64
MAX_REPEATS = 4096
"""In one `{n}` of an expression: the work of every step grows with it, and the engine waits for that."""

_REPEATS = re.compile(r"\{(?:\d*,)?\s*(\d+)")

# Spaces as models write them, and no others: a small model that may write blank lines never ends.
_JSON_FORM: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MESSAGE_CHARS = 200


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    """Lark's notation, or GBNF."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What is asked. `text` is JSON for schemas and choices. `param`: the field of the body, for messages."""

    kind: GrammarKind
    text: str
    param: str


class CompiledGrammar:
    """A `ConstraintSource`."""

    __slots__ = ("_end", "_matcher", "_says")

    def __init__(self, matcher: LLMatcher, end: bytes, says: str) -> None:
        self._matcher = matcher
        self._end = end
        self._says = says

    @property
    def says(self) -> str:
        return self._says

    def begin(self) -> Constraint:
        return _Following(self._matcher.deep_copy(), self._end)


class _Following:
    """A `Constraint`. `end`: the mask that allows the end alone."""

    __slots__ = ("_allowed", "_behind", "_end", "_matcher")

    def __init__(self, matcher: LLMatcher, end: bytes) -> None:
        self._matcher = matcher
        self._end = end
        self._allowed = b""
        """What was said of the token that comes next."""
        self._behind: tuple[bytes, ...] = ()
        """What was said of those behind it."""

    def mask(self) -> bytes:
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            # A place in the grammar that takes more work than the limit: the answer ends here, unfinished.
            return self._end
        self._allowed = self._sized(mask)
        return self._allowed

    def likely(self) -> tuple[int, ...]:
        return () if self._matcher.is_error() else tuple(self._matcher.compute_ff_tokens())

    def masks_behind(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        ahead, masks = self._matcher.deep_copy(), []
        for token in tokens:
            if not ahead.consume_token(token) or ahead.is_stopped():
                break
            mask = ahead.compute_bitmask()
            if ahead.is_error():
                break
            masks.append(self._sized(mask))
        self._behind = tuple(masks)
        return self._behind

    def _sized(self, mask: bytes) -> bytes:
        return mask[: len(self._end)].ljust(len(self._end), b"\0")

    def accept(self, token: int) -> None:
        allowed, self._allowed, self._behind = self._allowed, *self._next()
        if self._matcher.is_error() or self._matcher.consume_token(token):
            return
        # The matcher fails alike at a wrong token, which is our fault, and at a limit behind a right one: the next
        # mask ends the answer then.
        if not allowed or not allowed[token // 8] >> token % 8 & 1:
            raise InvariantError(f"token {token} was sampled although the grammar forbids it")

    def _next(self) -> tuple[bytes, tuple[bytes, ...]]:
        return (self._behind[0], self._behind[1:]) if self._behind else (b"", ())

    @property
    def is_over(self) -> bool:
        return self._matcher.is_stopped()


class GrammarCompiler:
    """Compiles for one model, and remembers what was compiled last. May be used by several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer)), eos_token=list(tokenizer.eos_ids))
        end = bytearray((tokenizer.vocab_size + 7) // 8)
        for token in tokenizer.eos_ids:
            end[token // 8] |= 1 << token % 8
        self._end = bytes(end)
        self._limits = LLParserLimits(verbose_errors=False, precompute_large_lexemes=False)
        self._cache: OrderedDict[tuple[GrammarKind, str], CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """`RequestError` for what cannot be followed."""
        key = (grammar.kind, grammar.text)
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
                return found
        if len(grammar.text) > MAX_CHARS:
            raise _refused(grammar, f"it has {len(grammar.text):,} characters; at most {MAX_CHARS:,} are taken")
        source = _source(grammar)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        # The first mask does the work that the grammar's size brings.
        matcher.compute_bitmask()
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        made = CompiledGrammar(matcher, self._end, f"{grammar.kind}:{grammar.text}")
        with self._lock:
            self._cache[key] = made
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return made


class Grammars:
    """The compiler of one model, made when the first grammar comes, because it takes a moment."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(self._tokenizer)
        return self._compiler.compile(grammar)


class _Vocabulary:
    """A tokenizer as the library wants it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_ids[0] if tokenizer.eos_ids else 0
        self.bos_token_id = tokenizer.bos_id
        self.tokens = list(tokenizer.pieces(skip_special=False))
        self.special_token_ids = [token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)


def _source(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            schema = _json(grammar)
            if not isinstance(schema, Mapping | bool):
                raise _refused(grammar, "a schema is an object, or true")
            _check_depth(grammar, schema, 0)
            return LLMatcher.grammar_from_json_schema(grammar.text, overrides=_JSON_FORM)
        case GrammarKind.REGEX:
            _check_repeats(grammar, grammar.text)
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.CHOICE:
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(_choices(grammar))}")
        case GrammarKind.GRAMMAR:
            _check_repeats(grammar, grammar.text)
            return LLMatcher.grammar_from_lark(_lark(grammar))


def _choices(grammar: Grammar) -> list[str]:
    choices = _json(grammar)
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise _refused(grammar, "choices are a list of texts, at least one")
    if len(choices) > MAX_CHOICES:
        raise _refused(grammar, f"there are {len(choices):,} choices; at most {MAX_CHOICES:,} are taken")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise _refused(grammar, "every choice must be a text that is not empty")
    return [json.dumps(choice, ensure_ascii=False) for choice in dict.fromkeys(choices)]


def _lark(grammar: Grammar) -> str:
    if "::=" not in grammar.text:
        return grammar.text
    try:
        return str(gbnf_to_lark(grammar.text))
    except Exception as error:  # the converter raises nothing more special than that
        raise _refused(grammar, str(error)) from error


def _json(grammar: Grammar) -> object:
    try:
        made: object = json.loads(grammar.text)
    except (ValueError, RecursionError) as error:
        raise _refused(grammar, str(error)) from error
    return made


def _check_depth(grammar: Grammar, value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _refused(grammar, f"it is more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        pattern = value.get("pattern")
        if isinstance(pattern, str):
            _check_repeats(grammar, pattern)
        for inner in value.values():
            _check_depth(grammar, inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_depth(grammar, inner, depth + 1)


def _check_repeats(grammar: Grammar, expression: str) -> None:
    for found in _REPEATS.finditer(expression):
        # Judged by its length first: Python reads no number of thousands of digits.
        if len(found[1].lstrip("0")) > 9 or int(found[1]) > MAX_REPEATS:
            raise _refused(grammar, f"something is repeated {found[1][:12]} times; at most {MAX_REPEATS:,} are taken")


def _refused(grammar: Grammar, reason: str) -> RequestError:
    words = " ".join(reason.split())[:_MESSAGE_CHARS]
    return RequestError(
        f"{grammar.param} cannot be followed: {words}; change it or leave it out",
        param=grammar.param,
        code="invalid_grammar",
    )
