"""Models of a hub: fetched once from a hub on this machine through its library, only what is needed, or explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from tests.e2e.tiny_checkpoint import write_tiny_checkpoint
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.weights.fake_hub import COMMIT, TOKEN, FakeHub, serving

from plait.core.errors import ModelError
from plait.weights.sources import resolve_model
from plait.weights.stores import Stores

PROGRAM = """
import json, sys
from pathlib import Path
from plait.core.errors import ModelError
from plait.weights.sources import resolve_model
from plait.weights.stores import stores_here

try:
    found = resolve_model("org/tiny", Path("cache"), stores=stores_here())
    print(json.dumps({"path": str(found.path), "name": found.name, "notes": found.notes}))
except ModelError as error:
    print(json.dumps({"error": str(error)}))
"""


@dataclass(frozen=True)
class User:
    """Somebody with a home folder and a hub."""

    home: Path
    hub: FakeHub

    def asks(self, name: str, revision: str = "", **variables: str) -> dict[str, object]:
        """The answer in this process, with the variables as the library reads them when it is imported."""
        told = {"HF_ENDPOINT": self.hub.address, **variables}
        address = told.pop("HF_ENDPOINT")
        seen: list[list[int]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.home)
            patch.setattr(constants, "ENDPOINT", address)
            patch.setattr(
                constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
            )
            patch.setattr(constants, "HF_URL_HOSTS", frozenset({str(urlsplit(address).hostname)}))
            patch.setattr(constants, "HF_HUB_OFFLINE", told.pop("HF_HUB_OFFLINE", "") == "1")
            patch.setattr(constants, "HF_TOKEN_PATH", str(self.home / "token"))
            patch.setattr("time.sleep", lambda seconds: None)
            patch.delenv("HF_TOKEN", raising=False)
            for variable, value in told.items():
                patch.setenv(variable, value)
            try:
                found = resolve_model(
                    name,
                    self.home / "cache",
                    lambda now, total: seen.append([now, total]),
                    revision=revision or None,
                    stores=Stores(hub=self.home / "hf" / "hub"),
                )
            except ModelError as error:
                return {"error": str(error), "seen": seen}
        return {"path": str(found.path), "name": found.name, "notes": list(found.notes), "seen": seen}

    def commands(self, **variables: str) -> dict[str, object]:
        """The same in a process of its own, with nothing but variables."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "XDG_"))}
        told = {"HF_HOME": str(self.home / "hf"), "HF_ENDPOINT": self.hub.address, "HOME": str(self.home)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            cwd=self.home,
            env={**kept, **told, **variables},
            timeout=100,
        )
        assert (done.returncode, done.stderr) == (0, "")
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer

    def path(self, name: str, revision: str = "", **variables: str) -> Path:
        answer = self.asks(name, revision, **variables)
        assert "path" in answer, answer
        return Path(str(answer["path"]))

    def refused(self, name: str, revision: str = "", **variables: str) -> str:
        answer = self.asks(name, revision, **variables)
        assert "error" in answer, answer
        assert "\n" not in str(answer["error"])
        return str(answer["error"])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", shards=2)
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf").read_bytes()


@pytest.fixture
def user(tmp_path: Path, checkpoint: dict[str, bytes]) -> Iterator[User]:
    others = {"README.md": b"read me", "pytorch_model.bin": bytes(5000), "consolidated.00.pth": bytes(5000)}
    with serving(FakeHub({**checkpoint, **others})) as hub:
        yield User(tmp_path, hub)
    close_session()


@pytest.fixture
def gguf_user(tmp_path: Path, gguf: bytes) -> Iterator[User]:
    names = [
        "tiny-Q4_K_M.gguf",
        "tiny-Q8_0-00001-of-00002.gguf",
        "tiny-Q8_0-00002-of-00002.gguf",
        "mmproj-tiny-F16.gguf",
    ]
    with serving(FakeHub({name: gguf + name.encode() for name in names})) as hub:
        yield User(tmp_path, hub)
    close_session()


def test_a_checkpoint_is_fetched_once_and_only_what_it_is_read_from(user: User, checkpoint: dict[str, bytes]) -> None:
    answer = user.asks("org/tiny")
    folder = Path(str(answer["path"]))
    assert (answer["name"], answer["notes"]) == ("org/tiny", [])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == checkpoint
    assert folder.is_relative_to(user.home / "hf" / "hub" / "models--org--tiny" / "snapshots" / COMMIT)
    seen = answer["seen"]
    total = sum(len(raw) for name, raw in checkpoint.items() if name.endswith(".safetensors"))
    assert isinstance(seen, list)
    assert seen == sorted(seen)
    assert seen[-1] == [total, total]
    before = len(user.hub.requests)
    again = user.asks("hf:org/tiny")
    assert (again["path"], again["seen"]) == (answer["path"], [])
    assert user.hub.requests[before:] == ["GET /api/models/org/tiny/revision/main"]


def test_a_broken_transfer_is_taken_up_where_it_broke(user: User, checkpoint: dict[str, bytes]) -> None:
    user.hub.breaks = 2
    folder = user.path("org/tiny")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == checkpoint


def test_without_a_network_what_was_fetched_is_used_and_said_so(user: User) -> None:
    message = user.refused("org/tiny", HF_HUB_OFFLINE="1")
    assert message.startswith(f"org/tiny: not in {user.home / 'hf' / 'hub'} and HF_HUB_OFFLINE is set; fetch it where")
    assert user.hub.requests == []
    path = user.path("org/tiny")
    before = len(user.hub.requests)
    answer = user.asks("org/tiny", HF_HUB_OFFLINE="1")
    assert answer["path"] == str(path)
    assert answer["notes"] == [f"HF_HUB_OFFLINE is set: org/tiny is the commit {COMMIT[:12]} of the cache"]
    assert len(user.hub.requests) == before
    nobody = user.asks("org/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert nobody["path"] == str(path)
    assert str(nobody["notes"]).startswith("['the hub does not answer (Connection refused): org/tiny is the commit")
    user.hub.status = 503
    assert "the hub answers 503" in str(user.asks("org/tiny")["notes"])


def test_a_half_cached_model_is_no_model(user: User) -> None:
    folder = user.path("org/tiny")
    (folder / "model-00002-of-00002.safetensors").resolve().unlink()
    message = user.refused("org/tiny", HF_HUB_OFFLINE="1")
    assert message.startswith("org/tiny: not whole in the cache, and HF_HUB_OFFLINE is set (")
    before = user.hub.downloads()
    assert user.path("org/tiny") == folder
    assert user.hub.downloads() == [*before, "model-00002-of-00002.safetensors"]


def test_gated_private_and_unknown_models_are_told_apart_as_far_as_the_hub_does(user: User) -> None:
    user.hub.gated = True
    assert user.refused("org/tiny") == (
        "org/tiny on the hub is gated; accept its terms on its page there, and set HF_TOKEN to a token of that account"
    )
    assert user.path("org/tiny", HF_TOKEN=TOKEN).is_dir()
    expected = (
        "there is no file or directory org/other here, and the hub has no such model or keeps it private; check the "
        "name, or set HF_TOKEN"
    )
    assert user.refused("org/other") == expected
    assert user.refused("org/other", HF_TOKEN=TOKEN) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (404, "the hub answers 404, as one that knows no such page; check the name and HF_ENDPOINT"),
        (403, "the hub answers 403; set HF_TOKEN"),
        (429, "the hub answers 429 ("),
        (500, "and the hub answers 500; fetch"),
    ],
)
def test_other_refusals_of_the_hub_are_one_line(user: User, status: int, expected: str) -> None:
    user.hub.status = status
    assert expected in user.refused("org/tiny")


def test_a_revision_is_a_branch_a_tag_or_a_commit(user: User) -> None:
    assert user.path("org/tiny", "v1").name == "f" * 40
    assert user.path("org/tiny", COMMIT).name == COMMIT
    assert user.path("org/tiny", "v1", HF_HUB_OFFLINE="1").name == "f" * 40
    assert user.refused("org/tiny", "v2") == "org/tiny on the hub has no revision 'v2'; give another --revision"
    assert user.refused("org/tiny", "../x").startswith("--revision is '../x'; give a branch")


def test_bytes_that_are_not_those_of_the_listing_are_removed(user: User, checkpoint: dict[str, bytes]) -> None:
    shard = "model-00001-of-00002.safetensors"
    user.hub.forged[shard] = bytes(len(checkpoint[shard]))
    assert f"{shard} has not the sha256" in user.refused("org/tiny")
    user.hub.forged.clear()
    assert (user.path("org/tiny") / shard).read_bytes() == checkpoint[shard]


def test_a_length_that_is_not_that_of_the_listing_is_refused(user: User) -> None:
    user.hub.claims["model-00001-of-00002.safetensors"] = 123_456
    assert "cannot be fetched (Consistency check failed: file should be of size 123456" in user.refused("org/tiny")


def test_an_index_and_names_that_lead_elsewhere_are_refused(user: User) -> None:
    user.hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": "../../x.safetensors"}}).encode()
    assert "no .safetensors file of the same directory" in user.refused("org/tiny")
    user.hub.branches["main"] = "../" * 20
    assert "the hub calls its commit" in user.refused("org/tiny")


def test_the_variables_of_the_library_are_its_own(user: User) -> None:
    assert "HF_HUB_OFFLINE is set" in str(user.commands(HF_HUB_OFFLINE="1")["error"])
    assert user.hub.requests == []
    user.hub.gated = True
    answer = user.commands(HF_TOKEN=TOKEN)
    assert Path(str(answer["path"])).is_relative_to(user.home / "hf" / "hub")


def test_a_web_page_is_no_hub(user: User) -> None:
    user.hub.repository = "org/other"
    assert "hub has no such model" in user.refused("org/tiny")


def test_a_link_that_leads_out_of_the_cache_is_not_followed(user: User) -> None:
    folder = user.path("org/tiny")
    secret = user.home / "secret"
    secret.write_text("{}")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(secret)
    assert f"{folder / 'config.json'}: leads out of the cache" in user.refused("org/tiny")


def test_pickles_alone_are_refused_and_not_fetched(user: User) -> None:
    for name in [name for name in user.hub.files if "safetensors" in name]:
        del user.hub.files[name]
    assert "weights only as consolidated.00.pth, a pickle" in user.refused("org/tiny")
    assert user.hub.downloads() == []


def test_of_several_quantisations_one_is_named(gguf_user: User, gguf: bytes) -> None:
    assert gguf_user.refused("org/tiny") == (
        "org/tiny on the hub: 2 models: Q4_K_M, Q8_0; say which, such as org/tiny:Q4_K_M"
    )
    assert gguf_user.refused("org/tiny:Q5_K_M") == "org/tiny on the hub: no file in Q5_K_M; there are Q4_K_M, Q8_0"
    path = gguf_user.path("org/tiny:q4_k_m")
    assert (path.name, path.read_bytes()) == ("tiny-Q4_K_M.gguf", gguf + b"tiny-Q4_K_M.gguf")
    split = gguf_user.path("org/tiny/tiny-Q8_0-00001-of-00002.gguf")
    assert sorted(file.name for file in split.parent.iterdir()) == [
        "tiny-Q4_K_M.gguf",
        "tiny-Q8_0-00001-of-00002.gguf",
        "tiny-Q8_0-00002-of-00002.gguf",
    ]
    assert gguf_user.path("org/tiny:Q8_0", HF_HUB_OFFLINE="1") == split
    assert "no file tiny-Q2_K.gguf in it; there are mmproj-tiny-F16.gguf" in gguf_user.refused(
        "org/tiny/tiny-Q2_K.gguf"
    )


def test_a_checkpoint_has_no_quantisation(user: User) -> None:
    assert "no .gguf files, so none in Q4_K_M" in user.refused("org/tiny:Q4_K_M")


def test_a_path_that_is_here_is_never_looked_up(user: User) -> None:
    (user.home / "org").mkdir()
    assert user.refused("org/tiny") == (
        "org/tiny: no such file or directory; check the path, or write hf:org/tiny for a model of the hub"
    )
    assert user.refused("smollm2", "v1") == "--revision is 'v1' but 'smollm2' is no model of a hub; leave it out"
    assert user.hub.requests == []
