"""The guide to the Python API, run block by block: what it says a program prints is what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plait.exec.native import presence

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(presence.missing() is not None, reason="other numbers say other things after a while"),
]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_every_example_prints_what_is_written_below_it(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = EXAMPLE.findall(GUIDE.read_text(encoding="utf-8"))
    assert len(examples) == GUIDE.read_text(encoding="utf-8").count("```python") > 4
    names: dict[str, object] = {"__name__": "__main__"}
    for place, (program, written) in enumerate(examples):
        exec(compile(program, f"example {place} of the guide", "exec"), names)
        assert capsys.readouterr().out == written, f"example {place}"
