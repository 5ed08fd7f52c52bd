"""The daemon as an engine sees it: up or away. An engine never waits for it, and computes what it cannot have.

The engine's thread asks only whether the daemon is up. Everything that could wait runs on threads of the link; the
first failure turns the daemon away, for all requests at once, and a thread tries until it answers again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from tierd_client.client import Client
from tierd_client.errors import (
    AccessDenied,
    BrokenPeer,
    ClientClosed,
    FailedPrecondition,
    SharedMemoryUnavailable,
    TierdClientError,
    TimedOut,
    Unavailable,
)
from tierd_client.integrations.options import Options
from tierd_client.layout import Layout
from tierd_client.namespace import Namespace

log = logging.getLogger("tierd")

THREADS = 16
"""Of one link at most, for calls that the daemon answers at once; one that hangs holds no more than these."""

PROMOTIONS = 16
"""Threads of one link at most that wait for blocks to come up from the spill tier."""

RPC_TIMEOUT_S = 2.0
"""Of calls on the link's threads; a request stops waiting for one much earlier (`answer_ms`)."""

RETRY_S = 1.0
"""Between two attempts to find a daemon that is away."""

SAID_AGAIN_S = 60.0
"""A daemon that comes and goes is told of once in this time."""

T = TypeVar("T")


class Link:
    """One process's way to its daemon. Thread-safe. Made without waiting: it connects by itself."""

    def __init__(self, options: Options, name: str, layouts: list[Layout]) -> None:
        """`layouts`: namespaces that are registered before the daemon counts as up."""
        self.options = options
        self._name = name
        self._layouts = layouts
        self._namespaces: dict[bytes, Namespace] = {}
        self._client: Client | None = None
        self._up = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._seeking: threading.Thread | None = None
        self._said_at: float | None = None
        self._said_away = False
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tierd-link")
        self._promotions = ThreadPoolExecutor(PROMOTIONS, thread_name_prefix="tierd-promotions")
        self._seek()

    @property
    def is_up(self) -> bool:
        """Whether the daemon answered when it was last asked."""
        return self._up.is_set()

    def wait_up(self, timeout_s: float) -> bool:
        """Waits until the daemon is up; whether it is."""
        return self._up.wait(timeout_s)

    def known(self, layout: Layout) -> Namespace | None:
        """The namespace of a layout; None while the daemon is away, or has not been told of it. Never waits."""
        return self._namespaces.get(layout.fingerprint) if self.is_up else None

    def namespace(self, layout: Layout) -> Namespace:
        """The namespace of a layout. May wait: for the link's own threads."""
        namespace = self._namespaces.get(layout.fingerprint)
        if namespace is None:
            namespace = self._namespaces[layout.fingerprint] = self.client().namespace(layout)
        return namespace

    def client(self) -> Client:
        """The client, as soon as a daemon has been found. Waits for it, at most the time of a call; Unavailable."""
        if self._client is None and not self.wait_up(RPC_TIMEOUT_S):
            raise Unavailable(f"no daemon found at {self.options.address} so far")
        assert self._client is not None
        return self._client

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Runs something that may wait on a thread of the link."""
        return self._threads.submit(work)

    def promote(self, work: Callable[[], None]) -> None:
        """Runs something that waits for the spill tier, which may take its time and keeps nothing else waiting."""
        with suppress(RuntimeError):  # it is closed meanwhile
            self._promotions.submit(work)

    def lost(self, error: TierdClientError) -> None:
        """Turns the daemon away because a call failed, until it answers again."""
        if self._up.is_set():
            self._up.clear()
            self._say(error)
        self._seek()

    def close(self) -> None:
        """Gives all up that this process holds, as far as the daemon answers soon. Idempotent."""
        self._closing.set()
        ending = threading.Thread(target=self._end_threads, kwargs={"cancel": not self.is_up}, daemon=True)
        ending.start()
        ending.join(RPC_TIMEOUT_S)
        self._up.clear()
        if self._seeking is not None:
            self._seeking.join(RPC_TIMEOUT_S)
        if self._client is not None:
            self._client.close()

    def _end_threads(self, cancel: bool) -> None:
        self._promotions.shutdown(cancel_futures=True)
        self._threads.shutdown(cancel_futures=cancel)  # what waits gives leases back

    def _seek(self) -> None:
        with self._lock:
            if self._seeking is None and not self._closing.is_set():
                self._seeking = threading.Thread(target=self._seek_until_up, name="tierd-seek", daemon=True)
                self._seeking.start()

    def _seek_until_up(self) -> None:
        while not self._closing.is_set():
            try:
                self._meet()
            except ClientClosed:
                break
            except TierdClientError as error:
                self._say(error)
                self._closing.wait(RETRY_S)
            else:
                break
        with self._lock:
            self._seeking = None
            if not self._closing.is_set():
                self._up.set()

    def _meet(self) -> None:
        """Finds the daemon, by an RPC that it must answer."""
        if self._client is None:
            self._client = Client(
                self.options.address, name=self._name, rpc_timeout_s=RPC_TIMEOUT_S,
                token=self.options.token, shared_memory="require")
        for layout in self._layouts:
            self._namespaces[layout.fingerprint] = self._client.namespace(layout)
        if self._said_away:
            self._said_away = False
            log.warning("tierd at %s answers", self.options.address)

    def _say(self, error: TierdClientError) -> None:
        now = time.monotonic()
        if self._said_at is None or now - self._said_at >= SAID_AGAIN_S:
            self._said_at, self._said_away = now, True
            log.warning(
                "tierd at %s is away (%s): the engine computes what it would have loaded, and tries again every "
                "%g s; %s", self.options.address, error, RETRY_S, advice(error))


def advice(error: TierdClientError) -> str:
    """What a person can do about it."""
    kinds: list[tuple[type[TierdClientError], str]] = [
        (AccessDenied, "give a token that the daemon knows (option token)"),
        (SharedMemoryUnavailable, "run the engine on the daemon's host, as a user that its attach socket lets in"),
        (Unavailable, "start it with `tierd serve`, or name its socket (option address)"),
        (TimedOut, "look at its load and its log"),
        (FailedPrecondition, "use a daemon and a tierd-client of one release, or of two that follow each other"),
        (BrokenPeer, "use a daemon and a tierd-client of one release, or of two that follow each other"),
    ]
    return next((text for kind, text in kinds if isinstance(error, kind)), "look at its log")
