"""Equivalent mutants: no test can tell them from the original, or none should. There are two lists.

`EQUIVALENTS` names single mutants, each by its file and by its line before and after, with the reason. One is left out
of the sample as long as the line stands as it is written there.

`SIZES` names constants whose value is a choice. Twice or half of it does the same work in more or fewer steps, keeps
more or less in memory, gives up later or sooner where giving up is a retry for the caller, or shows more or less of a
text. Nothing is lost, doubled or refused for good. A test that pinned such a number would only repeat it. What the
constant does is tested: tests set it to 2 and count, and every other mutant of the code that reads it is sampled.

A constant does not belong in `SIZES` if somebody else has set its value: the limit of a server (how many items one
request to DynamoDB takes, how long a note in a Kafka commit is, how many messages a quorum queue requeues in order), a
number that a message or a page of the documentation names, a limit on what strangers may use, or a factor of a formula.
Such a number has a test. `test_every_size_is_still_there` fails when a constant of the list is gone.
"""

from __future__ import annotations

from typing import Final

from .mutations import Mutant

#: (file, the line before, the line after): why no test can tell.
EQUIVALENTS: Final[dict[tuple[str, str, str], str]] = {
    (
        "backends/memory/store.py",
        'self.owner = b""',
        "pass",
    ): "the token changes as well, and a settlement must have both",
    (
        "backends/sqlite/store.py",
        "if 0 < op.max_attempts <= stored.attempts and self._exhaust(cursor, op, stored, now):",
        "if 0 <= op.max_attempts <= stored.attempts and self._exhaust(cursor, op, stored, now):",
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
        "sagas/runner.py",
        "unknown = not is_final(error) and is_ambiguous(error, progress.unknown_since > 0 or progress.crashes > 0)",
        "unknown = not is_final(error) and is_ambiguous(error, progress.unknown_since > 1 or progress.crashes > 0)",
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
        "worker/outage_pause.py",
        "self.waits_for_answer = False",
        "self.waits_for_answer = True",
    ): "it saves a call of `Backoff.record_success`, which does nothing without failures",
    (
        "worker/outage_pause.py",
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
        "backends/rabbitmq/properties.py",
        "if type(value) is int and -MAX_INT - 1 <= value <= MAX_INT:",
        "if type(value) is int and -MAX_INT - 2 <= value <= MAX_INT:",
    ): "a header on the wire has no smaller integer",
    (
        "backends/redis/port.py",
        "places = [str(bucket) for bucket, size in enumerate(sizes) if size[0] or str(bucket) == start]",
        "places = [str(bucket) for bucket, size in enumerate(sizes) if size[1] or str(bucket) == start]",
    ): "a bucket has an oldest record in doubt if it has any",
    (
        "backends/redis/connecting.py",
        "sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)",
        "sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 2)",
    ): "every number but 0 turns it on",
    (
        "backends/rabbitmq/dead_letters.py",
        "self.last_was_requeued = False",
        "self.last_was_requeued = True",
    ): "it takes more dead letters before it requeues those that it holds, and all in their order",
    (
        "backends/kafka/producer.py",
        "continue",
        "break",
    ): "those behind it count as unconfirmed, too, and are sent again",
    (
        "relay/publish_batch.py",
        'self.outcomes[row.seq] = RowOutcome(row.seq, "waiting", wait_us=wait_us, refund=True)',
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
        "worker/jobs.py",
        "return int(attempts) if attempts.isdecimal() and len(attempts) < 9 else 0",
        "return int(attempts) if attempts.isdecimal() and len(attempts) <= 9 else 0",
    ): "no message is tried a hundred million times",
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
    (
        "backends/mysql/store.py",
        "width = max(SCAN_ENTRIES, query.limit + 1)",
        "width = max(SCAN_ENTRIES, query.limit - 1)",
    ): "how many rows are read at once is a question of speed",
    (
        "core/heartbeat.py",
        "pairs = sorted(((run.renewal(), run) for run in due), key=lambda pair: (pair[0].scope, pair[0].key))",
        "pairs = sorted(((run.renewal(), run) for run in due), key=lambda pair: (pair[1].scope, pair[0].key))",
    ): "a renewal has the scope of its run",
    (
        "backends/common/visibility_timeout.py",
        "self._longest_poll = min(longest_poll, window / 4)",
        "self._longest_poll = min(longest_poll, window / 5)",
    ): "a shorter poll asks more often, and gets the same messages",
    (
        "backends/postgres/client.py",
        'self.name = b"effectonce_" + hashlib.sha256(self.sql).hexdigest()[:24].encode()',
        'self.name = b"effectonce_" + hashlib.sha256(self.sql).hexdigest()[:48].encode()',
    ): "a longer name is as good, up to the 63 characters of the server",
    (
        "backends/redis/record_format.py",
        "head = _pack_head(_CLAIM, flags, len(owner), lease, retention, limit, len(scope), len(key), len(prints), 0)",
        "head = _pack_head(_CLAIM, flags, len(owner), lease, retention, limit, len(scope), len(key), len(prints), 1)",
    ): "the script reads no fourth text of a claim",
    (
        "backends/kafka/endpoint.py",
        '"reconnect.backoff.max.ms": 2000,',
        '"reconnect.backoff.max.ms": 4000,',
    ): "how long the driver waits before it connects again is a question of taste",
    (
        "babelqueue/list_elements.py",
        'if element[:1] == b"{" and FRAME_MEMBER.encode() in element:',
        'if element[:1] == b"{" or FRAME_MEMBER.encode() in element:',
    ): "what lacks one of the two cannot be decoded as a frame either",
    (
        "backends/redis/record_format.py",
        "return _pack_head(_REMEMBER, flags, 0, 0, op.retention_us, 0, *lengths) + scope + key + result + prints",
        "return _pack_head(_REMEMBER, flags, 0, 0, op.retention_us, 1, *lengths) + scope + key + result + prints",
    ): "the script reads no third number of a success",
    (
        "backends/mysql/outbox.py",
        "[rows] = await self.tables.execute(bind(page, due_at=due_at, seq=seq, limit=limit + 1))",
        "[rows] = await self.tables.execute(bind(page, due_at=due_at, seq=seq, limit=limit + 2))",
    ): "one row more is read, and left out of the page",
    (
        "sagas/runner.py",
        "token = run.token + 1 if part.undoes else run.token",
        "token = run.token + 2 if part.undoes else run.token",
    ): "any greater token fences the step",
    (
        "core/backoff.py",
        "longest = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.failures, 20))",
        "longest = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.failures, 40))",
    ): "either is over the longest pause, and far from an overflow",
    (
        "backends/postgres/outbox.py",
        'rows = await self._query("list", utf8(state), int8.pack(due_at), int8.pack(seq), int4.pack(limit + 1))',
        'rows = await self._query("list", utf8(state), int8.pack(due_at), int8.pack(seq), int4.pack(limit + 2))',
    ): "one row more is read, and left out of the page",
    (
        "backends/kafka/offset_tracker.py",
        "self.assign(partition, -1, None)",
        "self.assign(partition, -2, None)",
    ): "every number below 0 differs from all offsets, so the next commit is due",
    (
        "backends/rabbitmq/dead_letters.py",
        "await asyncio.sleep(0.002)",
        "pass",
    ): "the reply to the question is waited for in any case; it is a courtesy to the server",
    (
        "backends/rabbitmq/dead_letters.py",
        "while listing.last_was_requeued and len(listing.held) < MAX_ORDERED:",
        "while listing.last_was_requeued and len(listing.held) <= MAX_ORDERED:",
    ): "a chunk more is taken before the order is given up",
    (
        "worker/queue_consumer.py",
        "if delivery.attempt != 1:",
        "if delivery.attempt != 2:",
    ): "it saves a call that does nothing where the broker counts; where it does not, the attempt is 0",
    (
        "backends/postgres/outbox.py",
        "if row.attempts >= 0:",
        "if row.attempts > 0:",
    ): "a row that was leased has an attempt; the row that says how far was read has a number below 0",
    (
        "intents/operation.py",
        "log = LoggedIntent(body, name, account, step, transactional=transactional, in_saga=run.min_retention > 0)",
        "log = LoggedIntent(body, name, account, step, transactional=transactional, in_saga=run.min_retention > 1)",
    ): "it is 0, or the retention of a saga in microseconds",
    (
        "dashboard/sources.py",
        'if record.note is None or kind == "guard":',
        'if record.note is None and kind == "guard":',
    ): "a record without a log cannot be decoded as one either, which gives None as well",
    (
        "cli/dashboard.py",
        "operator = chosen_token or secrets.token_urlsafe(24)",
        "operator = chosen_token or secrets.token_urlsafe(48)",
    ): "a longer token is as good",
    (
        "backends/rabbitmq/publish_gate.py",
        "self.unconfirmed.reschedule(max(self.unconfirmed.when() or 0.0, self._deadline))",
        "self.unconfirmed.reschedule(max(self.unconfirmed.when() or 1.0, self._deadline))",
    ): "both are long ago, by a clock that started with the machine",
    (
        "worker/delivery_settler.py",
        "self.rounds_begun = self.rounds_done = 0  # of `send`; one that fails is not done until a later one is",
        "self.rounds_begun = self.rounds_done = 1  # of `send`; one that fails is not done until a later one is",
    ): "they are only compared with each other",
    (
        "core/group_commit/send_batch.py",
        "await pause(random.uniform(0, 0.002 * 2**contended))",
        "await pause(random.uniform(0, 0.004 * 2**contended))",
    ): "how long a batch waits that has met a rival is a question of speed",
    (
        "dead_letters/queue.py",
        "new_generation: bool = False",
        "new_generation: bool = True",
    ): "every redrive says it",
}

#: By file: constants that say how much is done at once, how often something is tried, how much is kept, how much of a
#: text is shown, and how large a drawing is.
SIZES: Final[dict[str, str]] = {
    "babelqueue/redis_lists.py": "BROWSE_CHUNK",
    "backends/dynamodb/client.py": "MAX_CONCURRENT_CALLS",
    "backends/dynamodb/index.py": "MAX_COUNT MAX_COUNT_REQUESTS",
    "backends/dynamodb/port.py": "SCAN_ITEMS MAX_PAGE_SCANS MAX_BATCH_GET_ROUNDS",
    "backends/dynamodb/schema.py": "MAX_TABLE_POLLS",
    "backends/kafka/broker.py": "MAX_BATCH",
    "backends/kafka/group_member.py": "POLLS_BEFORE_PAUSE",
    "backends/kafka/offset_tracker.py": "MAX_DELAYED MIN_READ_AHEAD",
    "backends/memory/store.py": "MAX_COUNT",
    "backends/mysql/outbox.py": "MAX_FREED_ROWS",
    "backends/mysql/store.py": "MAX_COUNT SCAN_ENTRIES MAX_SCAN_ROUNDS SWEEP_LOCKED_ROWS",
    "backends/postgres/outbox.py": "MAX_FREED_ROWS",
    "backends/postgres/store.py": "MAX_COUNT MAX_ROWS_PER_COUNT MAX_ROWS_PER_PAGE MIN_ROWS_PER_ROUND MAX_ROUNDS",
    "backends/rabbitmq/dead_letters.py": "GET_CHUNK",
    "backends/redis/cluster.py": "MAX_REDIRECTS",
    "backends/redis/consumer.py": "MAX_MOVED",
    "backends/redis/newest_first.py": "SCAN_STEP_KEYS READ_BATCH",
    "backends/redis/port.py": "MAX_COUNT MAX_LIST_STEPS MAX_STATS_STEPS",
    "backends/redis/socket.py": "RECEIVE_BYTES",
    "backends/servicebus/dead_letters.py": "MAX_BATCH",
    "backends/servicebus/sessions.py": "MAX_READ_SESSIONS",
    "backends/sqlite/file.py": "WAL_CHECKPOINT_PAGES",
    "backends/sqlite/outbox.py": "_MAX_FREED_ROWS",
    "backends/sqlite/record_reader.py": "MAX_COUNT MAX_PAGE_VISITS MAX_STATS_VISITS",
    "backends/sqlite/store.py": "MAX_CLAIM_ROUNDS",
    "backends/sqs/client.py": "MAX_CONNECTIONS",
    "cli/sagas.py": "_NARROW_SCREEN_COLUMNS",
    "core/change_listener.py": "MAX_IDLE_ROUNDS",
    "core/failure_log.py": (
        "MAX_VALUE_CHARACTERS MAX_ERROR_CHARACTERS MAX_TRACEBACK_CHARACTERS MAX_TRACEBACK_LINE_CHARACTERS"
    ),
    "core/group_commit/batcher.py": "MIN_JOBS_FOR_SECOND_TRIP",
    "core/group_commit/send_batch.py": "MAX_CONTENTION_RETRIES",
    "core/group_commit/tasks.py": "MIN_CALLS_FOR_SECOND_TRIP MIN_CALLS_FOR_SECOND_TRIP_IF_NEIGHBOUR_IDLE",
    "core/heartbeat.py": "SWEEP_BATCH",
    "core/unfinished.py": "MAX_CONCURRENT_RESUMES _PAGE_SIZE _READ_FACTOR",
    "dashboard/saga_graph.py": "DRAWING_WIDTH STEPS_X TOP_MARGIN ROW_HEIGHT END_HEIGHT",
    "dead_letters/queue.py": "PAGE_SIZE",
    "http/protocol.py": "MAX_BODY_IN_MEMORY_BYTES BODY_CHUNK_BYTES",
    "inbox/business_table.py": "MAX_INSERT_ROUNDS",
    "inbox/table.py": "MAX_INSERT_ROUNDS",
    "integrations/django/admin.py": "PAGE_SIZE MAX_AUDIT_ENTRIES",
    "intents/orphans.py": "_PAGE_SIZE",
    "outbox/outbox.py": "_MAX_STATEMENT_ROWS _MAX_STATEMENT_BYTES",
    "relay/batch_size.py": "_INITIAL_ROWS _MAX_LEASE_BYTES",
    "relay/pump.py": "_MAX_BLOCKED_PAGES",
    "relay/relay_run.py": "MAX_ROWS_PER_STATEMENT",
    "telemetry/audit_log.py": "_MAX_ENTRIES_IN_MEMORY _BLOCK_BYTES",
    "telemetry/opentelemetry.py": "MAX_LINKS_PER_SPAN",
    "worker/attempt_counts.py": "MAX_MESSAGES",
    "worker/dead_letter_cause.py": "MAX_CAUSE_CHARS",
    "worker/handler_pool.py": "AHEAD_FACTOR",
    "worker/transaction_executor.py": "MAX_BATCH",
}


def is_explained(mutant: Mutant) -> bool:
    """Whether ``mutant`` is one of these, and so no mutant to run."""
    name = mutant.before.partition(" ")[0].rstrip(":")
    is_size = not mutant.in_function and name in SIZES.get(mutant.path, "").split()
    return is_size or mutant.identity in EQUIVALENTS
