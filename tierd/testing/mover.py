"""The moves of a simulated machine: carried out late, out of order, halfway, or not at all."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tierd.core.messages import Move, MoveResult, Record, Tier, Unlink
from tierd.testing.prompts import checksum_of
from tierd.testing.shadow import Hold, Shadow, Use, Violation


@dataclass
class Store:
    """A spill server: what it holds, and whether it answers."""

    up: bool = True
    values: dict[tuple[int, bytes], tuple[int, Record]] = field(default_factory=dict)

    def put(self, move: Move) -> bool:
        if self.up:
            self.values[move.namespace, move.identity] = (move.size, move.record)
        return self.up

    def lose(self, random_: random.Random) -> None:
        """A key vanishes, as under the server's own memory policy."""
        if self.values:
            del self.values[random_.choice(sorted(self.values))]


@dataclass
class Pending:
    """A move on its way, and the ranges that it reads and writes meanwhile."""

    move: Move
    source: Hold | None
    target: Hold | None


class SimulatedMover:
    """Takes moves from the engine and answers them some time; a promotion checks what it read."""

    def __init__(self, shadow: Shadow, store: Store, random_: random.Random) -> None:
        self.shadow, self.store, self.random = shadow, store, random_
        self.pending: dict[int, Pending] = {}

    def start(self, move: Move) -> None:
        """A move begins: its source must hold the block, its target must be nobody's."""
        if move.op in self.pending:
            raise Violation(f"move {move.op} was started twice")
        if move.checksum != checksum_of(move.identity):
            raise Violation(f"move {move.op} of {move.identity[:4].hex()} has the checksum of another block")
        source = self._hold(move, move.source, move.source_address, Use.READ)
        target = self._hold(move, move.target, move.target_address, Use.WRITE)
        if source:
            self.shadow.check(source)
        self.pending[move.op] = Pending(move, source, target)

    def unlink(self, unlink: Unlink) -> None:
        if self.store.up:
            for identity in unlink.identities:
                self.store.values.pop((unlink.namespace, identity), None)

    def write_part(self) -> None:
        """Some move has written some pages of its target."""
        if self.pending:
            pending = self.pending[self.random.choice(sorted(self.pending))]
            if pending.target:
                self.shadow.write(pending.target, self.random.randint(0, 2))

    def finish(self, ops: list[int], *, faults: bool = True) -> tuple[MoveResult, ...]:
        """Carries moves out, in the order given, and ends their rights to their ranges."""
        results = []
        for op in ops:
            pending = self.pending.pop(op)
            results.append(self._carry_out(pending, faults and self.random.random() < 0.2))
            self._let_go(pending)
        return tuple(results)

    def die(self) -> None:
        """The daemon was killed: its threads stop where they are."""
        for pending in self.pending.values():
            self._let_go(pending)
        self.pending.clear()

    def _carry_out(self, pending: Pending, fault: bool) -> MoveResult:
        move = pending.move
        if fault:
            lost = self.random.random() < 0.3
            full = move.target == Tier.SPILL and not lost and self.random.random() < 0.3
            return MoveResult(move.op, False, lost, full, "injected")
        if pending.source:
            self.shadow.check(pending.source)
        elif not self.store.up:
            return MoveResult(move.op, False, reason="down")
        elif (move.namespace, move.identity) not in self.store.values:
            return MoveResult(move.op, False, lost=True, reason="vanished")
        if pending.target:
            self.shadow.write(pending.target)
            return MoveResult(move.op, True)
        return MoveResult(move.op, self.store.put(move), reason="" if self.store.up else "down")

    def _hold(self, move: Move, tier: Tier, address: int, use: Use) -> Hold | None:
        if tier == Tier.SPILL:
            return None
        return self.shadow.take(Hold(tier, address, move.size, move.identity, use, f"move {move.op}"))

    def _let_go(self, pending: Pending) -> None:
        for hold in (pending.source, pending.target):
            if hold:
                self.shadow.give_back(hold)
