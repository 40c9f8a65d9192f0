import os
import subprocess
import sys

import machine

BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_child_that_has_ended_is_not_noise():
    _, before, _ = machine._ticks()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    _, after, _ = machine._ticks()
    assert (after - before) / os.sysconf("SC_CLK_TCK") >= 0.25


def test_a_family_is_a_process_and_all_below_it():
    parents = {1: 0, 2: 0, 7: 1, 8: 7, 9: 8, 10: 2}
    assert machine._family(parents, 7) == {7, 8, 9}


def test_result_files_do_not_make_a_tree_dirty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def git(*arguments):
        names = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *names, *arguments], check=True, capture_output=True)

    git("init")
    results = tmp_path / machine.RESULT_FILES
    results.mkdir(parents=True)
    (results / "comparison.md").write_text("old")
    (tmp_path / "code.py").write_text("old")
    git("add", ".")
    git("commit", "-m", "first")
    (results / "comparison.md").write_text("new")
    (results / "comparison.json").write_text("new")
    assert not machine.commit().endswith("-dirty")
    (tmp_path / "code.py").write_text("new")
    assert machine.commit().endswith("-dirty")
