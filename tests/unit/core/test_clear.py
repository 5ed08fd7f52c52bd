"""Clear: what is removed, what is left because it is in use or too much to delete, and what is said of it."""

from __future__ import annotations

from engine_driver import BLOCK, Driver, ids_of

from tierd.core import messages as m


def spilled(count: int, resident: int = 2) -> Driver:
    """So many blocks in spill only, and some in host only."""
    driver = Driver(host=count + resident, spill=count + resident)
    driver.put(range(count))
    driver.step(m.Evict(ids_of(range(count)), m.Tier.SPILL))
    driver.carry_out()
    driver.put(range(count, count + resident))
    return driver


def cleared(driver: Driver, **how: object) -> m.Cleared:
    reply = driver.step(m.Clear(m.BlockFilter(), **how))
    assert isinstance(reply, m.Cleared)
    return reply


def test_a_clear_leaves_what_would_be_too_much_to_delete_at_once_and_says_how_many() -> None:
    """Of five stored and two other blocks, two deletes leave three; again, until none is left."""
    driver = spilled(5)
    for stored, others, left in ((2, 2, 3), (2, 0, 1), (1, 0, 0), (0, 0, 0)):
        reply = cleared(driver, most_deletes=2)
        assert (reply.copies[m.Tier.SPILL], reply.copies[m.Tier.HOST], reply.left) == (stored, others, left)
        assert reply.slot_bytes[m.Tier.HOST] == others * BLOCK
    assert len(driver.unlinked) == 5 and not driver.present(m.Tier.SPILL)


def test_a_clear_says_which_blocks_are_in_use_and_they_stay() -> None:
    """A leased block is counted and named, and is there afterwards; a dry run says the same and removes nothing."""
    driver = spilled(1, resident=3)
    lease = driver.acquire([2])
    for dry_run in (True, False):
        reply = cleared(driver, dry_run=dry_run)
        assert (reply.in_use, reply.skipped, reply.left) == (1, ids_of([2]).ids.tobytes(), 0)
        assert driver.present() == ([1, 2, 3] if dry_run else [2])
    driver.release(lease)
    assert cleared(driver, most=1).copies[m.Tier.HOST] == 1 and not driver.present()


def test_ghosts_go_when_they_are_asked_to() -> None:
    """Without `ghosts` the records that are left stay; with it they are forgotten and counted."""
    driver = spilled(3, resident=0)
    assert cleared(driver).ghosts == 0
    assert cleared(driver, ghosts=True).ghosts == 3
    assert cleared(driver, ghosts=True).ghosts == 0
