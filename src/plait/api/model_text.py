"""Model text: a model's tokenizer and chat template, as this room uses them.

Owns the pair and how prompts of both endpoints are encoded with it. The encoding itself is the text room's.
Invariant: raw prompts may spell control tokens, because their author stands in for the template; chat contents may not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.api.bodies import JsonObject, JsonValue
from plait.api.continuing import up_to_the_end_of
from plait.core.constraint import ConstraintSource
from plait.core.errors import RequestError
from plait.text.chat import ChatTemplate
from plait.text.grammar import Grammar, Grammars
from plait.text.prompt import encode_chat
from plait.text.tokenizer import Tokenizer
from plait.text.tool_calls import ToolFormat, tool_format_of


@dataclass(frozen=True, slots=True)
class ModelText:
    """`template` None: a model without chat training."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    grammars: Grammars | None = None
    """None: answers cannot be given a form."""

    @property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes calls of functions; None: it was not taught to."""
        return None if self.template is None else tool_format_of(self.template.source)

    def constraint(self, grammar: Grammar | None) -> ConstraintSource | None:
        """A grammar, compiled; may take a while. `RequestError` for one that cannot be followed."""
        if grammar is None:
            return None
        if self.grammars is None:
            raise RequestError(
                f"{grammar.param} is set, but answers are not given a form here; leave it out",
                param=grammar.param,
                code="unsupported_parameter",
            )
        return self.grammars.compile(grammar)

    def encode_text(self, text: str, add_special: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special, parse_special=True)

    def encode_chat(
        self,
        messages: Sequence[JsonObject],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, JsonValue],
        tools: Sequence[JsonObject] | None = None,
        continues: bool = False,
    ) -> list[int]:
        """`continues`: up to the end of the last message and no further."""
        if "documents" in variables and self.template is not None and "documents" not in self.template.source:
            raise RequestError(
                "documents are sent, but this model's chat template reads none; put them into a message",
                param="documents",
                code="unsupported_parameter",
            )
        tokens = encode_chat(
            self.tokenizer,
            self.template,
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables=variables,
        )
        return up_to_the_end_of(messages[-1].get("content"), tokens, self.tokenizer) if continues else tokens
