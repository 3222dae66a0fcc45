"""What CONTRIBUTING.md tells a newcomer is there."""

from __future__ import annotations

import re

from helpers.paths import ROOT


def test_every_file_that_is_named_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = {name for name in re.findall(r"`([a-z_]+/[\w./-]+)`", text) if "NAME" not in name}
    assert len(named) > 30
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing, f"CONTRIBUTING.md names what is not there: {', '.join(missing)}"


def test_every_room_has_a_line() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = [
        path.parent.name
        for path in (ROOT / "tim_ext").glob("*/__init__.py")
        if path.parent.name != "examples"
    ]
    assert [room for room in rooms if not re.search(rf"^ +{room}/ ", text, re.MULTILINE)] == []
