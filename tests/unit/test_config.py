"""Settings: where they come from, what is refused and in which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tierd.config import SettingsError, load
from tierd.settings import GIB, MIB, Settings, masked_url
from tierd_client.integrations.options import Options
from tierd_client.places import default_address


def write(directory: Path, text: str) -> Path:
    path = directory / "tierd.toml"
    path.write_text(text)
    return path


def refused(flags: dict[str, object] | None = None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(flags or {}, environ or {})
    return str(caught.value)


def test_defaults() -> None:
    """Without a word from anyone there is a daemon of 1 GiB host, no hbm and an embedded spill tier."""
    settings = load({}, {})
    assert (settings.host_bytes, settings.hbm_bytes, settings.spill_bytes_max) == (GIB, 0, GIB)
    assert settings.spill.get_secret_value() == "embedded"
    assert settings.addresses == (f"unix://{settings.state_dir}/tierd.sock",)
    assert settings.host_segments == tuple((n, 256 * MIB) for n in (1, 2, 3, 4))


def test_directories_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory that is given relative to where the daemon starts is meant there: sockets are named in full."""
    monkeypatch.chdir(tmp_path)
    settings = load({"state_dir": "here", "shm_dir": "./there"}, {})
    assert (settings.state_dir, settings.shm_dir) == (tmp_path / "here", tmp_path / "there")
    assert settings.addresses == (f"unix://{tmp_path}/here/tierd.sock",)


def test_precedence(tmp_path: Path) -> None:
    """A flag wins over the environment, which wins over the file, which wins over the default."""
    config = write(tmp_path, 'host_bytes = "1MiB"\nhbm_bytes = "2MiB"\nspill_bytes_max = "3MiB"\n')
    environ = {"TIERD_HOST_BYTES": "4MiB", "TIERD_HBM_BYTES": "5MiB"}
    settings = load({"host_bytes": "6MiB", "hbm_bytes": None}, environ, config)
    assert [settings.host_bytes, settings.hbm_bytes, settings.spill_bytes_max] == [6 * MIB, 5 * MIB, 3 * MIB]
    assert settings.max_ids == 8192


def test_frozen() -> None:
    """Settings do not change after the start."""
    with pytest.raises(ValueError, match="frozen"):
        load({}, {}).host_bytes = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096), ("512MiB", 512 * MIB), ("1 GiB", GIB), ("1.5GiB", 3 * GIB // 2), ("2GB", 2 * 10**9),
        ("8k", 8192),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """A size is bytes, or a number with a binary or decimal unit."""
    assert load({"host_bytes": text}, {}).host_bytes == size


def test_several_sizes() -> None:
    """Sizes are given with commas, and are known once each, the smallest first."""
    assert load({"shadow_sizes_bytes": "1TiB, 64GiB,64GiB"}, {}).shadow_sizes_bytes == (64 * GIB, 1024 * GIB)


@pytest.mark.parametrize("name", ["host_bytes", "spill_bytes_max", "hbm_bytes", "segment_bytes"])
def test_small_number(name: str) -> None:
    """A bare 10 where bytes are wanted is refused, naming the setting, the minimum and how to write sizes."""
    text = refused({name: "10" if name != "segment_bytes" else "4095"})
    assert name in text
    if name != "segment_bytes":
        assert "10 is too small" in text and "4096 bytes" in text and "512MiB" in text


@pytest.mark.parametrize("text", ["", "many", "1 QiB", "-5", "1GiB!"])
def test_bad_size(text: str) -> None:
    """What is no size is refused with the setting's name and the units there are."""
    said = refused({}, {"TIERD_HOST_BYTES": text})
    assert "TIERD_HOST_BYTES: host_bytes" in said
    assert "MiB" in said


def test_unknown_in_file(tmp_path: Path) -> None:
    """An unknown key of the file is named with file, line and the setting that it resembles."""
    config = write(tmp_path, '# sizes\nmax_ids = 5\nhost_byte = "1GiB"\n')
    with pytest.raises(SettingsError) as caught:
        load({}, {}, config)
    assert str(caught.value) == f"{config}:3: unknown setting 'host_byte', did you mean 'host_bytes'?"


def test_unknown_table_in_file(tmp_path: Path) -> None:
    """A table is no setting either."""
    with pytest.raises(SettingsError, match=r"tierd.toml:1: unknown setting 'tiers'"):
        load({}, {}, write(tmp_path, "[tiers]\nhost = 1\n"))


def test_unknown_in_environment() -> None:
    """A mistyped variable stops the start instead of being ignored."""
    assert refused({}, {"TIERD_HOST_BITES": "1"}) == (
        "environment TIERD_HOST_BITES: unknown setting 'host_bites', did you mean 'host_bytes'?"
    )


def test_foreign_variables() -> None:
    """Variables that only share the prefix are no settings: the client's, and those Kubernetes injects."""
    environ = {
        "TIERD_ADDRESS": "unix:///x", "TIERD_PORT": "tcp://10.0.0.1:50051", "TIERD_SERVICE_HOST": "10.0.0.1",
        "TIERD_PORT_50051_TCP_ADDR": "10.0.0.1", "TIERD_SERVICE_PORT_GRPC": "1", "PATH": "/bin",
    }
    assert load({}, environ).host_bytes == GIB


def test_file_problems(tmp_path: Path) -> None:
    """A file that is missing or no TOML is named, with the line of the fault."""
    with pytest.raises(SettingsError, match=r"config: .*nothing\.toml"):
        load({}, {}, tmp_path / "nothing.toml")
    with pytest.raises(SettingsError, match=r"tierd.toml: .*line 2"):
        load({}, {}, write(tmp_path, "max_ids = 1\nmax_held = x\n"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_ids", 0), ("clock", "moon"), ("hbm_device", "tpu"), ("spill_prefix", "a b"), ("max_moves", "few"),
        ("spill", "http://host"), ("log_level", "loud"), ("steps_per_second", "nan"), ("segment_bytes", 5000),
        ("catalog_rows", 3), ("listen", "nowhere"), ("listen", "host:99999"), ("listen", "unix://relative"),
        ("state_dir", "/" + "long/" * 30), ("shadow_sizes_bytes", ""), ("shadow_sizes_bytes", "64GiB,few"),
        ("shadow_sizes_bytes", "1KiB"), ("shadow_sizes_bytes", "64GiB,128TiB"), ("shadow_cpu_percent", 0),
        ("shadow_sizes_bytes", ",".join(f"{number}GiB" for number in range(1, 10))), ("shadow_cpu_percent", 101),
        ("shadow_blocks_max", 255), ("shadow_namespaces_max", 0),
    ],
)
def test_impossible_values(name: str, value: object) -> None:
    """A value out of range is refused and the setting named."""
    assert name in refused({name: value})


def test_origin_is_named(tmp_path: Path) -> None:
    """The error says where the wrong value was given."""
    with pytest.raises(SettingsError, match=r"tierd.toml:1: max_ids"):
        load({}, {}, write(tmp_path, "max_ids = 0"))
    assert refused({"max_ids": 0}).startswith("--max-ids: max_ids")


@pytest.mark.parametrize("address", ["0.0.0.0:7000", "[::]:7000", "10.1.2.3:7000", "node7:7000"])
def test_tcp_needs_consent(address: str) -> None:
    """An address that other machines reach is refused unless the operator says insecure."""
    text = refused({"listen": ["unix:///tmp/x.sock", address]})
    assert address in text and "--insecure" in text
    assert load({"listen": [address], "insecure": True}, {}).addresses == (address,)


@pytest.mark.parametrize("given", [
    {"data_token_file": "/t"}, {"admin_token_file": "/t"}, {"tls_cert_file": "/c", "tls_key_file": "/k"},
])
def test_tokens_or_tls_are_consent(given: dict[str, str]) -> None:
    """With tokens or a certificate an address may be reached from elsewhere; it is listed as exposed."""
    assert load({"listen": ["0.0.0.0:7000", "127.0.0.1:1"], **given}, {}).exposed == ("0.0.0.0:7000",)


@pytest.mark.parametrize("given", [
    {"tls_cert_file": "/c"}, {"tls_key_file": "/k"}, {"tls_client_ca_file": "/ca"},
])
def test_half_of_tls(given: dict[str, str]) -> None:
    """A certificate without its key, a key or an authority alone is refused by name."""
    assert "tls_" in refused(given)


@pytest.mark.parametrize("address", ["127.0.0.1:7000", "localhost:0", "[::1]:7000", "unix:///tmp/x.sock"])
def test_local_addresses(address: str) -> None:
    """Loopback and Unix sockets need no consent."""
    assert load({"listen": [address]}, {}).addresses == (address,)


def test_list_from_environment() -> None:
    """A list in the environment is comma-separated."""
    environ = {"TIERD_LISTEN": "unix:///tmp/x.sock, 127.0.0.1:7000"}
    assert load({}, environ).addresses == ("unix:///tmp/x.sock", "127.0.0.1:7000")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:geheim@host:6379/0", "redis://user:***@host:6379/0"),
        ("redis://:geheim@host", "redis://:***@host"),
        ("redis://geheim@host", "redis://***@host"),
        ("redis://user:geh/geheim@host/0", "redis://user:***@host/0"),
        ("rediss://host/0?password=geheim&db=1", "rediss://host/0?password=***&db=***"),
        ("unix:///run/valkey.sock", "unix:///run/valkey.sock"),
        ("embedded", "embedded"),
    ],
)
def test_credentials_are_masked(url: str, shown: str) -> None:
    """A password in the spill URL appears in no listing, representation or error."""
    assert masked_url(url) == shown
    settings = load({"spill": url}, {})
    assert settings.public()["spill"] == shown
    for text in (repr(settings), str(settings), json.dumps(settings.public()), settings.model_dump_json()):
        assert "geheim" not in text


def test_credentials_stay_out_of_errors() -> None:
    """A URL that is refused is not repeated."""
    text = refused({"spill": "http://user:geheim@host"})
    assert "geheim" not in text and "spill" in text


def test_public_is_json() -> None:
    """What GetConfig shows is every setting, as JSON."""
    shown = json.loads(json.dumps(load({}, {}).public()))
    assert shown.keys() == Settings.model_fields.keys()


def test_segments() -> None:
    """Segments cover whole pages of each arena, the last being smaller, and are at most 64 in all."""
    settings = load({"host_bytes": 10 * MIB + 5000, "hbm_bytes": "6MiB", "segment_bytes": "4MiB"}, {})
    assert settings.host_segments == ((1, 4 * MIB), (2, 4 * MIB), (3, 2 * MIB + 4096))
    assert settings.hbm_segments == ((0x4000, 4 * MIB), (0x4001, 2 * MIB))
    large = load({"host_bytes": "1TiB", "hbm_bytes": "100GiB"}, {})
    assert len(large.host_segments) + len(large.hbm_segments) <= 64
    assert sum(size for _, size in large.host_segments) == 1 << 40
    assert "segment_bytes" in refused({"host_bytes": "1TiB", "segment_bytes": "256MiB"})


def test_catalog_grows_with_the_tiers() -> None:
    """Rows are enough for tiers full of 16 KiB blocks, within limits, unless they are set."""
    assert load({"host_bytes": "4MiB", "spill": "none"}, {}).rows == 65_536
    assert load({"host_bytes": "4GiB", "spill_bytes_max": "12GiB"}, {}).rows == 1 << 20
    assert load({"host_bytes": "60TiB"}, {}).rows == 16 << 20
    assert load({"catalog_rows": 1000}, {}).rows == 1000
    assert load({"catalog_rows": 1000}, {}).ghosts == 4000


def test_every_setting_is_described() -> None:
    """Each setting says what it is; one with a number says its default or what 0 means."""
    for name, field in Settings.model_fields.items():
        assert field.description and len(field.description) > 20, name


def test_default_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state directory is the system's for root, else the user's; the command line looks in the same place."""
    for name in ("XDG_RUNTIME_DIR", "TIERD_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.access", lambda path, mode: True)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_address() == "unix:///run/tierd/tierd.sock"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert load({}, {}).addresses == (default_address(),) == ("unix:///tmp/tierd-1000/tierd.sock",)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert load({}, {}).addresses == (default_address(),) == ("unix:///run/user/1000/tierd/tierd.sock",)
    assert Options().address == default_address()
    monkeypatch.setenv("TIERD_ADDRESS", "host:7000")
    assert default_address() == "host:7000"
