"""Traces one consumer: walks through it as it would run for one message."""

from __future__ import annotations

import ast

from .libraries.message_parts import BODY_PARAMETERS, message_parameter
from .project import Project
from .statements import StatementWalker
from .taints import MESSAGE
from .values import DetectedConsumer, Trace, Value
from .walk_state import FuelExhausted

CONSUMER_FUEL = 120_000
"""How many expressions one walk may evaluate."""
TOO_LARGE = "too large to be followed to its end"
TOO_DEEP = "nested too deeply to be followed to its end"


def trace_consumer(project: Project, consumer: DetectedConsumer) -> Trace:
    """Walk through ``consumer`` and all that it calls, and return the trace.

    Where the walk ends before the code does, the trace so far counts, and says why.
    """
    walker = StatementWalker(project, consumer.module, CONSUMER_FUEL)
    if consumer.guard is not None:
        walker.hold((consumer.guard,), "walk")
    try:
        if consumer.function is None:
            walker.walk_block(consumer.module.tree.body)
        else:
            walker.invoke(consumer.function, _delivered_arguments(consumer), {}, consumer.function.node)
    except FuelExhausted:
        walker.trace.broken_off = TOO_LARGE
    except RecursionError:
        walker.trace.broken_off = TOO_DEEP
    return walker.trace


def _delivered_arguments(consumer: DetectedConsumer) -> tuple[Value, ...]:
    """The arguments that the framework passes: the message, its fields, its channel. A loop gets none."""
    function = consumer.function
    assert function is not None
    if consumer.receive is not None:
        return ()
    node = function.node
    parameters = [*node.args.posonlyargs, *node.args.args]
    if function.receiver is not None or (function.owner is not None and parameters and parameters[0].arg == "self"):
        parameters = parameters[1:]
    parameters = parameters[len(function.bound) :]
    tags = dict(consumer.tags)
    values: list[Value] = []
    for position, parameter in enumerate(parameters):
        if position < len(consumer.first_arguments):
            values.append(consumer.first_arguments[position])
            continue
        tag = tags.get(position, "")
        if parameter.arg in function.bound_names or (not tag and _is_injected(node.args, parameter)):
            break
        if tag == "celery.self":
            values.append(Value(text="self", tag=tag, taint=frozenset({MESSAGE})))
        else:
            is_alone = len(parameters) == 1 and not consumer.tags
            is_body = tag in ("body", "lambda.event", "sqs.record") or parameter.arg in BODY_PARAMETERS or is_alone
            values.append(message_parameter(parameter.arg, "" if tag == "body" else tag, is_whole_body=is_body))
    return tuple(values)


def _is_injected(arguments: ast.arguments, parameter: ast.arg) -> bool:
    """Whether a framework injects a parameter that is not part of the message: `session=Depends(get_session)`."""
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    defaults = dict(zip(reversed(names), reversed(arguments.defaults), strict=False))
    return isinstance(defaults.get(parameter.arg), ast.Call)
