"""The verdict on what was read."""

from __future__ import annotations

import numpy as np

from tierd.demo.ledger import Ledger, digest


def test_a_read_of_what_was_stored_is_verified() -> None:
    """Equal digests count as verified bytes and as no mismatch."""
    ledger = Ledger()
    ledger.store({"a": "1", "b": "2"})
    ledger.check({"a": "1", "b": "2"}, 100)
    assert (ledger.blocks_verified, ledger.bytes_verified, ledger.mismatches) == (2, 200, [])


def test_other_bytes_and_unknown_blocks_are_mismatches() -> None:
    """A different digest and an identity that nobody stored are both reported, by identity."""
    ledger = Ledger()
    ledger.store({"a": "1"})
    ledger.check({"a": "2", "b": "1"}, 100)
    assert ledger.mismatches == ["a", "b"]


def test_a_block_stored_again_may_be_either_version() -> None:
    """After a second store of an identity both versions are accepted, and no third."""
    ledger = Ledger()
    ledger.store({"a": "1"})
    ledger.store({"a": "2"})
    ledger.check({"a": "1"}, 1)
    ledger.check({"a": "2"}, 1)
    assert not ledger.mismatches
    ledger.check({"a": "3"}, 1)
    assert ledger.mismatches == ["a"]


def test_one_bit_changes_the_digest() -> None:
    """The digest covers every bit of the block."""
    block = np.arange(256, dtype=np.uint8)
    other = block.copy()
    other[200] ^= 1
    assert digest(block) != digest(other)
    assert digest(block) == digest(block.copy())
