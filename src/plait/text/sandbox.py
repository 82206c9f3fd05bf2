"""Sandbox: where chat templates run, with bounds on what they may do.

A chat template is a stranger's program: it comes with the model file. Owns the environment it sees and the limits on
its steps and strings; knows nothing about messages or tokens. Slices and comparisons of long strings are not counted,
so the bound on time is coarse: seconds, not milliseconds. Invariant: a rendering ends, and no string in it outgrows
`MAX_CHARS` by more than a piece.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from plait.text.sizes import checked, size_of, size_of_filtering, size_of_method, size_of_operation

# Names that a template cannot write, so it can neither call the filters nor shadow the budget.
BUDGET = "render budget"
_STEP = "one step"
_GLUE = "glued text"

_LEFT_OUT = ("pprint", "random", "urlize", "wordwrap", "xmlattr")
"""Filters of jinja that no chat template needs and that are unbounded or not repeatable."""
_REFUSED_METHODS = frozenset({"encode", "expandtabs", "maketrans", "translate"})
"""Methods of strings that expand them by a table or a width, or lead to bytes, which are not measured."""
_CHARS_PER_STEP = 256


class Budget:
    """The steps that one rendering may still take. The one mutable thing in it; never shared between renderings."""

    __slots__ = ("_steps",)

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def spend(self, size: int = 0) -> None:
        """One step, more if it works on something long."""
        self._steps -= 1 + size // _CHARS_PER_STEP
        if self._steps < 0:
            raise SecurityError("it takes too many steps")


def _concat(pieces: Iterable[str]) -> str:
    """What jinja joins outputs with: of the whole rendering, of macros and of `{% set %}` blocks."""
    kept: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        checked(size)
        kept.append(piece)
    return "".join(kept)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as `transformers` sets it up for chat templates, plus bounds.

    Steps are counted at every turn of a loop, operator, call and filter. Strings are measured before they are built
    where one operation can multiply them.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(_concat)

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_finalize
        )
        self.filters["tojson"] = _to_json
        kept = {name: function for name, function in self.filters.items() if name not in _LEFT_OUT}
        self.filters = {name: _counted(name, function) for name, function in kept.items()}
        self.filters |= {_STEP: _step, _GLUE: _glue}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: now().strftime(pattern)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            # In the condition too: a loop may turn for long without ever reaching its body.
            if loop.test is not None:
                loop.test = nodes.And(_filter(_STEP, nodes.Const(True), loop.lineno), loop.test, lineno=loop.lineno)
            loop.body.insert(0, nodes.ExprStmt(_filter(_STEP, nodes.Const(True), loop.lineno), lineno=loop.lineno))
        _Gluing().visit(template)
        return template

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        _budget(context).spend(size_of(left) + size_of(right) + size_of_operation(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:
        # Jinja wraps `str.format`; the method that knows its string lies inside.
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        size = size_of(owner)
        if isinstance(owner, str):
            size += size_of_method(getattr(__obj, "__name__", ""), owner, [*args, *kwargs.values()])
        _budget(__context).spend(size)
        return super().call(__context, __obj, *args, **kwargs)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if isinstance(obj, int | float) or (isinstance(obj, str) and attr in _REFUSED_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)


class _Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; rendering ignores the marks."""

    tags = {"generation"}  # noqa: RUF012 - jinja declares it as an instance attribute

    def parse(self, parser: Parser) -> nodes.CallBlock:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body, lineno=lineno)

    def _body(self, caller: Macro) -> object:
        return caller()


class _Gluing(NodeTransformer):
    """Lets `a ~ b` go through a filter, which can be bounded; jinja compiles the operator to a function of its own."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return _filter(_GLUE, nodes.List([self.visit(part) for part in node.nodes], lineno=node.lineno), node.lineno)


def _budget(context: Context) -> Budget:
    budget = context.parent[BUDGET]
    assert isinstance(budget, Budget)
    return budget


def _filter(name: str, value: nodes.Expr, lineno: int) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=lineno)


@pass_context
def _step(context: Context, value: object) -> object:
    _budget(context).spend()
    return value


@pass_context
def _glue(context: Context, parts: list[object]) -> str:
    _budget(context).spend(checked(size_of(parts, deep=True)))
    return "".join(map(str, parts))


def _counted(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """The filter with its arguments measured and its work counted. Taking the context keeps it from running at load."""
    wants = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @pass_context
    def counted(context: Context, value: object, *args: object, **kwargs: object) -> object:
        size = size_of_filtering(name, value, [*args, *kwargs.values()])
        _budget(context).spend(size_of(value) + size)
        if wants is None:
            return function(value, *args, **kwargs)
        leading = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}[wants]
        return function(leading, value, *args, **kwargs)

    return counted


@pass_context
def _finalize(context: Context, value: object) -> object:
    """What jinja writes out: a list or mapping that holds one long string many times is as long as all of them."""
    _budget(context).spend(size_of(value, deep=True))
    return value


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As `transformers` does.

    Jinja's own filter escapes HTML and non-ASCII characters, which models never saw in training.
    """
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))
