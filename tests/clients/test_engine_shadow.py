"""Shadow mode as an engine's scheduler meets it: everything is computed, nothing stored, and the daemon told of
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import AcquireOutcome, Client, InvalidArgument, Layout, Namespace, PutOutcome
from tierd_client.integrations.calls import attempt
from tierd_client.integrations.keys import Run
from tierd_client.integrations.link import Link
from tierd_client.integrations.options import Options
from tierd_client.integrations.prompts import Answer, Prompt
from tierd_client.integrations.rates import Rates, Way
from tierd_client.integrations.reports import report
from tierd_client.integrations.request_hints import Hints
from tierd_client.integrations.search import Patience
from tierd_client.layout import Group, Part
from tierd_client.shadow import ShadowNamespace

LAYOUTS = [
    Layout.of_groups([Group("0", 16, (Part("pages", "uint8", (4096,)),))], model="m", tp_rank=rank, tp_size=2)
    for rank in range(2)
]
KEYS = [b"key %d" % number for number in range(6)]
PAUSE = threading.Event()


@pytest.fixture
def server(daemon: StartDaemon) -> ServeProcess:
    return daemon(shadow_sizes_bytes="1MiB")


@pytest.fixture
def link(server: ServeProcess) -> Iterator[Link]:
    link = Link(Options(address=server.address, shadow=True), "engine", LAYOUTS)
    assert link.wait_up(10.0)
    yield link
    link.close()


def told(server: ServeProcess, requests: int) -> ShadowNamespace:
    """What the daemon knows of the one namespace, once it was told of so many requests."""
    until = time.monotonic() + 30.0
    with Client(server.address) as client:
        while time.monotonic() < until:
            found = client.admin.shadow_stats().namespaces
            if found and found[0].requests == requests:
                assert client.admin.occupancy().identities == 0
                return found[0]
            PAUSE.wait(0.05)
    raise AssertionError("the daemon was not told")


def run(link: Link, served: int) -> None:
    """A request of four blocks and an answer of two, as a scheduler runs it; its own cache has the first
    `served`."""
    rates = Rates()
    rates.note(Way.COMPUTED, 32, 0.32)
    prompt = Prompt(link, LAYOUTS, 1, rates, Patience())
    prompt.extend((0, key) for key in KEYS[:4])
    assert [prompt.answer(key) for key in KEYS[served:4]] == [Answer.MISS] * (4 - served)
    assert prompt.missing(KEYS[served:4], set()) == []
    prompt.extend((0, key) for key in KEYS[4:])
    assert prompt.missing(KEYS[4:], set()) == []
    report(link, LAYOUTS, "request", prompt, Hints())


def test_a_scheduler_computes_everything_and_tells(server: ServeProcess, link: Link) -> None:
    """Every lookup is a miss at once, no store is prepared, and the daemon hears of prompt, answer, what the
    engine's own cache served, the bytes in all ranks and the rate of prefill."""
    run(link, served=0)
    run(link, served=1)
    found = told(server, 2)
    assert (found.asked_blocks, found.served_blocks, found.block_bytes) == (8, 1, 8192)
    assert found.prefill_tokens_per_s == pytest.approx(1_600)
    (size,) = found.sizes
    assert (size.prefix_hits.blocks, size.saved.blocks, size.held_blocks) == (4, 3, 6)


def test_engines_that_look_up_and_store_by_themselves(server: ServeProcess, link: Link) -> None:
    """No block is ever found and each that is stored is said to be; a lookup and what is stored behind it are one
    request, and the next lookup of all of it would have hit."""
    layout = LAYOUTS[0]
    ids = Run(tuple(KEYS)).identities(layout)

    def turn(namespace: Namespace) -> None:
        assert namespace.lookup(ids[:4]).tier_bits.tolist() == [0] * 4
        assert namespace.get_into(ids[:4], [bytearray(4096)] * 4) == [AcquireOutcome.MISS] * 4
        assert namespace.put(ids, [bytes(4096)] * 6) == [PutOutcome.STORED] * 6
        with namespace.acquire(ids, timeout_s=1.0) as lease:
            assert lease.outcomes == [AcquireOutcome.MISS] * 6
            assert lease.arrays() == [None] * 6

    attempt(link, layout, turn, None)
    assert attempt(link, layout, lambda namespace: namespace.lookup(ids).prefix, 6) == 0
    link.close()
    found = told(server, 3)
    assert (found.asked_blocks, found.block_bytes) == (18, 4096)
    assert found.sizes[0].saved.blocks == 12


def test_shadow_is_a_yes_or_a_no() -> None:
    """Anything else is refused by its name."""
    with pytest.raises(InvalidArgument, match=r"^tierd\.shadow: 'yes' is neither true nor false"):
        Options.of({"shadow": "yes"})
