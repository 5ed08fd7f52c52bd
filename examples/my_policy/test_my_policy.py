"""The policy under tierd's own contract: `pip install .`, then `pytest`."""

from tierd.testing.policy_contract import PolicyContract, refused_field


class TestPerUse(PolicyContract):
    spec = "per_use(power=0.5)"


def test_power_is_in_range() -> None:
    """A power below 0 or above 8 is refused by name."""
    assert [refused_field(f"per_use(power={power})") for power in ("-1", "9", "x")] == ["policy.power"] * 3
