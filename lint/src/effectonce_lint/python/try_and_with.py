"""Walks `try`, whose handlers may swallow an error, and `with`, which may hold a transaction or a guard."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from effectonce_lint.word_lists import word_set

from .calls import CallFrame, CallWalker
from .libraries import error_handling, guards
from .sql import SqlStatement, join_statements
from .taints import ATTEMPT_NUMBER
from .values import UNKNOWN_LITERAL, Ending, ExceptBlock, Function, TracedOperation, Value
from .walk_state import join_values, origins_of, taints_of

WalkBody = Callable[[], Ending]
"""Walks the body of a `with`."""

NEXT: Final = "next"
"""The ending of code that continues with the next statement."""
_VIOLATION_ERRORS = word_set(
    "IntegrityError UniqueViolation UniqueViolationError DuplicateKeyError DuplicateKey ConditionalCheckFailed"
    " ConditionalCheckFailedException ClientError AlreadyExists AlreadyExistsError FileExistsError Conflict"
    " DuplicateEntry ConstraintError NotUniqueError UniqueConstraintError ItemAlreadyExists BulkWriteError"
    " TransactionCanceledException"
)
"""Errors of a violated constraint: what was inserted is there already."""
_BROAD_ERRORS = word_set(
    "Exception BaseException builtins.Exception builtins.BaseException requests.RequestException httpx.HTTPError"
    " requests.exceptions.RequestException httpx.RequestError aiohttp.ClientError stripe.StripeError"
    " stripe.error.StripeError smtplib.SMTPException psycopg.Error psycopg2.Error pymysql.Error pymysql.MySQLError"
    " sqlite3.Error sqlalchemy.exc.SQLAlchemyError redis.RedisError redis.exceptions.RedisError django.db.Error"
    " django.db.DatabaseError pymongo.errors.PyMongoError asyncpg.PostgresError twilio.base.exceptions.TwilioException"
)
"""Errors that stand for whatever goes wrong, anywhere or in one library."""


class TryWithWalker(CallWalker):
    """Walks through `try` and `with`. Each method returns the ending: `NEXT`, or how the code leaves ("return",
    "raise", "loop")."""

    # -- errors

    def walk_try(self, node: ast.Try | ast.TryStar) -> Ending:
        number = self.number()
        caught = [self._caught_names(handler) for handler in node.handlers]
        names_before = dict(self.scope.names)
        held_before, ops_before = len(self.held), len(self.trace.ops)
        ending = self._walk_try_body(node.body, number, catches_violation=any(map(_name_violation, caught)))
        claims = tuple(op for op in self.trace.ops[ops_before:] if op.kind == "claim" and op.atomic)
        if ending == NEXT and node.orelse:
            with self.at_position(self.position.in_arm(number, 0)):  # a run that comes by a handler skips it
                ending = self.walk_block(node.orelse)
            if ending != NEXT:
                self.trace.exits[number, 0] = (ending, self.position.frames[-1])
        names_after_body, held_in_body, epoch_after_body = self.scope.names, self.held[held_before:], self.epoch
        endings: list[Ending] = [ending]
        epochs = [epoch_after_body]
        states = [names_after_body] if ending == NEXT else []
        duplicates_leave = True
        for handler, names in zip(node.handlers, caught, strict=True):
            del self.held[held_before:]
            self.scope.names = {**names_after_body, **names_before}
            self.epoch = epoch_after_body
            handler_ending = self._walk_except(handler, names, number, claims)
            endings.append(handler_ending)
            if handler_ending == NEXT:
                states.append(self.scope.names)
                epochs.append(self.epoch)
                if _name_violation(names) or not claims:
                    duplicates_leave = False
        self.epoch = max(epochs)
        del self.held[held_before:]
        # a claim in the body guards what follows only if a duplicate, which comes by the handler, does not get there
        self.held.extend(held for held in held_in_body if duplicates_leave or held.op not in claims)
        which_way = Value(origin=claims)
        self.scope.names = self.merge_names(names_before, states, which_way) if states else names_after_body
        if node.finalbody:
            with self.at_position(replace(self.position, in_finally=True)):
                final_ending = self.walk_block(node.finalbody)
            if final_ending != NEXT:
                return final_ending
        return NEXT if NEXT in endings else join_endings(endings)

    def _walk_try_body(self, body: list[ast.stmt], number: int, *, catches_violation: bool) -> Ending:
        if catches_violation:
            self.unique_tries.append(number)
        with self.at_position(self.position.in_try(number)):
            ending = self.walk_block(body)
        if catches_violation:
            self.unique_tries.remove(number)
        return ending

    def _caught_names(self, handler: ast.ExceptHandler) -> tuple[str, ...]:
        """The names of the errors that a handler catches: dotted where they are outside the project."""
        if handler.type is None:
            return ("BaseException",)
        value = self.value(handler.type)
        errors = value.items or (value,)
        return tuple(error.ref or (error.cls.name if error.cls else error.text) for error in errors)

    def _walk_except(
        self, handler: ast.ExceptHandler, caught: tuple[str, ...], try_number: int, claims: tuple[TracedOperation, ...]
    ) -> Ending:
        number = self.number()
        if handler.name:
            self.scope.names[handler.name] = Value(text=handler.name)
        start = len(self.trace.ops)
        self.conditions.append(claims if _name_violation(caught) else ())
        with self.at_position(self.position.in_handler(number)):
            ending = self.walk_block(handler.body)
        self.conditions.pop()
        if ending != NEXT:
            self.trace.exits[number, 0] = (ending, self.position.frames[-1])
        if not self.muted:
            ops = self.trace.ops[start:]
            self.trace.handlers.append(
                ExceptBlock(
                    number,
                    try_number,
                    self.place(handler.type or handler),
                    any(name in _BROAD_ERRORS for name in caught),
                    caught,
                    ending=ending,
                    raises=ending == "raise" or any(op.kind in ("raise", "retry", "nack") for op in ops),
                    returns_failure=error_handling.returns_failure(handler.body),
                    returns_false=error_handling.returns_false(handler.body),
                    depth=len(self.position.frames),
                    trivial=all(op.kind in ("ack", "commit", "rollback", "wait") for op in ops)
                    and error_handling.only_reports(handler.body),
                )
            )
        return ending

    # -- contexts

    def walk_with(self, items: list[ast.withitem], body: list[ast.stmt]) -> Ending:
        if not items:
            return self.walk_block(body)
        item, *rest = items
        call = item.context_expr.value if isinstance(item.context_expr, ast.Await) else item.context_expr
        if isinstance(call, ast.Call) and (function := self.find_generator(call)) is not None:
            return self._enter_generator_manager(item, function, lambda: self.walk_with(rest, body))
        value = self.value(item.context_expr)
        if value.instance is not None and not value.tag:
            return self._enter_object_manager(item, value, lambda: self.walk_with(rest, body))
        return self._enter_library_manager(item, value, lambda: self.walk_with(rest, body))

    def _enter_generator_manager(self, item: ast.withitem, function: Function, walk_body: WalkBody) -> Ending:
        """Walk through a `@contextmanager` of the project: its code up to the yield, then the body, then the rest."""
        endings: list[Ending] = []

        def enter(yielded: Value) -> bool:
            if item.optional_vars is not None:
                self.assign(item.optional_vars, yielded)
            elif yielded.origin:
                self.hold(yielded.origin, "function")
            endings.append(walk_body())
            return True

        self.walk_generator(function, enter)
        return endings[0] if endings else NEXT

    def find_generator(self, node: ast.expr) -> Function | None:
        """The generator of the project that `for` or `with` runs, with its arguments bound: the one that ``node``
        calls, or the ``__iter__`` of the object that it is. None if it is neither."""
        if not isinstance(node, ast.Call):
            with self.mute_trace():
                return self._iterator_of(self.value(node)) if isinstance(node, ast.Name | ast.Attribute) else None
        with self.mute_trace():
            target = self.value(node.func)
        if target.cls is not None:
            return self._iterator_of(self.value(node))
        if target.function is None or not self._is_enterable_generator(target.function):
            return None
        function = target.function
        args = tuple(self.value(argument) for argument in node.args)
        keywords = {keyword.arg: self.value(keyword.value) for keyword in node.keywords if keyword.arg}
        return replace(function, bound=(*function.bound, *args), bound_names={**function.bound_names, **keywords})

    def _iterator_of(self, value: Value) -> Function | None:
        for name in ("__iter__", "__aiter__") if value.instance is not None and not value.tag else ():
            assert value.instance is not None
            method = self.member(value, value.instance.cls, name)
            if method is not None and method.function is not None and self._is_enterable_generator(method.function):
                return method.function
        return None

    def _is_enterable_generator(self, function: Function) -> bool:
        """Whether a function is a generator that can be walked here."""
        return _is_generator(function.node) and self.can_enter(function)

    def walk_generator(self, function: Function, on_yield: Callable[[Value], bool]) -> Value:
        """Walk through a generator, and through ``on_yield`` with each value that it yields, until that returns True.

        ``on_yield`` is the code of the caller, so it runs in the caller's scope and frame. Returns what was yielded.
        """
        caller_scope = self.scope
        caller_frame = self.call_stack[-1] if self.call_stack else CallFrame(0, 0)

        def resume_caller(yielded: Value) -> bool:
            with self.in_scope(caller_scope):
                self.call_stack.append(caller_frame)
                needs_no_more = on_yield(yielded)
                self.call_stack.pop()
            return needs_no_more

        frame = CallFrame(len(self.held), len(self.conditions), on_yield=resume_caller)
        with self.in_frame(function, frame):
            self.parameters(function, function.bound, function.bound_names)
            assert not isinstance(function.node, ast.Lambda)
            self.walk_block(function.node.body)
        return Value(tag="generator", items=tuple(frame.yielded), taint=taints_of(*frame.yielded))

    def _enter_object_manager(self, item: ast.withitem, value: Value, walk_body: WalkBody) -> Ending:
        """Walk through an object of the project as a context manager: its ``__enter__``, the body, its ``__exit__``."""
        assert value.instance is not None
        for enter, leave in (("__enter__", "__exit__"), ("__aenter__", "__aexit__")):
            method = self.member(value, value.instance.cls, enter)
            if method is None or method.function is None:
                continue
            entered = self.invoke(method.function, (), {}, item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, entered if entered.is_known() or entered.origin else value)
            elif entered.origin:
                self.hold(entered.origin, "function")
            ending = walk_body()
            exit_method = self.member(value, value.instance.cls, leave)
            if exit_method is not None and exit_method.function is not None:
                self.invoke(exit_method.function, (), {}, item.context_expr)
            return ending
        return self._enter_library_manager(item, value, walk_body)

    def _enter_library_manager(self, item: ast.withitem, value: Value, walk_body: WalkBody) -> Ending:
        """Walk through the body of a library's context manager, with what that stands for: a guard, a transaction, a
        lock, a retry."""
        entered = self.value_of_enter(value)
        guard = guards.guard_of_context(self, item, value)
        if item.optional_vars is not None:
            self.assign(item.optional_vars, replace(entered, origin=(guard,)) if guard is not None else entered)
        if guard is not None and item.optional_vars is None:
            with self.under_guard(guard):
                return walk_body()
        if value.tag.startswith("tx") or (not value.tag and guards.is_transaction_by_name(value)):
            with self.in_transaction("block"):
                return walk_body()
        if value.tag in ("sql.conn", "sql.session"):
            with self.in_transaction("connection"):
                return walk_body()
        if value.tag in ("lock", "process.lock") or guards.is_lock_by_name(value):
            with self.at_position(replace(self.position, locks=self.position.locks + 1)):
                return walk_body()
        if value.tag == "retry.attempt" or ATTEMPT_NUMBER in value.taint:
            with self.at_position(replace(self.position, retrying=True)):
                return walk_body()
        if value.tag == "suppress":
            return self._walk_suppress(item, walk_body)
        if value.tag in ("message.process", "executor", "task.group"):
            ending = walk_body()
            self.emit("ack" if value.tag == "message.process" else "wait", item.context_expr, text=value.tag)
            return ending
        return walk_body()

    def _walk_suppress(self, item: ast.withitem, walk_body: WalkBody) -> Ending:
        """Walk through `with suppress(…):` as through a `try` whose handler does nothing."""
        try_number = self.number()
        with self.at_position(self.position.in_try(try_number)):
            walk_body()
        call = item.context_expr
        caught = tuple(self.value(error).ref for error in call.args) if isinstance(call, ast.Call) else ()
        if not self.muted:
            self.trace.handlers.append(
                ExceptBlock(
                    self.number(),
                    try_number,
                    self.place(call),
                    any(name in _BROAD_ERRORS for name in caught),
                    caught,
                    ending=NEXT,
                    raises=False,
                    returns_failure=False,
                    returns_false=False,
                    depth=0,
                    trivial=True,
                )
            )
        return NEXT

    def value_of_enter(self, value: Value) -> Value:
        """The value that `with … as` binds: as a rule the manager itself."""
        if value.tag in ("tx.conn", "tx.session"):
            return replace(value, tag="sql.conn" if value.tag == "tx.conn" else "sql.session")
        if value.tag == "tx":
            return value.base.base if value.base is not None and value.base.base is not None else value
        if value.tag == "generator" and value.items:
            return value.items[0]
        return value

    @staticmethod
    def merge_names(before: dict[str, Value], states: list[dict[str, Value]], condition: Value) -> dict[str, Value]:
        """The names after a branch whose arms left ``states``. A name whose literal differs between them tells which
        arm was taken, so it depends on ``condition``."""
        if not states:
            return before
        if len(states) == 1:
            return states[0]
        names = dict(states[0])
        for state in states[1:]:
            for name, value in state.items():
                if name not in names:
                    names[name] = value
                elif names[name] is not value:
                    merged = join_values([names[name], value], name)
                    if merged.literal is not UNKNOWN_LITERAL and names[name].literal != value.literal:
                        literal = _join_literals(names[name].literal, value.literal)
                        merged = replace(merged, literal=literal, origin=origins_of(merged, condition))
                    names[name] = merged
        return names

    # -- in the last part of the walk

    @abstractmethod
    def assign(self, target: ast.expr, value: Value) -> None: ...


def _join_literals(first: object, second: object) -> object:
    """What is known of a name that is one of two different literals: of two like statements, what they share."""
    if isinstance(first, SqlStatement) and isinstance(second, SqlStatement):
        return join_statements(first, second) or UNKNOWN_LITERAL
    return UNKNOWN_LITERAL


def join_endings(endings: list[Ending]) -> Ending:
    """How a statement ends all of whose ways leave: with "raise" only if all of them raise."""
    return next((ending for ending in endings if ending != "raise"), "raise")


def _name_violation(caught: tuple[str, ...]) -> bool:
    """Whether one of the names of caught errors is that of a violated constraint."""
    return any(name.rpartition(".")[2] in _VIOLATION_ERRORS for name in caught)


def _is_generator(function: ast.AST) -> bool:
    """Whether a function is a generator: whether it yields itself, and not only a function inside it."""
    todo = list(getattr(function, "body", ())) if not isinstance(function, ast.Lambda) else []
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))
    return False
