"""The noise of a machine, and the state of the tree beside a figure."""

import os
import subprocess
import sys

import machine
import pytest

BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_child_that_has_ended_is_not_noise():
    before = machine.ticks()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    after = machine.ticks()
    ours = sum(map(sum, after.ours.values())) - sum(map(sum, before.ours.values()))
    assert ours / os.sysconf("SC_CLK_TCK") >= 0.25


def test_a_process_that_nobody_waited_for_adds_no_noise():
    """Its 900 ticks go with it; they must not seem to be those of another process."""
    before = machine.Ticks(busy=5000, steal=0, ours={7: (100, 0), 8: (900, 0)})
    after = machine.Ticks(busy=5200, steal=10, ours={7: (260, 0), 9: (30, 0)})
    assert machine.noise_between(before, after, hz=100.0) == machine.Noise(0.1, 0.1)


def test_a_child_that_was_waited_for_counts_once():
    before = machine.Ticks(busy=5000, steal=0, ours={7: (100, 0), 8: (900, 0)})
    after = machine.Ticks(busy=5200, steal=0, ours={7: (150, 1000)})
    assert machine.noise_between(before, after, hz=100.0) == machine.Noise(0.0, 0.5)


def test_a_family_is_a_process_and_all_below_it():
    parents = {1: 0, 2: 0, 7: 1, 8: 7, 9: 8, 10: 2}
    assert machine._family(parents, 7) == {7, 8, 9}


@pytest.mark.parametrize("whole", [False, True])
def test_the_figures_of_a_whole_run_are_written(tmp_path, monkeypatch, capsys, whole):
    monkeypatch.setattr(machine, "RESULT_FILES", str(tmp_path / "results"))
    lines = ["# Page", f"| {machine.cell([3.0, 1.0, 2.0], '.2f')} |"]
    machine.report("page", lines, {"row": [1]}, whole=whole)
    assert capsys.readouterr().out == "# Page\n| 2.00 (1.00, 3.00) |\n"
    written = {path.name: path.read_text() for path in tmp_path.glob("results/*")}
    page = {"page.md": "\n".join(lines) + "\n", "page.json": '{\n "row": [\n  1\n ]\n}\n'}
    assert written == (page if whole else {})


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
