"""The scripts that say yes or no: they say no when they must. And the build, with and without a C++ compiler."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

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


# Builds write into a copy or a folder of the test; nothing in the checkout changes.
ROOT = SCRIPTS.parent
COMPILERS = ("c++", "g++", "clang++")
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C++ compiler")
needs_build_tools = pytest.mark.skipif(
    find_spec("scikit_build_core") is None, reason="needs the packages of requirements-build.lock"
)


def environment_with(path: str, compiler: str | None = None) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    return environment | {"PATH": path} | ({} if compiler is None else {"CXX": compiler})


def folder_with(folder: Path, *programs: str) -> str:
    """A folder for the PATH that holds these programs, each of which succeeds, and what the scripts call."""
    folder.mkdir()
    for program in programs:
        (folder / program).write_text("#!/bin/sh\n", encoding="utf-8")
        (folder / program).chmod(0o755)
    for program in ("env", "bash", "dirname"):
        (folder / program).symlink_to(shutil.which(program) or "")
    return str(folder)


def run_script(name: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPTS / name, *arguments], capture_output=True, text=True, check=False, env=env)


def run_backend(call: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import plait_backend; print(plait_backend.{call})"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, env=env)


@needs_build_tools
@pytest.mark.parametrize(
    ("programs", "variable", "found"),
    [
        ((), None, None),
        (("clang++",), None, "clang++"),
        (("g++", "clang++"), None, "g++"),
        (("c++", "g++"), None, "c++"),
        (("g++",), "", "g++"),
        ((), "no-such-compiler -std=c++20", "no-such-compiler -std=c++20"),
    ],
)
def test_the_makefile_and_the_build_backend_find_the_same_compiler(
    tmp_path: Path, programs: tuple[str, ...], variable: str | None, found: str | None
) -> None:
    environment = environment_with(folder_with(tmp_path / "bin", *programs), variable)
    script = run_script("compiler", env=environment)
    name = script.stdout.strip().removeprefix(f"{tmp_path}/bin/")
    assert (script.returncode, name) == ((0, found) if found else (1, ""))
    assert run_backend("find_compiler()", environment).stdout.strip() == str(found)


@needs_build_tools
def test_without_a_compiler_the_wheel_holds_the_python_files_and_the_build_says_so(tmp_path: Path) -> None:
    result = run_backend(f"build_wheel({str(tmp_path)!r})", environment_with(folder_with(tmp_path / "bin")))
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = ZipFile(wheel).namelist()
    assert "plait/cli/main.py" in names
    assert not [name for name in names if name.endswith((".so", ".cc"))]
    assert "building without the native runtime" in result.stderr


@needs_build_tools
def test_a_compiler_that_does_not_work_is_an_error_and_not_a_wheel_without_the_native_runtime(tmp_path: Path) -> None:
    settings = {"build-dir": str(tmp_path / "build")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = environment_with(path, str(shutil.which("false")))
    result = run_backend(f"build_wheel({str(tmp_path)!r}, {settings!r})", environment)
    assert result.returncode != 0
    assert "CMake" in result.stdout + result.stderr
    assert not list(tmp_path.glob("*.whl"))


@needs_build_tools
def test_the_source_archive_can_build_the_native_runtime(tmp_path: Path) -> None:
    run_backend(f"build_sdist({str(tmp_path)!r})", os.environ)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        names = {name.split("/", 1)[-1] for name in members.getnames()}
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cc")}
    assert wanted | {"CMakeLists.txt", "pyproject.toml", "scripts/plait_backend.py"} <= names


def compile_kernel(folder: Path, body: str) -> None:
    """An object file where a build of the target avx2 has it; plain code, for the check reads names alone."""
    objects = folder / "CMakeFiles" / "plait_target_avx2.dir"
    objects.mkdir(parents=True)
    (folder / "kernel.cc").write_text(body, encoding="utf-8")
    compiler = next(name for name in COMPILERS if shutil.which(name))
    subprocess.run([compiler, "-std=c++20", "-c", folder / "kernel.cc", "-o", objects / "kernel.cc.o"], check=True)


@needs_compiler
def test_a_kernel_of_its_own_namespace_passes_with_constants_and_local_functions(tmp_path: Path) -> None:
    compile_kernel(
        tmp_path,
        "inline constexpr float kTable[2] = {1, 2};\n"
        "static float Local(int i) { return kTable[i]; }\n"
        "namespace plait::avx2 {\n"
        "template <typename T> T Twice(T x) { return x + x; }\n"
        "struct Row { float First() const; };\n"
        "float Row::First() const { return Twice(Local(1)); }\n"
        "}\n",
    )
    result = run_script("target-symbols", str(tmp_path))
    assert (result.returncode, result.stdout) == (
        0,
        "target-symbols: 1 object files hold code of their own target alone\n",
    )


@needs_compiler
@pytest.mark.parametrize(
    ("body", "named"),
    [
        (
            "inline float Shared(float x) { return x; }\nnamespace plait::avx2 { float F() { return Shared(1); } }",
            "Shared",
        ),
        (
            "namespace plait { inline int G(int x) { return x; } namespace avx2 { int F() { return G(1); } } }",
            "plait::G",
        ),
        ("namespace plait::avx512 { int F() { return 1; } }", "plait::avx512::F"),
        ("int Start();\nnamespace plait::avx2 { static int s = Start(); int F() { return s; } }", "runs while loading"),
    ],
)
def test_code_that_the_whole_program_would_share_or_run_is_found(tmp_path: Path, body: str, named: str) -> None:
    compile_kernel(tmp_path, body)
    result = run_script("target-symbols", str(tmp_path))
    assert result.returncode == 1
    assert named in result.stdout


wheels = load_script("wheels")
check_wheels = load_script("check-wheels")


def test_a_release_is_built_by_pythons_that_can() -> None:
    with pytest.raises(wheels.ReleaseError, match="no-such-python does not run; name a Python"):
        wheels.inspect("no-such-python")
    assert wheels.Python("python", (3, 11)).tag == "cp311"
    assert wheels.Python("python", (3, 12)).tag == wheels.Python("python", (3, 14)).tag == "cp312-abi3"


def wheel_with(folder: Path, name: str, **changes: bytes | None) -> Path:
    """A wheel with every file that belongs there; `changes` replaces one or, being None, leaves it out."""
    package = {path.relative_to(ROOT / "src").as_posix(): b"" for path in (ROOT / "src" / "plait").rglob("*.py*")}
    members: dict[str, bytes | None] = {one: b"" for one in package if one.endswith((".py", ".pyi"))}
    members |= dict.fromkeys(check_wheels.WANTED, b"") | {"plait/_native.abi3.so": b"code"}
    members |= {f"plait-1.dist-info/licenses/{notice}": b"" for notice in check_wheels.NOTICES} | changes
    path = folder / name
    with ZipFile(path, "w") as wheel:
        for member, content in members.items():
            if content is not None:
                wheel.writestr(member, content)
    return path


GOOD_WHEEL = "plait-1-cp312-abi3-manylinux_2_34_x86_64.whl"


def test_a_wheel_as_it_should_be_has_no_faults(tmp_path: Path) -> None:
    assert list(check_wheels.wheel_faults(wheel_with(tmp_path, GOOD_WHEEL))) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"plait/py.typed": None}, "plait/py.typed is missing"),
        ({"plait/cli/main.py": None}, "plait/cli/main.py is missing"),
        ({"plait-1.dist-info/licenses/LICENSE": None}, "LICENSE is missing"),
        ({"tests/test_it.py": b""}, "tests/test_it.py does not belong there"),
        ({"plait/notes.orig": b""}, "plait/notes.orig does not belong there"),
        ({"plait/_native.abi3.so": None}, r"its native modules are \[\]"),
        ({"plait/_native.abi3.so": b"..symtab.."}, "is not stripped"),
        ({"plait/_native.abi3.so": bytes(ROOT) + b"/csrc/a.cc"}, f"names {ROOT}"),
    ],
)
def test_a_wheel_that_is_not_is_found(tmp_path: Path, changes: dict[str, bytes | None], fault: str) -> None:
    assert re.search(fault, "; ".join(check_wheels.wheel_faults(wheel_with(tmp_path, GOOD_WHEEL, **changes))))


def test_a_wheel_of_another_tag_is_found(tmp_path: Path) -> None:
    path = wheel_with(tmp_path, "plait-1-cp312-abi3-linux_x86_64.whl")
    assert list(check_wheels.wheel_faults(path)) == ["it has another tag than cp311-cp311 or cp312-abi3 and manylinux"]


@needs_build_tools
def test_python_files_alone_are_no_module_of_the_stable_abi() -> None:
    chosen = run_backend("settings_here({'wheel.cmake': 'false'})", dict(os.environ)).stdout.strip()
    assert chosen == "{'wheel.cmake': 'false', 'wheel.py-api': ''}"
