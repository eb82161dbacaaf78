"""Walks statements: branches that skip duplicates, loops over messages, assignments, definitions."""

from __future__ import annotations

import ast
from dataclasses import replace

from .calls import CallFrame
from .handler_tables import registered_handlers
from .libraries import background_work, brokers, error_handling, nosql, orm, registrations
from .modules import Binding, ClassDefinition, imports_of
from .taints import ATTEMPT_NUMBER, MESSAGE
from .try_and_with import NEXT, TryWithWalker, join_endings
from .values import UNKNOWN_LITERAL, Ending, Function, TracedOperation, Value
from .walk_state import HeldGuard, join_values, origins_of, taints_of

_MAX_UNROLLED_ITEMS = 40
"""How many rounds of a loop over functions are walked one by one."""


class StatementWalker(TryWithWalker):
    """Walks through statements. Each method returns the ending: `NEXT`, or how the code leaves ("return", "raise",
    "loop")."""

    def walk_block(self, body: list[ast.stmt]) -> Ending:
        for node in body:
            ending = self.walk_statement(node)
            if ending != NEXT:
                return ending
        return NEXT

    def walk_statement(self, node: ast.stmt) -> Ending:
        match node:
            case ast.Expr():
                self._walk_expression(node.value)
            case ast.Assign():
                start = len(self.trace.ops)
                value = self.value(node.value)
                if len(self.trace.ops) > start and background_work.is_forgotten(self, node):
                    background_work.mark_handed_over(self, start, node.value)
                for target in node.targets:
                    self.assign(target, value)
            case ast.AugAssign():
                self._walk_augmented_assign(node)
            case ast.AnnAssign():
                self._walk_annotated_assign(node)
            case ast.If():
                return self._walk_if(node.test, node.body, node.orelse)
            case ast.For() | ast.AsyncFor():
                return self._walk_for(node)
            case ast.While():
                return self._walk_while(node)
            case ast.Try() | ast.TryStar():
                return self.walk_try(node)
            case ast.With() | ast.AsyncWith():
                return self.walk_with(node.items, node.body)
            case ast.Return():
                return self._walk_return(node)
            case ast.Raise():
                return self._walk_raise(node)
            case ast.Continue() | ast.Break():
                return "loop"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define_function(node)
            case ast.ClassDef():
                self._define_class(node)
            case ast.Import() | ast.ImportFrom():
                for name, binding in imports_of(node):
                    self._bind_import(name, binding)
            case ast.Match():
                return self._walk_match(node)
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

    def _walk_expression(self, node: ast.expr) -> None:
        awaited = node.value if isinstance(node, ast.Await) else node
        if isinstance(awaited, ast.Yield):
            self._walk_yield(awaited)
        elif isinstance(awaited, ast.YieldFrom):
            self._walk_yield_from(awaited)
        else:
            self.discarded_call = awaited
            start = len(self.trace.ops)
            self.value(node)
            if awaited is node and len(self.trace.ops) > start and background_work.is_spawn(self, node):
                background_work.mark_handed_over(self, start, node)

    def _walk_yield(self, node: ast.Yield) -> None:
        self._yield_value(self.value(node.value) if node.value is not None else Value(literal=None))

    def _walk_yield_from(self, node: ast.YieldFrom) -> None:
        if (function := self.find_generator(node.value)) is not None:
            self.walk_generator(function, self._yield_value)
        else:
            self._yield_value(self.element(self.value(node.value), node))

    def _yield_value(self, value: Value) -> bool:
        """Yield ``value`` to the caller. Returns whether the caller needs no more."""
        if not self.call_stack:
            return False
        frame = self.call_stack[-1]
        frame.yielded.append(value)
        if frame.on_yield is None:
            return False
        on_yield, frame.on_yield = frame.on_yield, None  # what the caller does does not come back to it
        needs_no_more = on_yield(value)
        if not needs_no_more:
            frame.on_yield = on_yield
        return needs_no_more

    def evaluate_yield(self, node: ast.Yield) -> Value:
        self._walk_yield(node)
        return Value(text="<yield>")

    def _bind_import(self, name: str, binding: Binding) -> None:
        self.scope.names[name] = self.value_of_import(self.module, binding)

    def _define_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        scope = self.scope if self.call_stack else None  # of one at the top, the free names are the module's
        owner = self.scope.owner if self.scope.parent else None
        function = Function(node, self.module, scope=scope, owner=owner)
        self.scope.names[node.name] = Value(text=node.name, function=function)
        self.visit_definition(function)

    def _define_class(self, node: ast.ClassDef) -> None:
        cls = self.module.classes.get(node.name)
        if cls is None or cls.node is not node:  # not the module's own class of that name
            cls = ClassDefinition(node, self.module)
        self.scope.names[node.name] = Value(text=node.name, cls=cls)

    def visit_definition(self, function: Function) -> None:
        """Called for each function that is defined. The scan for consumers looks at its decorators."""

    def assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(id=name):
                if (
                    self.conditions
                    and (ops := self._controlling_operations())
                    and value.literal is not UNKNOWN_LITERAL
                    and not value.origin
                ):
                    value = replace(value, origin=ops)  # a flag: it tells which way the code went
                if value.instance is not None and not self.call_stack:
                    value = self._share_module_object(name, value)
                self.scope.names[name] = value if value.text != "?" else replace(value, text=name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for index, part in enumerate(parts):
                    if isinstance(part, ast.Starred):
                        self.assign(part.value, Value(taint=value.taint, origin=value.origin))
                    elif index < len(value.items) and value.tag in ("tuple", "list", "unpack"):
                        self.assign(part, value.items[index])
                    else:
                        item = self.item(value, Value(text=str(index), literal=index))
                        self.assign(part, replace(item, tag=brokers.tag_of_unpacked(value, index)))
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

    def _share_module_object(self, name: str, value: Value) -> Value:
        """The object that a module's own code makes for ``name``: the same one that other modules import."""
        shared = self.module.values.get(name)
        if shared is not None and shared.instance is not None and value.instance is not None:
            return shared if shared.instance.cls is value.instance.cls else value
        if name in self.module.bindings and shared is None:
            self.module.values[name] = value
        return value

    def _set_attribute(self, target: ast.Attribute, value: Value) -> None:
        base = self.value(target.value)
        if base.instance is not None and not self.muted and (value.is_known() or value.origin):
            base.instance.attributes[target.attr] = replace(value, text=self.text(base.text, ".", target.attr))
        orm.set_attribute(self, target, base, value)
        registrations.set_attribute(self, target, base, value)

    def _walk_augmented_assign(self, node: ast.AugAssign) -> None:
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

    def _walk_annotated_assign(self, node: ast.AnnAssign) -> None:
        value = self.value(node.value) if node.value is not None else Value()
        if not value.is_known():
            typed = self.value_of_annotation(node.annotation)
            if typed.is_known():
                value = replace(typed, text=value.text, taint=value.taint, origin=value.origin)
        if node.value is not None or value.is_known():
            self.assign(node.target, value)

    def _walk_return(self, node: ast.Return) -> Ending:
        value = self.value(node.value) if node.value is not None else Value(text="None", literal=None)
        if self.call_stack:
            if ops := self._controlling_operations():
                value = replace(value, origin=(*value.origin, *(op for op in ops if op not in value.origin)))
                if value.literal is None or isinstance(value.literal, bool):
                    value = replace(value, literal=UNKNOWN_LITERAL)  # an answer: the caller may test it
            self.call_stack[-1].returned.append(value)
        return "return"

    def _controlling_operations(self) -> tuple[TracedOperation, ...]:
        """The look-ups and claims whose outcome, within this function, leads here."""
        frame = self.call_stack[-1] if self.call_stack else CallFrame(0, 0)
        ops = [op for checks in self.conditions[frame.conditions_before :] for op in checks]
        ops += [held.op for held in self.held[frame.held_before :] if held.until != "block"]
        return tuple(dict.fromkeys(ops))

    def _walk_raise(self, node: ast.Raise) -> Ending:
        if node.exc is not None:
            raised = self.value(node.exc)
            name = raised.ref or raised.text
            if brokers.requests_redelivery(name):
                self.emit("retry", node, text=name)
        self.emit("raise", node)
        return "raise"

    # -- branches

    def _walk_if(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> Ending:
        condition = self.value(test)
        outcome = self._decide_test(test)
        if outcome is not None:
            return self.walk_block(body if outcome else orelse)
        return self._walk_branches(condition, [body, orelse])

    def _decide_test(self, test: ast.expr) -> bool | None:
        """The outcome of a test for an optional argument, where the call that is being walked decides it."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            outcome = self._decide_test(test.operand)
            return None if outcome is None else not outcome
        name = test
        is_none = False
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.IsNot):
            if not (isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None):
                return None
            name, is_none = test.left, isinstance(test.ops[0], ast.Is)
        if not isinstance(name, ast.Name) or len(self.call_stack) < 2:
            return None
        value = self.scope.names.get(name.id)
        if value is None or value.origin:
            return None
        if value.literal is None:
            return is_none
        return not is_none if MESSAGE in value.taint and value.text != name.id else None

    def _walk_branches(self, condition: Value, arms: list[list[ast.stmt]]) -> Ending:
        """Walk each arm on its own, then continue with the names and guards that any of them may have left."""
        branch = self.number()
        names_before = dict(self.scope.names)
        held_before, epoch_before = len(self.held), self.epoch
        endings: list[Ending] = []
        states: list[dict[str, Value]] = []
        held_after: list[list[HeldGuard]] = []
        epochs: list[int] = []
        for number, arm in enumerate(arms):
            self.scope.names = dict(names_before)
            self.epoch = epoch_before
            self.conditions.append(condition.origin)
            with self.at_position(self.position.in_arm(branch, number)):
                ending = self.walk_block(arm)
            self.conditions.pop()
            endings.append(ending)
            if ending == NEXT:
                states.append(self.scope.names)
                held_after.append(self.held[held_before:])
                epochs.append(self.epoch)
            else:
                self.trace.exits[branch, number] = (ending, self.position.frames[-1])
            del self.held[held_before:]
        self.epoch = max(epochs, default=epoch_before)  # a commit in an arm that leaves does not count for the others
        self.scope.names = self.merge_names(names_before, states, condition)
        if not states:
            return join_endings(endings)
        if len(states) < len(arms):  # runs that continue passed the test that made others leave
            all_raise = all(ending in (NEXT, "raise") for ending in endings)
            self.hold(condition.origin, "raise" if all_raise else "function")
        if len(states) == 1:
            self.held.extend(held_after[0])
        return NEXT

    def _walk_match(self, node: ast.Match) -> Ending:
        subject = self.value(node.subject)
        arms = []
        for case in node.cases:
            for pattern in ast.walk(case.pattern):
                name = pattern.name if isinstance(pattern, ast.MatchAs | ast.MatchStar) else None
                if name:
                    self.scope.names[name] = Value(text=name, taint=subject.taint)
            arms.append(case.body)
        last = node.cases[-1]
        if not (isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None):
            arms.append([])  # no `case _:`, so no arm may match
        return self._walk_branches(subject, arms)

    # -- loops

    def _walk_for(self, node: ast.For | ast.AsyncFor) -> Ending:
        iterable = self._evaluate_iterable(node)
        if iterable is None:
            return NEXT
        if (
            iterable.tag in ("list", "tuple")
            and 1 < len(iterable.items) <= _MAX_UNROLLED_ITEMS
            and any(map(_holds_functions, iterable.items))
        ):
            for item in iterable.items:  # a table of handlers, registered one by one
                self.assign(node.target, item)
                self._walk_loop(node.body, [], retry=False)
            return NEXT
        retry = error_handling.is_retry_loop(node, iterable)
        item = self.element(iterable, node.iter)
        if retry:
            item = replace(item, taint=item.taint | {ATTEMPT_NUMBER})
        self.assign(node.target, item)
        self.conditions.append(orm.conditions_of_filter(iterable, item))
        ending = self._walk_loop(node.body, node.orelse, retry=retry)
        self.conditions.pop()
        return ending

    def _evaluate_iterable(self, node: ast.For | ast.AsyncFor) -> Value | None:
        """What a loop iterates over. None if its body was walked already, at the yield of the project's generator."""
        function = self.find_generator(node.iter)
        if function is None:
            return self.value(node.iter)
        was_walked = False

        def walk_body(yielded: Value) -> bool:
            nonlocal was_walked
            is_message = yielded.taint or yielded.origin  # not `yield None` while there is none
            if is_message and not was_walked:
                was_walked = True
                self.assign(node.target, yielded)
                self._walk_loop(node.body, node.orelse, retry=False)
            return was_walked

        iterable = self.walk_generator(function, walk_body)
        return None if was_walked else iterable

    def _walk_while(self, node: ast.While) -> Ending:
        test = self.value(node.test)
        retry = error_handling.is_retry_loop(node, test)
        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        ending = self._walk_loop(node.body, node.orelse, retry=retry)
        breaks = any(isinstance(child, ast.Break) for child in ast.walk(node))
        return "return" if forever and not breaks and ending == NEXT and self.call_stack else ending

    def _walk_loop(self, body: list[ast.stmt], orelse: list[ast.stmt], *, retry: bool) -> Ending:
        """Walk once through a loop's body. A loop that retries runs to its end once. Any other may run no round at
        all, so the guards and the ending of its body say nothing about the code behind it."""
        held_before = len(self.held)
        names_before = dict(self.scope.names)
        position = self.position.in_loop(self.number())
        with self.at_position(replace(position, retrying=True) if retry else position):
            ending = self.walk_block(body)
        held_inside = self.held[held_before:]
        del self.held[held_before:]
        if retry:
            self.held.extend(held for held in held_inside if held.until == "raise")
        for name, value in names_before.items():
            if self.scope.names.get(name) is not value and name in self.scope.names:
                self.scope.names[name] = join_values([self.scope.names[name], value], name)
        if orelse:
            self.walk_block(orelse)
        return ending if ending in ("return", "raise") and retry else NEXT

    def element(self, iterable: Value, node: ast.AST) -> Value:
        """The value of a loop's variable. To loop over a source of messages is to receive one."""
        received = brokers.receive_by_iteration(self, iterable, node)
        if received is not None:
            return received
        if iterable.home is not None and not iterable.items and (handlers := registered_handlers(self, iterable)):
            return join_values(handlers, self.text(iterable.text, "[]"))
        if iterable.items and iterable.tag in ("list", "tuple", "set", "generator", "one of"):
            return join_values(iterable.items, self.text(iterable.text, "[]"))
        if iterable.fields is not None and iterable.tag == "dict.items":
            return Value(tag="tuple", items=(Value(), join_values(list(iterable.fields.values()) or [Value()], "item")))
        if iterable.tag == "orm.query":
            return orm.row_of_query(self, iterable, node)
        return Value(text=self.text(iterable.text, "[]"), taint=iterable.taint, origin=iterable.origin, base=iterable)


def _holds_functions(value: Value) -> bool:
    """Whether an item of a sequence is a function, an object or a module of the project, or a tuple with one."""
    parts = (value, *value.items)
    return any(part.function is not None or part.instance is not None or part.module is not None for part in parts)
