"""The worked example of the README runs and shows what the README says it shows."""

import re

import pytest

from tim_ext.examples import digits


def test_digits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["digits", "--draws", "3"])
    digits.main()
    printed = capsys.readouterr().out
    assert "3 draws, 5 labels per class, 1747 unlabelled images" in printed
    prototype, tim = (float(percent) for percent in re.findall(r"([\d.]+) % right", printed))
    assert tim > prototype + 3
