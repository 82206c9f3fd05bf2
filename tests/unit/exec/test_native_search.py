"""The search for better settings, with made-up times: what is faster is found, and noise is not taken for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from plait.exec.native.search import Effort, best_of, compare

EFFORT = Effort(num_rough=2, num_finalists=2, num_pairs=9)


def times(usual: Mapping[str, float], spread: float = 0.0, seed: int = 0) -> Callable[[str], float]:
    """Samples: what a setting usually takes, and up to `spread` times as much."""
    dice = random.Random(seed)
    return lambda setting: usual[setting] * (1.0 + dice.random() * spread)


def test_the_fastest_is_found_and_its_gain_told() -> None:
    choice = best_of(
        "now", ["slow", "fast", "same"], times({"now": 1.0, "slow": 1.2, "fast": 0.8, "same": 1.0}), EFFORT
    )
    assert choice is not None
    assert choice.setting == "fast"
    assert choice.gain.median == pytest.approx(1.25)
    assert choice.gain.is_real
    assert (choice.present_s, choice.setting_s) == (1.0, 0.8)
    assert str(choice.gain) == "1.250 (1.250 to 1.250)"


def test_a_gain_that_is_not_worth_an_entry_is_none() -> None:
    choice = best_of("now", ["little"], times({"now": 1.0, "little": 0.99}), EFFORT)
    assert choice is not None
    assert not choice.gain.is_real


@pytest.mark.parametrize("num_others", [1, 2, 7])
def test_the_number_of_samples_is_known_in_advance(num_others: int) -> None:
    taken: list[str] = []

    def seconds(setting: str) -> float:
        taken.append(setting)
        return 1.0

    best_of("now", [str(place) for place in range(num_others)], seconds, EFFORT)
    assert len(taken) == EFFORT.num_samples(num_others)


def test_without_others_there_is_nothing_to_choose() -> None:
    assert best_of("now", [], times({"now": 1.0}), EFFORT) is None


@pytest.mark.parametrize("spread", [0.05, 0.5, 5.0])
def test_settings_that_are_the_same_hardly_ever_seem_better_however_noisy_the_machine(spread: float) -> None:
    names = [str(place) for place in range(8)]
    usual = dict.fromkeys(["now", *names], 1.0)
    choices = [best_of("now", names, times(usual, spread, seed), EFFORT) for seed in range(60)]
    assert sum(choice is not None and choice.gain.is_real for choice in choices) <= 4


def test_a_machine_that_becomes_slower_and_slower_favours_nobody() -> None:
    clock = [1.0]

    def seconds(setting: str) -> float:
        clock[0] *= 1.01
        return clock[0]

    gain = compare("now", "other", seconds, 9).gain
    assert gain.median == pytest.approx(1.0, abs=0.011)
    assert not gain.is_real
    assert not gain.is_loss


def test_a_loss_is_told_from_noise_too() -> None:
    assert compare("now", "slow", times({"now": 1.0, "slow": 1.1}), 9).gain.is_loss
    assert not compare("now", "slow", times({"now": 1.0, "slow": 1.01}), 9).gain.is_loss
