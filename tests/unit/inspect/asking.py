"""Asking `plait inspect memory` as a program would: a command line in, its JSON out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plait.cli.main import main

Answer = dict[str, Any]

JAMBA: Mapping[str, object] = {
    "model_type": "jamba",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "max_position_embeddings": 262144,
}


def ask(capsys: pytest.CaptureFixture[str], model: str | Path, *arguments: str) -> Answer:
    """The JSON of `plait inspect memory MODEL ...`; memory is 24 GiB unless the arguments say otherwise."""
    memory = () if "--memory" in arguments else ("--memory", "24GiB")
    code = main(["inspect", "memory", str(model), *memory, *arguments, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    answer: Answer = json.loads(out)
    return answer


def write_config(folder: Path, values: Mapping[str, object], name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def layout(answer: Answer, name: str) -> Answer:
    return next(one for one in answer["layouts"] if one["name"] == name)


def cut(answer: Answer, layout_name: str, group: str) -> Answer:
    """How a layout cuts a group, by the beginning of the group's name."""
    return next(one for one in layout(answer, layout_name)["groups"] if one["name"].startswith(group))


def alone(answer: Answer, name: str, place: int = 0) -> Answer:
    """What a layout reserves for one sequence of a length."""
    found: Answer = layout(answer, name)["lengths"][place]["alone"]
    return found
