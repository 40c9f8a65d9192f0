"""Every codec of the wire is timed."""

import codec
import timing


def test_every_codec_is_timed(monkeypatch, capsys):
    monkeypatch.setattr(timing, "RUNS", 1)
    monkeypatch.setattr(timing, "RUN_S", 1e-6)

    codec.main()

    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert all(" ns  " in line for line in lines)
