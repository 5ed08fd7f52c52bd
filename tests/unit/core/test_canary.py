"""A slot that is borrowed to see whether a tier can be written and read."""

from __future__ import annotations

from engine_driver import BLOCK, Driver, ids_of

from tierd.core import messages as m


def borrow(driver: Driver) -> m.BorrowedSlot:
    reply = driver.step(m.BorrowSlot(m.Tier.HOST, BLOCK))
    assert isinstance(reply, m.BorrowedSlot)
    return reply


def test_a_borrowed_slot_is_free_and_comes_with_a_block_to_read() -> None:
    """Nothing is named in an empty tier; in one with a block that block is, and its slot is not lent."""
    driver = Driver(host=2)
    first = borrow(driver)
    assert (first.address is not None, first.room, first.sample) == (True, True, b"")
    driver.put([3])
    block = driver.describe(3)
    assert block is not None and block.copies[0].address != first.address
    full = borrow(driver)
    assert (full.address, full.room, full.sample) == (None, True, ids_of([3]).ids.tobytes())
    driver.step(m.ReturnSlot(m.Tier.HOST, first.address or 0))
    assert borrow(driver).address == first.address


def test_a_full_tier_says_whether_room_could_be_made() -> None:
    """A leased block is no room; once it is let go it is, and nothing was evicted to find out."""
    driver = Driver(host=1)
    driver.put([0])
    lease = driver.acquire([0])
    assert (borrow(driver).address, borrow(driver).room) == (None, False)
    driver.release(lease)
    assert borrow(driver).room and driver.present() == [0]
