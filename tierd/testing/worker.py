"""A worker process of a simulated machine: what it was granted and leased, and what it does with it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from tierd.core.messages import Acquire, Reserve
from tierd.testing.prompts import Prompt, checksum_of, pack
from tierd.testing.shadow import Hold, Shadow
from tierd_client.format import U8Array, U64Array


@dataclass(eq=False)
class Slot:
    """A granted slot that is being written."""

    hold: Hold
    generation: int
    prompt: Prompt
    sequence: str
    written: bool = False


@dataclass(eq=False)
class Ahead:
    """A slot of its stock, which it may write for any block of that size."""

    hold: Hold
    generation: int


@dataclass(eq=False)
class Waiting:
    """A command to repeat for its pending ids once moves have ended."""

    command: Reserve | Acquire
    ops: frozenset[int]
    prompt: Prompt


@dataclass(eq=False)
class Worker:
    """One process with one session. `told`: the engine believes that the session is over."""

    session: int
    alive: bool = True
    told: bool = False
    slots: list[Slot] = field(default_factory=list)
    stock: list[Ahead] = field(default_factory=list)
    leases: dict[int, list[Hold]] = field(default_factory=dict)
    sequences: dict[str, Prompt] = field(default_factory=dict)
    budgeted: set[str] = field(default_factory=set)
    """Those that have a budget, or had one."""
    lossy: set[str] = field(default_factory=set)
    """Those of them that may have given blocks up."""
    waiting: list[Waiting] = field(default_factory=list)
    names: int = 0

    @property
    def active(self) -> bool:
        """It can still send commands."""
        return self.alive and not self.told

    def new_name(self) -> str:
        self.names += 1
        return f"{self.session}-{self.names}"

    def touch_memory(self, random_: random.Random, shadow: Shadow) -> None:
        """Writes into a slot it was granted, or reads what it leased. It may, even after its session ended."""
        if self.stock and random_.random() < 0.2:
            shadow.write(random_.choice(self.stock).hold, random_.randint(0, 2))
        if self.slots and random_.random() < 0.75:
            for slot in random_.sample(self.slots, random_.randint(1, len(self.slots))):
                pages = None if random_.random() < 0.8 else random_.randint(0, 2)
                shadow.write(slot.hold, pages)
                slot.written = slot.written or pages is None
        elif self.leases:
            for hold in self.leases[random_.choice(sorted(self.leases))]:
                shadow.check(hold)

    def give_up_memory(self, shadow: Shadow) -> None:
        """It touches nothing any more: it died, or detaches."""
        holds = [*(slot.hold for slot in self.slots), *(ahead.hold for ahead in self.stock)]
        holds += [hold for leased in self.leases.values() for hold in leased]
        for hold in holds:
            shadow.give_back(hold)
        self.slots.clear()
        self.stock.clear()
        self.leases.clear()


def packed_slots(slots: list[Slot]) -> tuple[U8Array, U64Array, U64Array]:
    """Ids, generations and checksums of slots, as Commit and Abort want them."""
    identities = [slot.hold.identity for slot in slots]
    generations = np.array([slot.generation for slot in slots], np.uint64)
    return pack(identities), generations, np.array([checksum_of(one) for one in identities], np.uint64)
