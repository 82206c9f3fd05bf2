"""The scripts that say yes or no: they say no when they must."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load_script(name: str) -> ModuleType:
    """Import a script that has no suffix, under a name that cannot meet a library's."""
    loader = SourceFileLoader(f"script_{name}", str(SCRIPTS / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


size = load_script("size")


def function_of(lines: int) -> str:
    return "def long():\n" + "    x = 1\n" * (lines - 1)


def test_a_function_of_sixty_lines_is_within_budget_and_one_more_is_not() -> None:
    assert size.breaches(size.measure_source("src/plait/a.py", function_of(60)), {}) == []
    assert size.breaches(size.measure_source("src/plait/a.py", function_of(61)), {}) == [
        "src/plait/a.py:long has 61 lines; its budget is 60"
    ]


def test_decorators_count_and_methods_are_named_with_their_class() -> None:
    source = "class A:\n    @x\n    def f(self):\n        return 1\n"
    measures = {measure.name: measure.lines for measure in size.measure_source("a.py", source)}
    assert measures == {"a.py": 4, "a.py:A": 4, "a.py:A.f": 3}


@pytest.mark.parametrize(
    ("name", "limit"), [("src/plait/kv/a.py", 600), ("csrc/ops/a.cc", 800), ("src/plait/exec/simulated.py", 250)]
)
def test_files_have_budgets(name: str, limit: int) -> None:
    assert size.breaches([size.Measure(name, limit, "file")], {}) == []
    assert size.breaches([size.Measure(name, limit + 1, "file")], {}) == [
        f"{name} has {limit + 1} lines; its budget is {limit}"
    ]


@pytest.mark.parametrize(("name", "kind", "limit"), [("Engine", "class", 200), ("Engine.tick", "function", 40)])
def test_the_engine_and_its_tick_have_budgets(name: str, kind: str, limit: int) -> None:
    measure = size.Measure(f"src/plait/engine/engine.py:{name}", limit + 1, kind)
    assert size.breaches([measure], {}) == [f"{measure.name} has {limit + 1} lines; its budget is {limit}"]


def test_an_allowance_raises_one_limit_and_must_be_needed() -> None:
    allowances = size.parse_allowances("# why\nsrc/a.py:f 70 a table of cases\n\nsrc/b.py:g 90 no longer so long\n")
    over = size.Measure("src/a.py:f", 70, "function")
    assert size.breaches([over], allowances) == ["scripts/size.allow: src/b.py:g is within budget; remove the line"]
    del allowances["src/b.py:g"]
    assert size.breaches([size.Measure("src/a.py:f", 71, "function")], allowances) == [
        "src/a.py:f has 71 lines; its budget is 70"
    ]


def test_an_allowance_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match=r"src/a\.py 700"):
        size.parse_allowances("src/a.py 700")


def test_options_and_environment_variables_are_counted_once_each() -> None:
    source = "p.add_argument('-m', '--model')\nq.add_argument('--model')\nq.add_argument('file')\nlog('--none')\n"
    fields = (
        "class Options:\n    model: str = option('x', str)\n    max_len: int = option(1, int)\n    other: int = 3\n"
    )
    names = size.option_names([source, fields, "p.add_argument('--json')"])
    assert names == ["--json", "--max-len", "--model"]
    assert size.environment_names(["PLAIT_CACHE and PLAIT_CACHE", "PLAIT_LOG = 1", "'PLAIT_'"]) == [
        "PLAIT_CACHE",
        "PLAIT_LOG",
    ]


def chat_line(name: str, text: str) -> str:
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
    return json.dumps({"custom_id": name, "response": {"status_code": 200, "body": body}, "error": None})


def compare(folder: Path, expected: list[tuple[str, str]], output: list[str]) -> subprocess.CompletedProcess[str]:
    lines = [json.dumps({"custom_id": name, "text": text}) for name, text in expected]
    (folder / "expected.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "output.jsonl").write_text("\n".join(output) + "\n", encoding="utf-8")
    arguments = [SCRIPTS / "compare-answers", folder / "expected.jsonl", folder / "output.jsonl"]
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_equal_answers_in_any_order_are_as_committed(tmp_path: Path) -> None:
    completion = json.dumps({"custom_id": "b", "response": {"body": {"choices": [{"text": "two"}]}}, "error": None})
    result = compare(tmp_path, [("a", "one"), ("b", "two")], [completion, chat_line("a", "one")])
    assert (result.returncode, result.stdout) == (0, "2 of 2 answers as committed\n")


def test_a_different_answer_is_shown_and_fails(tmp_path: Path) -> None:
    result = compare(tmp_path, [("a", "one"), ("b", "two")], [chat_line("a", "one"), chat_line("b", "too")])
    assert result.returncode == 1
    assert result.stdout == "b:\n  committed: 'two'\n  this run:  'too'\n1 of 2 answers as committed\n"


def test_an_error_line_and_a_missing_line_fail(tmp_path: Path) -> None:
    error = json.dumps({"custom_id": "a", "response": None, "error": {"message": "too long"}})
    result = compare(tmp_path, [("a", "one"), ("b", "two")], [error])
    assert result.returncode == 1
    assert "too long" in result.stdout
    assert "b: no line in the output" in result.stdout


def test_nothing_expected_is_not_a_success(tmp_path: Path) -> None:
    assert compare(tmp_path, [], [chat_line("a", "one")]).returncode == 2


def test_a_missing_output_is_one_line(tmp_path: Path) -> None:
    arguments = [SCRIPTS / "compare-answers", tmp_path / "none.jsonl", tmp_path / "none.jsonl"]
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == f"compare-answers: cannot read {tmp_path / 'none.jsonl'}: No such file or directory\n"


def test_an_unknown_part_of_the_checks_is_refused() -> None:
    result = subprocess.run([SCRIPTS / "check", "magic"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, "scripts/check: no part is called magic\n")
