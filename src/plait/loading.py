"""Loading: from what a user calls a model to its program, weights and text.

Owns the order of the readers for each kind of file, and what they must agree on. Starts nothing; the weights stay in
the mapped files.
Invariant: a trouble that a reader has with a file is one line that begins with the file's path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from plait.config.engine_options import EngineOptions
from plait.config.schedulers import DEFAULT_SCHEDULER
from plait.core.errors import ModelError, UsageError
from plait.model.config import HF_MODEL_TYPES, ModelConfig, config_from_gguf, config_from_hf
from plait.model.families import build_program
from plait.model.keeping import keep_all_tokens
from plait.model.program import Program, expected_weights, product_weights
from plait.text.chat import ChatTemplate
from plait.text.gguf import tokenizer_from_gguf
from plait.text.hf import tokenizer_from_hf
from plait.text.templates import chat_template_from_file, chat_template_from_gguf, chat_template_from_hf
from plait.text.tokenizer import Tokenizer
from plait.weights.checksum import model_sha256
from plait.weights.download import Progress
from plait.weights.found import ModelFile
from plait.weights.gguf_model import read_gguf_model
from plait.weights.hf_layout import ENDING, model_files
from plait.weights.hf_names import load_hf_weights
from plait.weights.names import load_gguf_weights, rope_factors
from plait.weights.safetensors import read_checkpoint
from plait.weights.sources import resolve_model
from plait.weights.stores import stores_here
from plait.weights.table import WeightTable


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, understood: program and text, weights still in the mapped files."""

    name: str
    config: ModelConfig
    program: Program
    weights: WeightTable
    tokenizer: Tokenizer
    template: ChatTemplate | None
    notes: tuple[str, ...] = ()
    """What a user should know about where it came from, one sentence each."""
    draft: LoadedModel | None = None
    """A smaller model of the same vocabulary that guesses for it."""


def load_model(options: EngineOptions, progress: Progress, now: Callable[[], datetime]) -> LoadedModel:
    """Find, map and understand a model, and its draft model, if there is to be one. `now` is what a chat template may
    ask for.
    """
    check_draft_options(options)
    model = _load(options, progress, now)
    if options.draft_model is None:
        return model
    own = replace(
        options, model=options.draft_model, revision=None, max_model_len=None, chat_template=None, quantize="none"
    )
    draft = _load(own, progress, now)
    check_pair(model, draft, options.draft_model)
    return replace(model, draft=_in_fast_numbers(draft))


def check_draft_options(options: EngineOptions) -> None:
    """`UsageError` where a draft model is asked for by halves, or cannot be there whatever it is."""
    is_asked = options.speculative == "model"
    if is_asked and options.draft_model is None:
        raise UsageError("--speculative model needs a model that drafts: name it with --draft-model")
    if options.draft_model is None:
        return
    if not is_asked:
        raise UsageError(
            f"--draft-model {options.draft_model} is not used with --speculative {options.speculative}; add "
            "--speculative model, or leave it out"
        )
    if options.executor == "reference":
        raise UsageError("--executor reference runs no draft model; take --executor native, or --speculative ngram")
    if str(options.scheduler) != str(DEFAULT_SCHEDULER):
        raise UsageError(
            f"--scheduler {options.scheduler} asks no draft model yet; take --scheduler {DEFAULT_SCHEDULER}, or "
            "--speculative ngram"
        )
    if options.profile is not None:
        raise UsageError("--profile does not tell a draft model's steps apart yet; leave it out, or --draft-model")
    if options.kv_layout != "paged":
        raise UsageError(f"--kv-layout {options.kv_layout} has no place for a draft model; take --kv-layout paged")


def check_pair(model: LoadedModel, draft: LoadedModel, name: str) -> None:
    """`ModelError` for a draft model whose guesses would mean something else, or cost more than they bring."""
    mine, its = model.tokenizer.pieces(skip_special=False), draft.tokenizer.pieces(skip_special=False)
    sizes = (model.program.vocab_size, draft.program.vocab_size)
    way_out = "take a smaller model of the same family, or --speculative ngram"
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"--draft-model {name} has {sizes[1]:,} tokens and {model.name} has {sizes[0]:,}, so its guesses would be "
            f"other text; {way_out}"
        )
    other = next((token for token, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), None)
    if other is not None:
        raise ModelError(
            f"--draft-model {name}: token {other} is {its[other]!r:.40} there and {mine[other]!r:.40} in {model.name}, "
            f"so its guesses would be other text; {way_out}"
        )
    counts = (model.program.num_parameters, draft.program.num_parameters)
    if counts[1] > counts[0]:
        raise ModelError(
            f"--draft-model {name} has {counts[1] / 1e6:,.0f} million numbers and {model.name} has "
            f"{counts[0] / 1e6:,.0f}: its steps would take longer than those they save; {way_out}"
        )
    if any(group.is_state for group in draft.program.cache_groups):
        raise ModelError(
            f"--draft-model {name} keeps states, which cannot be taken back behind rejected drafts; {way_out}"
        )


def _in_fast_numbers(draft: LoadedModel) -> LoadedModel:
    """Guesses need not be exact, so weights that nobody has rounded yet are."""
    if any(draft.weights[name].format.bits_per_weight < 16 for name in product_weights(draft.program)):
        return draft
    try:
        config, program, weights = quantized("int4", draft.config, draft.program, draft.weights)
    except ModelError:  # rows that are not whole groups
        return draft
    note = "its weights are rounded to int4, because guesses need not be exact"
    return replace(draft, config=config, program=program, weights=weights, notes=(*draft.notes, note))


def _load(options: EngineOptions, progress: Progress, now: Callable[[], datetime]) -> LoadedModel:
    found = resolve_model(options.model, options.cache_dir, progress, revision=options.revision, stores=stores_here())
    is_checkpoint = found.path.is_dir() or found.path.suffix == ENDING
    model = (_load_checkpoint if is_checkpoint else _load_gguf)(found, options, now)
    if options.quantize == "none":
        return model
    config, program, weights = quantized(options.quantize, model.config, model.program, model.weights)
    program = _laid_out(program, options)
    return replace(model, config=config, program=program, weights=weights)


def _load_gguf(found: ModelFile, options: EngineOptions, now: Callable[[], datetime]) -> LoadedModel:
    model = read_gguf_model(found.path)
    file = model.file
    factors = rope_factors(file)
    with _named(found.path):
        config, program = _program(config_from_gguf(file.metadata, file.tensors.keys(), factors), options)
        tokenizer = tokenizer_from_gguf(file.metadata)
        given = _given_template(options, tokenizer, now)
        template = given or chat_template_from_gguf(file.metadata, tokenizer.named_tokens, now)
    weights = load_gguf_weights(file, expected_weights(program), found.sha256, rope_factors_used=factors is not None)
    weights = weights.named_by(lambda: model_sha256(model.paths, options.cache_dir))
    return LoadedModel(found.name, config, program, weights, tokenizer, template, found.notes)


def _load_checkpoint(found: ModelFile, options: EngineOptions, now: Callable[[], datetime]) -> LoadedModel:
    checkpoint = read_checkpoint(found.path)
    directory = checkpoint.directory
    with _named(directory):
        _refuse_own_code(checkpoint.config)
        rows = config_from_hf(checkpoint.config).table_rows
    tokenizer = tokenizer_from_hf(directory)
    given = _given_template(options, tokenizer, now)
    template = given or chat_template_from_hf(directory, tokenizer.named_tokens, now)
    with _named(directory):
        config, program = _program(config_from_hf(checkpoint.config, _num_tokens(tokenizer, rows)), options)
    weights = load_hf_weights(checkpoint.tensors, expected_weights(program), config, directory, found.sha256)
    files = model_files(directory, checkpoint.files)
    weights = weights.named_by(lambda: model_sha256(files, options.cache_dir))
    return LoadedModel(found.name, config, program, weights, tokenizer, template, found.notes)


def _given_template(options: EngineOptions, tokenizer: Tokenizer, now: Callable[[], datetime]) -> ChatTemplate | None:
    if options.chat_template is None:
        return None
    return chat_template_from_file(options.chat_template, tokenizer.named_tokens, now)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Troubles of readers that know no path."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _refuse_own_code(config: dict[str, object]) -> None:
    kind = config.get("model_type")
    if "auto_map" in config and kind not in HF_MODEL_TYPES:
        raise ModelError(
            f"config.json: model_type {kind!r:.60} is known only to the Python code that comes with the model "
            "(auto_map), and Plait runs none (there is no trust_remote_code); supported: "
            f"{', '.join(HF_MODEL_TYPES)}"
        )


def _num_tokens(tokenizer: Tokenizer, rows: int) -> int:
    """Up to the last token that stands for something; the rows of the token tables behind it are padding."""
    pieces = tokenizer.pieces(skip_special=False)
    num_tokens = len(pieces)
    while num_tokens > 1 and not pieces[num_tokens - 1]:
        num_tokens -= 1
    if num_tokens > rows:
        raise ModelError(
            f"the tokenizer has {num_tokens:,} tokens but the embedding table {rows:,} rows (vocab_size in "
            "config.json); take the tokenizer that belongs to these weights"
        )
    return num_tokens


def _program(config: ModelConfig, options: EngineOptions) -> tuple[ModelConfig, Program]:
    if options.max_model_len is not None:
        config = config.within(options.max_model_len)
    return config, _laid_out(build_program(config), options)


def _laid_out(program: Program, options: EngineOptions) -> Program:
    return keep_all_tokens(program) if options.kv_layout == "uniform" else program


def quantized(
    kind: str, config: ModelConfig, program: Program, weights: WeightTable
) -> tuple[ModelConfig, Program, WeightTable]:
    """The same model with weights that are rounded as they are read. A head that is the embedding table becomes a
    matrix of its own, because tokens are looked up in the file's numbers.
    """
    own = replace(config, tied_embeddings=False)
    untied = build_program(own)
    # Products stand in the same order in both programs.
    sources, names = product_weights(program), product_weights(untied)
    matrices = dict(zip(names, sources, strict=True))
    return own, untied, weights.rounded(kind, matrices, head=names[-1])
