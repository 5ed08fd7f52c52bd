"""The first half of a put: slots are reserved and never committed, as when a writer is held up or dies."""

from __future__ import annotations

from typing import Any

from tierd_client import Namespace
from tierd_client.checks import Checks
from tierd_client.deadline import Deadline
from tierd_client.holding import Batch
from tierd_client.routine import run
from tierd_client.session import Session
from tierd_client.transfer import SharedTransfer


def batch_of(ns: Namespace, session: Session, ids: Any) -> Batch:
    """Ids in any accepted form, as a transfer takes them."""
    return run(ns._routines.batch(session, ns.identities(ids), ""))


def reserve(ns: Namespace, session: Session, ids: Any, seconds: float = 5.0) -> Any:
    """The daemon's answer to Reserve."""
    assert session.memory is not None
    transfer = SharedTransfer(session, session.memory, Checks("never"))
    return run(transfer._reserve(batch_of(ns, session, ids), None, Deadline(seconds)))
