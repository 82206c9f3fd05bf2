"""The inbox: everything that was put is drained once, in order, by whoever it woke; the null outbox takes anything."""

from __future__ import annotations

import threading

from plait.core.client import Delta
from plait.core.clock import WaitSource
from plait.core.ids import RequestId
from plait.engine.inbox import Abort, Close, Inbox, Message
from plait.engine.outbox import NullOutbox, Outbox

PATIENCE_S = 30.0


def test_messages_come_out_once_and_in_order() -> None:
    inbox = Inbox()
    messages: list[Message] = [Abort(RequestId("a")), Close(), Abort(RequestId("b"))]
    for message in messages:
        inbox.put(message)
    assert inbox.ready()
    assert inbox.drain() == messages
    assert not inbox.ready()
    assert inbox.drain() == []


def test_putting_wakes_everyone_who_subscribed_and_finds_the_message_there() -> None:
    inbox, seen = Inbox(), []
    inbox.subscribe(lambda: seen.append(("first", inbox.ready())))
    inbox.subscribe(lambda: seen.append(("second", inbox.ready())))
    inbox.put(Close())
    assert seen == [("first", True), ("second", True)]


def test_a_waker_may_drain_because_no_lock_is_held() -> None:
    inbox, taken = Inbox(), []
    inbox.subscribe(lambda: taken.extend(inbox.drain()))
    inbox.put(Close())
    assert taken == [Close()]


def test_nothing_is_lost_when_many_put_at_once() -> None:
    inbox, num_putters, each = Inbox(), 8, 200

    def put_all(putter: int) -> None:
        for number in range(each):
            inbox.put(Abort(RequestId(f"{putter}-{number}")))

    putters = [threading.Thread(target=put_all, args=(putter,), daemon=True) for putter in range(num_putters)]
    for thread in putters:
        thread.start()
    drained: list[str] = []
    while any(thread.is_alive() for thread in putters):
        drained += [message.request for message in inbox.drain() if isinstance(message, Abort)]
    for thread in putters:
        thread.join(PATIENCE_S)
    drained += [message.request for message in inbox.drain() if isinstance(message, Abort)]
    assert len(drained) == num_putters * each
    for putter in range(num_putters):
        own = [request for request in drained if request.startswith(f"{putter}-")]
        assert own == [f"{putter}-{number}" for number in range(each)]


def test_an_inbox_is_a_wait_source_that_nothing_but_a_message_makes_ready() -> None:
    source: WaitSource = Inbox()
    assert source.next_s() is None
    assert not source.ready()


def test_nobody_needs_to_listen() -> None:
    outbox: Outbox = NullOutbox()
    outbox.put(RequestId("r"), Delta(0, "text", (1,)))
    outbox.flush()
