"""The service behind `LLM`: what waits when it is closed is told, and nothing is started afterwards."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.core.errors import EngineStopped, RequestError
from plait.llm.loading import load_engine
from plait.llm.service import Service


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(load_engine(write_tiny_model(tmp_path / "tiny.gguf"), {"kv_cache_memory": "4MiB"}))


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fail() -> int:
    raise RequestError("no")


def test_work_is_waited_for_and_its_errors_come_up_here(service: Service) -> None:
    assert service.run(answer(3)) == 3
    with pytest.raises(RequestError, match="no"):
        service.run(fail())
    service.close()


def test_whoever_waits_is_told_of_the_end(service: Service) -> None:
    waits = threading.Event()

    async def for_ever() -> None:
        waits.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor() as pool:
        call = pool.submit(service.run, for_ever())
        assert waits.wait(60)
        service.close()
        with pytest.raises(EngineStopped, match="was closed"):
            call.result(60)


def test_nothing_starts_on_a_closed_one_and_closing_twice_is_nothing_new(service: Service) -> None:
    service.close()
    service.close()
    with pytest.raises(EngineStopped, match="was closed"):
        service.run(answer(1))
