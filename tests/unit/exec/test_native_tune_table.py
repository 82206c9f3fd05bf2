"""Tune tables: a file comes back as it was written, nonsense is refused in a line, and no table changes a bit."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.exec import test_native_executor as native
from tests.unit.exec import test_reference_step as odd

from plait import _native
from plait.core.errors import PlaitError, UsageError
from plait.core.ids import SeqId
from plait.core.step import Chunk, OutputKind, Outputs
from plait.exec.native.blocking import ROW_BUCKETS, Blocking, GemmBlocks, UnitSizes, row_bucket
from plait.exec.native.executor import NativeConfig, NativeExecutor
from plait.exec.native.tune_table import (
    MAX_BYTES,
    TuneKey,
    TuneTable,
    check_folder,
    check_output,
    read_table,
    write_table,
)
from plait.exec.native.tuned import tune_key, use_table
from plait.model.program import Program
from plait.weights import formats
from plait.weights.table import WeightTable

KEY = TuneKey("a processor", 2, "avx2", "0.1.0", ("64 to 96 f32",))
TABLE = TuneTable(
    KEY,
    Blocking(
        UnitSizes(smallest_us=4.0, least_attend_rows=16), {"64 to 96 f32": {0: GemmBlocks(1, 6), 6: GemmBlocks(48, 2)}}
    ),
)


def loaded(program: Program, table: WeightTable, seen: list[native.Floats]) -> NativeExecutor:
    executor = NativeExecutor(NativeConfig(native.WORKERS, poison=True, observe_logits=lambda _, z: seen.append(z)))
    executor.load({"step": program}, table, native.layout_of(program))
    return executor


def logits_with(program: Program, table: WeightTable, blocking: Blocking | None) -> native.Floats:
    seen: list[native.Floats] = []
    executor = loaded(program, table, seen)
    if blocking is not None:
        executor.retune(blocking)
    rows = Outputs(0, len(odd.TEXT), OutputKind.LOGPROBS, (0,) * len(odd.TEXT))
    chunk = Chunk(SeqId(0), 0, len(odd.TEXT), odd.TEXT, outputs=(rows,))
    assert native.run(executor, native.first_plan(chunk)).seqs[0].error is None
    executor.close()
    return np.concatenate(seen)


def drawn(dice: random.Random, products: tuple[str, ...]) -> Blocking:
    """Any numbers within the limits, small ones more often."""

    def whole(most: int) -> int:
        return dice.randint(1, dice.randint(1, most))

    sizes = UnitSizes(*(dice.choice((0.1, 1.0, 30.0, 1000.0)) for _ in range(4)), whole(64), whole(1000))
    return Blocking(
        sizes, {name: {bucket: GemmBlocks(whole(40), whole(40)) for bucket in range(ROW_BUCKETS)} for name in products}
    )


@pytest.mark.parametrize("form", [formats.F32, formats.Q4_1], ids=lambda one: one.name)
def test_fifty_random_tables_change_no_bit(form: formats.WeightFormat, tmp_path: Path) -> None:
    program = native.decoder()
    table = native.table_in(program, form)
    expected = logits_with(program, table, None)
    executor = loaded(program, table, [])
    key = tune_key(executor, "a processor")
    executor.close()
    assert len(key.products) >= 4
    dice = random.Random(form.name)
    path = tmp_path / "table.json"
    for _ in range(25):
        write_table(TuneTable(key, drawn(dice, key.products)), path)
        given = logits_with(program, table, read_table(path).blocking)
        assert np.array_equal(given.view(np.uint32), expected.view(np.uint32)), path.read_text()


def test_built_in_sizes_are_those_of_the_runtime() -> None:
    assert asdict(UnitSizes()) == _native.unit_sizes()


def test_a_table_comes_back_as_it_was_written_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = KEY.path(tmp_path / "new")
    write_table(TABLE, path)
    assert read_table(path) == TABLE
    assert TABLE.num_entries == 4
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert 100 < path.stat().st_size < MAX_BYTES


def test_other_machines_builds_and_models_have_other_files(tmp_path: Path) -> None:
    keys = [
        KEY,
        replace(KEY, processor="another"),
        replace(KEY, workers=3),
        replace(KEY, target="avx512"),
        replace(KEY, build="0.1.1"),
        replace(KEY, products=("64 to 96 q8_0",)),
    ]
    assert len({key.path(tmp_path) for key in keys}) == len(keys)


def test_where_nothing_can_be_written_the_way_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlaitError, match=r"cannot be written to .*; give a place with --output"):
        write_table(TABLE, tmp_path / "file" / "table.json")


def test_a_table_takes_the_place_of_a_table_and_of_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    check_output(path)
    write_table(TABLE, path)
    check_output(path)
    path.write_text("notes of mine")
    with pytest.raises(UsageError, match=r"table\.json exists and is no tune table; remove it"):
        check_output(path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for other in (tmp_path, pipe):
        with pytest.raises(UsageError, match="is no regular file; name a file that may be written"):
            check_output(other)


def test_a_folder_that_takes_no_file_is_found_out_before_and_a_good_one_is_left_empty(tmp_path: Path) -> None:
    check_folder(tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(PlaitError, match=r"cannot be written to .*; give a place with --output"):
        check_folder(tmp_path / "file" / "tune")


def changed(*path: str, value: object) -> str:
    document: dict[str, object] = json.loads(good_text())
    at = document
    for name in path[:-1]:
        at = at[name]  # type: ignore[assignment]
    at[path[-1]] = value
    return json.dumps(document)


def good_text() -> str:
    return json.dumps(
        {
            "plait_tune": 1,
            "key": asdict(KEY),
            "sizes": asdict(UnitSizes()),
            "products": {"p": {"64": {"most_rows": 48, "panels_per_block": 2}}},
        }
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, ""),
        ("[]", "the file is no JSON object"),
        ("{}", "plait_tune is None and not 1"),
        (" " * (MAX_BYTES + 1), "it is larger than"),
        (changed("plait_tune", value=2), "plait_tune is 2 and not 1"),
        (changed("plait_tune", value=True), "plait_tune is True and not 1"),
        (changed("plait_tune", value="A" * 10_000), "plait_tune is 'AAA"),
        (changed("sizes", "largest_us", value=float("nan")), "largest_us is nan and no number"),
        (changed("products", "a\nb\x1b[31m", value=[]), "a b [31m is no JSON object"),
        (changed("key", value=None), "key is no JSON object"),
        (changed("key", "workers", value="two"), "key.workers is 'two' and no whole number"),
        (changed("key", "target", value=7), "key.target is no text"),
        (changed("sizes", "least_attend_rows", value=1.5), "least_attend_rows is 1.5 and no whole number"),
        (changed("sizes", "largest_us", value="80"), "largest_us is '80' and no number"),
        (changed("sizes", "colour", value=1), "sizes has colour"),
        (changed("products", "p", value=[]), "p is no JSON object"),
        (changed("products", "p", "0", value={}), "p has blocks for 0 rows; 1 to 1048576 are possible"),
        (changed("products", "p", "2097152", value={}), "p has blocks for 2097152 rows"),
        (changed("products", "p", "x", value={}), "p has blocks for x rows"),
        (changed("products", "p", "64", "most_rows", value=-1), "most_rows of p, 64 rows, is -1"),
        (changed("products", "p", "64", "panels_per_block", value=None), "panels_per_block of p, 64 rows, is None"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_line(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(good_text())
    assert read_table(path).blocking.products["p"][row_bucket(64)] == GemmBlocks(48, 2)
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_table(path)
    said = str(caught.value)
    assert reason in said
    assert said.startswith(f"{path} is no tune table: ")
    assert said.endswith("; make one with plait tune")
    assert said.isprintable()
    assert len(said) < 600


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"tune table .*none\.json cannot be read: No such file.*; make one with plait tune"
    ):
        read_table(tmp_path / "none.json")


# Which table an engine uses


class Engine:
    """A loaded executor and a cache folder."""

    def __init__(self, folder: Path) -> None:
        program = native.decoder()
        self.executor = loaded(program, native.table_in(program, formats.Q8_0), [])
        self.folder = folder
        self.key = tune_key(self.executor, "here")
        self.path = self.key.path(folder)

    def table(self, **key: str) -> TuneTable:
        blocks = {self.key.products[0]: {3: GemmBlocks(8, 2)}}
        return TuneTable(replace(self.key, **key), Blocking(UnitSizes(), blocks))  # type: ignore[arg-type]

    def uses(self, wanted: str) -> str:
        return use_table(self.executor, wanted, self.folder, "here")


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def test_without_a_table_it_is_built_in_estimates(engine: Engine) -> None:
    assert engine.uses("auto") == "units by built-in estimates; plait tune looks for better ones"


def test_the_machines_own_table_is_used_unless_nobody_wants_it(engine: Engine) -> None:
    write_table(engine.table(), engine.path)
    assert engine.uses("auto") == f"units by 1 measured entry of {engine.path}"
    assert engine.uses("none") == "units by built-in estimates: --tune-table none"


def test_a_named_table_out_of_its_limits_is_named_with_the_way_out(engine: Engine) -> None:
    path = engine.folder / "mine.json"
    write_table(replace(engine.table(), blocking=Blocking(UnitSizes(smallest_us=0.0))), path)
    with pytest.raises(UsageError, match=r"mine\.json: .* smallest_us is 0 but must be .*; make one with plait tune"):
        engine.uses(str(path))


def spoil_text(engine: Engine) -> None:
    engine.path.write_text("{")


def spoil_key(engine: Engine) -> None:
    write_table(engine.table(processor="elsewhere"), engine.path)


def spoil_limits(engine: Engine) -> None:
    table = engine.table()
    write_table(replace(table, blocking=replace(table.blocking, sizes=UnitSizes(smallest_us=0.0))), engine.path)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_text, "is no tune table: "),
        (spoil_key, "was measured for something else"),
        (spoil_limits, "the tune table cannot be used: smallest_us is 0 but must be between 0.1 and 100000"),
    ],
)
def test_a_spoilt_table_is_left_alone_with_one_line(
    spoil: Callable[[Engine], None], reason: str, engine: Engine
) -> None:
    write_table(engine.table(), engine.path)
    spoil(engine)
    said = engine.uses("auto")
    assert said.startswith("units by built-in estimates: ")
    assert reason in said
    assert "\n" not in said


def test_a_folder_that_cannot_be_looked_into_keeps_nobody_from_starting(engine: Engine) -> None:
    said = use_table(engine.executor, "auto", engine.folder / ("long" * 100), "here")
    assert said.startswith("units by built-in estimates: ")
    assert "File name too long" in said


def test_a_file_that_was_named_is_used_wherever_it_was_measured_but_must_be_good(engine: Engine) -> None:
    named = engine.folder / "named.json"
    write_table(engine.table(), named)
    assert engine.uses(str(named)) == f"units by 1 measured entry of {named}"
    write_table(engine.table(processor="elsewhere"), named)
    assert engine.uses(str(named)) == f"units by 1 measured entry of {named}, which was measured elsewhere"
    named.write_text("{}")
    with pytest.raises(UsageError, match="is no tune table"):
        engine.uses(str(named))


def test_numbers_out_of_their_limits_are_refused(engine: Engine) -> None:
    for blocks, reason in (
        (GemmBlocks(0, 1), "most_rows is 0"),
        (GemmBlocks(1, 2_000_000), "panels_per_block is 2e.06"),
    ):
        with pytest.raises(
            UsageError, match=f"the tune table cannot be used: {reason} but must be between 1 and 1e.06"
        ):
            engine.executor.retune(Blocking(UnitSizes(), {engine.key.products[0]: {0: blocks}}))
