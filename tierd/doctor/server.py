"""Asks the spill servers what the daemon will ask of them: each of its commands, on a key of its own."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Sequence

from tierd.adapters.redis_client import Answer, RedisClient, Words
from tierd.adapters.resp import SMALL_REPLY_BYTES_MAX, Deadline, ReplyError
from tierd.adapters.spill_redis import info_of
from tierd.core.errors import InvalidInput, SpillError
from tierd.doctor.facts import NodeFacts, SpillFacts
from tierd.settings import Settings, masked_url

VALUE_BYTES = SMALL_REPLY_BYTES_MAX
KEY_TTL_MS = b"60000"
"""The probe's value goes by itself if this process does not live to delete it."""
TURNS = 5
TIMEOUT_S_LEAST = 5.0


def look_at_spill(settings: Settings) -> SpillFacts:
    """Connects as the daemon would. Ends within a few of its timeouts; raises nothing."""
    url = settings.spill.get_secret_value()
    place = masked_url(url)
    timeout_s = settings.spill_timeout_ms / 1000
    try:
        client = RedisClient(url, 1, timeout_s)
    except InvalidInput as error:
        return SpillFacts(place, problem=str(error))
    try:
        return _Examination(client, max(TIMEOUT_S_LEAST, 4 * timeout_s), settings.spill_prefix).facts(place)
    except SpillError as error:
        return SpillFacts(place, problem=str(error))
    finally:
        client.close()


class _Examination:
    """Commands one after the other. What is refused is noted, and the rest goes on."""

    def __init__(self, client: RedisClient, timeout_s: float, prefix: str) -> None:
        self._client = client
        self._deadline = Deadline(timeout_s)
        self._key = f"{{{prefix}:doctor:{os.urandom(16).hex()}}}".encode()
        self._refused: list[str] = []

    def facts(self, place: str) -> SpillFacts:
        """Raises SpillError when a server cannot be reached."""
        ping_s = statistics.median(self._timed(b"STRLEN", self._key) for _ in range(TURNS))
        asked_at = time.time()
        about = self._client.everywhere([(b"INFO", b"server"), (b"INFO", b"memory")], self._deadline)
        between = asked_at, time.time()
        value = os.urandom(VALUE_BYTES)
        store_s = min(self._timed(b"SET", self._key, value, b"PX", KEY_TTL_MS) for _ in range(TURNS))
        load_s = min(self._timed(b"GET", self._key) for _ in range(TURNS))
        self._timed(b"GETRANGE", self._key, b"0", b"0")
        self._timed(b"UNLINK", self._key)
        return SpillFacts(
            place=place, nodes=tuple(_node(str(address), answers, between) for address, answers in about),
            refused=tuple(self._refused), ping_ms=1000 * ping_s,
            store_bytes_per_s=VALUE_BYTES / store_s if store_s else 0.0,
            load_bytes_per_s=VALUE_BYTES / load_s if load_s else 0.0,
        )

    def _timed(self, *words: bytes) -> float:
        """Seconds that a command took; 0 when the server refused it, which is noted once."""
        start = time.perf_counter()
        command: Words = words
        (answer,) = self._client.batch([command], self._deadline)
        if not isinstance(answer, ReplyError):
            return time.perf_counter() - start
        said = f"{words[0].decode()}: {answer}"
        if said not in self._refused:
            self._refused.append(said)
        return 0.0


def _node(place: str, answers: Sequence[Answer], between: tuple[float, float]) -> NodeFacts:
    """What INFO, asked between two of our times, tells of a server; a user who may not ask is told nothing."""
    info = info_of(answers)
    told = info.get("server_time_usec", "")
    # Valkey also says which version of Redis it stands for.
    product = "Valkey" if "valkey_version" in info else "Redis"
    return NodeFacts(
        place, product=product, version=_numbers(info.get(f"{product.lower()}_version", "")),
        maxmemory_bytes=int(info.get("maxmemory", "0")), policy=info.get("maxmemory_policy", "noeviction"),
        clustered="cluster" in (info.get("server_mode"), info.get("redis_mode")),
        skew_s=skew_of(int(told) / 1e6, *between) if told.isdecimal() else None,
    )


def skew_of(told: float, before: float, after: float) -> float:
    """Seconds by which a clock is surely ahead of ours, negative when it is behind, 0 when it may be right."""
    return max(0.0, told - after) + min(0.0, told - before)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
