"""``bps plan``: what is typed, what is printed, what is refused."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from byteps_py import cli
from byteps_py.plan import command, link, measuring, plot
from byteps_py.plan.arguments import LISTEN_PORT
from byteps_py.plan.costs import Costs

SLOW = ("--workers", "4", "--link", "200Mbit", "--bytes", "25MB", "--cores", "2", "--servers", "5")
MEASURED = Costs(sum_rate=2e10, copy_rate=1e10, wire_seconds=3e-10, message_seconds=5e-5)


def run(*words: str) -> int:
    """The exit status, whoever ends it."""
    try:
        return cli.main(["plan", *words])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been measured, and with what."""
    seen: list[Any] = []

    def costs(environ: Any, say: Any) -> Costs:
        seen.append(environ is os.environ)
        say("measuring")
        return MEASURED

    def speed(host: str, port: int) -> float:
        seen.append((host, port))
        return 2.5e9

    monkeypatch.setattr(measuring, "measure_costs", costs)
    monkeypatch.setattr(link, "measure", speed)
    monkeypatch.setattr(link, "listen", lambda port, say: seen.append(port) or 1.25e9)
    return seen


TEXT = """\
25 MB of gradients; 4 worker machines of 2 cores, server machines of 2, links of 23.8 MB/s each way.
Costs, assumed: a core sums 12 GB/s and copies 9 GB/s; TCP takes 0.35 s of CPU time per GB at each
end, a partition 100 us in each process.

  layout     servers  machines  partition  exchange  over optimum  gain  limited by
"""


def test_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SLOW) == 0
    out, err = capsys.readouterr()
    assert out.startswith(TEXT)
    rows = [line.split() for line in out.splitlines()[len(TEXT.splitlines()) :] if line and line[:2] in ("  ", "* ")]
    assert [line[:2] for line in rows if line[0] == "separate"] == [["separate", str(each)] for each in (1, 2, 3, 5)]
    assert [line[:4] for line in rows if line[0] == "mixed"] == [["mixed", "4", "+", str(each)] for each in range(1, 6)]
    (best,) = [line for line in rows if line[0] == "*"]
    assert best[1:4] == ["separate", "4", "8"]
    assert "Best: 4 servers, each on a machine of its own (DMLC_NUM_SERVER=4)" in out
    assert max(map(len, out.splitlines())) <= 120
    assert err == ""
    assert run(*SLOW) == 0
    assert capsys.readouterr().out == out


def test_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SLOW, "--json", "--compute-seconds", "2") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"job", "rows", "best", "why"}
    assert found["job"]["workers"] == 4
    assert found["job"]["link"] == 23.75e6
    assert found["job"]["tensors"] is None
    assert len(found["rows"]) == 3 * 5
    assert found["best"] in found["rows"]
    best = found["best"]
    assert (best["layout"], best["servers"], best["extra_machines"]) == ("separate", 4, 4)
    assert best["optimum_seconds"] == pytest.approx(25e6 / 23.75e6)
    assert best["over_optimum"] == pytest.approx(best["seconds"] / best["optimum_seconds"])
    assert best["terms"][best["limit"]] == max(best["terms"].values())
    assert best["step_seconds"] == {"overlapped": 2.0, "not_overlapped": pytest.approx(2.0 + best["seconds"])}
    assert found["why"][0].startswith("Best: ")


def test_steps_have_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SLOW, "--compute-seconds", "2") == 0
    out = capsys.readouterr().out
    assert "  step  " in out
    assert "2.00 s to 3.1" in out
    assert "A step that computes for 2.00 s takes 2.00 s if the exchange is hidden" in out


def test_one_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--workers", "4", "--one-host", "--parameters", "25M", "--dtype", "bfloat16", "--cores", "8") == 0
    out = capsys.readouterr().out
    assert out.startswith("50 MB of gradients; 4 workers on one host of 8 cores.\n")
    assert "machines" not in out
    assert "(bpslaunch -s " in out


def test_a_model_is_placed_as_in_a_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One large tensor in one partition: a second server has nothing to do."""
    (tmp_path / "one.json").write_text('{"w": [1000000]}', encoding="utf-8")
    asked = ("--workers", "2", "--link", "1Gbit", "--servers", "2", "--json")
    assert run(*asked, "--model", str(tmp_path / "one.json"), "--partition-bytes", "4MiB") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["job"]["model"] == "one.json"
    assert found["job"]["tensors"] == 1
    two = next(each for each in found["rows"] if (each["layout"], each["servers"]) == ("separate", 2))
    assert sorted(two["shares"]) == [0.0, 1.0]
    assert two["optimum_seconds"] < two["terms"]["the links of the server machines"]
    assert run(*asked[:-1], "--model", "resnet50", "--local-size", "8") == 0
    out = capsys.readouterr().out
    assert out.startswith("resnet50: 102 MB of gradients in 161 tensors; 2 worker machines of ")
    assert "and 8 workers each" in out


def test_what_is_measured_is_used_and_saved(
    measured: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "costs.json"
    asked = ("--workers", "4", "--bytes", "25MB", "--json")
    assert run(*asked, "--measure", "--peer", "10.0.0.2", "--save", str(path)) == 0
    out, err = capsys.readouterr()
    assert measured == [True, ("10.0.0.2", LISTEN_PORT)]
    assert err == "bps plan: measuring\nbps plan: measuring the link to 10.0.0.2\n"
    first = json.loads(out)
    assert first["job"]["costs"] == dataclasses.asdict(MEASURED)
    assert first["job"]["origin"] == "measured here"
    assert first["job"]["link"] == 2.5e9
    assert json.loads(path.read_bytes()) == {**dataclasses.asdict(MEASURED), "link": 2.5e9}
    assert run(*asked, "--costs", str(path)) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["rows"] == first["rows"]
    assert again["job"]["origin"] == "from costs.json"
    assert run(*asked, "--costs", str(path), "--link", "10Gbit") == 0
    assert json.loads(capsys.readouterr().out)["job"]["link"] == 1.1875e9


def test_measuring_alone(measured: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--measure") == 0
    assert capsys.readouterr().out.splitlines() == [
        "sums     20 GB/s of contributions in float32, one core",
        "copies   10 GB/s, one core",
        "TCP      0.30 s of CPU time per GB, at each end",
        "messages 50 us for each partition, in each process",
    ]
    assert run("--measure", "--json") == 0
    assert json.loads(capsys.readouterr().out) == dataclasses.asdict(MEASURED)
    for peer, expected in (
        ("a:9", ("a", 9)),
        ("a", ("a", LISTEN_PORT)),
        ("::1", ("::1", LISTEN_PORT)),
        ("[fe80::1]:9", ("fe80::1", 9)),
        ("[fe80::1]", ("fe80::1", LISTEN_PORT)),
    ):
        assert run("--peer", peer) == 0
        assert measured[-1] == expected
        assert capsys.readouterr().out == "link     2.5 GB/s each way, both ways at the same time\n"


def test_listening(measured: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--measure", "--listen") == 0
    assert run("--listen", "9001", "--json") == 0
    assert measured == [LISTEN_PORT, 9001]
    text, *parts = capsys.readouterr().out.splitlines()
    assert text == "link: 1.25 GB/s each way"
    assert json.loads("".join(parts)) == {"link": 1.25e9}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--workers is missing"),
        (("--workers", "0"), "'0' must be a whole number from 1 to 512"),
        (("--workers", "4"), "how large is the model?"),
        (("--workers", "4", "--bytes", "25MB"), "how fast are the links of the machines? --link 25Gbit"),
        (("--workers", "4", "--link", "25", "--bytes", "1MB"), "'25' must be a speed"),
        (("--workers", "4", "--link", "1Gbit", "--bytes", "0"), "'0' must be at least one byte"),
        (("--workers", "4", "--link", "1Gbit", "--bytes", "many"), "'many' must be a number of bytes"),
        (("--workers", "4", "--link", "1Gbit", "--parameters", "0"), "'0' must be a number of parameters"),
        (("--workers", "4", "--link", "1Gbit", "--parameters", "1_0"), "'1_0' must be a number of parameters"),
        (("--workers", "4", "--link", "1Gbit", "--bytes", "1MB", "--model", "vgg16"), "not allowed with"),
        (("--workers", "4", "--link", "1Gbit", "--model", "vgg17"), "--model vgg17: it must be one of resnet18"),
        (("--workers", "4", "--link", "1Gbit", "--model", "no.npz"), "--model no.npz: No such file"),
        (("--workers", "4", "--one-host", "--link", "1Gbit", "--bytes", "1MB"), "--one-host has no link"),
        (("--workers", "4", "--one-host", "--local-size", "2", "--bytes", "1MB"), "leave --local-size out"),
        (("--workers", "4", "--link", "1Gbit", "--bytes", "1MB", "--dtype", "float16"), "--bytes needs no --dtype"),
        (("--workers", "4", "--link", "1Gbit", "--peer", "a", "--bytes", "1MB"), "leave one of them out"),
        (("--bytes", "1MB", "--measure"), "--bytes without --workers"),
        (("--measure", "--costs", "c.json"), "--costs says what --measure measures"),
        ((*SLOW, "--save", "c.json"), "--save has nothing to write"),
        ((*SLOW, "--costs", "none.json"), "--costs none.json: No such file"),
        (("--listen", "0"), "'0' must be a whole number from 1 to 65535"),
        (("--listen", "--workers", "3"), "leave out --workers"),
        (("--peer", "a:b"), "'a:b' must be a host and a port"),
        (("--peer", ":9"), "':9' must be a host and a port"),
        (
            ("--workers", "4", "--link", "1Gbit", "--model", "bert-large", "--partition-bytes", "64", "--servers", "2"),
            "partitions of BYTEPS_PARTITION_BYTES=64: one batch of declarations may have 1048576; raise "
            "BYTEPS_PARTITION_BYTES on all workers",
        ),
        ((*SLOW, "--partition-bytes", "63"), "'63' must be a whole number from 64 to 1073741824, as BYTEPS_PARTITION"),
        ((*SLOW, "--partition-bytes", "1.1GiB"), "'1.1GiB' must be a whole number from 64 to 1073741824"),
        ((*SLOW[:-1], "513"), "'513' must be a whole number from 1 to 512"),
        (("--compute-seconds", "-1"), "'-1' must be a number of seconds"),
        (
            ("--workers", "4", "--link", "1Gbit", "--bytes", "25"),
            "'25' without a unit is 25 B, less than any model: write 25MB, 25kB, or 25B if it is meant",
        ),
        (
            ("--workers", "4", "--link", "1Gbit", "--parameters", "25"),
            "'25' is 25 parameters, fewer than any model has: write 25M for millions, 25k for thousands, or the exact "
            "size as --bytes 100B",
        ),
        (("--workers", "4", "--link", "1Gbit", "--parameters", "1e15"), "and no more than 1e+14"),
        (("--workers", "4", "--link", "1Gbit", "--bytes", "1001TB"), "at least one byte, and no more than 1 PB"),
        (("--workers", "4", "--link", "1bps"), "'1bps' must be a speed from 100 B/s to 10 TB/s"),
        (
            ("--measure", *SLOW, "--plot", "p.xyz"),
            "bps plan: --plot p.xyz: the name must end in .png, .svg or .pdf, which says what is drawn",
        ),
        ((*SLOW, "--plot", "picture"), "--plot picture: the name must end in .png, .svg or .pdf"),
    ],
)
def test_usage_errors(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_the_range_of_partitions_is_that_of_the_variable(capsys: pytest.CaptureFixture[str]) -> None:
    for text, size in (("64", 64), ("1GiB", 1 << 30)):
        assert run(*SLOW, "--partition-bytes", text, "--json") == 0
        assert json.loads(capsys.readouterr().out)["best"]["partition_bytes"] == size


@pytest.mark.parametrize(
    ("words", "most", "advice"),
    [
        (("--workers", "3"), 6, "servers were not looked at: --servers 12."),
        (("--workers", "3", "--servers", "300"), 300, "servers were not looked at: --servers 512."),
        (("--workers", "3", "--servers", "512"), 512, "servers were not looked at."),
        (
            (
                "--workers",
                "257",
            ),
            512,
            "servers were not looked at.",
        ),
    ],
)
def test_no_more_servers_than_the_option_takes(
    words: tuple[str, ...], most: int, advice: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Where the best is the last one that was looked at."""
    monkeypatch.setattr("byteps_py.plan.planning.best", lambda rows: rows[-1])
    assert run("--one-host", "--bytes", "1GB", "--cores", "64", "--json", *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["job"]["most"] == found["best"]["servers"] == most
    assert any(each == f"More than {most} {advice}" for each in found["why"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is no JSON"),
        (b"[]", "must be an object with some of"),
        (b"{}", "must be an object with some of"),
        (b'{"speed": 1}', "must be an object with some of"),
        (b'{"link": "fast"}', "link must be a number from 0 on, not 'fast'"),
        (b'{"link": true}', "link must be a number from 0 on, not True"),
        (b'{"link": 0}', "link=0 must be bytes per second, from 1 to 1e+13"),
        (b'{"link": 1e300}', "link=1e+300 must be bytes per second, from 1 to 1e+13"),
        (b'{"sum_rate": 1e300}', "sum_rate=1e+300 must be no more than 1e+15 bytes per second"),
        (b'{"sum_rate": 0}', "sum_rate=0.0 must be at least 1 byte per second"),
        (b'{"sum_rate": 1e-300}', "sum_rate=1e-300 must be at least 1 byte per second"),
        (b'{"copy_rate": NaN}', "copy_rate must be a number from 0 on"),
        (b'{"wire_seconds": -1}', "wire_seconds must be a number from 0 on"),
        (b'{"message_seconds": Infinity}', "message_seconds must be a number"),
    ],
)
def test_files_of_costs_that_are_none(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(content)
    assert run(*SLOW, "--costs", str(path)) == 2
    assert message in capsys.readouterr().err


def test_a_file_may_tell_a_part(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"sum_rate": 5e9}', encoding="utf-8")
    assert command.read_costs(path) == command.Known(Costs(sum_rate=5e9), None, "from costs.json")


def test_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.png"
    if importlib.util.find_spec("matplotlib") is None:
        assert run(*SLOW, "--plot", str(path)) == 2
        assert "--plot needs matplotlib: pip install 'byteps_py[plot]'" in capsys.readouterr().err
        return
    found = []
    for servers in ("5", "5", "40"):  # the last one has a logarithmic axis
        assert run(*SLOW[:-1], servers, "--plot", str(path)) == 0
        found.append(path.read_bytes())
    assert found[0] == found[1] != found[2]
    assert struct.unpack(">II", found[0][16:24]) == (800, 500)
    assert b"Software" not in found[0]
    for name, begin in (("plan.SVG", b"<?xml"), ("plan.pdf", b"%PDF")):
        pictures = set()
        for _ in range(2):
            assert run(*SLOW, "--plot", str(tmp_path / name)) == 0
            pictures.add((tmp_path / name).read_bytes())
        (picture,) = pictures
        assert picture.startswith(begin)


def test_without_matplotlib_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_measured", None)
    monkeypatch.setattr(plot, "can_draw", lambda: False)
    assert run(*SLOW, "--measure", "--plot", str(tmp_path / "plan.png")) == 2
    assert "--plot needs matplotlib: pip install 'byteps_py[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--link", "1kbit", "--bytes", "1PB", "--compute-seconds", "1000000"),
        ("--link", "10TB/s", "--bytes", "1PB"),
        ("--link", "10TB/s", "--parameters", "1000"),
        ("--link", "1kbit", "--bytes", "1B"),
        ("--one-host", "--bytes", "1PB"),
    ],
)
def test_what_the_options_take_can_be_read(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--workers", "4", "--cores", "2", "--servers", "5", *words) == 0
    out = capsys.readouterr().out
    assert not re.findall(r"\d{5,}", out)
    assert max(map(len, out.splitlines())) <= 150


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("--link", "25Gbit"),
            ["More than 1 server was not looked at: --servers 2.", "one with the worker machine, one"],
        ),
        (("--one-host",), ["1 worker on one host of 1 core.", "Best: 1 server (bpslaunch -s 1)"]),
        (("--link", "25Gbit", "--servers", "2"), ["server on the worker machine, "]),
    ],
)
def test_one_of_anything_is_no_plural(
    words: tuple[str, ...], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--workers", "1", "--bytes", "25MB", "--cores", "1", "--servers", "1", *words) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert [each for each in expected if each not in out] == []
    assert not re.findall(r"\b1 (?:\w+ )?(?:servers|workers|machines|cores|tensors)\b", out)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    line = f"{sys.executable} -m byteps_py plan {' '.join(SLOW)} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("option", ["--save", "--plot"])
def test_where_nothing_can_be_written_nothing_is_measured(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_measured", None)
    words = [*SLOW, *(["--measure"] if option == "--save" else [])]
    (tmp_path / "folder.png").mkdir()
    for path in (tmp_path / "no-folder" / "file.png", tmp_path / "folder.png"):
        assert run(*words, option, str(path)) == 2
        assert f"{path} cannot be written: name a file in a folder that is there" in capsys.readouterr().err
