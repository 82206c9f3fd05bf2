"""Build: the composition root of serving; picks executor, text and clock (`plait.assembly` picks the rest).

Owns the order in which a model file becomes a running engine. Everything it makes is returned; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from plait.api.model_text import ModelText
from plait.assembly import assemble
from plait.config.engine_options import EngineOptions
from plait.config.machine import available_memory_bytes
from plait.config.resolve import ModelFacts, Sizes, resolve_sizes
from plait.core.client import ModelInfo
from plait.core.clock import Clock, RealClock
from plait.core.errors import ModelError
from plait.core.events import EventSink
from plait.core.executor import ExecutorInfo
from plait.core.step import STEP_PROGRAM
from plait.engine.client import AsyncClient
from plait.engine.engine import EngineConfig, Ports
from plait.engine.inbox import Inbox
from plait.engine.thread import EngineThread
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.model.cache_layout import plan_layout
from plait.model.config import ModelConfig, config_from_gguf
from plait.model.families import build_program
from plait.model.program import Program, expected_weights
from plait.text.bpe import tokenizer_from_gguf
from plait.text.chat import ChatTemplate, chat_template_from_gguf
from plait.text.stream import text_stream_factory
from plait.text.tokenizer import Tokenizer
from plait.weights.download import Progress
from plait.weights.gguf import read_gguf
from plait.weights.names import load_gguf_weights, rope_factors
from plait.weights.sources import resolve_model
from plait.weights.table import WeightTable

CACHE_DTYPE_BYTES = 4
"""The reference executor keeps keys and values as float32."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model file, understood: program and text, weights still in the mapped file."""

    name: str
    config: ModelConfig
    program: Program
    weights: WeightTable
    tokenizer: Tokenizer
    template: ChatTemplate | None


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A running engine in this process. `close` ends its threads."""

    model: LoadedModel
    text: ModelText
    client: AsyncClient
    thread: EngineThread
    executor: ExecutorInfo
    sizes: Sizes
    clock: Clock

    def close(self) -> None:
        self.thread.close()


def load_model(options: EngineOptions, progress: Progress, now: Callable[[], datetime]) -> LoadedModel:
    """Find, map and understand a model file. `now` is what a chat template may ask for."""
    found = resolve_model(options.model, options.cache_dir, progress)
    file = read_gguf(found.path)
    factors = rope_factors(file)
    try:
        config = config_from_gguf(file.metadata, file.tensors.keys(), factors)
        program = build_program(config)
        tokenizer = tokenizer_from_gguf(file.metadata)
        template = chat_template_from_gguf(file.metadata, tokenizer.named_tokens, now)
    except ModelError as error:
        raise ModelError(f"{found.path}: {error}") from error
    weights = load_gguf_weights(file, expected_weights(program), found.sha256, rope_factors_used=factors is not None)
    return LoadedModel(found.name, config, program, weights, tokenizer, template)


def start_engine(
    options: EngineOptions,
    model: LoadedModel,
    events: EventSink,
    report_fault: Callable[[str], None],
) -> LocalEngine:
    """Put a loaded model behind a client and start its threads."""
    facts = ModelFacts(
        max_positions=model.config.max_positions,
        cache_bytes_per_token=sum(int(g.bytes_per_token(CACHE_DTYPE_BYTES)) for g in model.program.cache_groups),
    )
    sizes = resolve_sizes(options, facts, available_memory_bytes())
    layout = plan_layout(
        model.program,
        memory_bytes=sizes.memory_bytes,
        tokens_per_block=options.block_size,
        dtype_bytes=CACHE_DTYPE_BYTES,
    )
    clock = RealClock()
    executor = ReferenceExecutor(
        ReferenceConfig(max_step_tokens=options.max_num_batched_tokens, max_rows=options.max_num_seqs), clock.now
    )
    executor.load({STEP_PROGRAM: model.program}, model.weights, layout)
    info = executor.info
    vocab_size = model.program.vocab_size
    inbox = Inbox()
    client = AsyncClient(
        ModelInfo(
            model.name, vocab_size, sizes.max_model_tokens, info.fingerprint, info.bit_exact, model.weights.sha256
        ),
        inbox,
    )
    parts = assemble(
        EngineConfig(vocab_size, sizes.max_model_tokens, options.seed),
        layout,
        executor,
        clock,
        Ports(inbox, client, events, text_stream_factory(model.tokenizer)),
        eos_token_ids=model.tokenizer.eos_ids,
        enable_prefix=options.enable_prefix_caching,
    )
    thread = EngineThread(parts.engine, executor, inbox, client, report_fault)
    thread.start()
    text = ModelText(model.tokenizer, model.template)
    return LocalEngine(model, text, client, thread, info, sizes, clock)
