"""Lending under random commands: a page that was given back is read by nobody, and the books agree at each step."""

from __future__ import annotations

import random

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, identity, ids_of

from tierd.core import messages as m
from tierd.core.errors import Refused
from tierd.core.loans import FIRST_POOL, page_address

BLOCKS, PAGES, STEPS = 12, 6, 400
LENDERS = (SESSION, 8)


class World:
    """An engine and two lenders, each with a pool of pages, and what each page holds."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        hbm, spill = self.random.choice([0, 2]), self.random.choice([0, 6])
        policy = self.random.choice(["lru", "lrfu", "lru(leaf_only=false)"])
        self.driver = Driver(4, hbm=hbm, spill=spill, rows=10, policy=policy, lends=True, max_moves=5)
        self.driver.step(m.OpenSession(8))
        self.content: dict[int, int] = {}
        """Address of each page that may be lent -> block. A page is in here until it was given back."""
        self.leases: list[m.AcquireReply] = []

    def number(self) -> int:
        return self.random.randrange(BLOCKS)

    def pages(self, lender: int) -> tuple[int, list[int]]:
        pool = FIRST_POOL + LENDERS.index(lender)
        return pool, self.random.sample(range(PAGES), self.random.randint(1, 3))

    # --- commands -----------------------------------------------------------------------------------

    def adopt(self) -> None:
        lender = self.random.choice(LENDERS)
        pool, pages = self.pages(lender)
        start = self.number()
        blocks = ids_of([(start + i) % BLOCKS for i in range(len(pages))])
        fences = np.array([self.random.choice([0, 3]) for _ in pages], np.uint64)
        try:
            reply = self.driver.step(m.Adopt(lender, blocks, BLOCK, pool, np.array(pages, np.uint64), fences))
        except Refused:
            held = [self.content.get(page_address(pool, page)) for page in pages]
            assert any(old not in (None, (start + i) % BLOCKS) for i, old in enumerate(held))
            return
        assert isinstance(reply, m.Outcomes)
        for place, (page, outcome) in enumerate(zip(pages, reply.outcomes.tolist(), strict=True)):
            if outcome == m.Adopted.ADOPTED:
                self.content[page_address(pool, page)] = (start + place) % BLOCKS

    def withdraw(self) -> None:
        lender = self.random.choice(LENDERS)
        pool, pages = self.pages(lender)
        named = None if self.random.random() < 0.2 else np.array(pages, np.uint64)
        reply = self.driver.step(m.Withdraw(lender, pool, named, save=self.random.random() < 0.5))
        assert isinstance(reply, m.WithdrawReply)
        for page, outcome in zip(reply.pages.tolist(), reply.outcomes.tolist(), strict=True):
            if outcome == m.Withdrawn.PENDING:
                assert page_address(pool, page) in self.content
            else:
                self.given_back(page_address(pool, page))

    def given_back(self, address: int) -> None:
        """From now on the page may hold anything: no move may be reading it."""
        self.content.pop(address, None)
        assert address not in [move.source_address for move in self.driver.moves]
        tier = self.driver.engine.state.tiers[m.Tier.HBM]
        assert address not in tier.copies.loans.row_of

    def evict(self) -> None:
        to = self.random.choice([m.Tier.HOST, None])
        self.driver.step(m.Evict(ids_of([self.number()]), to, allow_drop=to is None))

    def put(self) -> None:
        self.driver.put([self.number()], tier=m.Tier.HOST, checksum=5)

    def acquire(self) -> None:
        reply = self.driver.acquire([self.number(), self.number()])
        if reply.lease:
            assert all(address < FIRST_POOL << 48 for address in reply.addresses.tolist())
            self.leases.append(reply)

    def release(self) -> None:
        if self.leases:
            self.driver.release(self.leases.pop())

    def readmit(self) -> None:
        self.driver.step(m.Readmit(ids_of([self.number()]), m.Tier.HBM))

    def finish(self) -> None:
        """Some moves end. What is read of a page is what the page holds then."""
        moves = self.driver.moves
        if not moves:
            return
        move = moves.pop(self.random.randrange(len(moves)))
        ok, checksum = self.random.random() < 0.7, 0
        if move.lender:
            held = self.content.get(move.source_address)
            assert held is not None, "a page that was given back is not being read"
            assert identity(held) == move.identity
            checksum = self.random.choice([5, 5, 5, 6])
        self.driver.step(m.Finish((m.MoveResult(move.op, ok, checksum=checksum),)))

    def end_session(self) -> None:
        self.driver.step(m.EndSession(8, settled=True))
        for address in [address for address in self.content if address >> 48 == FIRST_POOL + 1]:
            if address not in [move.source_address for move in self.driver.moves]:
                self.given_back(address)
        self.driver.step(m.OpenSession(8))

    def run(self) -> None:
        weights = {
            self.adopt: 6, self.withdraw: 6, self.evict: 3, self.put: 3, self.acquire: 3, self.release: 3,
            self.readmit: 2, self.finish: 8, self.end_session: 0.3,
        }
        for _ in range(STEPS):
            self.random.choices(list(weights), list(weights.values()))[0]()
        while self.driver.moves:
            self.finish()
        for lender in LENDERS:
            reply = self.driver.step(m.Withdraw(lender, FIRST_POOL + LENDERS.index(lender), None))
            assert isinstance(reply, m.WithdrawReply)
            assert m.Withdrawn.PENDING not in reply.outcomes
        assert not len(self.driver.engine.state.tiers[m.Tier.HBM].copies.loans)


@pytest.mark.parametrize("seed", range(12))
def test_nobody_reads_a_page_that_was_given_back(seed: int) -> None:
    """Whatever happens, no move reads a page after the answer that gave it back, and no lease names a page."""
    World(seed).run()
