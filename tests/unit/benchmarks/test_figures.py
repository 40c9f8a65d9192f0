"""Figures of a comparison: noisy ones are taken again, and saved ones are loaded."""

import dataclasses
from types import SimpleNamespace

import machine
import pytest
from figures import (
    REPEATS_MAX,
    Figure,
    Figures,
    available,
    cell,
    doubt_lines,
    head_lines,
    noise_lines,
    ratios,
    rotated,
    target_cell,
)
from machine import Noise

QUIET, LOUD = Noise(0.0, 0.1), Noise(0.2, 0.3)
FACTS = {"cores": "2", "commit": machine.commit()}


def make(path, **changes):
    return Figures(**({"path": path / "f.json", "machine": FACTS, "settings": {"s": 2}} | changes))


def figure(number=1, server="cometmq", row="send", noise=QUIET, **values):
    return Figure(number, server, row, values or {"rate": 1.0}, noise)


@pytest.fixture
def figures(tmp_path):
    return make(tmp_path, noise_max=0.3)


def measured(*found):
    left = list(found)
    return lambda: left.pop(0)


def test_a_noisy_figure_is_discarded_and_taken_again(figures):
    figures.take(measured(figure(noise=LOUD, rate=1.0), figure(rate=2.0)))
    assert figures.values("send", "cometmq", "rate") == {1: 2.0}
    assert [each.values["rate"] for each in figures.discarded] == [1.0]
    lines = "\n".join(noise_lines(figures))
    assert "discarded: round 1, cometmq, send: steal 0.20, other processes 0.30 cores" in lines


def test_repeats_are_bounded_and_what_stays_noisy_has_no_value(figures):
    taken = []

    def always_loud():
        taken.append(figure(noise=LOUD))
        return taken[-1]

    figures.take(always_loud)
    assert len(taken) == 1 + REPEATS_MAX
    assert figures.values("send", "cometmq", "rate") == {}
    assert figures.has(1, "cometmq", "send")  # a continued run does not try again for ever
    assert not figures.has(2, "cometmq", "send")


def test_a_run_is_continued_from_its_file(figures, tmp_path):
    figures.servers["cometmq"] = {"heap": "none"}
    figures.take(measured(figure(noise=LOUD), figure(rate=2.0)))
    again = make(tmp_path, noise_max=0.3)
    again.resume()
    assert (again.taken, again.discarded) == (figures.taken, figures.discarded)
    assert again.servers == figures.servers
    assert again.has(1, "cometmq", "send")


@pytest.mark.parametrize(
    "changes",
    [{"machine": FACTS | {"commit": "def"}}, {"settings": {"s": 3}}, {"noise_max": 0.5}],
)
def test_another_commit_or_other_settings_are_another_run(figures, tmp_path, changes):
    figures.take(measured(figure()))
    with pytest.raises(SystemExit, match="without --continue"):
        make(tmp_path, **({"noise_max": 0.3} | changes)).resume()


def test_a_figure_in_doubt_counts_for_nothing_and_is_not_repeated_until_it_pleases(
    figures, tmp_path
):
    figures.take(measured(dataclasses.replace(figure(rate=9.0), doubt="3 sends failed")))
    again = make(tmp_path, noise_max=0.3)
    again.resume()
    assert again.values("send", "cometmq", "rate") == {}
    assert again.doubts() == ["round 1, cometmq, send: 3 sends failed"]
    assert again.has(1, "cometmq", "send")
    assert again.is_in_doubt("send", "cometmq")
    assert not again.is_in_doubt("send", "nats")
    assert target_cell([5.0] * 5, 4, more_is_better=True, in_doubt=True) == "≥ 4 in doubt"


def test_what_failed_is_taken_again_and_stays_listed_when_a_run_is_continued(figures, tmp_path):
    figures.fail(1, "cometmq", ["send"], OSError("the generator ended with 1"))
    again = make(tmp_path, noise_max=0.3)
    again.resume()
    assert not again.has(1, "cometmq", "send")
    assert again.is_in_doubt("send", "cometmq")
    assert again.doubts() == ["round 1, cometmq, send: OSError: the generator ended with 1"]


def test_a_doubt_is_not_excused_by_noise(figures):
    lost = dataclasses.replace(figure(noise=LOUD), doubt="verify=MISMATCH")
    figures.take(measured(lost, figure(rate=2.0)))
    assert figures.is_in_doubt("send", "cometmq")
    assert "- round 1, cometmq, send: verify=MISMATCH" in doubt_lines(figures)


def test_a_figure_that_stayed_noisy_is_named_and_its_cell_counts_the_rounds(figures):
    figures.take(lambda: figure(noise=LOUD))
    figures.take(measured(figure(2, rate=2.0)))
    assert figures.missing() == ["round 1, cometmq, send"]
    assert "- round 1, cometmq, send" in doubt_lines(figures)
    found = figures.values("send", "cometmq", "rate").values()
    assert cell(found, rounds=figures.rounds, more_is_better=True) == "2.00 [1 of 2 rounds]"
    assert cell([2.0] * 5, rounds=6, more_is_better=True) == "2.00 (2.00)"


def test_no_figure_is_taken_from_a_tree_that_changed(tmp_path):
    figures = make(tmp_path, machine=FACTS | {"commit": "another"}, noise_max=0.3)
    with pytest.raises(SystemExit, match="the tree was another when the benchmark began"):
        figures.take(measured(figure()))
    assert figures.taken == []


def test_a_server_whose_tool_is_missing_is_left_out(capsys):
    def prepare(server):
        if server.name == "nats":
            pytest.skip("needs go")

    servers = [SimpleNamespace(name=name) for name in ("cometmq", "nats")]
    found, left_out = available(servers, prepare)
    assert [each.name for each in found] == ["cometmq"]
    assert left_out == ["nats: needs go"]
    assert "left out: nats: needs go" in capsys.readouterr().err


def test_ratios_pair_the_figures_of_one_round():
    ours, other = {1: 10.0, 2: 30.0, 3: 5.0}, {1: 5.0, 3: 5.0, 4: 1.0}
    assert ratios(ours, other, more_is_better=True) == [2.0, 1.0]
    assert ratios(ours, other, more_is_better=False) == [0.5, 1.0]


def test_a_round_in_which_ours_did_nothing_is_the_worst_and_not_left_out():
    assert ratios({1: 0.0, 2: 4.0}, {1: 5.0, 2: 2.0}, more_is_better=True) == [0.0, 2.0]
    assert ratios({1: 0.0, 2: 4.0}, {1: 5.0, 2: 2.0}, more_is_better=False) == [0.5]


def test_each_round_begins_with_another_server():
    servers = ["a", "b", "c"]
    assert [rotated(servers, number)[0] for number in (1, 2, 3, 4)] == ["a", "b", "c", "a"]
    assert all(sorted(rotated(servers, number)) == servers for number in range(1, 7))
    followed = {tuple(rotated(servers, number)[:2]) for number in range(1, 7)}
    assert len(followed) == 6, "each comes before each other one"


def test_a_target_shows_no_verdict_before_five_rounds():
    assert target_cell([5.0] * 4, 4, more_is_better=True, sign="x") == "≥ x4 no verdict"
    assert target_cell([5.0] * 5, 4, more_is_better=True, sign="x") == "≥ x4 met"
    assert target_cell([5.0] * 5, 4, more_is_better=False) == "≤ 4 missed"


def test_a_dirty_tree_is_marked(tmp_path):
    dirty = make(tmp_path, machine=FACTS | {"commit": "abc-dirty"}, noise_max=0.3)
    assert any("no result" in line for line in head_lines("T", dirty))
    clean = make(tmp_path, machine=FACTS | {"commit": "abc"}, noise_max=0.3)
    assert not any("no result" in line for line in head_lines("T", clean))
