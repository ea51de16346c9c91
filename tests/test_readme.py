"""What the README shows runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")

CODES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_library_example_keeps_half():
    code = next(code for code in CODES if "SimulatedBackend" in code)
    command = [sys.executable, "-P", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    keep_rate, pass_rate = map(float, result.stdout.split())
    assert abs(keep_rate - 0.5) < 0.02
    assert 0.0 < pass_rate < 1.0


def test_the_row_shown_is_one_that_replay_reads(tmp_path):
    from arrol.rollout_log import read_rollouts

    (row,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "rows.jsonl"
    path.write_text(row, encoding="utf-8")
    log = read_rollouts([path])
    assert log.problems.counts.total() == 0
