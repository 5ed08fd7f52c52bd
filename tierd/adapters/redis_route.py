"""Which server a key lives on: the one there is, the primary that sentinels name, or a node of a cluster.

What was learnt is used until it proves wrong: a server that cannot be reached, has changed its role or sends us
elsewhere is a reason to ask again, at most every ASK_PAUSE_S.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from tierd.adapters.redis_faults import FAILURES
from tierd.adapters.redis_pool import RedisPool
from tierd.adapters.redis_url import RedisAddress, RedisUrl, Topology
from tierd.adapters.resp import Deadline, ProtocolError, Reply, ReplyError, command
from tierd.core.errors import SpillDown

ASK_PAUSE_S = 0.2
"""Between two questions after the servers: a resharding moves thousands of slots one by one."""
NODES_MAX = 1024
"""Most nodes of a cluster; its protocol is made for at most 1,000."""

T = TypeVar("T")
_NO_ANSWER: tuple[type[Exception], ...] = (*FAILURES, SpillDown)


class Place(NamedTuple):
    """The server to send a command to. `asking`: the key is just being moved there, ASKING goes first."""

    pool: RedisPool
    asking: bool = False


class Route(Protocol):
    """Methods with a deadline may ask the network, and then raise one of FAILURES."""

    def place(self, key: bytes, deadline: Deadline) -> Place:
        """Where the key lives."""

    def servers(self, deadline: Deadline) -> Sequence[RedisPool]:
        """All servers that hold keys."""

    def redirected(self, error: ReplyError, pool: RedisPool) -> Place | None:
        """Where the error of a server of the pool sends its command. ProtocolError when that cannot be."""

    def suspect(self, pool: RedisPool) -> None:
        """The server did not answer as the right one would."""

    def close(self) -> None: ...


def route_of(url: RedisUrl, pool_size: int, connect_timeout_s: float) -> Route:
    """pool_size: most connections to one server. Connects to nothing yet."""
    if url.topology is Topology.ONE:
        return OneServer(RedisPool(url.server, pool_size, connect_timeout_s))
    pools = Pools(url.server, pool_size, connect_timeout_s)
    if url.topology is Topology.SENTINEL:
        return SentinelRoute(url.master, [RedisPool(seed, 1, connect_timeout_s) for seed in url.seeds], pools)
    return ClusterRoute([(seed.host, seed.port) for seed in url.seeds], pools)


class OneServer:
    """All keys live on one server."""

    def __init__(self, pool: RedisPool) -> None:
        self._pool = pool
        self._place = Place(pool)

    def place(self, _key: bytes, _deadline: Deadline) -> Place:
        return self._place

    def servers(self, _deadline: Deadline) -> Sequence[RedisPool]:
        return (self._pool,)

    def redirected(self, _error: ReplyError, _pool: RedisPool) -> Place | None:
        return None

    def suspect(self, _pool: RedisPool) -> None:
        """There is no other."""

    def close(self) -> None:
        self._pool.close()


class Pools:
    """Pools of servers that share login and TLS, made when a server is first named. Thread-safe."""

    def __init__(self, login: RedisAddress, size: int, connect_timeout_s: float) -> None:
        self._login = login
        self._size = size
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._pools: dict[tuple[str, int], RedisPool] = {}

    def at(self, host: str, port: int) -> RedisPool:
        """ProtocolError beyond NODES_MAX servers."""
        with self._lock:
            pool = self._pools.get((host, port))
            if pool is None:
                if len(self._pools) >= NODES_MAX:
                    raise ProtocolError(f"more than {NODES_MAX} servers are named")
                pool = RedisPool(self._login.at(host, port), self._size, self._connect_timeout_s)
                self._pools[host, port] = pool
            return pool

    def keep(self, wanted: Iterable[RedisPool]) -> None:
        """Forgets all others. Calls under way there end by themselves."""
        kept = set(wanted)
        with self._lock:
            gone = [pool for pool in self._pools.values() if pool not in kept]
            self._pools = {place: pool for place, pool in self._pools.items() if pool in kept}
        for pool in gone:
            pool.drop_all()

    def close(self) -> None:
        with self._lock:
            pools = list(self._pools.values())
        for pool in pools:
            pool.close()


class _Knowledge:
    """What `ask` learns about the servers, asked for once and then when it proved wrong. Thread-safe."""

    def __init__(self, ask: Callable[[Deadline], None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._doubted = True
        self._any = False
        self._asked_at = 0.0

    def doubt(self) -> None:
        self._doubted = True

    def refresh(self, deadline: Deadline) -> None:
        """Asks if there is a doubt. Fails only when nothing was ever learnt: else what is known has to do."""
        if not self._to_be_asked():
            return
        if not self._lock.acquire(timeout=deadline.left_s()):
            raise TimeoutError("the servers are being asked for")
        try:
            if self._to_be_asked():
                self._learn(deadline)
        finally:
            self._lock.release()

    def _to_be_asked(self) -> bool:
        return not self._any or (self._doubted and time.monotonic() >= self._asked_at + ASK_PAUSE_S)

    def _learn(self, deadline: Deadline) -> None:
        self._doubted = False
        self._asked_at = time.monotonic()
        try:
            # Half of the time is left for the command itself.
            self._ask(Deadline(deadline.left_s() / 2) if self._any else deadline)
            self._any = True
        except _NO_ANSWER:
            self._doubted = True
            if not self._any:
                raise


class SentinelRoute:
    """All keys live on the server that the sentinels name as the primary."""

    def __init__(self, master: str, sentinels: Sequence[RedisPool], pools: Pools) -> None:
        self._master = master.encode()
        self._sentinels = sentinels
        self._pools = pools
        self._primary: RedisPool | None = None
        self._knowledge = _Knowledge(self._ask)

    def place(self, _key: bytes, deadline: Deadline) -> Place:
        self._knowledge.refresh(deadline)
        assert self._primary is not None
        return Place(self._primary)

    def servers(self, deadline: Deadline) -> Sequence[RedisPool]:
        return (self.place(b"", deadline).pool,)

    def redirected(self, _error: ReplyError, _pool: RedisPool) -> Place | None:
        return None

    def suspect(self, _pool: RedisPool) -> None:
        self._knowledge.doubt()

    def close(self) -> None:
        for sentinel in self._sentinels:
            sentinel.close()
        self._pools.close()

    def _ask(self, deadline: Deadline) -> None:
        question = command(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._master)
        self._primary = _first_answer(self._sentinels, question, self._named, deadline)
        self._pools.keep([self._primary])

    def _named(self, reply: Reply, sentinel: RedisPool) -> RedisPool:
        if reply is None:
            raise ConnectionError(f"the sentinels know no primary called {self._master.decode()}")
        host, port = host_and_port(reply)
        # Who answers is asked first next time: one that hangs is not waited for again.
        self._sentinels = sorted(self._sentinels, key=lambda one: one is not sentinel)
        return self._pools.at(host, port)


class ClusterRoute:
    """Each key lives on the primary of its hash slot. `seeds`: nodes of the cluster, by host and port."""

    def __init__(self, seeds: Sequence[tuple[str, int]], pools: Pools) -> None:
        self._seeds = seeds
        self._pools = pools
        self._slots: list[RedisPool] = []
        self._nodes: list[RedisPool] = []
        self._suspected: RedisPool | None = None
        self._knowledge = _Knowledge(self._ask)

    def place(self, key: bytes, deadline: Deadline) -> Place:
        self._knowledge.refresh(deadline)
        return Place(self._slots[key_slot(key)])

    def servers(self, deadline: Deadline) -> Sequence[RedisPool]:
        self._knowledge.refresh(deadline)
        return tuple(dict.fromkeys(self._slots))

    def redirected(self, error: ReplyError, pool: RedisPool) -> Place | None:
        if error.code not in ("MOVED", "ASK"):
            return None
        slot, host, port = redirection(error)
        there = self._pools.at(host or pool.address.host, port)
        if error.code == "ASK":
            return Place(there, asking=True)
        self._slots[slot] = there
        self._knowledge.doubt()
        return Place(there)

    def suspect(self, pool: RedisPool) -> None:
        self._suspected = pool
        self._knowledge.doubt()

    def close(self) -> None:
        self._pools.close()

    def _ask(self, deadline: Deadline) -> None:
        seeds = [self._pools.at(host, port) for host, port in self._seeds]
        # Whoever is suspected may be cut off from the others, and know no better than we do.
        nodes = sorted(dict.fromkeys([*self._nodes, *seeds]), key=lambda pool: pool is self._suspected)
        question = command(b"CLUSTER", b"SLOTS")
        self._slots, self._nodes = _first_answer(nodes, question, self._read, deadline)
        self._pools.keep([*self._nodes, *seeds])

    def _read(self, reply: Reply, asked: RedisPool) -> tuple[list[RedisPool], list[RedisPool]]:
        return slot_map(reply, asked, self._pools)


def slot_map(reply: Reply, asked: RedisPool, pools: Pools) -> tuple[list[RedisPool], list[RedisPool]]:
    """Primaries by slot, and all nodes, of a reply to CLUSTER SLOTS. ConnectionError when a slot has no primary."""
    slots: list[RedisPool | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    nodes: dict[RedisPool, None] = {}
    for first, last, primary, *replicas in _ranges(reply):
        owner = _node(primary, asked, pools)
        slots[first : last + 1] = [owner] * (last + 1 - first)
        nodes |= dict.fromkeys([owner, *(_node(one, asked, pools) for one in replicas)])
    owned = [pool for pool in slots if pool is not None]
    if len(owned) != REDIS_CLUSTER_HASH_SLOTS:
        raise ConnectionError(f"{REDIS_CLUSTER_HASH_SLOTS - len(owned)} hash slots have no server")
    return owned, list(nodes)


def _node(entry: Reply, asked: RedisPool, pools: Pools) -> RedisPool:
    host, port = host_and_port(entry[:2] if isinstance(entry, list) else entry)
    # A node that does not know its own name is where we found the one that told us of it.
    return pools.at(asked.address.host if host in ("", "?") else host, port)


def _first_answer(
    pools: Iterable[RedisPool], question: bytes, read: Callable[[Reply, RedisPool], T], deadline: Deadline,
) -> T:
    """What `read` makes of the first usable answer. Each server has half of the time that is left, so that one
    that hangs leaves time for the next."""
    problem: Exception = ConnectionError("nobody to ask")
    for pool in pools:
        part = Deadline(deadline.left_s() / 2)
        try:
            with pool.borrow(part) as wire:
                wire.send([question], part)
                return read(wire.reply(part), pool)
        except _NO_ANSWER as error:
            problem = error
    raise problem


def host_and_port(reply: Reply) -> tuple[str, int]:
    """Of an array of the two. The host is empty where it is nil."""
    match reply:
        case [bytes() as host, bytes() | int() as port]:
            return host.decode("utf-8", "replace"), _port(port)
        case [None, int() as port]:
            return "", _port(port)
    raise ProtocolError(f"{str(reply)[:64]} where host and port were expected")


def _port(word: bytes | int | str) -> int:
    try:
        port = int(word)
    except ValueError:
        port = 0
    if not 0 < port < 1 << 16:
        raise ProtocolError(f"{str(word)[:64]} where a port was expected")
    return port


def _ranges(reply: Reply) -> Iterable[tuple[int, int, Reply, *tuple[Reply, ...]]]:
    """First and last slot, primary and replicas of each range."""
    for entry in reply if isinstance(reply, list) else [reply]:
        match entry:
            case [int() as first, int() as last, primary, *replicas] if first <= last < REDIS_CLUSTER_HASH_SLOTS:
                yield (first, last, primary, *replicas)
            case _:
                raise ProtocolError(f"{str(entry)[:64]} where a range of hash slots was expected")


def redirection(error: ReplyError) -> tuple[int, str, int]:
    """Slot, host and port of `MOVED 3999 127.0.0.1:6381` or ASK. The host may be empty."""
    _, _, rest = str(error).partition(" ")
    slot, _, place = rest.partition(" ")
    host, _, port = place.rpartition(":")
    if not slot.isdecimal() or int(slot) >= REDIS_CLUSTER_HASH_SLOTS:
        raise ProtocolError(f"{str(error)[:64]} is no redirection")
    return int(slot), host, _port(port)
