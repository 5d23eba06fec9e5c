"""A loss that is no longer finite ends the run, and says where the last good state is."""

import re

import pytest
from exact_runs import SETTINGS, as_options, records_of

from goalward.cli import main


def test_a_run_that_blows_up_stops_and_names_iteration_and_checkpoint(tmp_path, capsys):
    out = tmp_path / "run"
    settings = {**SETTINGS, "critic_lr": 1e30}
    with pytest.raises(SystemExit) as exit_info:
        main(["train", "toy/rooms", "--preset", "quick", "--out", str(out), *as_options(settings)])
    shown = capsys.readouterr()

    assert exit_info.value.code == 1
    what = r"goalward: (\S+) of seed ([0-7]) became non-finite in iteration (\d+); "
    message = re.fullmatch(what + r"the last good checkpoint is (\S+)\. .*\n", shown.err)
    assert message, shown.err
    assert message[1].startswith(("critic/", "value/"))
    assert message[3] == "1"
    assert message[4] == str(out / "checkpoints" / "0")
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["0"]
    assert {record["iteration"] for record in records_of(out)} == {0}
    assert not (out / "results.json").exists()
