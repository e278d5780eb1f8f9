"""Runs a kernel that is written by hand, and finds the barrier that it lacks."""

from pathlib import Path

import numpy as np
import silumin

PTX = (Path(__file__).parent / "reverse.ptx").read_text()

data = np.arange(64, dtype=np.int32)
report = silumin.emulate(PTX.replace("BARRIER", ""), silumin.Launch(grid=1), [data])
print(report)
race = next(finding for finding in report.findings if finding.rule == "RaceShared")
print(f"\nthe race is at line {race.line}: {race.text}\n")

data = np.arange(64, dtype=np.int32)
report = silumin.emulate(PTX.replace("BARRIER", "bar.sync 0;"), silumin.Launch(grid=1), [data])
print(report)
assert report.ok and (data == np.arange(64)[::-1]).all()
