"""The engine: a command and a time go in, a reply and effects come out.

Synchronous and deterministic; it does no I/O and owns no clock. What a command does is in the module of its
family, which HANDLERS names. All of them work on one State.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tierd.core import (
    budgets,
    canary,
    draining,
    explain,
    found,
    hazards,
    hints,
    lending,
    lives,
    moving,
    pins,
    placing,
    prefetch,
    reading,
    sampling,
    sequences,
    statistics,
    stock,
    storing,
    touching,
)
from tierd.core import messages as m
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.policy.registry import parse
from tierd.core.room import finish
from tierd.core.state import State
from tierd.core.tables import Tables
from tierd_client.format import WORD_POLICY_EPOCH

Handler = Callable[[State, Any], m.Reply]


def _finish(state: State, command: m.Finish) -> m.Done:
    finish(state, command.results)
    budgets.settle(state)
    prefetch.advance(state)
    return m.Done(len(command.results))


def _set_policy(state: State, command: m.SetPolicy) -> m.PolicySet:
    policy = parse(command.spec)
    rescale = policy.common.alpha != state.policy.common.alpha
    state.policy = policy
    state.tables.catalog.words[WORD_POLICY_EPOCH] += np.uint64(1)
    if rescale:
        statistics.rescale(state.catalog, state.ghosts, policy.common.alpha)
    state.make_victims()
    return m.PolicySet(policy.spec, state.policy_epoch)


def _occupancy(state: State, command: m.Occupancy) -> m.OccupancyReply:
    del command
    return explain.occupancy(state)


def _shares(state: State, command: m.Shares) -> m.SharesReply:
    del command
    return explain.shares(state)


HANDLERS: dict[type, Handler] = {
    m.OpenSession: lives.open_session,
    m.BindProcess: lives.bind_process,
    m.OpenPage: lives.open_page,
    m.EndSession: lives.end_session,
    m.OpenSequence: sequences.open_sequence,
    m.CloseSequence: sequences.close_sequence,
    m.Observe: sequences.observe,
    m.SetBudget: sequences.set_budget,
    m.Lookup: reading.lookup,
    m.LookupChains: reading.lookup_chains,
    m.Acquire: reading.acquire,
    m.Release: reading.release,
    m.Readmit: reading.readmit,
    m.Reserve: placing.reserve,
    m.Commit: placing.commit,
    m.Note: placing.note,
    m.Abort: placing.abort,
    m.Stock: stock.stock,
    m.Unstock: stock.unstock,
    m.Store: stock.store,
    m.Adopt: lending.adopt,
    m.Withdraw: lending.withdraw,
    m.Evict: moving.evict,
    m.Clear: moving.clear,
    m.DropDamaged: moving.drop_damaged,
    m.SpillState: moving.spill_state,
    m.ListDrainable: draining.list_drainable,
    m.StoreBelow: draining.store_below,
    m.BorrowSlot: canary.borrow_slot,
    m.ReturnSlot: canary.return_slot,
    m.AddFound: found.add_found,
    m.TakeStatistics: found.take_statistics,
    m.SampleStored: sampling.sample_stored,
    m.LearnFootprints: sampling.learn_footprints,
    m.Finish: _finish,
    m.SetPolicy: _set_policy,
    m.Pin: pins.pin,
    m.Unpin: pins.unpin,
    m.Touch: touching.touch,
    m.Prefetch: prefetch.prefetch,
    m.PrefetchStatus: prefetch.prefetch_status,
    m.CancelPrefetch: prefetch.cancel_prefetch,
    m.Occupancy: _occupancy,
    m.Shares: _shares,
    m.Describe: explain.describe,
    m.ListBlocks: explain.list_blocks,
    m.ListSequences: explain.list_sequences,
    m.Explain: explain.explain,
    m.Plan: explain.plan,
}


class Engine:
    """`survivors`: sessions of the tables' last boot whose process may still live; their slots are kept.
    `looked_at`: their hazard pages."""

    def __init__(
        self, settings: EngineSettings, tables: Tables, survivors: frozenset[int] = frozenset(),
        looked_at: hazards.Hazards | None = None,
    ) -> None:
        self.state = State(settings, tables, hazards.Hazards() if looked_at is None else looked_at)
        self.kept = lives.recover(self.state, survivors)
        """Identities taken over from the last boot."""

    def step(self, command: m.Command, now: float) -> m.Step:
        """Carries out one command at wall time `now` (s since 1970); raises as `begin` does."""
        reply = self.begin(command, now)
        return m.Step(reply, self.finish())

    def begin(self, command: m.Command, now: float) -> m.Reply:
        """Carries out one command as far as its reply tells. `finish` comes before the next one.

        Raises InvalidInput, NotFound, Refused or LimitReached about the whole command; nothing is done then.
        """
        state = self.state
        state.clock.tell(now)
        state.storing.allowance.tell(state.clock.wall_s)
        state.lapse()
        hints.lapse(state)
        hazards.look(state)
        return HANDLERS[type(command)](state, command)

    def finish(self) -> list[m.Effect]:
        """What the command leads to, on which nobody's reply depends."""
        state = self.state
        storing.settle(state)
        state.settle_ages()
        state.gaps.tick(state.clock.step)
        if state.fallback is not None:
            state.fallback.tick(state.clock.step, len(state.catalog))
        effects, state.effects = state.effects, []
        return effects

    def namespaces(self) -> frozenset[int]:
        """Numbers that stand in a record with a copy."""
        catalog = self.state.catalog
        return frozenset(np.unique(catalog.namespace[catalog.used]).tolist())

    def orphans(self) -> list[tuple[int, int, int, bytes]]:
        """(session, pid, start time, token) of sessions that have ended while their process may still live."""
        sessions = self.state.sessions
        return [
            (session.number, int(sessions.pid[session.row]), int(sessions.start_time[session.row]), session.token)
            for session in sessions.by_number.values()
            if session.ended
        ]


__all__ = ["Engine", "EngineSettings", "Tables", "TierSpec"]
