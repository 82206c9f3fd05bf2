"""Every family against `transformers` itself: models that it initialised, saved and decodes, and its defaults."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.families import CASES, FamilyCase, FamilyModel, Floats, logits_of, stored_tensor
from tests.conformance.test_families import ALLOWED_ERROR, CLEAR, EXECUTORS, by_case

from plait.exec.scoring import LogitsTap
from plait.model.config import HF_MODEL_TYPES, config_from_hf
from plait.model.families import build_program
from plait.model.program import expected_weights
from plait.weights.hf_names import load_hf_weights

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_family_goldens.py"
NUM_PROMPT, NUM_GREEDY = 24, 64
SPREAD = 0.25
"""Of initial weights: so wide that tiny models decide clearly."""


def saved_checkpoint(case: FamilyCase, folder: Path) -> tuple[FamilyModel, Callable[[list[int]], Floats]]:
    """What `transformers` saves of a model that it initialised, read by us; and its forward."""
    import torch
    from safetensors.numpy import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(case.number)
    values = {key: value for key, value in case.config.items() if key != "model_type"}
    made = AutoConfig.for_model(case.model_type, **values, initializer_range=SPREAD)
    made._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(made, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config_from_hf(written)
    config = config if case.longest is None else config.within(case.longest)
    program = build_program(config)
    tensors = load_file(folder / "model.safetensors")
    stored = {name: stored_tensor(name, array) for name, array in tensors.items()}
    weights = load_hf_weights(stored, expected_weights(program), config, folder, "0" * 64)

    def forward(tokens: list[int]) -> Floats:
        with torch.inference_mode():
            return np.asarray(model(torch.tensor([tokens]), use_cache=False).logits[0].numpy(), np.float32)

    return FamilyModel(config, program, tensors, weights), forward


@by_case
def test_logits_and_greedy_tokens_are_those_of_a_saved_model(tmp_path: Path, case: FamilyCase) -> None:
    model, forward = saved_checkpoint(case, tmp_path)
    tokens = [int(token) for token in np.random.default_rng(case.number).integers(3, 131, NUM_PROMPT)]
    for _ in range(NUM_GREEDY):
        tokens.append(int(forward(tokens)[-1].argmax()))
    wanted = forward(tokens)[:-1]
    allowed = ALLOWED_ERROR * float(abs(wanted).max())
    best = np.sort(wanted, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > CLEAR * allowed
    for make in EXECUTORS.values():
        tap = LogitsTap()
        given = logits_of(make(tap), tap, model, tuple(tokens), model.weights)
        assert abs(given - wanted).max() <= allowed
        assert (given.argmax(axis=1) == wanted.argmax(axis=1))[clear].all()
        # What goes on greedily stands behind the prompt's last token.
        assert (given.argmax(axis=1)[NUM_PROMPT - 1 :] == tokens[NUM_PROMPT:])[clear[NUM_PROMPT - 1 :]].all()


def test_the_text_part_of_a_model_that_reads_images_is_the_text_model(tmp_path: Path) -> None:
    import torch
    from safetensors.numpy import load_file
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    case = next(one for one in CASES if one.model_type == "gemma3_text")
    text = {key: value for key, value in case.config.items() if key != "model_type"}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"image_size": 28, "patch_size": 14}
    torch.manual_seed(1)
    made = Gemma3Config(
        text_config={**text, "initializer_range": SPREAD},
        vision_config={**vision, **sizes},
        mm_tokens_per_image=1,
        image_token_index=130,
        attn_implementation="eager",
    )
    model = Gemma3ForConditionalGeneration._from_config(made, dtype=torch.float32).eval()
    model.save_pretrained(tmp_path)
    config = config_from_hf(json.loads((tmp_path / "config.json").read_text(encoding="utf-8")))
    program = build_program(config)
    tensors = load_file(tmp_path / "model.safetensors")
    stored = {name: stored_tensor(name, array) for name, array in tensors.items()}
    weights = load_hf_weights(stored, expected_weights(program), config, tmp_path, "0" * 64)
    tokens = [int(token) for token in np.random.default_rng(1).integers(3, 130, 40)]
    with torch.inference_mode():
        wanted = np.asarray(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1].numpy(), np.float32)
    for make in EXECUTORS.values():
        tap = LogitsTap()
        given = logits_of(make(tap), tap, FamilyModel(config, program, tensors, weights), tuple(tokens), weights)
        assert abs(given - wanted).max() <= ALLOWED_ERROR * abs(wanted).max()


@by_case
def test_a_saved_configuration_is_read_like_the_one_it_was_made_from(tmp_path: Path, case: FamilyCase) -> None:
    from transformers import AutoConfig

    values = {key: value for key, value in case.config.items() if key != "model_type"}
    AutoConfig.for_model(case.model_type, **values).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config_from_hf(written) == config_from_hf(case.config)


@pytest.mark.parametrize("model_type", HF_MODEL_TYPES)
def test_missing_keys_have_the_defaults_of_transformers(model_type: str) -> None:
    from transformers import AutoConfig

    theirs: Mapping[str, object] = AutoConfig.for_model(model_type).to_dict()
    for key, value in HF_MODEL_TYPES[model_type].defaults.items():
        # Theirs stands in a table by now, and a window that is not used is none.
        if key == "rope_theta" or (key == "sliding_window" and theirs.get("use_sliding_window") is False):
            continue
        assert theirs[key] == value, key
    bare = config_from_hf({"model_type": model_type})
    assert bare == config_from_hf(theirs)


def test_the_goldens_are_what_the_script_makes() -> None:
    script = runpy.run_path(str(SCRIPT))
    assert script["main"](["--check"]) == 0
