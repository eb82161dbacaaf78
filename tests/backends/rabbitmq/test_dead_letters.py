"""Listing and removing dead letters, with a stand-in for a queue from which they must be taken to be seen."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pamqp.commands
import pytest

from effectonce.backends.rabbitmq import dead_letters as module
from effectonce.backends.rabbitmq.dead_letters import RabbitMQDeadLetters
from effectonce.backends.rabbitmq.endpoint import RabbitMQEndpoint
from effectonce.backends.rabbitmq.properties import make_properties
from effectonce.backends.rabbitmq.queues import QueueDeclarations
from effectonce.values.urls import Address


class Queue:
    """A queue of dead letters, and a channel on which they are taken, acked and requeued in front of the others."""

    commands = pamqp.commands
    lost: Exception | None = None

    def __init__(self, *ids: str) -> None:
        self.waiting = deque((id, False) for id in ids)
        self.taken: dict[int, str] = {}
        self.acked: list[str] = []
        self.gets = 0
        self._tags = 0

    async def call(self, *commands: Any) -> list[Any]:
        return [self._answer(command) for command in commands]

    def _answer(self, command: Any) -> Any:
        if command.name == "Queue.Declare":
            return SimpleNamespace(message_count=len(self.waiting))
        self.gets += 1
        if not self.waiting:
            return SimpleNamespace(name="Basic.GetEmpty")
        id, redelivered = self.waiting.popleft()
        self._tags += 1
        self.taken[self._tags] = id
        headers = [("eo-letter", id)] if id else [("x-first-death-reason", "expired")]
        frame = SimpleNamespace(name="Basic.GetOk", delivery_tag=self._tags, redelivered=redelivered)
        return frame, bytes(12) + make_properties("id", headers), id.encode()

    def ack(self, tags: Any) -> None:
        self.acked += [self.taken.pop(tag) for tag in tags]

    def requeue(self, tags: Any) -> None:
        self.waiting.extendleft(reversed([(self.taken.pop(tag), True) for tag in tags]))

    def ids(self) -> list[str]:
        return [id for id, _ in self.waiting]


def listing_of(queue: Queue) -> RabbitMQDeadLetters:
    declarations = QueueDeclarations(RabbitMQEndpoint(Address("amqp://h")), "quorum", "", True)
    dead_letters = RabbitMQDeadLetters(declarations, "q")

    async def open() -> Any:
        async def open_channel() -> Queue:
            return queue

        async def close() -> None:
            pass

        return SimpleNamespace(lost=None, open_channel=open_channel, close=close)

    dead_letters._connection._open = open
    return dead_letters


def ids_of(page: Any) -> list[str]:
    return [dead_letter.id for dead_letter in page]


async def test_a_listing_shows_all_page_by_page_and_puts_them_back_in_their_order() -> None:
    queue = Queue("a", "b", "c", "d", "e")
    dead_letters = listing_of(queue)
    page, cursor = await dead_letters.browse(2)
    assert (ids_of(page), cursor) == (["a", "b"], "b")
    assert queue.ids() == ["d", "e"]  # one more was taken, to know that there is a next page
    assert await dead_letters.count() == 5
    page, cursor = await dead_letters.browse(2, cursor)
    assert (ids_of(page), cursor) == (["c", "d"], "d")
    page, cursor = await dead_letters.browse(2, cursor)
    assert (ids_of(page), cursor) == (["e"], None)
    assert queue.ids() == ["a", "b", "c", "d", "e"]


async def test_a_listing_that_fits_one_page_has_no_cursor() -> None:
    queue = Queue("a", "b")
    page, cursor = await listing_of(queue).browse(2)
    assert (ids_of(page), cursor, queue.ids()) == (["a", "b"], None, ["a", "b"])


async def test_a_new_listing_starts_from_the_first() -> None:
    queue = Queue("a", "b", "c")
    dead_letters = listing_of(queue)
    await dead_letters.browse(1)
    assert ids_of((await dead_letters.browse(1))[0]) == ["a"]


async def test_a_cursor_leads_on_in_another_listing_and_from_the_start_if_it_is_gone() -> None:
    queue = Queue("a", "b", "c")
    assert ids_of((await listing_of(queue).browse(9, "b"))[0]) == ["c"]
    assert queue.ids() == ["a", "b", "c"]
    assert ids_of((await listing_of(queue).browse(9, "gone"))[0]) == ["a", "b", "c"]


async def test_removing_takes_until_it_has_found_and_puts_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GET_CHUNK", 2)
    queue = Queue("a", "b", "c", "d", "e")
    assert await listing_of(queue).remove(["c"]) == 1
    assert (queue.acked, queue.ids(), queue.gets) == (["c"], ["a", "b", "d", "e"], 4)
    assert await listing_of(queue).remove(["gone", "a"]) == 1
    assert queue.ids() == ["b", "d", "e"]


async def test_removing_amid_a_listing_goes_on_with_it() -> None:
    queue = Queue("a", "b", "c", "d")
    dead_letters = listing_of(queue)
    _, cursor = await dead_letters.browse(2)
    assert await dead_letters.remove(["a", "c"]) == 2
    page, cursor = await dead_letters.browse(2, cursor)
    assert (ids_of(page), cursor) == (["d"], None)
    assert queue.ids() == ["b", "d"]


async def test_of_two_that_are_equal_one_is_removed_at_a_time() -> None:
    queue = Queue("", "")
    (first, second), _ = await listing_of(queue).browse(9)
    assert first.id == second.id
    assert first.packet.headers == {"x-first-death-reason": "expired"}
    assert await listing_of(queue).remove([first.id]) == 1
    assert len(queue.waiting) == 1


async def test_what_an_earlier_listing_requeued_is_taken_along_to_keep_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue("a", "b", "c", "d")
    queue.waiting = deque((id, id != "d") for id in "abcd")
    dead_letters = listing_of(queue)
    await dead_letters.browse(1)
    await dead_letters.close()
    assert queue.ids() == ["a", "b", "c", "d"]
    assert queue._tags == 4  # a quorum queue puts what is requeued behind what was requeued before


async def test_many_are_requeued_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEUE_CHUNK", 2)
    queue = Queue("a", "b", "c", "d", "e")
    chunks: list[int] = []
    requeue = queue.requeue
    monkeypatch.setattr(queue, "requeue", lambda tags: (chunks.append(len(tags)), requeue(tags)))
    await listing_of(queue).browse(9)
    assert chunks == [2, 2, 1]


async def test_no_more_are_requeued_at_once_than_a_quorum_queue_keeps_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(*map(str, range(30)))
    chunks: list[int] = []
    requeue = queue.requeue
    monkeypatch.setattr(queue, "requeue", lambda tags: (chunks.append(len(tags)), requeue(tags)))
    await listing_of(queue).browse(30)
    assert chunks == [25, 5]


async def test_a_listing_on_a_lost_channel_starts_anew() -> None:
    queue = Queue("a", "b", "c")
    dead_letters = listing_of(queue)
    _, cursor = await dead_letters.browse(1)
    queue.lost = ConnectionResetError()
    queue.requeue(list(queue.taken))  # as the server does
    queue.lost = None
    dead_letters._channel = None
    page, _ = await dead_letters.browse(9, cursor)
    assert ids_of(page) == ["b", "c"]
    await dead_letters.close()
