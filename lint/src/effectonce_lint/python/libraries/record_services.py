"""Services that add a record with each call: document stores, warehouses, sheets, trackers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Effect, Value
from effectonce_lint.word_lists import word_set

from .message_parts import is_stable, is_unstable
from .sql_drivers import hold_claim

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

#: By the beginning of the client's dotted name: its methods that add a record.
_ADD_METHODS = {
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
_CYPHER_METHODS = word_set("run execute_query")
_PUT_METHODS = word_set("index")
"""Methods that replace the record if they are passed an id."""
SERVICES = tuple(_ADD_METHODS)
_ALL_ADD_METHODS = frozenset[str]().union(*_ADD_METHODS.values())


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call that adds a record: a claim if the record's id comes with the message, else an effect."""
    if call.name not in _ALL_ADD_METHODS and call.name not in _CYPHER_METHODS:
        return None
    client = _origin_of(call.receiver)
    if client.startswith("neo4j.") and call.name in _CYPHER_METHODS:
        query = (call.argument(0, "query", "query_") or Value()).string or ""
        if re.search(r"\bCREATE\s*\(", query, re.IGNORECASE):
            walk.emit("effect", call.node, text=call.source_text, effect=Effect("counter", "adds to a graph"))
        return Value(text=f"{call.source_text}()", base=call.receiver)
    if not any(client.startswith(prefix) and call.name in methods for prefix, methods in _ADD_METHODS.items()):
        return None
    arguments = {**((call.args[0].fields if call.args else None) or {}), **call.keywords}
    key = next((arguments[name] for name in ("id", "document_id", "row_ids") if name in arguments), None)
    if call.name in _PUT_METHODS and key is not None and not is_unstable(key):
        op = walk.emit("write", call.node, text=call.source_text, store="service", location=client, key=key)
    elif key is not None and is_stable(key):
        op = walk.emit(
            "claim", call.node, text=call.source_text, store="service", location=client, key=key, atomic=True
        )
        hold_claim(walk, op)
    else:
        op = walk.emit(
            "effect", call.node, text=call.source_text, key=key, effect=Effect("append", "adds a new record")
        )
    return Value(text=f"{call.source_text}()", base=call.receiver)


def _origin_of(value: Value | None) -> str:
    """The dotted name of the client that an object comes from, through a chain of calls."""
    while value is not None:
        if value.ref and not value.ref.startswith("builtins."):
            return value.ref
        value = value.base
    return ""
