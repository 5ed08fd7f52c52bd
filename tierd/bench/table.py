"""All figures: what each is, its goal and gate, and what measures it."""

from __future__ import annotations

from functools import partial

from tierd.bench import control, eviction, local, paged, remote, replay, scale, spill, tls
from tierd.bench.figures import Figure, Measurement
from tierd.bench.measuring import MIB

KIB = 1 << 10


def _get(name: str, block_bytes: int, per_call: int, what: str, goal: float, gate: float) -> Measurement:
    told = Figure(f"{name}_verified", f"{what}, every checksum compared")
    figures = (Figure(name, what, goal, gate), told)
    return Measurement("local", figures, partial(local.get, name, block_bytes, per_call))


def _put(name: str, block_bytes: int, per_call: int, what: str, goal: float, gate: float) -> Measurement:
    return Measurement("local", (Figure(name, what, goal, gate),), partial(local.put, name, block_bytes, per_call))


def _paged(
    suffix: str, piece_bytes: int, what: str, goals: tuple[float | None, float | None], apart: bool = False,
) -> Measurement:
    gather, scatter = f"gather_{suffix}", f"scatter_{suffix}"
    figures = (Figure(gather, f"memcpy / gather, {what}", *goals), Figure(scatter, f"memcpy / scatter, {what}"))
    return Measurement("local", figures, partial(paged.exchange, gather, scatter, piece_bytes, apart=apart))


def _spill(suffix: str, block_bytes: int, connections: int, what: str, goals: tuple[float, float]) -> Measurement:
    write, read = f"spill_write_{suffix}", f"spill_read_{suffix}"
    figures = (
        Figure(write, f"raw RESP / evict, {what}", goals[0], 0.65),
        Figure(read, f"raw RESP / readmit, {what}", goals[1], 0.70 if connections == 1 else 0.65),
    )
    return Measurement("spill", figures, partial(spill.exchange, write, read, block_bytes, connections))


def _each_policy(name: str, what: str) -> tuple[Figure, ...]:
    """Told beside a figure that is that of the worst policy."""
    policies = eviction.GATED
    return tuple(Figure(f"{name}_{policy}", f"{what} with {policy}, us", better="lower") for policy in policies)


MEASUREMENTS = (
    _get("local_get_5m_1", 5 * MIB, 1, "memcpy / get of 5 MiB", 0.97, 0.88),
    _get("local_get_128k_1", 128 * KIB, 1, "memcpy / get of 128 KiB", 0.88, 0.70),
    _get("local_get_128k_64", 128 * KIB, 64, "memcpy / get of 128 KiB, 64 a call", 0.93, 0.80),
    _get("local_get_640k_16", 640 * KIB, 16, "memcpy / get of 640 KiB, 16 a call", 0.95, 0.85),
    _put("local_put_5m_16", 5 * MIB, 16, "(memcpy + xxh3) / put of 5 MiB, 16 a call", 0.90, 0.75),
    _put("local_put_128k_64", 128 * KIB, 64, "(memcpy + xxh3) / put of 128 KiB, 64 a call", 0.75, 0.50),
    _paged("80x32k", 32 * KIB, "160 pieces of 32 KiB", (0.80, 0.55)),
    _paged("80x32k_apart", 32 * KIB, "160 pieces of 32 KiB, layers not aligned alike", (None, None), apart=True),
    _paged("80x8k", 8 * KIB, "160 pieces of 8 KiB", (None, None)),
    Measurement(
        "local",
        (Figure("daemon_ms_per_gib", "daemon's CPU per GiB of 5 MiB hits, ms", 5, 20, "lower"),),
        partial(local.daemon_cpu, "daemon_ms_per_gib"),
    ),
    Measurement(
        "local",
        (
            Figure("local_lookup_8192", "8,192 identities a call among 1M by the catalog, ids/s", 3e6, 1.5e6),
            Figure("hash_plain_8192", "hashing 8,192 plain ids, ids/s"),
        ),
        scale.lookup,
    ),
    _spill("5m", 5 * MIB, 1, "5 MiB, one connection", (0.85, 0.90)),
    _spill("4", 640 * KIB, 4, "640 KiB, 4 connections", (0.85, 0.85)),
    Measurement(
        "remote",
        (
            Figure("remote_put_5m", "raw TCP / put of 5 MiB, 8 a call", 0.40, 0.22),
            Figure("remote_put_5m_1", "raw TCP / put of 5 MiB, one a call"),
        ),
        partial(remote.put, "remote_put_5m"),
    ),
    Measurement(
        "remote",
        (
            Figure("remote_get_5m", "raw TCP / get of 5 MiB, 8 a call", 0.40, 0.22),
            Figure("remote_get_5m_1", "raw TCP / get of 5 MiB, one a call"),
        ),
        partial(remote.get, "remote_get_5m"),
    ),
    Measurement(
        "control",
        (
            Figure("rpc_lookup_1024", "Lookup of 1,024 / an echo of its bytes", 1.4, 1.8, "lower"),
            Figure("rpc_unary", "Lookup of one, p50 / an RPC without a message", 1.2, 1.5, "lower"),
        ),
        control.rpc,
    ),
    Measurement(
        "evict",
        (
            Figure("evict_flat", "CPU per victim among 1M / among 16k, 1,024 at a time", 1.5, 2.5, "lower"),
            Figure("evict_64_us", "CPU per victim among 1M, 64 at a time, us; the worst policy", 3, 3, "lower"),
            Figure("touch_us", "CPU per touch among 1M, 1,024 at a time, us; the worst policy", 3, 3, "lower"),
            *_each_policy("evict_64_us", "CPU per victim"), *_each_policy("touch_us", "CPU per touch"),
        ),
        eviction.victims,
    ),
    Measurement(
        "scale",
        (Figure("bytes_per_identity", "catalog, index and all, at 1M identities", 256, 360, "lower"),),
        scale.memory,
    ),
    Measurement(
        "scale",
        (
            Figure(replay.FIGURE, "`tierd sim`, block accesses a minute of CPU; the slowest policy", 2e6, 2e6),
            *(Figure(f"{replay.FIGURE}_{spec}", f"accesses a minute with {spec}") for spec in replay.SPECS),
        ),
        replay.rate,
    ),
    Measurement(
        "spill",
        (
            Figure("spill_tls_write", "CPU of the daemon's socket: TLS / plain, storing", better="lower"),
            Figure("spill_tls_read", "CPU of the daemon's socket: TLS / plain, loading", better="lower"),
        ),
        tls.cost, needs="trustme",
    ),
)
