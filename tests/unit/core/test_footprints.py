"""What a stored block takes of the spill server's memory: assumed, then learnt, and counted with."""

from __future__ import annotations

import numpy as np
from engine_driver import BLOCK, Driver, identity
from hypothesis import given
from hypothesis import strategies as st
from test_found import adopt
from test_storing import spill_row

from tierd.core import messages as m
from tierd.core.engine import Engine, EngineSettings, TierSpec
from tierd.core.footprints import SIZES_MAX, Footprints


def spilled(count: int, spill: int, **settings: object) -> Driver:
    """A driver whose spill tier holds that many blocks, the first the longest unused."""
    driver = Driver(count, spill=spill, spill_write="through", **settings)
    for number in range(count):
        driver.now += 1
        driver.put([number])
    driver.carry_out()
    return driver


def learn(driver: Driver, taken: int) -> None:
    driver.step(m.LearnFootprints({BLOCK: taken}))


def sample(driver: Driver, *, sizes: int = 16, blocks: int = 8, learnt_before_s: float = 0.0) -> list[bytes]:
    reply = driver.step(m.SampleStored(sizes, blocks, learnt_before_s))
    assert isinstance(reply, m.Sample)
    assert all((size, namespace) == (BLOCK, 1) for size, namespace, _ in reply.blocks)
    return [one for _, _, one in reply.blocks]


def test_what_was_learnt_is_what_counts() -> None:
    """Stored blocks take what was learnt of their size, in the tier's books and in what is told of them, and so
    do those stored later."""
    driver = spilled(3, 8)
    assert spill_row(driver).used_bytes == 3 * BLOCK
    learn(driver, BLOCK + 1000)
    row = spill_row(driver)
    assert (row.used_bytes, row.footprints) == (3 * (BLOCK + 1000), {BLOCK: BLOCK + 1000})
    assert row.free_bytes == 8 * BLOCK - row.used_bytes
    driver.put([9])
    driver.carry_out()
    assert spill_row(driver).used_bytes == 4 * (BLOCK + 1000)


def test_what_is_over_the_limit_goes() -> None:
    """Where blocks take more than was assumed the lowest ranked are deleted until the limit holds again, and the
    server is told; no more fit than it says."""
    driver = spilled(8, 8)
    learn(driver, 2 * BLOCK)
    row = spill_row(driver)
    assert (row.blocks, row.used_bytes, row.capacity_bytes) == (4, 8 * BLOCK, 8 * BLOCK)
    assert driver.present(m.Tier.SPILL) == [4, 5, 6, 7]
    assert set(driver.unlinked) == {identity(number) for number in range(4)}
    driver.put([20])
    driver.carry_out()
    assert spill_row(driver).blocks == 4


def test_more_fit_where_blocks_take_less() -> None:
    """A size that takes half of what was assumed fits twice as often."""
    driver = spilled(4, 4)
    learn(driver, BLOCK // 2)
    assert spill_row(driver).free_bytes == 2 * BLOCK
    for number in range(4, 8):
        driver.put([number])
        driver.carry_out()
    assert spill_row(driver).blocks == 8


def test_a_sample_is_of_own_blocks_not_learnt_lately() -> None:
    """Asked about is what this daemon stored, no more blocks than wanted, and no size that was learnt since a
    time."""
    driver = spilled(6, 16)
    adopt(driver, [30, 31])
    own = {identity(number) for number in range(6)}
    assert set(sample(driver)) == own
    assert len(sample(driver, blocks=4)) == 4 and sample(driver, sizes=0) == []
    learn(driver, 5000)
    assert sample(driver, learnt_before_s=driver.now) == []
    assert set(sample(driver, learnt_before_s=driver.now + 1)) == own


def test_another_server_has_other_footprints() -> None:
    """What was learnt of a server is forgotten with what it held."""
    driver = spilled(3, 8)
    learn(driver, 5000)
    driver.step(m.SpillState(up=True, forgotten=True))
    assert spill_row(driver).footprints == {}
    driver.put([9])
    driver.carry_out()
    assert spill_row(driver).used_bytes == BLOCK


def test_a_restart_counts_with_what_was_learnt() -> None:
    """A daemon that starts with an earlier one's footprints keeps what fits by them, and asks again."""
    driver = spilled(4, 4)
    learn(driver, BLOCK // 2)
    for number in range(4, 8):
        driver.put([number])
        driver.carry_out()
    host = TierSpec(m.Tier.HOST, ((1, 4 * BLOCK),))
    spill = TierSpec(m.Tier.SPILL, capacity_bytes=4 * BLOCK, footprints={BLOCK: BLOCK // 2})
    driver.engine = Engine(EngineSettings((host, spill)), driver.tables)
    assert spill_row(driver).blocks == 8
    assert len(sample(driver, learnt_before_s=driver.now)) == 8


@given(st.dictionaries(st.integers(1, 1 << 30), st.integers(1, 1 << 31), max_size=9), st.data())
def test_columns_say_what_single_sizes_do(learnt: dict[int, int], data: st.DataObject) -> None:
    """Of many sizes at once is told what is told of each: what was learnt, else whole pages."""
    footprints = Footprints()
    footprints.learn(learnt, 5.0)
    sizes = data.draw(st.lists(st.sampled_from([*learnt, 1, 4096, 4097, 1 << 20]), max_size=9))
    expected = [learnt.get(size, -(-size // 4096) * 4096) for size in sizes]
    assert footprints.each(np.array(sizes, np.uint32)).tolist() == expected
    assert [footprints.of(size) for size in sizes] == expected


def test_sizes_are_bounded() -> None:
    """Beyond SIZES_MAX sizes none is asked about for the first time; those that are known are asked about again."""
    footprints = Footprints()
    footprints.learn(dict.fromkeys(range(1, SIZES_MAX + 1), 1), 5.0)
    assert not footprints.is_due(SIZES_MAX + 1, 100.0)
    assert footprints.is_due(1, 100.0) and not footprints.is_due(1, 5.0)
