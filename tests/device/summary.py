"""What a run of the device tests gave, from its JUnit file, as one JSON object: `summary.py FILE STATUS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree


def summary(path: Path, status: int) -> dict[str, object]:
    """Counts, names of what failed, and the numbers that tests recorded. An absent file is a run that broke off."""
    if not path.exists():
        nothing = {"passed": 0, "skipped": 0, "seconds": 0.0, "facts": {}}
        return nothing | {"failed": ["the run broke off"], "status": status}
    cases = list(ElementTree.parse(path).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "passed": len(cases) - len(bad) - len(skipped),
        "failed": [f"{case.get('classname')}::{case.get('name')}" for case in bad],
        "skipped": len(skipped),
        "seconds": round(sum(float(case.get("time", 0)) for case in cases), 1),
        "facts": {one.get("name"): one.get("value") for case in cases for one in case.iter("property")},
        "status": status,
    }


if __name__ == "__main__":
    print(json.dumps(summary(Path(sys.argv[1]), int(sys.argv[2]))))
    raise SystemExit(int(sys.argv[2]))
