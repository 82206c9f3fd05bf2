"""Clients that people already have, unchanged but for the base URL. They are not among what Plait needs, so these tests
run where they are installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pydantic
import pytest
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.test_server_tools import TEMPLATE
from tests.e2e.tiny_model import HIDDEN, write_tiny_model

# Warnings of other packages are not ours to fix.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MESSAGES = [{"role": "user", "content": "Say something"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    tiny: Path = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", template=TEMPLATE, context=2048)
    with serving(tiny, "--api-key", "secret") as running:
        yield running


def text_of(server: ServerProcess) -> str:
    with openai.OpenAI(base_url=server.url, api_key="secret") as sdk:
        told = sdk.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=12)  # type: ignore[arg-type]
    return told.choices[0].message.content or ""


def test_litellm(server: ServerProcess) -> None:
    litellm = pytest.importorskip("litellm")
    asked = {
        "model": "openai/tiny",
        "api_base": server.url,
        "api_key": "secret",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 12,
    }
    whole = litellm.completion(**asked)
    assert whole.choices[0].message.content == text_of(server)
    assert whole.usage.completion_tokens == 12
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)]
    assert "".join(pieces) == text_of(server)
    vectors = litellm.embedding(model="openai/tiny", api_base=server.url, api_key="secret", input=["a", "b"])
    assert [len(one["embedding"]) for one in vectors.data] == [HIDDEN, HIDDEN]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**asked, "messages": [{"role": "user", "content": "x" * 3000}]})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**asked, "api_key": "wrong"})


class Move(pydantic.BaseModel):
    """What instructor is to fill in. A model with random weights would add fields for ever where it may."""

    model_config = pydantic.ConfigDict(extra="forbid")

    far: bool
    to: str = pydantic.Field(pattern="^(left|right)$")


@pytest.mark.parametrize("mode", ["JSON_SCHEMA", "TOOLS_STRICT"])
def test_instructor(server: ServerProcess, mode: str) -> None:
    instructor = pytest.importorskip("instructor")
    with openai.OpenAI(base_url=server.url, api_key="secret") as sdk:
        client = instructor.from_openai(sdk, mode=instructor.Mode[mode])
        made = client.create(
            model="tiny", messages=MESSAGES, response_model=Move, max_tokens=900, seed=5, max_retries=0
        )
    assert made.to in ("left", "right")
