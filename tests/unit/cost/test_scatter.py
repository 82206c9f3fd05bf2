"""Scatter: spells over time, single steps in them, and draws that depend on a seed and a number alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import UsageError
from plait.cost.fields import Fields
from plait.cost.scatter import RESTED_S, Replay, Scatter, evenly, quantile, read_scatter

CALM = Scatter((2.0, 1.0), (1.0, 2.0), (0.0,), (0.0,), 0.25)
"""Two seconds as priced, one at half the speed."""


def factor(replay: Replay, at_s: float, price_s: float) -> float:
    found, more_s = replay.departs(0, at_s, price_s, 0.0)
    assert more_s == 0.0
    return found


def began(scatter: Scatter) -> float:
    """Where in the record a replay with seed 0 begins, found by its first change."""
    replay = Replay(scatter)
    step_s = 1e-3
    slow = [factor(replay, place * step_s, step_s) for place in range(3001)]
    change = next(place for place in range(1, 3001) if slow[place] < 1.01 < slow[place - 1])
    return 3.0 - change * step_s


def test_a_step_takes_what_the_spells_say_that_it_runs_in() -> None:
    replay, from_s = Replay(CALM), began(CALM)
    at_s = 3.0 - from_s  # the record begins anew
    assert factor(replay, at_s, 1.5) == pytest.approx(1.0, abs=2e-3)
    assert factor(replay, at_s + 2.0, 1.0) == pytest.approx(2.0, abs=2e-3)
    assert factor(replay, at_s + 1.0, 2.0) == pytest.approx(1.5, abs=2e-3)
    assert factor(replay, at_s + 3e6, 3.0) == pytest.approx(4 / 3)


@given(st.floats(0, 1e5), st.integers(0, 9))
def test_over_whole_rounds_steps_take_the_mean(at_s: float, seed: int) -> None:
    replay = Replay(CALM, seed)
    assert factor(replay, at_s, 6.0) == pytest.approx(4 / 3)
    pieces = [factor(replay, at_s + 0.1 * place, 0.1) for place in range(30)]
    assert sum(pieces) / 30 == pytest.approx(4 / 3)


def test_draws_follow_from_seed_and_number_and_have_the_measured_distribution() -> None:
    scatter = Scatter((1.0,), (1.0,), (-2e-4, 0.0, 6e-4), (1e-4, 2e-4, 9e-4), 0.0)

    def drawn() -> list[float]:
        return sorted(Replay(scatter).departs(number, 0.0, 1.0, 0.0)[1] for number in range(4000))

    found = drawn()
    assert found == drawn()
    assert -2e-4 <= found[0] <= found[-1] <= 6e-4
    assert quantile(found, 0.25) == pytest.approx(-1e-4, abs=2e-5)
    assert quantile(found, 0.75) == pytest.approx(3e-4, abs=4e-5)
    late = sorted(Replay(scatter, 3).late_s(number) for number in range(4000))
    assert quantile(late, 0.5) == pytest.approx(2e-4, rel=0.05)
    assert [Replay(scatter, 1).late_s(n) for n in range(9)] != [Replay(scatter, 2).late_s(n) for n in range(9)]


def test_a_rest_costs_the_step_after_it() -> None:
    assert Replay(CALM).departs(0, 0.0, 1.0, RESTED_S)[1] == 0.25
    assert Replay(CALM).departs(0, 0.0, 1.0, RESTED_S / 2)[1] == 0.0


def test_many_values_become_two_hundred_of_the_same_distribution() -> None:
    assert evenly([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)
    many = evenly([float(value) for value in range(10_000)][::-1])
    assert len(many) == 200
    assert sum(many) / 200 == pytest.approx(5000, rel=0.01)
    # The largest stands for the last two hundredth, not for one value in ten thousand.
    assert many[-1] == 9975.0


@pytest.mark.parametrize(
    ("field", "value"),
    [("jitter_s", [0.0, 1e308]), ("late_s", [61.0]), ("rested_s", 1e9), ("spell_s", [1e308, 1e308])],
)
def test_no_machine_departs_by_minutes_and_none_runs_for_weeks_in_one_spell(field: str, value: object) -> None:
    given: dict[str, object] = {**CALM.json_object(), field: value}
    with pytest.raises(UsageError, match=f"{field}.*at most"):
        read_scatter(Fields("mine.json", "scatter", given))
    assert read_scatter(Fields("mine.json", "scatter", CALM.json_object())) == CALM
