"""The doctor's checks over facts: each thing that is wrong is found once, with its severity and what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_facts import CUDA, GIB, NODE, URL, found, healthy
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from tierd.doctor.checks import CHECKS, Severity, examine
from tierd.doctor.facts import Device

SPOILT: list[tuple[dict[str, Any], str, Severity, str]] = [
    ({"shm__problem": "does not exist"}, "shared memory", Severity.ERROR, "tmpfs"),
    ({"shm__file_system": "ext4"}, "shared memory", Severity.WARNING, "disk"),
    ({"shm__total_bytes": 64 << 20, "shm__free_bytes": 64 << 20}, "shared memory", Severity.ERROR, "--shm-size=9g"),
    ({"shm__free_bytes": 8 * GIB}, "shared memory", Severity.ERROR, "others fill it"),
    ({"shm__others_bytes": GIB}, "other instances", Severity.NOTE, "state directory is gone"),
    ({"machine__available_bytes": 9 * GIB}, "machine memory", Severity.ERROR, "host_bytes"),
    ({"machine__cgroup_limit_bytes": 9 * GIB}, "cgroup memory", Severity.ERROR, "10 GiB"),
    ({"shm__huge": ""}, "huge pages", Severity.NOTE, "huge=advise"),
    ({"shm__huge": "never"}, "huge pages", Severity.NOTE, "huge=advise"),
    ({"machine__memlock_bytes": 8 << 20}, "memlock limit", Severity.NOTE, "LimitMEMLOCK"),
    ({"machine__numa_nodes": 2}, "numa", Severity.NOTE, "numactl"),
    ({"machine__descriptors": 1024}, "file descriptors", Severity.WARNING, "178 clients fit"),
    ({"state__problem": "it may not be written to"}, "state directory", Severity.ERROR, "state_dir"),
    ({"state__mode": 0o770}, "state directory", Severity.WARNING, "chmod 0700"),
    ({"state__open_sockets": ("/run/tierd/tierd.sock",)}, "sockets", Severity.ERROR, "chmod 0600"),
    ({"state__running_pid": 77}, "running daemon", Severity.NOTE, "state_dir of its own"),
    ({"secrets__problems": ("tls_cert_file: /c: no key",)}, "secrets", Severity.ERROR, "refuses"),
    ({"secrets__open_files": ("/etc/tierd.toml",)}, "secrets", Severity.WARNING, "chmod 0600 /etc/tierd.toml"),
    ({"settings__listen": ("0.0.0.0:7001",)}, "exposure", Severity.WARNING, "token"),
    ({"settings__listen": ("0.0.0.0:7001",), "settings__data_token_file": Path("/t")}, "exposure",
     Severity.WARNING, "tls_cert_file"),
    ({"settings__spill": SecretStr("embedded"), "spill": None}, "spill tier", Severity.NOTE, "URL"),
    ({"settings__spill": SecretStr("embedded"), "spill": None, "embedded": "no wheel"}, "spill tier",
     Severity.ERROR, "embedded"),
    ({"settings__spill": SecretStr("memory"), "spill": None}, "spill tier", Severity.WARNING, "URL"),
    ({"settings__spill": SecretStr("none"), "spill": None}, "spill tier", Severity.NOTE, "URL"),
    ({"spill__problem": "refused"}, "spill server", Severity.ERROR, "address"),
    ({"spill__nodes": (replace(NODE, version=(5, 0, 14)),)}, "spill server", Severity.WARNING, "6.2"),
    ({"spill__nodes": (replace(NODE, maxmemory_bytes=0),)}, "spill memory", Severity.WARNING, "maxmemory to 10gb"),
    ({"spill__nodes": (replace(NODE, maxmemory_bytes=9 * GIB),)}, "spill memory", Severity.WARNING, "to 10gb"),
    ({"spill__nodes": (replace(NODE, policy="allkeys-lru"),)}, "spill eviction", Severity.WARNING, "noeviction"),
    ({"spill__nodes": (replace(NODE, version=()),)}, "spill server", Severity.NOTE, "unknown"),
    ({"spill__nodes": (replace(NODE, clustered=True),)}, "spill server", Severity.ERROR, "redis+cluster://"),
    ({"spill__refused": ("UNLINK: NOPERM",)}, "spill rights", Severity.ERROR, "{tierd:"),
    ({"spill__load_bytes_per_s": 8e6}, "spill speed", Severity.WARNING, "spill_timeout_ms"),
    ({"spill__nodes": (replace(NODE, skew_s=-3.0),)}, "clock", Severity.WARNING, "NTP"),
]


def test_nothing_wrong() -> None:
    """On a machine on which all is well every check says so and nothing else."""
    facts = healthy()
    assert not found(facts)
    assert len(examine(facts)) >= len(CHECKS)


@pytest.mark.parametrize(
    ("changed", "check", "severity", "advice"), SPOILT, ids=[f"{n}-{row[1]}" for n, row in enumerate(SPOILT)]
)
def test_one_thing_wrong(changed: dict[str, Any], check: str, severity: Severity, advice: str) -> None:
    """One spoilt fact gives one finding, which says what to do."""
    (finding,) = found(healthy(**changed))
    assert (finding.check, finding.severity) == (check, severity)
    assert advice in finding.advice and finding.measured


def test_a_server_that_may_evict_but_never_has_to() -> None:
    """An evicting policy without maxmemory evicts nothing: only the missing maxmemory is told."""
    (finding,) = found(healthy(spill__nodes=(replace(NODE, policy="allkeys-lru", maxmemory_bytes=0),)))
    assert finding.check == "spill memory"


def test_what_this_instance_holds_is_room() -> None:
    """Beside a running daemon its own files count as free: the same settings would take them over."""
    full = healthy(shm__free_bytes=0, shm__held_bytes=9 * GIB, machine__available_bytes=2 * GIB)
    assert not found(full)


def test_two_faults_are_two_findings() -> None:
    """Findings do not hide one another."""
    evicting = replace(NODE, policy="volatile-ttl")
    facts = healthy(machine__descriptors=1024, state__mode=0o770, spill__nodes=(evicting,))
    assert [one.check for one in found(facts)] == ["file descriptors", "state directory", "spill eviction"]


@given(st.integers(1, 1 << 50), st.integers(1, 1 << 50), st.integers(0, 1 << 50))
def test_shared_memory_is_an_error_exactly_when_it_does_not_fit(wanted: int, total: int, held: int) -> None:
    """Whatever the sizes: an error exactly where the files would not fit."""
    free = max(0, total - held)
    facts = healthy(shm_bytes=wanted, shm__total_bytes=total, shm__free_bytes=free, shm__held_bytes=held)
    errors = [one for one in found(facts) if one.check == "shared memory"]
    assert bool(errors) == (wanted > total)


# --- the GPU --------------------------------------------------------------------------------------------

ON_GPU = {"settings__hbm_device": "cuda:0", "settings__hbm_bytes": 16 * GIB, "cuda": CUDA}


@pytest.mark.parametrize(
    ("changed", "severity", "words"),
    [
        ({}, None, ""),
        ({"cuda__torch": ""}, Severity.ERROR, "torch is not installed"),
        ({"cuda__cuda": ""}, Severity.ERROR, "without CUDA"),
        ({"cuda__driver": ""}, Severity.ERROR, "no NVIDIA driver"),
        ({"cuda__devices": ()}, Severity.ERROR, "0 devices visible"),
        ({"settings__hbm_device": "cuda:1"}, Severity.ERROR, "cuda:1 wanted, 1 devices"),
        ({"cuda__devices": (Device("H200", GIB, 139 * GIB),)}, Severity.ERROR, "free"),
        ({"cuda__expandable_segments": True}, Severity.WARNING, "expandable"),
        ({"machine__first_process": "tierd"}, Severity.NOTE, "pid namespace"),
        ({"machine__memlock_bytes": 8 << 20}, Severity.WARNING, "locked"),
    ],
)
def test_gpu(changed: dict[str, Any], severity: Severity | None, words: str) -> None:
    """With hbm on a GPU each thing that it needs is looked at."""
    findings = found(healthy(**(ON_GPU | changed)))
    assert [one.severity for one in findings] == ([severity] if severity else [])
    assert all(words in one.measured for one in findings)


def test_gpu_is_not_looked_at_when_hbm_is_off() -> None:
    """Without hbm on a GPU no fault of CUDA is told."""
    assert not found(healthy(cuda=None))


def test_a_server_out_of_reach_gives_one_finding() -> None:
    """Of a server that cannot be reached nothing else is told."""
    (finding,) = found(healthy(spill__problem="no answer", spill__nodes=(), spill__refused=("GET",)))
    assert finding.severity is Severity.ERROR and URL in finding.measured


def test_a_cluster() -> None:
    """Memory of a cluster's servers counts together, and each server has its own findings."""
    nodes = [replace(NODE, place=f"cache-{n}:6379", maxmemory_bytes=4 * GIB) for n in range(3)]
    assert not found(healthy(spill__nodes=tuple(nodes)))
    nodes[1] = replace(nodes[1], policy="allkeys-lru", maxmemory_bytes=GIB)
    findings = found(healthy(spill__nodes=tuple(nodes)))
    assert [one.check for one in findings] == ["spill eviction", "spill memory"]
    assert "cache-1" in findings[0].measured and "maxmemory to 4gb a server" in findings[1].advice
