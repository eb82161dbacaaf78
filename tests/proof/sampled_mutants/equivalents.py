"""Equivalent mutants: no test can tell them from the original, or none should. Each has its reason.

A mutant is named by its file and by its line before and after; it is left out of the sample as long as the line stands
as it is written here.
"""

from __future__ import annotations

from typing import Final

#: (file, the line before, the line after): why no test can tell.
EQUIVALENTS: Final[dict[tuple[str, str, str], str]] = {
    (
        "backends/memory/store.py",
        'self.owner = b""',
        "pass",
    ): "the token changes as well, and a settlement must have both",
    (
        "backends/sqlite/store.py",
        "if 0 < op.max_attempts <= stored.attempts and self._exhaust(cursor, op, stored.token, now):",
        "if 0 <= op.max_attempts <= stored.attempts and self._exhaust(cursor, op, stored.token, now):",
    ): "without a limit the statement before has taken every record that may be taken",
    (
        "outbox/outbox.py",
        "if batch and (len(batch) == _MAX_STATEMENT_ROWS or batch_size + size > _MAX_STATEMENT_BYTES):",
        "if batch and (len(batch) == _MAX_STATEMENT_ROWS or batch_size + size >= _MAX_STATEMENT_BYTES):",
    ): "a statement may be one byte shorter",
    (
        "relay/batch_size.py",
        "if payload_bytes > 0:",
        "if payload_bytes > 1:",
    ): "a batch of one byte is not cut either way",
    (
        "http/protocol.py",
        "BODY_CHUNK_BYTES: Final = 65_536",
        "BODY_CHUNK_BYTES: Final = 131072",
    ): "how much is read at once is a question of speed",
    (
        "sagas/runner.py",
        "unknown = is_ambiguous(error, progress.unknown_since > 0 or progress.crashes > 0)",
        "unknown = is_ambiguous(error, progress.unknown_since > 1 or progress.crashes > 0)",
    ): "it is 0, or a time",
    (
        "intents/logged_intent.py",
        "self.outcome = None",
        "pass",
    ): "an intent whose outcome is recorded is not sent again, so it never starts over with one",
    (
        "intents/orphans.py",
        'if unleased_only and record.state == "claimed" and (record.lease_until or 0) > now:',
        'if unleased_only and record.state == "claimed" and (record.lease_until or 1) > now:',
    ): "a claimed record has a lease; the 0 is for the type checker",
    (
        "worker/transaction_runner.py",
        "raise  # nothing can be awaited any more; the connection's end undoes it",
        "pass  # nothing can be awaited any more; the connection's end undoes it",
    ): "the coroutine is collected, and what it raises then reaches no caller",
    (
        "worker/pause.py",
        "self.waits_for_answer = False",
        "self.waits_for_answer = True",
    ): "it saves a call of `Backoff.record_success`, which does nothing without failures",
    (
        "worker/pause.py",
        "self.waits_for_answer = False",
        "pass",
    ): "as above",
    (
        "worker/jobs.py",
        "return int(attempts) if attempts.isdecimal() and len(attempts) < 9 else 0",
        "return int(attempts) if attempts.isdecimal() and len(attempts) < 10 else 0",
    ): "no message is tried a hundred million times",
    (
        "core/codec.py",
        "if len(body) <= 2 * limit:",
        "if len(body) <= 3 * limit:",
    ): "up to what size the arguments of an error are kept is a question of taste",
    (
        "core/codec.py",
        'raise Unstorable(f"{value} has no JSON form")',
        "pass",
    ): "it is refused at the end of the function, in other words",
    (
        "backends/nats/consumer.py",
        """return await self._settle(deliveries, b'-NAK {"delay": %d}' % round(delay * 1e9) """
        """if delay > 0 else b"-NAK")""",
        """return await self._settle(deliveries, b'-NAK {"delay": %d}' % round(delay * 1e9) """
        """if delay >= 0 else b"-NAK")""",
    ): "a delay of 0 is none",
    (
        "backends/kafka/group_member.py",
        "messages = [first, *(client.consume(room - 1, 0) if room > 1 else ())] if first is not None else []",
        "messages = [first, *(client.consume(room - 2, 0) if room > 1 else ())] if first is not None else []",
    ): "the one that is left comes with the next receive",
    (
        "backends/kafka/group_member.py",
        "client.incremental_assign(assigned)",
        "pass",
    ): "the driver assigns the partitions by itself where the callback has not",
    (
        "backends/sqs/client.py",
        "MAX_CONNECTIONS: Final = 20",
        "MAX_CONNECTIONS: Final = 40",
    ): "how many connections stay open is a question of speed",
    (
        "backends/rabbitmq/properties.py",
        "if type(value) is int and -MAX_INT - 1 <= value <= MAX_INT:",
        "if type(value) is int and -MAX_INT - 2 <= value <= MAX_INT:",
    ): "a header on the wire has no smaller integer",
    (
        "inbox/handler_run.py",
        "self._is_open = False",
        "pass",
    ): "it saves a rollback of a transaction that has ended",
    (
        "backends/redis/port.py",
        "places = [str(bucket) for bucket, size in enumerate(sizes) if size[0] or str(bucket) == start]",
        "places = [str(bucket) for bucket, size in enumerate(sizes) if size[1] or str(bucket) == start]",
    ): "a bucket has an oldest record in doubt if it has any",
    (
        "backends/redis/socket.py",
        "sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)",
        "sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 2)",
    ): "every number but 0 turns it on",
    (
        "backends/rabbitmq/dead_letters.py",
        "self._held, self._unlisted, self._cursor, self._last_was_requeued = {}, deque(), None, False",
        "self._held, self._unlisted, self._cursor, self._last_was_requeued = {}, deque(), None, True",
    ): "it takes more dead letters before it requeues those that it holds, and all in their order",
    (
        "backends/kafka/producer.py",
        "continue",
        "break",
    ): "those behind it count as unconfirmed, too, and are sent again",
    (
        "relay/publish_batch.py",
        'self.outcomes[row.seq] = RowOutcome(row.seq, "waiting", span=span, refund=True)',
        "pass",
    ): "the next lease would find the row, and let it wait as long as the one before it",
    (
        "worker/routes.py",
        "BATCH_CONCURRENCY = 2",
        "BATCH_CONCURRENCY = 3",
    ): "how many transactions of many messages run at once by default is a question of speed",
    (
        "backends/servicebus/sessions.py",
        "session.locked_until = 0.0",
        "session.locked_until = 1.0",
    ): "both are long ago, by a clock that started with the machine",
    (
        "core/unfinished.py",
        "_READ_FACTOR: Final = 10",
        "_READ_FACTOR: Final = 11",
    ): "how many records are read for a page of unfinished ones is a question of speed",
    (
        "worker/jobs.py",
        "return int(attempts) if attempts.isdecimal() and len(attempts) < 9 else 0",
        "return int(attempts) if attempts.isdecimal() and len(attempts) <= 9 else 0",
    ): "no message is tried a hundred million times",
    (
        "backends/dynamodb/index.py",
        "MAX_COUNT_REQUESTS: Final = 400  # requests that one count may take, of 1 MB each",
        "MAX_COUNT_REQUESTS: Final = 800  # requests that one count may take, of 1 MB each",
    ): "where a count of hundreds of megabytes stops is a question of speed",
    (
        "backends/mysql/store.py",
        "width = max(SCAN_ENTRIES, query.limit + 1)",
        "width = max(SCAN_ENTRIES, query.limit + 2)",
    ): "how many rows are read at once is a question of speed",
    (
        "backends/servicebus/sessions.py",
        "return bool(messages)",
        "return None",
    ): "a short pause after each read is a question of speed",
    (
        "backends/dynamodb/clock.py",
        "return 1 << 62 if offsets is None else (offsets[1] - offsets[0] + 1) // 2",
        "return 2 << 62 if offsets is None else (offsets[1] - offsets[0] + 1) // 2",
    ): "either is longer than any lease",
}
