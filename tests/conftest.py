"""Which tests run by default, how properties are drawn, and where the default model comes from.

Owns the markers' meaning, the hypothesis profile and the fixture `model_path`. A test that needs what is not there is
deselected or skipped with its reason; nothing here changes what a test does.
"""

from __future__ import annotations

import re
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

ON_REQUEST = ("models", "gpu", "ray", "slow")
"""Markers that run only when asked for: with --run-<marker>, or named in -m."""


# The same examples on every run and no time limits of its own: a failure is a failure for everyone.
settings.register_profile("plait", derandomize=True, deadline=None, database=None)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("plait")
    # Started in the background by a script, we would ignore Ctrl-C, and so would every process that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("plait")
    for marker in ON_REQUEST:
        group.addoption(f"--run-{marker}", action="store_true", help=f"run the tests marked `{marker}` too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = re.findall(r"\w+", config.getoption("markexpr"))
    left_out = [m for m in ON_REQUEST if not config.getoption(f"run_{m}") and m not in asked]
    has_torch = find_spec("torch") is not None and find_spec("transformers") is not None
    no_torch = pytest.mark.skip(reason="needs torch and transformers (extra `goldens`)")
    deselected = []
    selected = []
    for item in items:
        if any(item.get_closest_marker(marker) for marker in left_out):
            deselected.append(item)
            continue
        selected.append(item)
        if item.get_closest_marker("torch") and not has_torch:
            item.add_marker(no_torch)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = selected


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The file of the default model, in the user's cache; downloaded there the first time."""
    from plait.config.engine_options import EngineOptions
    from plait.config.option import OptionSources, options_of
    from plait.weights.catalogue import DEFAULT_MODEL
    from plait.weights.sources import resolve_model

    options = OptionSources(options_of(EngineOptions), {}).read(EngineOptions)
    return resolve_model(DEFAULT_MODEL, options.cache_dir).path
