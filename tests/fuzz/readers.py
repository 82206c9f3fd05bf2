"""Readers: what is fuzzed. Each makes an input, as files, and reads it as Plait does when a model is loaded.

Owns the list; the changes are in `mutations.py`. Invariant: `read` ends or raises; what it may raise is decided by
`worker.py` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz import gguf_inputs
from tests.fuzz.mutations import STRANGE_TEXTS, Marked, changed, changed_tree
from tests.fuzz.template_inputs import template
from tests.unit.api.byte_text import TEMPLATE

from plait.core.errors import ModelError, PlaitError
from plait.exec.native import presence
from plait.exec.native.lowering import lower
from plait.model.config import config_from_gguf
from plait.model.families import build_program
from plait.model.program import expected_weights
from plait.text.bpe import tokenizer_from_gguf
from plait.text.chat import ChatTemplate, chat_template_from_gguf
from plait.text.messages import fit_messages
from plait.text.tokenizer import Tokenizer
from plait.weights.gguf import GgufFile, read_gguf
from plait.weights.names import load_gguf_weights, rope_factors
from plait.weights.table import WeightTable

Files = Mapping[str, bytes]
NOW: Final = datetime(2025, 1, 1, tzinfo=UTC)
ROWS_AT_A_TIME: Final = 64
TEXTS: Final = (
    *("hello world 123", " Hello\n\n\tworld's  end…", "naïve café 🦁👩‍👩‍👧 12345", "\0\x7f\ufffd", "<|end|><s></s>", "中文 русский"),
    *(STRANGE_TEXTS[2], "a" * 300, ""),
)
MESSAGES: Final = (
    [{"role": "user", "content": "hello"}],
    [
        {"role": "system", "content": "be <|end|> kind"},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "🦁" * 50},
    ],
)


@dataclass(frozen=True, slots=True)
class Reader:
    make: Callable[[Random], Files]
    read: Callable[[Path], None]


class _Stages:
    """Goes on behind what was refused, so that a wrong config does not keep the tokenizer from being read. The first
    refusal is raised in the end.
    """

    def __init__(self) -> None:
        self.refusal: PlaitError | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, PlaitError):
            self.refusal = self.refusal or error
            return True
        return False

    def end(self) -> None:
        if self.refusal is not None:
            raise self.refusal


def _read_weights(table: WeightTable) -> None:
    for tensor in table.values():
        for start in range(0, tensor.num_rows, ROWS_AT_A_TIME):
            tensor.dequantize(start, min(tensor.num_rows, start + ROWS_AT_A_TIME))


def _pack(program: object, table: WeightTable) -> None:
    """As the native executor takes them, where there is one."""
    if presence.missing() is not None:
        return
    from plait.exec.native.packing import WeightDtype, pack, schemes_of, vectors

    schemes = schemes_of(program, table, WeightDtype.AUTO)  # type: ignore[arg-type]
    tape = lower(program, schemes)  # type: ignore[arg-type]
    pack(tape, table, schemes, 1)
    vectors(tape, table)


def _encode(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=True)
        if set(ids) & set(tokenizer.control.ids.values()) - {tokenizer.bos_id, *tokenizer.eos_ids}:
            raise AssertionError(f"{text!r} became control tokens: {ids}")
        tokenizer.decode(ids)
        tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=True), skip_special=False)


def _render(chat: ChatTemplate | None) -> None:
    for messages in MESSAGES if chat is not None else ():
        assert chat is not None
        chat.render(fit_messages(messages, chat.reading), add_generation_prompt=True)


def _read_model(file: GgufFile, *, native: bool) -> None:
    stages = _Stages()
    for entry in file.tensors.values():
        entry.format.dequantize(entry.raw()[: entry.format.bytes_of(entry.shape[-1])])
    with stages:
        factors = rope_factors(file)
        program = build_program(config_from_gguf(file.metadata, file.tensors.keys(), factors))
        table = load_gguf_weights(file, expected_weights(program), "0" * 64, rope_factors_used=factors is not None)
        _read_weights(table)
        if native:
            _pack(program, table)
    with stages:
        tokenizer = tokenizer_from_gguf(file.metadata)
        _encode(tokenizer)
        _render(chat_template_from_gguf(file.metadata, tokenizer.named_tokens, lambda: NOW))
    stages.end()


def _make_gguf(random: Random) -> Files:
    marked = gguf_inputs.written(random, gguf_inputs.metadata(random), gguf_inputs.tensors(random))
    return {"model.gguf": changed(random, marked) if random.random() < 0.98 else bytes(marked.contents)}


def _make_metadata(random: Random) -> Files:
    values: object = gguf_inputs.metadata(random)
    described = gguf_inputs.tensors(random)
    for _ in range(random.choice((1, 1, 2, 3))):
        values = changed_tree(random, values)  # type: ignore[arg-type]
    if not isinstance(values, dict):
        values = {}
    if random.random() < 0.3:
        name = random.choice(list(described))
        shape, kind = described[name]
        match random.randrange(4):
            case 0:
                del described[name]
            case 1:
                described[name] = (tuple(reversed(shape)), 0)
            case 2:
                described[name] = ((*shape[:-1], shape[-1] * 2), kind)
            case _:
                described[random.choice(("output.weight", "blk.0.attn_q.bias", "blk.1.attn_q.weight", name * 3))] = (
                    described.pop(name)
                )
    return {"model.gguf": bytes(gguf_inputs.written(random, values, described).contents)}


def _make_gguf_text(random: Random) -> Files:
    """Changes to the tokenizer alone."""
    values = gguf_inputs.metadata(random)
    text = {key: value for key, value in values.items() if key.startswith("tokenizer.")}
    changed_values: object = text
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        changed_values = changed_tree(random, changed_values)  # type: ignore[arg-type]
    known = {key: value for key, value in values.items() if key not in text}
    values = known | (changed_values if isinstance(changed_values, dict) else {})
    return {"model.gguf": bytes(gguf_inputs.written(random, values, {}).contents)}


def _read_gguf_text(folder: Path) -> None:
    file = read_gguf(folder / "model.gguf")
    tokenizer = tokenizer_from_gguf(file.metadata)
    _encode(tokenizer)
    _render(chat_template_from_gguf(file.metadata, tokenizer.named_tokens, lambda: NOW))


def _make_template(random: Random) -> Files:
    return {"template.jinja": template(random, TEMPLATE).encode("utf-8", "surrogatepass")}


def _read_template(folder: Path) -> None:
    try:
        source = (folder / "template.jinja").read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"not text: {error}") from None
    _render(ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, lambda: NOW))


def _raw(make: Callable[[Random], Files]) -> Callable[[Random], Files]:
    """The same files with their bytes changed, without regard to what they are."""

    def made(random: Random) -> Files:
        files = dict(make(random))
        name = random.choice(list(files))
        files[name] = changed(random, Marked(bytearray(files[name])))
        return files

    return made


READERS: Final[Mapping[str, Reader]] = {
    "gguf": Reader(_make_gguf, lambda folder: _read_model(read_gguf(folder / "model.gguf"), native=True)),
    "gguf-metadata": Reader(_make_metadata, lambda folder: _read_model(read_gguf(folder / "model.gguf"), native=True)),
    "gguf-text": Reader(_make_gguf_text, _read_gguf_text),
    "template": Reader(_make_template, _read_template),
}
