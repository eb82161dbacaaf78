"""Services that keep a new record for each call: document stores, warehouses, sheets, trackers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Effect, Val
from effectonce_lint.word_lists import words

from .orm_rows import stable, unstable
from .sql_drivers import claimed

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, Calls

#: How the dotted name of a client begins, and which of its methods add a record.
_ADDS = {
    "azure.cosmos.": words("create_item"),
    "google.cloud.firestore": words("add"),
    "firebase_admin.firestore": words("add"),
    "google.cloud.bigquery": words("insert_rows insert_rows_json load_table_from_json"),
    "clickhouse_connect.": words("insert insert_df"),
    "supabase.": words("insert"),
    "gspread.": words("append_row append_rows"),
    "pyairtable.": words("create batch_create"),
    "notion_client.": words("create append"),
    "hubspot.": words("create"),
    "simple_salesforce.": words("create"),
    "jira.": words("create_issue add_comment add_worklog"),
    "github.": words("create_issue create_comment create_issue_comment"),
    "zenpy.": words("create"),
    "intercom.": words("create"),
    "elasticsearch.": words("index"),
    "opensearchpy.": words("index"),
    "trello.": words("add_card comment"),
    "todoist_api_python.": words("add_task add_comment"),
    "asana.": words("create create_task"),
    "pipedrive.": words("create add"),
}
_CYPHER = words("run execute_query")
_PUTS = words("index")
"""Of those: what, with an id of its own, only puts a record in its place."""
SERVICES = tuple(_ADDS)
_NAMES = frozenset[str]().union(*_ADDS.values())


def called(walk: Calls, call: Call) -> Val | None:
    """A record is added: a claim where it carries an id that comes with the message, else an effect."""
    if call.name not in _NAMES and call.name not in _CYPHER:
        return None
    client = _made_by(call.receiver)
    if client.startswith("neo4j.") and call.name in _CYPHER:
        query = (call.argument(0, "query", "query_") or Val()).string or ""
        if re.search(r"\bCREATE\s*\(", query, re.IGNORECASE):
            walk.emit("effect", call.node, text=call.shown, effect=Effect("counter", "adds to a graph"))
        return Val(text=f"{call.shown}()", base=call.receiver)
    if not any(client.startswith(prefix) and call.name in methods for prefix, methods in _ADDS.items()):
        return None
    given = {**((call.args[0].fields if call.args else None) or {}), **call.keywords}
    key = next((given[name] for name in ("id", "document_id", "row_ids") if name in given), None)
    if call.name in _PUTS and key is not None and not unstable(key):
        op = walk.emit("write", call.node, text=call.shown, store="service", location=client, key=key)
    elif key is not None and stable(key):
        op = walk.emit("claim", call.node, text=call.shown, store="service", location=client, key=key, atomic=True)
        claimed(walk, op)
    else:
        op = walk.emit("effect", call.node, text=call.shown, key=key, effect=Effect("counter", "adds a new record"))
    return Val(text=f"{call.shown}()", base=call.receiver)


def _made_by(value: Val | None) -> str:
    """The dotted name of what an object was made by, through all that was called on it since."""
    while value is not None:
        if value.ref and not value.ref.startswith("builtins."):
            return value.ref
        value = value.base
    return ""
