"""Walks `try`, whose handlers may swallow an error, and `with`, which may hold a transaction or a guard."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from effectonce_lint.word_lists import word_set

from .calls import CallFrame, CallWalker, InTransaction, UnderGuard
from .libraries import error_handling, guards
from .values import UNKNOWN, ExceptBlock, Function, Operation, Scope, Value
from .walk_state import join_values, origins_of, taints_of

NEXT = "next"
_VIOLATIONS = word_set(
    "IntegrityError UniqueViolation UniqueViolationError DuplicateKeyError DuplicateKey ConditionalCheckFailed"
    " ConditionalCheckFailedException ClientError AlreadyExists AlreadyExistsError FileExistsError Conflict"
    " DuplicateEntry ConstraintError NotUniqueError UniqueConstraintError ItemAlreadyExists BulkWriteError"
    " TransactionCanceledException"
)
"""Errors that say: it was there already."""
_BROAD = word_set(
    "Exception BaseException builtins.Exception builtins.BaseException requests.RequestException httpx.HTTPError"
    " requests.exceptions.RequestException httpx.RequestError aiohttp.ClientError stripe.StripeError"
    " stripe.error.StripeError smtplib.SMTPException psycopg.Error psycopg2.Error pymysql.Error pymysql.MySQLError"
    " sqlite3.Error sqlalchemy.exc.SQLAlchemyError redis.RedisError redis.exceptions.RedisError django.db.Error"
    " django.db.DatabaseError pymongo.errors.PyMongoError asyncpg.PostgresError twilio.base.exceptions.TwilioException"
)
"""Errors that mean "whatever goes wrong": of everything, or of one library."""


class TryWithWalker(CallWalker):
    """Walks through `try` and `with`. Each gives how it ends: "next", or how it leaves ("return", "raise", "loop")."""

    # -- errors

    def walk_try(self, node: ast.Try | ast.TryStar) -> str:
        number = self.number()
        names = [self._caught_names(handler) for handler in node.handlers]
        catches = any(each.rpartition(".")[2] in _VIOLATIONS for caught in names for each in caught)
        before = dict(self.scope.names)
        outer, held, ops = self.tries, len(self.held), len(self.trace.ops)
        self.tries = (*outer, number)
        if catches:
            self.unique_tries.append(number)
        how = self.block(node.body)
        if catches:
            self.unique_tries.remove(number)
        self.tries = outer
        claims = [op for op in self.trace.ops[ops:] if op.kind == "claim" and op.atomic]
        body_names = self.scope.names
        inside = self.held[held:]
        if how == NEXT and node.orelse:
            outer_arms, self.arms = self.arms, (*self.arms, (number, 0))  # not for those that come by a handler
            how = self.block(node.orelse)
            self.arms = outer_arms
            if how != NEXT:
                self.trace.exits[number, 0] = (how, self.frames[-1])
            body_names = self.scope.names
            inside = self.held[held:]
        states = [body_names] if how == NEXT else []
        ends = [how]
        epoch, epochs = self.epoch, [self.epoch]
        all_leave = True
        for handler, caught in zip(node.handlers, names, strict=True):
            del self.held[held:]
            self.scope.names = {**before, **{k: v for k, v in body_names.items() if k not in before}}
            self.epoch = epoch
            end = self._walk_except(handler, caught, number, tuple(claims))
            ends.append(end)
            if end == NEXT:
                states.append(self.scope.names)
                epochs.append(self.epoch)
            if any(each.rpartition(".")[2] in _VIOLATIONS for each in caught) or not claims:
                all_leave = all_leave and end != NEXT
        self.epoch = max(epochs)
        del self.held[held:]
        if all_leave or not node.handlers:
            self.held.extend(inside)
        else:
            self.held.extend(each for each in inside if each.op not in claims)
        control = Value(origin=tuple(claims))
        self.scope.names = self.merge_names(before, states, control) if states else body_names
        if node.finalbody:
            final, self.final = self.final, True
            last = self.block(node.finalbody)
            self.final = final
            if last != NEXT:
                return last
        return NEXT if NEXT in ends else worst_ending(ends)

    def _caught_names(self, handler: ast.ExceptHandler) -> tuple[str, ...]:
        if handler.type is None:
            return ("BaseException",)
        value = self.value(handler.type)
        parts = value.items or (value,)
        return tuple(each.ref or (each.cls.name if each.cls else each.text) for each in parts)

    def _walk_except(
        self, handler: ast.ExceptHandler, caught: tuple[str, ...], body: int, claims: tuple[Operation, ...]
    ) -> str:
        number = self.number()
        outer, arms = self.handlers, self.arms
        self.handlers = (*outer, number)
        self.arms = (*arms, (number, 0))
        if handler.name:
            self.scope.names[handler.name] = Value(text=handler.name)
        violated = any(each.rpartition(".")[2] in _VIOLATIONS for each in caught)
        self.conditions.append(claims if violated else ())
        start = len(self.trace.ops)
        how = self.block(handler.body)
        self.conditions.pop()
        self.handlers, self.arms = outer, arms
        if how != NEXT:
            self.trace.exits[number, 0] = (how, self.frames[-1])
        if not self.muted:
            done = self.trace.ops[start:]
            self.trace.handlers.append(
                ExceptBlock(
                    number,
                    body,
                    self.place(handler.type or handler),
                    any(each in _BROAD for each in caught),
                    caught,
                    how=how,
                    raises=how == "raise" or any(op.kind in ("raise", "retry", "nack") for op in done),
                    returns_failure=error_handling.returns_failure(handler.body),
                    says_false=error_handling.returns_false(handler.body),
                    depth=len(self.frames),
                    trivial=all(op.kind in ("ack", "commit", "rollback", "wait") for op in done)
                    and error_handling.only_reports(handler.body),
                )
            )
        return how

    # -- contexts

    def walk_with(self, items: list[ast.withitem], body: list[ast.stmt]) -> str:
        if not items:
            return self.block(body)
        item, *rest = items
        call = item.context_expr.value if isinstance(item.context_expr, ast.Await) else item.context_expr
        if isinstance(call, ast.Call) and (function := self.generator(call)) is not None:
            return self._enter_generator_manager(item, function, lambda: self.walk_with(rest, body))
        value = self.value(item.context_expr)
        if value.instance is not None and not value.tag:
            return self._enter_object_manager(item, value, lambda: self.walk_with(rest, body))
        return self._enter_library_manager(item, value, lambda: self.walk_with(rest, body))

    def _enter_generator_manager(self, item: ast.withitem, function: Function, inner: Callable[[], str]) -> str:
        """A context manager of the project: its code up to the yield, then the body, then the rest."""
        ends: list[str] = []

        def body(yielded: Value) -> bool:
            if item.optional_vars is not None:
                self.assign(item.optional_vars, yielded)
            elif yielded.origin:
                self.hold(yielded.origin, "function")
            ends.append(inner())
            return True

        self.walk_generator(function, body)
        return ends[0] if ends else NEXT

    def generator(self, node: ast.expr) -> Function | None:
        """The generator of the project that is called, if it is one, with its arguments: it runs as its caller asks
        for what it yields. Also that of an object that can be looped over."""
        if not isinstance(node, ast.Call):
            with self.quietly():
                return self._iterator_of(self.value(node)) if isinstance(node, ast.Name | ast.Attribute) else None
        with self.quietly():
            target = self.value(node.func)
        if target.cls is not None:
            return self._iterator_of(self.value(node))
        if target.function is None or not self._is_enterable_generator(target.function):
            return None
        args = tuple(self.value(each) for each in node.args)
        keywords = {each.arg: self.value(each.value) for each in node.keywords if each.arg}
        given = target.function
        return replace(given, bound=(*given.bound, *args), bound_names={**given.bound_names, **keywords})

    def _iterator_of(self, value: Value) -> Function | None:
        for name in ("__iter__", "__aiter__") if value.instance is not None and not value.tag else ():
            assert value.instance is not None
            method = self.member(value, value.instance.cls, name)
            if method is not None and method.function is not None and self._is_enterable_generator(method.function):
                return method.function
        return None

    def _is_enterable_generator(self, function: Function) -> bool:
        """Whether it is a generator that can be entered here."""
        return _is_generator(function.node) and function.node not in self.active and len(self.active) < self.deepest

    def walk_generator(self, function: Function, body: Callable[[Value], bool]) -> Value:
        """Walk through a generator, and at a yield through ``body``, which is its caller's code; once it says that it
        has been through, no more. Gives what was yielded."""
        caller = self.scope
        outer = self.stack[-1] if self.stack else None

        def back_at_caller(yielded: Value) -> bool:
            with self.in_scope(caller):
                self.stack.append(outer or CallFrame(0, 0))
                done = body(yielded)
                self.stack.pop()
            return done

        frame = CallFrame(len(self.held), len(self.conditions), body=back_at_caller)
        self.active.append(function.node)
        self.stack.append(frame)
        with self.in_scope(Scope(function.module, function.scope, function.owner)):
            self.parameters(function, function.bound, function.bound_names)
            assert not isinstance(function.node, ast.Lambda)
            self.block(function.node.body)
        self.stack.pop()
        self.active.pop()
        return Value(tag="generator", items=tuple(frame.yielded), taint=taints_of(*frame.yielded))

    def _enter_object_manager(self, item: ast.withitem, value: Value, inner: Callable[[], str]) -> str:
        """An object of the project as a context manager."""
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
            how = inner()
            closing = self.member(value, value.instance.cls, leave)
            if closing is not None and closing.function is not None:
                self.invoke(closing.function, (), {}, item.context_expr)
            return how
        return self._enter_library_manager(item, value, inner)

    def _enter_library_manager(self, item: ast.withitem, value: Value, inner: Callable[[], str]) -> str:
        entered = self.value_of_enter(value)
        guard = guards.guard_of_context(self, item, value)
        if item.optional_vars is not None:
            self.assign(item.optional_vars, replace(entered, origin=(guard,)) if guard is not None else entered)
        if guard is not None and item.optional_vars is None:
            with UnderGuard(self, guard):
                return inner()
        if value.tag.startswith("tx") or (not value.tag and guards.is_transaction_by_name(value)):
            with self.in_transaction("block"):
                return inner()
        if value.tag in ("sql.conn", "sql.session"):
            with self.in_transaction("connection"):
                return inner()
        if value.tag in ("lock", "process.lock") or guards.is_lock_by_name(value):
            self.locks += 1
            try:
                return inner()
            finally:
                self.locks -= 1
        if value.tag == "retry.attempt" or "attempt:the attempt's number" in value.taint:
            self.retrying += 1
            try:
                return inner()
            finally:
                self.retrying -= 1
        if value.tag == "suppress":
            return self._walk_suppress(item, inner)
        if value.tag in ("message.process", "executor", "task.group"):
            how = inner()
            self.emit("ack" if value.tag == "message.process" else "wait", item.context_expr, text=value.tag)
            return how
        return inner()

    def _walk_suppress(self, item: ast.withitem, inner: Callable[[], str]) -> str:
        number = self.number()
        self.tries = (*self.tries, number)
        inner()
        self.tries = self.tries[:-1]
        call = item.context_expr
        caught = tuple(self.value(each).ref for each in call.args) if isinstance(call, ast.Call) else ()
        if not self.muted:
            broad = any(each in _BROAD for each in caught)
            self.trace.handlers.append(
                ExceptBlock(self.number(), number, self.place(call), broad, caught, NEXT, False, False, False, 0, True)
            )
        return NEXT

    def value_of_enter(self, value: Value) -> Value:
        """What `as` names: as a rule the manager itself."""
        if value.tag in ("tx.conn", "tx.session"):
            return replace(value, tag="sql.conn" if value.tag == "tx.conn" else "sql.session")
        if value.tag == "tx":
            return value.base.base if value.base is not None and value.base.base is not None else value
        if value.tag == "generator" and value.items:
            return value.items[0]
        return value

    def in_transaction(self, kind: str) -> InTransaction:
        return InTransaction(self, kind)

    @staticmethod
    def merge_names(before: dict[str, Value], states: list[dict[str, Value]], condition: Value) -> dict[str, Value]:
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
                    if merged.literal is not UNKNOWN and names[name].literal != value.literal:
                        merged = replace(merged, literal=UNKNOWN, origin=origins_of(merged, condition))
                    names[name] = merged
        return names

    # -- in the last part of the walk

    @abstractmethod
    def assign(self, target: ast.expr, value: Value) -> None: ...


def worst_ending(ends: list[str]) -> str:
    """How a statement leaves of which no way goes on."""
    return next((how for how in ends if how != "raise"), "raise")


def _is_generator(node: ast.AST) -> bool:
    """Whether a function is a generator."""
    todo = list(getattr(node, "body", ())) if not isinstance(node, ast.Lambda) else []
    while todo:
        each = todo.pop()
        if isinstance(each, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(each))
    return False
