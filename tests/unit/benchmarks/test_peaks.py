"""benchmarks/peaks.py counts what it times."""

import json

import floor
import jax.numpy as jnp
import peaks
import pytest
import tables


@pytest.fixture
def one_call_takes(monkeypatch):
    """Lets every call take so many seconds, once it has been made."""

    def take(seconds):
        monkeypatch.setattr(peaks, "call_seconds", lambda call, repeats: [call() is None, *[seconds] * repeats][1:])

    return take


def test_ten_products_are_counted(one_call_takes):
    one_call_takes(2.0)
    assert peaks.flops_per_second("bfloat16", 8, repeats=3) == 10 * 2 * 8**3 / 2.0


def test_what_ten_passes_read_and_write_is_counted(one_call_takes):
    one_call_takes(4.0)
    assert peaks.bytes_per_second(4096, repeats=3) == 10 * 2 * 4096 / 4.0


def test_a_function_is_called_on_its_own_results(monkeypatch):
    results = []
    monkeypatch.setattr(peaks, "call_seconds", lambda call, repeats: results.append(call()) or [1.0])
    peaks.seconds_of(lambda x: 2.0 * x, jnp.ones(3), repeats=1)
    assert results[0].tolist() == [2.0**10] * 3


@pytest.mark.parametrize(
    "mistake", [["--repeats", "0"], ["--size", "0"], ["--out", "/dev/null/peaks.json"], ["--out", "."]]
)
def test_mistakes_are_explained(capsys, mistake):
    with pytest.raises(SystemExit) as ended:
        peaks.main(mistake)

    assert ended.value.code == 2
    assert "xpected " in capsys.readouterr().err


def test_results_are_written_and_shown_beside_what_the_floor_reckons_with(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(peaks, "PASSED_BYTES", 4096)
    peaks.main(["--size", "8", "--repeats", "1", "--out", str(tmp_path / "peaks.json")])
    found = json.loads((tmp_path / "peaks.json").read_text())

    assert set(found) == {"flops_per_second", "bytes_per_second", "size", "versions", "device"}
    assert capsys.readouterr().out.strip() == tables.peaks(found)
    rounded = {
        "device": "H200",
        "flops_per_second": {"bfloat16": 7.5e14, "float32": 3.9e14},
        "bytes_per_second": 4.2e12,
    }
    assert tables.peaks(rounded).splitlines()[2:] == [
        f"| products in bfloat16 | 750 TFLOP/s | {floor.H200.flops_per_second['bfloat16'] / 1e12:.0f} TFLOP/s |",
        f"| products in float32, as TF32 | 390 TFLOP/s | {floor.H200.flops_per_second['float32'] / 1e12:.0f} TFLOP/s |",
        f"| memory, read and written | 4.20 TB/s | {floor.H200.bytes_per_second / 1e12:.2f} TB/s |",
    ]
