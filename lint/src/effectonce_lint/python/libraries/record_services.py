"""Services that keep a new record for each call: document stores, warehouses, sheets, trackers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Effect, Value
from effectonce_lint.word_lists import word_set

from .message_parts import is_stable, is_unstable
from .sql_drivers import hold_claim

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

#: How the dotted name of a client begins, and which of its methods add a record.
_ADDS = {
    "azure.cosmos.": word_set("create_item"),
    "google.cloud.firestore": word_set("add"),
    "firebase_admin.firestore": word_set("add"),
    "google.cloud.bigquery": word_set("insert_rows insert_rows_json load_table_from_json"),
    "clickhouse_connect.": word_set("insert insert_df"),
    "supabase.": word_set("insert"),
    "gspread.": word_set("append_row append_rows"),
    "pyairtable.": word_set("create batch_create"),
    "notion_client.": word_set("create append"),
    "hubspot.": word_set("create"),
    "simple_salesforce.": word_set("create"),
    "jira.": word_set("create_issue add_comment add_worklog"),
    "github.": word_set("create_issue create_comment create_issue_comment"),
    "zenpy.": word_set("create"),
    "intercom.": word_set("create"),
    "elasticsearch.": word_set("index"),
    "opensearchpy.": word_set("index"),
    "trello.": word_set("add_card comment"),
    "todoist_api_python.": word_set("add_task add_comment"),
    "asana.": word_set("create create_task"),
    "pipedrive.": word_set("create add"),
}
_CYPHER = word_set("run execute_query")
_PUTS = word_set("index")
"""Of those: what, with an id of its own, only puts a record in its place."""
SERVICES = tuple(_ADDS)
_NAMES = frozenset[str]().union(*_ADDS.values())


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """A record is added: a claim where it carries an id that comes with the message, else an effect."""
    if call.name not in _NAMES and call.name not in _CYPHER:
        return None
    client = _origin_of(call.receiver)
    if client.startswith("neo4j.") and call.name in _CYPHER:
        query = (call.argument(0, "query", "query_") or Value()).string or ""
        if re.search(r"\bCREATE\s*\(", query, re.IGNORECASE):
            walk.emit("effect", call.node, text=call.source_text, effect=Effect("counter", "adds to a graph"))
        return Value(text=f"{call.source_text}()", base=call.receiver)
    if not any(client.startswith(prefix) and call.name in methods for prefix, methods in _ADDS.items()):
        return None
    given = {**((call.args[0].fields if call.args else None) or {}), **call.keywords}
    key = next((given[name] for name in ("id", "document_id", "row_ids") if name in given), None)
    if call.name in _PUTS and key is not None and not is_unstable(key):
        op = walk.emit("write", call.node, text=call.source_text, store="service", location=client, key=key)
    elif key is not None and is_stable(key):
        op = walk.emit(
            "claim", call.node, text=call.source_text, store="service", location=client, key=key, atomic=True
        )
        hold_claim(walk, op)
    else:
        op = walk.emit(
            "effect", call.node, text=call.source_text, key=key, effect=Effect("counter", "adds a new record")
        )
    return Value(text=f"{call.source_text}()", base=call.receiver)


def _origin_of(value: Value | None) -> str:
    """The dotted name of what an object was made by, through all that was called on it since."""
    while value is not None:
        if value.ref and not value.ref.startswith("builtins."):
            return value.ref
        value = value.base
    return ""
