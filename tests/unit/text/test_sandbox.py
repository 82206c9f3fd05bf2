"""The sandbox of chat templates: what `transformers` offers, and no more than a bounded part of the machine."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from plait.text.sandbox import BUDGET, Budget, Sandbox

SANDBOX = Sandbox(lambda: datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC))


def render(source: str, steps: int = 100_000, **names: object) -> str:
    return SANDBOX.from_string(source).render({**names, BUDGET: Budget(steps)})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ strftime_now('%d %b %Y, %H:%M') }}", "03 Feb 2026, 04:05"),
        ("{{ {'b': 'é<&>', 'a': [1, none, true]} | tojson }}", '{"b": "é<&>", "a": [1, null, true]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{% generation %}a{{ x }}{% endgeneration %}b", "a1b"),
        ("{% for i in 'abcde' %}{% if i == 'b' %}{% continue %}{% endif %}{{ i }}{% endfor %}", "acde"),
        ("{% for i in 'abcde' %}{% if i == 'd' %}{% break %}{% endif %}{{ i }}{% endfor %}", "abc"),
        ("  {% if true %}\nkept\n  {% endif %}\nend", "kept\nend"),
        ("{{ 'a' ~ 1 ~ none ~ missing ~ 2.5 }}", "a1None2.5"),
        (
            "{% for i in [1, 2, 3, 4] if i % 2 == 0 %}{{ loop.index }}/{{ loop.length }}={{ i }} {% endfor %}",
            "1/2=2 2/2=4 ",
        ),
        ("{% for i in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro m(a, b='B') %}{{ a }}{{ b }}{% endmacro %}{{ m('A') }}{{ m(1, b=2) }}", "AB12"),
        ("{{ '%s and %.1f' % ('a', 1) }} {{ '{}-{k}'.format('a', k='b') }}", "a and 1.0 a-b"),
        ("{{ [1, [2, 3]] }} {{ {'a': 'b'} }} {{ none }}", "[1, [2, 3]] {'a': 'b'} None"),
        ("{{ missing }}{{ x.missing }}|{{ missing is defined }}", "|False"),
        ("{{ items | map(attribute='a') | join('+') }}", "1+1000000"),
        ("{{ items | selectattr('a', 'gt', 500000) | list | length }}", "1"),
    ],
)
def test_templates_read_as_their_authors_expect(source: str, text: str) -> None:
    assert render(source, x=1, items=[{"a": 1}, {"a": 1_000_000}]) == text


def test_a_template_may_refuse() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_reading_through_something_undefined_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("{{ missing.attribute }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ [].append(1) }}",
        "{{ {}.update(a=1) }}",
        "{{ items.append(1) }}",
        "{{ render_budget.spend(-1000) }}",
        "{{ strftime_now.__globals__.x }}",
        "{{ raise_exception.__code__.co_code }}",
        "{{ ('{0.__class__.__mro__}').format('') }}",
        "{{ ('{a.__class__.__mro__}').format_map({'a': 1}) }}",
        "{{ ''.translate({}) }}",
        "{{ ''.encode().ljust(10 ** 9) }}",
        "{{ (5).to_bytes(10 ** 9, 'big') }}",
        "{{ 2.5.hex() }}",
    ],
)
def test_a_template_cannot_reach_python_or_change_its_input(source: str) -> None:
    items = [1]
    with pytest.raises((SecurityError, UndefinedError)):
        render(source, items=items)
    assert items == [1]


@pytest.mark.parametrize("source", ["{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}"])
def test_a_template_cannot_load_another(source: str) -> None:
    with pytest.raises(TypeError, match="no loader"):
        render(source)


def test_there_is_no_random_text() -> None:
    with pytest.raises(UndefinedError):
        render("{{ lipsum() }}")


def test_all_output_together_is_bounded_whatever_the_budget() -> None:
    with pytest.raises(SecurityError, match="more than 4,000,000 characters"):
        render("{% for i in range(5000) %}{{ x }}{% endfor %}", steps=10**9, x="x" * 1_000)


@pytest.mark.parametrize("name", ["pprint", "random", "urlize", "wordwrap", "xmlattr"])
def test_filters_that_are_unbounded_or_not_repeatable_are_left_out(name: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=f"No filter named '{name}'"):
        render("{{ x | " + name + " }}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
        "{% macro m() %}{% for i in range(9) %}{{ m() }}{% endfor %}{% endmacro %}{{ m() }}",
        "{% for i in [1] recursive %}{% for k in range(9) %}{{ loop.index }}{% endfor %}{{ loop([1, 1]) }}{% endfor %}",
        "{% for i in range(99999) %}{{ big | upper | length }}{% endfor %}",
        "{% for i in range(99999) %}{% set x = big + 'a' %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = big.split('y') %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = big ~ 'a' %}{% endfor %}",
    ],
)
def test_endless_work_is_stopped_by_the_count_of_steps(source: str) -> None:
    with pytest.raises((SecurityError, RecursionError)):
        render(source, steps=500_000, big="x" * 100_000)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 'x' | center(10 ** 9) }}",
        "{{ 'x' | center(width=10 ** 9) }}",
        "{{ 'x'.rjust(10 ** 9) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a\n' | indent(10 ** 9) }}",
        "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
    ],
)
def test_one_operation_cannot_build_without_bound(source: str) -> None:
    with pytest.raises(SecurityError):
        render(source)


@pytest.mark.parametrize(
    "grow",
    [
        "{% set ns.s = ns.s + ns.s %}",
        "{% set ns.s = ns.s ~ ns.s %}",
        "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}",
        "{% set ns.s %}{% filter upper %}{{ ns.s }}{{ ns.s }}{% endfilter %}{% endset %}",
        "{% set ns.s = '%s%s' % (ns.s, ns.s) %}",
        "{% set ns.s = '{0}{0}'.format(ns.s) %}",
        "{% set ns.s = '{a}{a}'.format(a=ns.s) %}",
        "{% set ns.s = '%s%s' | format(ns.s, ns.s) %}",
        "{% set ns.s = [ns.s, ns.s] | join %}",
        "{% set ns.s = ns.s.join(['a', 'b', 'c']) %}",
        "{% set ns.s = ns.s.replace('x', ns.s) %}",
        "{% set ns.s = ns.s | replace('x', ns.s) %}",
        "{% set ns.s = ns.s | replace(old='x', new=ns.s) %}",
        "{% set ns.s = [ns.s, ns.s] | string %}",
        "{% set ns.s = [ns.s, ns.s] | tojson %}",
        "{% set ns.s = [ns.s, ns.s] %}{% if i == 40 %}{{ ns.s }}{% endif %}",
        "{% set ns.s = double(ns.s) %}",
    ],
)
def test_doubling_a_string_again_and_again_is_stopped(grow: str) -> None:
    macro = "{% macro double(s) %}{{ s }}{{ s }}{% endmacro %}"
    with pytest.raises((SecurityError, RecursionError)):
        render(macro + "{% set ns = namespace(s='xx') %}{% for i in range(60) %}" + grow + "{% endfor %}")


def test_nothing_of_a_template_runs_while_it_is_compiled() -> None:
    SANDBOX.from_string(
        "{{ 'x' * 10 ** 12 }}{{ 'x' | center(10 ** 12) }}{{ 10 ** (10 ** 10) }}{{ raise_exception('no') }}"
    )


def test_each_rendering_has_its_own_budget() -> None:
    template = SANDBOX.from_string("{% for i in range(60) %}{% endfor %}")
    for _ in range(5):
        template.render({BUDGET: Budget(100)})
    with pytest.raises(SecurityError, match="too many steps"):
        template.render({BUDGET: Budget(50)})


def test_long_values_cost_more_steps_than_short_ones() -> None:
    budget = Budget(10)
    budget.spend(255)
    budget.spend(1_024)
    with pytest.raises(SecurityError):
        budget.spend(1_024)
