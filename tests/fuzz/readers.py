"""Readers: what is fuzzed. Each makes an input, as files, and reads it as Plait does when a model is loaded.

Owns the list; the changes are in `mutations.py`. Invariant: `read` ends or raises; what it may raise is decided by
`worker.py` alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz import gguf_inputs, hf_inputs
from tests.fuzz.mutations import STRANGE_TEXTS, Tree, changed, changed_json, changed_tree
from tests.fuzz.template_inputs import template
from tests.unit.api.byte_text import TEMPLATE

from plait.core.errors import ModelError, PlaitError
from plait.exec.native import presence
from plait.exec.native.lowering import lower
from plait.inspect.known import known_models
from plait.inspect.layers import NumberType
from plait.inspect.layouts import parse_layouts
from plait.inspect.memory import MemoryQuestion, answer
from plait.inspect.sources import find_facts
from plait.model.config import config_from_gguf, config_from_hf
from plait.model.families import build_program
from plait.model.program import expected_weights
from plait.text.chat import ChatTemplate
from plait.text.gguf import tokenizer_from_gguf
from plait.text.hf import tokenizer_from_hf
from plait.text.messages import fit_messages
from plait.text.templates import chat_template_from_gguf, chat_template_from_hf
from plait.text.tokenizer import Tokenizer
from plait.weights.gguf import GgufFile, read_gguf
from plait.weights.hf_names import load_hf_weights
from plait.weights.json_text import read_json_file
from plait.weights.names import load_gguf_weights, rope_factors
from plait.weights.safetensors import read_checkpoint
from plait.weights.table import WeightTable

Files = Mapping[str, bytes]
NOW: Final = datetime(2025, 1, 1, tzinfo=UTC)
ROWS_AT_A_TIME: Final = 64
DESCRIBED: Final[Tree] = {
    "groups": [
        {"name": "self", "kind": "full", "layers": 3, "bytes_per_token": 128},
        {"kind": "window", "layers": 20, "window": 32, "bytes_per_token": 64},
        {"name": "cross", "kind": "cross", "layers": 2, "bytes_per_token": 128},
    ]
}
TEXTS: Final = (
    *(
        "hello world 123",
        " Hello\n\n\tworld's  end…",
        "naïve café 🦁👩‍👩‍👧 12345",
        "\0\x7f\ufffd",
        "<|end|><s></s>",
        "中文 русский",
    ),
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
    unknown = tokenizer.control.ids.get(tokenizer.named_tokens.get("unk_token", ""))
    commanding = set(tokenizer.control.ids.values()) - {unknown}
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False)
        if set(ids) & commanding:
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


def _json(tree: Tree) -> bytes:
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def _make_config(random: Random) -> Files:
    return {"config.json": changed_json(random, hf_inputs.config(random))}


def _read_config(folder: Path) -> None:
    expected_weights(build_program(config_from_hf(read_json_file(folder / "config.json"))))


def _make_checkpoint(random: Random) -> Files:
    names = list(hf_inputs.shapes())
    num_files = random.choice((1, 1, 2, 3))
    files: dict[str, bytes] = {"config.json": _json(hf_inputs.checkpoint_config())}
    where: dict[str, Tree] = {}
    for number in range(num_files):
        name = "model.safetensors" if num_files == 1 else f"model-{number + 1:05}-of-{num_files:05}.safetensors"
        table, contents = hf_inputs.header(random, names[number::num_files])
        where |= dict.fromkeys(names[number::num_files], name)
        files[name] = bytes(hf_inputs.framed(_json(table), contents).contents)
        if random.random() < 0.5:
            files[name] = _changed_safetensors(random, table, contents)
    if num_files > 1:
        index: Tree = {"metadata": {"total_size": 1}, "weight_map": where}
        changes = random.random() < 0.4
        files["model.safetensors.index.json"] = changed_json(random, index) if changes else _json(index)
    if random.random() < 0.1:
        files["config.json"] = changed_json(random, hf_inputs.checkpoint_config())
    if random.random() < 0.05:
        del files[random.choice(list(files))]
    return files


def _changed_safetensors(random: Random, table: dict[str, Tree], contents: bytes) -> bytes:
    if random.randrange(2):
        return bytes(hf_inputs.framed(changed_json(random, table), contents).contents)
    return changed(random, hf_inputs.framed(_json(table), contents))


def _read_checkpoint(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    for tensor in checkpoint.tensors.values():
        tensor.format.dequantize(tensor.raw())
    config = config_from_hf(checkpoint.config)
    program = build_program(config)
    table = load_hf_weights(checkpoint.tensors, expected_weights(program), config, folder, "0" * 64)
    _read_weights(table)
    _pack(program, table)


def _make_tokenizer(random: Random) -> Files:
    document, settings = hf_inputs.tokenizer(random)
    files = {"tokenizer.json": _json(document), "tokenizer_config.json": _json(settings)}
    if random.random() < 0.75:
        files["tokenizer.json"] = changed_json(random, document)
    else:
        files["tokenizer_config.json"] = changed_json(random, settings)
    if random.random() < 0.1:
        generation: Tree = {"eos_token_id": [1, 2], "bos_token_id": 0}
        files["generation_config.json"] = changed_json(random, generation)
    return files


def _read_tokenizer(folder: Path) -> None:
    tokenizer = tokenizer_from_hf(folder)
    _encode(tokenizer)
    _render(chat_template_from_hf(folder, tokenizer.named_tokens, lambda: NOW))


def _make_question(random: Random) -> Files:
    """For `plait inspect memory`: the config.json of a known model, groups described by hand, or a GGUF file."""
    kind = random.randrange(8)
    if kind == 0:
        return _make_metadata(random)
    known = known_models()
    config: object = DESCRIBED if kind == 1 else known[random.choice(sorted(known))].config
    return {"config.json": changed_json(random, config)}  # type: ignore[arg-type]


def _read_question(folder: Path) -> None:
    (path,) = folder.iterdir()
    model, layouts = find_facts(str(path)), parse_layouts("uniform,vllm,jenga,plait,max-page,static,buddy")
    sizes = {(8192, 0): 2, (1000, 300): 1}
    answer(MemoryQuestion(model, None, sizes, 1 << 30, NumberType.BF16, 16, 1, layouts, None)).json_object()


READERS: Final[Mapping[str, Reader]] = {
    "gguf": Reader(_make_gguf, lambda folder: _read_model(read_gguf(folder / "model.gguf"), native=True)),
    "gguf-metadata": Reader(_make_metadata, lambda folder: _read_model(read_gguf(folder / "model.gguf"), native=True)),
    "gguf-text": Reader(_make_gguf_text, _read_gguf_text),
    "template": Reader(_make_template, _read_template),
    "config": Reader(_make_config, _read_config),
    "safetensors": Reader(_make_checkpoint, _read_checkpoint),
    "tokenizer": Reader(_make_tokenizer, _read_tokenizer),
    "inspect": Reader(_make_question, _read_question),
}
