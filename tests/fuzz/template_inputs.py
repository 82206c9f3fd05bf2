"""Template inputs: chat templates grown from pieces of real habits, then broken.

Owns the pieces and how they are put together. Knows nothing about jinja.
Invariant: the same `Random` gives the same template.
"""

from __future__ import annotations

from random import Random
from typing import Final

from tests.fuzz.mutations import changed_text

VALUES: Final = (
    *("messages", "message", "message.content", "message['role']", "messages[0]", "messages[-1]['content']", "x"),
    *("tools", "bos_token", "eos_token", "loop", "loop.index", "loop.previtem", "ns", "ns.text", "undefined_name"),
    *("'a'", "'é' * 50", "''", "0", "1", "-1", "10 ** 9", "2 ** 20000", "1.5", "none", "true", "[1, 2]", "{'a': 1}"),
    *("[messages] * 1000", "range(100000)", "range(10 ** 12)", "namespace(x=1)", "self", "caller", "cycler", "dict"),
    *("''.__class__", "messages.__len__", "strftime_now('%Y')", "raise_exception('no')", "joiner(',')", "varargs"),
    *("lipsum", "x.y.z", "x[0]", "messages[1:]", "messages[::-1]", "'%s' % x", "'%99999d' % 1", "'{:>9}'.format(1)"),
)
OPERATORS: Final = (
    " + ",
    " ~ ",
    " * ",
    " - ",
    " / ",
    " // ",
    " % ",
    " ** ",
    " and ",
    " or ",
    " in ",
    " is ",
    " == ",
    " < ",
)
FILTERS: Final = (
    *("trim", "tojson", "tojson(indent=4)", "length", "upper", "join(',')", "first", "last", "list", "string", "int"),
    *("replace('a', 'b' * 100)", "map(attribute='content')", "selectattr('role', 'equalto', 'user')", "default('')"),
    *("reverse", "sort", "unique", "indent(99999)", "center(100000)", "batch(3)", "groupby('role')", "safe", "escape"),
    *("items", "dictsort", "sum", "attr('x')", "format(1)", "truncate(5)", "wordcount", "random", "xmlattr", "float"),
)
METHODS: Final = (
    *(
        "split(' ')",
        "strip()",
        "replace('a', 'b')",
        "startswith('a')",
        "items()",
        "keys()",
        "get('role')",
        "zfill(999)",
    ),
    *("join(messages)", "format(x)", "ljust(10 ** 7)", "append(1)", "update({})", "pop()", "splitlines()", "encode()"),
    *("translate({97: 'b' * 99})", "count('')", "rstrip('\\n')", "title()", "casefold()", "__class__", "mro()"),
)
STATEMENTS: Final = (
    "{% for message in EXPR %}BODY{% endfor %}",
    "{% for i in EXPR recursive %}BODY{{ loop(EXPR) }}{% endfor %}",
    "{% for a, b in EXPR if EXPR %}BODY{% else %}BODY{% endfor %}",
    "{% if EXPR %}BODY{% elif EXPR %}BODY{% else %}BODY{% endif %}",
    "{% set x = EXPR %}",
    "{% set x %}BODY{% endset %}",
    "{% set ns = namespace(text=EXPR) %}{% set ns.text = EXPR %}",
    "{% macro f(x, y=EXPR) %}BODY{{ f(x) }}{% endmacro %}{{ f(EXPR) }}",
    "{% call(x) f(EXPR) %}BODY{% endcall %}",
    "{% filter FILTER %}BODY{% endfilter %}",
    "{% generation %}BODY{% endgeneration %}",
    "{% with x = EXPR %}BODY{% endwith %}",
    "{% raw %}{{ x }}{% endraw %}",
    "{%- block b -%}BODY{%- endblock -%}",
    "{# a comment #}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% extends EXPR %}",
    "{% autoescape true %}BODY{% endautoescape %}",
    "{% break %}",
    "{% continue %}",
    "{% do EXPR %}",
    "{{ EXPR }}",
    "{{- EXPR -}}",
    "<|{{ message.role }}|>{{ message.content }}<|end|>",
    "text\n",
)


def expression(random: Random, depth: int = 0) -> str:
    if depth > 3 or random.random() < 0.4:
        return random.choice(VALUES)
    inner = expression(random, depth + 1)
    match random.randrange(6):
        case 0 | 1:
            return f"{inner}{random.choice(OPERATORS)}{expression(random, depth + 1)}"
        case 2:
            return f"{inner} | {random.choice(FILTERS)}"
        case 3:
            return f"({inner}).{random.choice(METHODS)}"
        case 4:
            return f"({inner} if {expression(random, depth + 1)} else {random.choice(VALUES)})"
        case _:
            return f"{inner}[{expression(random, depth + 1)}]"


def body(random: Random, depth: int = 0) -> str:
    return "".join(statement(random, depth) for _ in range(random.choice((1, 1, 2, 3))))


def statement(random: Random, depth: int) -> str:
    text = random.choice(STATEMENTS) if depth < 4 else "{{ EXPR }}"
    while "BODY" in text:
        text = text.replace("BODY", body(random, depth + 1), 1)
    while "EXPR" in text:
        text = text.replace("EXPR", expression(random), 1)
    return text.replace("FILTER", random.choice(FILTERS))


def template(random: Random, sound: str) -> str:
    match random.randrange(10):
        case 0:
            nested = random.choice(("(", "[", "{{ ", "{% if x %}", "{% for a in messages %}", "not ", "-", "x."))
            return f"{{{{ {nested * random.choice((50, 500, 20_000))}x }}}}"
        case 1 | 2 | 3:
            text = sound
        case _:
            text = body(random)
    if random.random() < 0.5:
        for _ in range(random.choice((1, 2, 5))):
            text = changed_text(random, text)
    return text
