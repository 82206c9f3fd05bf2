"""The dependency rule: which room may import which, and which library belongs to which room.

Owns the table. Reads source text, never imports it; imports inside functions and under TYPE_CHECKING count too.
Invariant: a room that is not in the table fails, so a new room comes with its line and a reason to exist.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "plait"

Check = Callable[[str, str], list[str]]
"""Takes a module's name and source text; gives one line for each breach."""

CONTROL_PLANE = ("core", "model", "kv", "cost", "draft", "sched", "engine")
BELOW_LOADING = ("core", "model", "weights", "text", "config")
BELOW_BUILD = (*CONTROL_PLANE, "weights", "text", "config", "metrics", "api", "exec")

# Room -> rooms it may import, itself aside. A name with a slash is a single file with rights of its own.
ALLOWED_ROOMS: Mapping[str, tuple[str, ...]] = {
    "core": (),
    "model": ("core",),
    "weights": ("core", "model"),
    "text": ("core",),
    "config": ("core",),
    "metrics": ("core",),
    "api": ("core", "text"),
    "kv": ("core", "model"),
    "cost": ("core", "model"),
    "draft": ("core", "model"),
    "sched": ("core", "model", "kv", "cost", "draft"),
    "exec": ("core", "model", "weights"),
    "exec/simulated": ("core", "model", "weights", "cost"),
    "engine": ("core", "model", "kv", "cost", "sched", "metrics"),
    "assembly": CONTROL_PLANE,
    "loading": BELOW_LOADING,
    # A loaded model's bytes as its kernels count them: what is calibrated and what is then priced must be the same.
    "model_formats": ("config", "model", "cost", "exec", "loading"),
    "start_texts": ("config", "model"),
    "build": (*BELOW_BUILD, "assembly", "loading", "model_formats", "start_texts"),
    # `sched`: the order of a whole job's lines is found by `sched/blend`, before any of them is a request.
    "batch": ("core", "api", "text", "sched", "engine", "metrics", "build"),
    "server": ("core", "api", "text", "metrics", "batch"),
    # The Python API: what programs call instead of a command, so it takes the options that commands take.
    "llm": ("core", "api", "text", "config", "build"),
    "sim": ("core", "model", "kv", "cost", "draft", "sched", "exec", "engine", "metrics", "assembly"),
    # Models that are not loaded: configurations and headers in, what layouts make of them out.
    "inspect": ("core", "config", "model", "kv", "weights"),
    # Published figures: it asks the rooms whose formulas and simulations answer them, and nothing serves with it.
    # It runs engines step by step, too, where a figure is what memory holds between steps.
    # `sched`: how long jobs of hundreds of thousands of requests take is told by `sched/blend`, without an engine.
    "reproduce": ("core", "model", "cost", "kv", "sched", "engine", "inspect", "sim"),
    "cli": (*BELOW_BUILD, "inspect", "loading", "model_formats", "build", "batch", "server", "sim", "reproduce"),
}

# Library -> the only places that may import it.
OWNED_LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "torch": ("exec/cuda",),
    "triton": ("exec/cuda",),
    "tokenizers": ("text",),
    "jinja2": ("text",),
    "pydantic": ("api", "config", "server"),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "python_multipart": ("server",),
    "prometheus_client": ("server",),
    "opentelemetry": ("server/tracing",),
    "huggingface_hub": ("weights/hub_requests",),
    "sqlite3": ("batch",),
    "plait._native": ("exec", "cli"),
}

# Library -> rooms that never see it: the control plane holds no tensor.
BANNED_LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "numpy": (*CONTROL_PLANE, "assembly", "sim", "reproduce"),
}

CLOCK_NAMES = re.compile(r"(time|monotonic|perf_counter|process_time|thread_time|clock_gettime)(_ns)?|sleep")
CLOCK_OWNERS = ("core/clock", "cli")

ENVIRONMENT_NAMES = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")
# One file reads the environment into the configuration; one hands it on, unread, to the program that it starts; one
# reads from other programs' variables where those programs keep their models.
ENVIRONMENT_OWNERS = ("config/option", "weights/download", "weights/stores")

LIGHT = ("__future__", "typing")
"""All that `import plait` may cost."""

VAGUE_NAMES = ("utils", "util", "helpers", "helper", "common", "misc")


def place_of(module: str) -> str:
    """`plait.kv.pages` -> `kv/pages`; a place is inside another when that is its prefix."""
    return module.removeprefix("plait").removeprefix(".").replace(".", "/")


def inside(place: str, owners: Iterable[str]) -> bool:
    return any(place == owner or place.startswith(owner + "/") for owner in owners)


def room_of(module: str) -> str:
    return place_of(module).split("/")[0]


def imported_modules(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Every module that the source imports, wherever the statement stands; `from a import b` gives `a` and `a.b`.

    Whether `a.b` is a module or a name in `a` cannot be told from the text; both have the same owner.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                base = ".".join([*kept, *([base] if base else [])])
            found.append(base)
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def room_breaches(module: str, source: str) -> list[str]:
    place, room = place_of(module), room_of(module)
    allowed = ALLOWED_ROOMS.get(place, ALLOWED_ROOMS.get(room))
    if allowed is None:
        return [f"{module}: room {room!r} is not in ALLOWED_ROOMS"]
    targets = [name for name in imported_modules(source, module) if name.startswith("plait.")]
    reached = dict.fromkeys(room_of(name) for name in targets)
    return [f"{module} imports {target}" for target in reached if target not in (room, *allowed, "_native")]


def library_breaches(module: str, source: str) -> list[str]:
    place = place_of(module)
    names = imported_modules(source, module)

    def imports(library: str) -> bool:
        return any(name == library or name.startswith(library + ".") for name in names)

    found = [
        f"{module} imports {library}; only {', '.join(owners)} may"
        for library, owners in OWNED_LIBRARIES.items()
        if imports(library) and not inside(place, owners)
    ]
    found += [
        f"{module} imports {library}; {room_of(module)} must not see it"
        for library, rooms in BANNED_LIBRARIES.items()
        if imports(library) and inside(place, rooms)
    ]
    return found


def clock_breaches(module: str, source: str) -> list[str]:
    """Calls and imports of the operating system's clocks outside the one file that owns them."""
    if inside(place_of(module), CLOCK_OWNERS):
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [alias.name for alias in node.names if CLOCK_NAMES.fullmatch(alias.name)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time":
            found += [node.attr] if CLOCK_NAMES.fullmatch(node.attr) else []
    return [f"{module} reads time.{name}; only {', '.join(CLOCK_OWNERS)} may" for name in found]


def environment_breaches(module: str, source: str) -> list[str]:
    """Uses of the process's environment outside the files that own it."""
    if inside(place_of(module), ENVIRONMENT_OWNERS):
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            found += [alias.name for alias in node.names if alias.name in ENVIRONMENT_NAMES]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            found += [node.attr] if node.attr in ENVIRONMENT_NAMES else []
    return [f"{module} uses os.{name}; only {', '.join(ENVIRONMENT_OWNERS)} may" for name in found]


def package_breaches(module: str, source: str) -> list[str]:
    """An `__init__.py` holds its docstring and nothing else. Only that of `plait` itself names the Python API too, and
    imports none of it before it is asked for.
    """
    if module == "plait":
        runs = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
        wanted = [node for node in runs if not (isinstance(node, ast.ImportFrom) and node.module in LIGHT)]
        return [f"{module}/__init__.py imports at once what it should import when asked" for _ in wanted]
    body = ast.parse(source).body
    only_docstring = len(body) == 1 and ast.get_docstring(ast.parse(source)) is not None
    return [] if only_docstring else [f"{module}/__init__.py holds more or less than a docstring"]


def mark_breaches(module: str, source: str) -> list[str]:
    return [f"{module} says {mark}" for mark in ("TODO", "FIXME", "XXX") if re.search(rf"\b{mark}\b", source)]


def cycle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """A cycle among the modules, first module repeated at the end; empty when there is none."""
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for target in imports.get(module, ()):
            found = walk(target, [*path, module])
            if found:
                return found
        done.add(module)
        return []

    for module in imports:
        found = walk(module, [])
        if found:
            return found
    return []


def read_modules() -> dict[str, str]:
    """Module name -> source; a package has the name of its folder."""
    modules = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return modules


MODULES = read_modules()
PACKAGES = [".".join(path.parent.relative_to(SOURCE.parent).parts) for path in sorted(SOURCE.rglob("__init__.py"))]


def assert_holds(check: Check, modules: Iterable[str]) -> None:
    found = [breach for module in modules for breach in check(module, MODULES[module])]
    assert not found, "\n".join(found)


def test_rooms_import_only_what_lies_below_them() -> None:
    assert_holds(room_breaches, [m for m in MODULES if m not in PACKAGES])


def test_libraries_stay_in_their_rooms() -> None:
    assert_holds(library_breaches, MODULES)


def test_only_the_clock_and_the_command_line_read_the_time() -> None:
    assert_holds(clock_breaches, MODULES)


def test_the_environment_is_read_in_one_file() -> None:
    assert_holds(environment_breaches, MODULES)


def test_packages_hold_only_a_docstring() -> None:
    assert "plait" in PACKAGES
    assert_holds(package_breaches, PACKAGES)


def test_no_unfinished_marks() -> None:
    assert_holds(mark_breaches, MODULES)


def test_no_file_or_folder_has_a_vague_name() -> None:
    found = [module for module in MODULES if set(module.split(".")) & set(VAGUE_NAMES)]
    assert not found, ", ".join(found)


def test_modules_import_each_other_without_a_cycle() -> None:
    imports = {
        module: [name for name in imported_modules(source, module) if name in MODULES and name != module]
        for module, source in MODULES.items()
        if module != "plait"  # it imports nothing until it is asked, and every `from plait import` names it
    }
    found = cycle(imports)
    assert not found, " -> ".join(found)


@pytest.mark.parametrize(
    ("check", "module", "source", "breach"),
    [
        (room_breaches, "plait.kv.pages", "from plait.sched.chunked import plan", "plait.kv.pages imports sched"),
        (room_breaches, "plait.core.step", "import plait.model.program", "plait.core.step imports model"),
        (room_breaches, "plait.core.step", "from plait import kv", "plait.core.step imports kv"),
        (room_breaches, "plait.kv.pages", "from ..engine import loop", "plait.kv.pages imports engine"),
        (room_breaches, "plait.engine.loop", "def f():\n    import plait.text.stops", "plait.engine.loop imports text"),
        (
            room_breaches,
            "plait.sched.chunked",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from plait.exec.native import X",
            "plait.sched.chunked imports exec",
        ),
        (room_breaches, "plait.exec.reference", "import plait.cost.price", "plait.exec.reference imports cost"),
        (room_breaches, "plait.magic.wand", "", "plait.magic.wand: room 'magic' is not in ALLOWED_ROOMS"),
        (library_breaches, "plait.kv.pages", "import numpy as np", "plait.kv.pages imports numpy; kv must not see it"),
        (
            library_breaches,
            "plait.exec.reference",
            "from torch.nn import Module",
            "plait.exec.reference imports torch; only exec/cuda may",
        ),
        (library_breaches, "plait.engine.loop", "import sqlite3", "plait.engine.loop imports sqlite3; only batch may"),
        (
            library_breaches,
            "plait.core.random",
            "from plait import _native",
            "plait.core.random imports plait._native; only exec, cli may",
        ),
        (
            clock_breaches,
            "plait.engine.loop",
            "import time\nx = time.monotonic_ns()",
            "plait.engine.loop reads time.monotonic_ns; only core/clock, cli may",
        ),
        (
            clock_breaches,
            "plait.batch.runner",
            "from time import sleep",
            "plait.batch.runner reads time.sleep; only core/clock, cli may",
        ),
        (
            package_breaches,
            "plait.kv",
            '"""Doc."""\nX = 1\n',
            "plait.kv/__init__.py holds more or less than a docstring",
        ),
        (
            environment_breaches,
            "plait.exec.native",
            "import os\nx = os.environ.get('PLAIT_THREADS')",
            "plait.exec.native uses os.environ; only config/option, weights/download, weights/stores may",
        ),
        (
            package_breaches,
            "plait",
            "from plait.llm.llm import LLM",
            "plait/__init__.py imports at once what it should import when asked",
        ),
        (package_breaches, "plait.kv", "", "plait.kv/__init__.py holds more or less than a docstring"),
        (mark_breaches, "plait.kv.pages", "x = 1  # TO" + "DO later", "plait.kv.pages says TO" + "DO"),
    ],
)
def test_a_breach_is_caught(check: Check, module: str, source: str, breach: str) -> None:
    assert check(module, source) == [breach]


@pytest.mark.parametrize(
    ("check", "module", "source"),
    [
        (room_breaches, "plait.exec.simulated", "import plait.cost.price"),
        (room_breaches, "plait.kv.pages", "from plait.kv.blocks import B\nfrom . import index\nimport json"),
        (room_breaches, "plait.build", "from plait.exec.reference import R"),
        (library_breaches, "plait.exec.cuda.ops", "import torch"),
        (library_breaches, "plait.model.program", "import numpydoc"),
        (clock_breaches, "plait.core.clock", "import time\nx = time.monotonic()"),
        (clock_breaches, "plait.engine.loop", "x = clock.time()\ny = time.strftime"),
        (package_breaches, "plait.kv", '"""Doc."""\n'),
    ],
)
def test_what_is_allowed_passes(check: Check, module: str, source: str) -> None:
    assert check(module, source) == []


def test_a_cycle_is_found_and_named() -> None:
    assert cycle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]
    assert cycle({"a": ["b", "c"], "b": ["c"], "c": []}) == []
