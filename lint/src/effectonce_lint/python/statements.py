"""Walks statements: branches that skip duplicates, loops over messages, assignments, definitions."""

from __future__ import annotations

import ast
from dataclasses import replace

from .calls import CallFrame
from .handler_tables import registered_handlers
from .libraries import background_work, brokers, error_handling, nosql, orm, registrations
from .modules import Binding, ClassDefinition, imports_of
from .try_and_with import NEXT, TryWithWalker, worst_ending
from .values import UNKNOWN, Function, Operation, Value
from .walk_state import HeldGuard, join_values, origins_of, taints_of

_MAX_UNROLLED_ITEMS = 40


class StatementWalker(TryWithWalker):
    """Walks through statements. Each gives how it ends: "next", or how it leaves ("return", "raise", "loop")."""

    def block(self, body: list[ast.stmt]) -> str:
        for node in body:
            how = self.statement(node)
            if how != NEXT:
                return how
        return NEXT

    def statement(self, node: ast.stmt) -> str:
        match node:
            case ast.Expr():
                self._expression(node.value)
            case ast.Assign():
                before = len(self.trace.ops)
                value = self.value(node.value)
                if len(self.trace.ops) > before and background_work.is_forgotten(self, node):
                    background_work.mark_handed_over(self, before, node.value)
                for target in node.targets:
                    self.assign(target, value)
            case ast.AugAssign():
                self._augmented_assign(node)
            case ast.AnnAssign():
                self._annotated_assign(node)
            case ast.If():
                return self._if(node.test, node.body, node.orelse)
            case ast.For() | ast.AsyncFor():
                return self._for(node)
            case ast.While():
                return self._while(node)
            case ast.Try() | ast.TryStar():
                return self.walk_try(node)
            case ast.With() | ast.AsyncWith():
                return self.walk_with(node.items, node.body)
            case ast.Return():
                return self._return(node)
            case ast.Raise():
                return self._raise(node)
            case ast.Continue() | ast.Break():
                return "loop"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define(node)
            case ast.ClassDef():
                self._define_class(node)
            case ast.Import() | ast.ImportFrom():
                for name, binding in imports_of(node):
                    self._import(name, binding)
            case ast.Match():
                return self._match(node)
            case ast.Assert():
                test = self.value(node.test)
                self.hold(test.origin, "raise")
            case ast.Delete():
                for target in node.targets:
                    nosql.delete_item(self, target)
            case _:
                pass
        return NEXT

    # -- simple statements

    def _expression(self, node: ast.expr) -> None:
        inner = node.value if isinstance(node, ast.Await) else node
        if isinstance(inner, ast.Yield):
            self._yield(inner)
        elif isinstance(inner, ast.YieldFrom):
            self._yield_from(inner)
        else:
            self.discarded = inner
            before = len(self.trace.ops)
            self.value(node)
            if inner is node and len(self.trace.ops) > before and background_work.is_spawn(self, inner):
                background_work.mark_handed_over(self, before, inner)

    def _yield(self, node: ast.Yield) -> None:
        self._yield_value(self.value(node.value) if node.value is not None else Value(literal=None))

    def _yield_from(self, node: ast.YieldFrom) -> None:
        if (function := self.generator(node.value)) is not None:
            self.walk_generator(function, self._yield_value)
        else:
            self._yield_value(self.element(self.value(node.value), node))

    def _yield_value(self, value: Value) -> bool:
        """Yield ``value`` to the caller. Returns whether the caller needs no more."""
        if not self.stack:
            return False
        frame = self.stack[-1]
        frame.yielded.append(value)
        if frame.body is None:
            return False
        body, frame.body = frame.body, None
        frame.body = None if body(value) else body
        return frame.body is None

    def evaluate_yield(self, node: ast.Yield) -> Value:
        self._yield(node)
        return Value(text="<yield>")

    def _import(self, name: str, binding: Binding) -> None:
        self.scope.names[name] = self.value_of_import(self.module, binding)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        at_top = not self.stack  # then its free names are the module's
        owner = self.scope.owner if self.scope.parent else None
        function = Function(node, self.module, scope=None if at_top else self.scope, owner=owner)
        self.scope.names[node.name] = Value(text=node.name, function=function)
        self.visit_definition(function)

    def _define_class(self, node: ast.ClassDef) -> None:
        known = self.module.classes.get(node.name)
        cls = known if known is not None and known.node is node else ClassDefinition(node, self.module)
        self.scope.names[node.name] = Value(text=node.name, cls=cls)

    def visit_definition(self, function: Function) -> None:
        """A function was defined; the scan for consumers looks at its decorators."""

    def assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(id=name):
                if (
                    self.conditions
                    and (ops := self._controlling_operations())
                    and value.literal is not UNKNOWN
                    and not value.origin
                ):
                    value = replace(value, origin=ops)  # a flag that says which way it went
                if value.instance is not None and not self.stack:
                    value = self._share_module_object(name, value)
                self.scope.names[name] = value if value.text != "?" else replace(value, text=name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for index, part in enumerate(parts):
                    if isinstance(part, ast.Starred):
                        self.assign(part.value, Value(taint=value.taint, origin=value.origin))
                    elif index < len(value.items) and value.tag in ("tuple", "list", "unpack"):
                        self.assign(part, value.items[index])
                    else:
                        piece = replace(
                            self.item(value, Value(text=str(index), literal=index)),
                            tag=brokers.tag_of_unpacked(value, index),
                        )
                        self.assign(part, piece)
            case ast.Attribute():
                self._set_attribute(target, value)
            case ast.Subscript():
                container = self.value(target.value)
                key = self.value(target.slice)
                if container.fields is not None and isinstance(key.literal, str):
                    if value.function is not None:
                        self.project.track_change(container)
                        container.fields = dict(container.fields)
                    container.fields[key.literal] = value
                nosql.set_item(self, target, container, key, value)
            case ast.Starred():
                self.assign(target.value, value)
            case _:
                pass

    def _share_module_object(self, name: str, made: Value) -> Value:
        """An object that a module's own code makes: for all who ask for that name, the same one."""
        known = self.module.values.get(name)
        if known is not None and known.instance is not None and made.instance is not None:
            return known if known.instance.cls is made.instance.cls else made
        if name in self.module.bindings and known is None:
            self.module.values[name] = made
        return made

    def _set_attribute(self, target: ast.Attribute, value: Value) -> None:
        base = self.value(target.value)
        if base.instance is not None and not self.muted and (value.is_known() or value.origin):
            base.instance.attributes[target.attr] = replace(value, text=self.text(base.text, ".", target.attr))
        orm.set_attribute(self, target, base, value)
        registrations.set_attribute(self, target, base, value)

    def _augmented_assign(self, node: ast.AugAssign) -> None:
        value = self.value(node.value)
        if isinstance(node.target, ast.Name):
            old = self.name(node.target.id)
            self.scope.names[node.target.id] = Value(
                text=self.text(old.text, "+", value.text),
                taint=taints_of(old, value),
                origin=origins_of(old, value),
                tag=old.tag,
            )
        elif isinstance(node.target, ast.Attribute | ast.Subscript):
            base = self.value(node.target.value)
            orm.augment_attribute(self, node, base)

    def _annotated_assign(self, node: ast.AnnAssign) -> None:
        value = self.value(node.value) if node.value is not None else Value()
        if not value.is_known():
            typed = self.value_of_annotation(node.annotation)
            if typed.is_known():
                value = replace(typed, text=value.text, taint=value.taint, origin=value.origin)
        if node.value is not None or value.is_known():
            self.assign(node.target, value)

    def _return(self, node: ast.Return) -> str:
        value = self.value(node.value) if node.value is not None else Value(text="None", literal=None)
        if self.stack:
            if ops := self._controlling_operations():
                value = replace(value, origin=(*value.origin, *(op for op in ops if op not in value.origin)))
                if value.literal is None or isinstance(value.literal, bool):
                    value = replace(value, literal=UNKNOWN)
            self.stack[-1].returned.append(value)
        return "return"

    def _controlling_operations(self) -> tuple[Operation, ...]:
        """What decides, within this function, that we are here."""
        frame = self.stack[-1] if self.stack else CallFrame(0, 0)
        ops = [op for each in self.conditions[frame.conditions :] for op in each]
        ops += [held.op for held in self.held[frame.held :] if held.until != "block"]
        return tuple(dict.fromkeys(ops))

    def _raise(self, node: ast.Raise) -> str:
        if node.exc is not None:
            raised = self.value(node.exc)
            name = raised.ref or raised.text
            if brokers.requests_redelivery(name):
                self.emit("retry", node, text=name)
        self.emit("raise", node)
        return "raise"

    # -- branches

    def _if(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> str:
        condition = self.value(test)
        known = self._decide_test(test)
        if known is not None:
            return self.block(body if known else orelse)
        return self._branches(condition, [body, orelse])

    def _decide_test(self, test: ast.expr) -> bool | None:
        """Which way a test for an optional argument goes, where the call that brought us here says so."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._decide_test(test.operand)
            return None if inner is None else not inner
        name = test
        is_none = False
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.IsNot):
            if not (isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None):
                return None
            name, is_none = test.left, isinstance(test.ops[0], ast.Is)
        if not isinstance(name, ast.Name) or len(self.stack) < 2:
            return None
        value = self.scope.names.get(name.id)
        if value is None or value.origin:
            return None
        if value.literal is None:
            return is_none
        return not is_none if "message" in value.taint and value.text != name.id else None

    def _branches(self, condition: Value, arms: list[list[ast.stmt]]) -> str:
        """Walk each arm on its own, then go on with what any of them may have left."""
        number = self.number()
        before = dict(self.scope.names)
        outer, held = self.arms, len(self.held)
        ends: list[str] = []
        states: list[dict[str, Value]] = []
        kept: list[list[HeldGuard]] = []
        epoch, epochs = self.epoch, []
        for index, arm in enumerate(arms):
            self.scope.names = dict(before)
            self.epoch = epoch
            self.arms = (*outer, (number, index))
            self.conditions.append(condition.origin)
            how = self.block(arm)
            self.conditions.pop()
            ends.append(how)
            if how == NEXT:
                states.append(self.scope.names)
                kept.append(self.held[held:])
                epochs.append(self.epoch)
            else:
                self.trace.exits[number, index] = (how, self.frames[-1])
            del self.held[held:]
        self.arms = outer
        self.epoch = max(epochs, default=epoch)  # a commit on a way that leaves is not one for those that stay
        self.scope.names = self.merge_names(before, states, condition)
        leaving = [how for how in ends if how != NEXT]
        if not states:
            return worst_ending(ends)
        if leaving:
            self.hold(condition.origin, "raise" if all(each == "raise" for each in leaving) else "function")
        if len(states) == 1:
            self.held.extend(kept[0])
        return NEXT

    def _match(self, node: ast.Match) -> str:
        subject = self.value(node.subject)
        arms = []
        for case in node.cases:
            for each in ast.walk(case.pattern):
                name = getattr(each, "name", None) if isinstance(each, ast.MatchAs | ast.MatchStar) else None
                if name:
                    self.scope.names[name] = Value(text=name, taint=subject.taint)
            arms.append(case.body)
        last = node.cases[-1]
        if not (isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None):
            arms.append([])
        return self._branches(subject, arms)

    # -- loops

    def _for(self, node: ast.For | ast.AsyncFor) -> str:
        iterable = self._evaluate_iterable(node)
        if iterable is None:
            return NEXT
        if (
            iterable.tag in ("list", "tuple")
            and 1 < len(iterable.items) <= _MAX_UNROLLED_ITEMS
            and any(map(_holds_functions, iterable.items))
        ):
            for each in iterable.items:  # a table of handlers, registered one by one
                self.assign(node.target, each)
                self._loop(node.body, [], False)
            return NEXT
        retry = error_handling.is_retry_loop(node, iterable)
        item = self.element(iterable, node.iter)
        if retry:
            item = replace(item, taint=item.taint | {"attempt:the attempt's number"})
        self.assign(node.target, item)
        self.conditions.append(orm.conditions_of_filter(iterable, item))
        how = self._loop(node.body, node.orelse, retry)
        self.conditions.pop()
        return how

    def _evaluate_iterable(self, node: ast.For | ast.AsyncFor) -> Value | None:
        """What a loop goes over; None where it was gone through already, at the yield of a generator of the project."""
        function = self.generator(node.iter)
        if function is None:
            return self.value(node.iter)
        gone_through = False

        def body(yielded: Value) -> bool:
            nonlocal gone_through
            if not gone_through and (
                yielded.taint or yielded.origin
            ):  # a message, not `yield None` while there is none
                gone_through = True
                self.assign(node.target, yielded)
                self._loop(node.body, node.orelse, False)
            return gone_through

        iterable = self.walk_generator(function, body)
        return None if gone_through else iterable

    def _while(self, node: ast.While) -> str:
        test = self.value(node.test)
        retry = error_handling.is_retry_loop(node, test)
        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        how = self._loop(node.body, node.orelse, retry)
        breaks = any(isinstance(each, ast.Break) for each in ast.walk(node))
        return "return" if forever and not breaks and how == NEXT and self.stack else how

    def _loop(self, body: list[ast.stmt], orelse: list[ast.stmt], retry: bool) -> str:
        outer, held = self.loops, len(self.held)
        before = dict(self.scope.names)
        self.loops = (*outer, self.number())
        self.retrying += retry
        how = self.block(body)
        self.retrying -= retry
        self.loops = outer
        leaving = [each for each in self.held[held:] if each.until == "raise" and retry]
        del self.held[held:]
        self.held.extend(leaving)
        for name, value in before.items():
            if self.scope.names.get(name) is not value and name in self.scope.names:
                self.scope.names[name] = join_values([self.scope.names[name], value], name)
        if orelse:
            self.block(orelse)
        return how if how in ("return", "raise") and retry else NEXT

    def element(self, iterable: Value, node: ast.AST) -> Value:
        """One of what a loop goes over; looping over a source of messages receives."""
        received = brokers.receive_by_iteration(self, iterable, node)
        if received is not None:
            return received
        if iterable.home is not None and not iterable.items and (filled := registered_handlers(self, iterable)):
            return join_values(filled, self.text(iterable.text, "[]"))
        if iterable.items and iterable.tag in ("list", "tuple", "set", "generator", "one of"):
            return join_values(iterable.items, self.text(iterable.text, "[]"))
        if iterable.fields is not None and iterable.tag == "dict.items":
            return Value(tag="tuple", items=(Value(), join_values(list(iterable.fields.values()) or [Value()], "item")))
        if iterable.tag == "orm.query":
            return orm.row_of_query(self, iterable, node)
        return Value(text=self.text(iterable.text, "[]"), taint=iterable.taint, origin=iterable.origin, base=iterable)


def _holds_functions(value: Value) -> bool:
    parts = (value, *value.items)
    return any(each.function is not None or each.instance is not None or each.module is not None for each in parts)
