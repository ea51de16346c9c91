"""Files that are there whole or not at all."""

import os
import signal
import subprocess
import sys
import time

import pytest

from arrol.errors import ArrolError
from arrol.files import write_atomically


def test_content_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "deep" / "state.json"
    write_atomically(path, "one")
    write_atomically(path, b"two")
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["state.json"]


def test_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArrolError, match="can't be written"):
        write_atomically(tmp_path / "file" / "state.json", "x")


def test_a_link_is_followed(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_what_is_no_regular_file_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in ("pipe", "folder", "loop", "a" * 300, "a\0b"):
        with pytest.raises(ArrolError, match="can't be written"):
            write_atomically(tmp_path / place, "x")
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(ArrolError, match="can't be written"):
        write_atomically("", "x")


def test_kill_at_any_time_leaves_a_whole_file(tmp_path):
    path = tmp_path / "state.txt"
    code = (
        "import sys, itertools\n"
        "from arrol.files import write_atomically\n"
        "for i in itertools.count():\n"
        "    write_atomically(sys.argv[1], f'{i} ' * 200_000)\n"
        "    print(i, flush=True)\n"
    )
    for round_ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(path)], stdout=subprocess.PIPE, text=True
        )
        writer.stdout.readline()
        time.sleep(0.01 * round_)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        words = path.read_text().split()
        assert len(words) == 200_000
        assert len(set(words)) == 1
