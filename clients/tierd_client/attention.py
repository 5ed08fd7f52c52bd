"""What a worker reports of attention over a running request, and the budget that goes by it; routines of a
namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tierd_client.arguments import whole
from tierd_client.budget import Budget, Resident, budget_of
from tierd_client.deadline import Deadline
from tierd_client.errors import NotFound
from tierd_client.payload import float32_bytes
from tierd_client.routine import awaiting, blocking
from tierd_client.session import Session
from tierd_client.v1 import blocks_pb2

if TYPE_CHECKING:
    from tierd_client.namespace import NamespaceRoutines
    from tierd_client.sequence import BaseSequence, Running

STEPS_MAX = 1_000_000
"""Decode steps that one report may fold."""


async def observe(
    ns: NamespaceRoutines, sequence: BaseSequence | str, attention: Any = None, steps: int = 1,
    policy_epoch: int = 0,
) -> int:
    """Reports attention over the blocks of a sequence; the step of the daemon's clock.

    `attention`: one number per block from the start of the sequence: sum over the block's tokens, mean
    over query heads and layers, in [0, 1]. None moves only the decode clock. `steps`: decode steps folded
    into it, of which it is the mean. A sequence that closed a short while ago takes reports still. 0 for a sequence
    without blocks.
    """
    whole(steps, "steps", 1, STEPS_MAX)
    whole(policy_epoch, "policy_epoch", 0, 2**64 - 1)
    data = b"" if attention is None else float32_bytes(attention, "attention")
    known = _known(ns, sequence)

    async def report(session: Session) -> int:
        reply = await session.call("Observe", blocks_pb2.ObserveRequest(
            session=session.id, sequence=known.name, attention=data, steps=steps, policy_epoch=policy_epoch))
        return int(reply.step)

    return await ns.make(report) if len(known.ids) else 0


async def set_budget(
    ns: NamespaceRoutines, sequence: BaseSequence | str, budget: Budget | str | None = None, attention: Any = None,
    steps: int = 1, timeout_s: float = 2.0,
) -> Resident:
    """Gives an open sequence a budget or another one, and says what of it is in hbm once what is over has left.

    `budget`: a Budget or the name of a preset; None: the one it has. `attention`, `steps`: counted before anything
    goes, as in `observe`. What is not copied down in time is LEAVING, and goes on. Raises FailedPrecondition where
    there is no budget to keep, InvalidArgument naming the field of one that cannot be.
    """
    wait = Deadline.of(timeout_s)
    whole(steps, "steps", 1, STEPS_MAX)
    given = None if budget is None else budget_of(budget)
    data = b"" if attention is None else float32_bytes(attention, "attention")
    running = _known(ns, sequence)
    message = None if given is None else blocks_pb2.SequenceBudget(**running.in_blocks(given))

    async def ask(session: Session) -> Resident:
        return Resident.told(await session.call("SetBudget", blocks_pb2.SetBudgetRequest(
            session=session.id, sequence=running.name, budget=message, attention=data, steps=steps,
            timeout_ms=wait.left_ms()), wait.left_s()))

    resident = await ns.make(ask, timeout_s)
    running.budget = given or running.budget
    return resident


async def give_budget(session: Session, running: Running) -> None:
    """Tells a session's daemon of the budget that a sequence was opened with, if it has one."""
    if running.budget is not None:
        await session.call("SetBudget", blocks_pb2.SetBudgetRequest(
            session=session.id, sequence=running.name,
            budget=blocks_pb2.SequenceBudget(**running.in_blocks(running.budget))))


def _known(ns: NamespaceRoutines, sequence: BaseSequence | str) -> Running:
    name = sequence if isinstance(sequence, str) else sequence.name
    known = ns.client.sequences.known(name)
    if known is None:
        raise NotFound(f"sequence: {name!r} is not open in this client")
    return known


class BlockingAttention:
    """Of Namespace."""

    observe = blocking(observe)
    set_budget = blocking(set_budget)


class AwaitingAttention:
    """Of AsyncNamespace."""

    observe = awaiting(observe)
    set_budget = awaiting(set_budget)
