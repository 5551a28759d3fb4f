"""The command lines of benchmarks/: what is wrong is told before anything starts, with exit status 2."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

import pytest

from benchmarks import arguments, figures, kernels, push_pull, raw_transport, steps, systems, train_step
from benchmarks.side import SideError
from byteps_py.kernels.native import LEVELS, NativeKernels

PROGRAMS = (
    *("push_pull", "raw_transport", "train_step", "kernels"),
    *("wait_policy", "ab_honesty", "stage_times", "steps", "trace_overhead", "asynchronous", "sparse"),
)
NATURAL = ("0", "-1", "1.5", "1_0", "many", "", "1" * 30)
NUMBERS = {
    "push_pull": ("--workers", "--servers", "--tensors", "--bytes", "--pairs"),
    "raw_transport": ("--bytes", "--repeats", "--beyond", "--tensors", "--pairs"),
    "train_step": ("--workers", "--servers", "--batch", "--pixels", "--pairs"),
    "kernels": ("--bytes", "--sources", "--threads", "--divisor"),
    "wait_policy": ("--blocks", "--screening-blocks", "--steps"),
    "ab_honesty": ("--experiments",),
    "stage_times": ("--blocks",),
    "trace_overhead": ("--rounds",),
    "asynchronous": ("--rounds", "--slowdown"),
    "sparse": ("--rows", "--width", "--rounds"),
    "steps": ("--bytes", "--tensors"),
}
SECONDS = [
    *((name, "--seconds") for name in ("push_pull", "raw_transport", "train_step", "kernels")),
    *((name, "--warmup") for name in ("push_pull", "raw_transport", "train_step")),
]


@pytest.fixture(autouse=True)
def torch_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Command lines are looked at only, so it makes no difference."""
    monkeypatch.setattr(arguments, "check_torch", lambda *_: None)
    monkeypatch.delenv("BYTEPS_TRANSPORT", raising=False)


def parser(name: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = importlib.import_module(f"benchmarks.{name}").parser()
    return made


def refused(capsys: pytest.CaptureFixture[str], name: str, *words: str) -> str:
    """The message with which a program refuses its words."""
    module = importlib.import_module(f"benchmarks.{name}")
    with pytest.raises(SystemExit) as caught:
        (module.parse if hasattr(module, "parse") else module.main)(words)
    assert caught.value.code == 2
    return capsys.readouterr().err.rpartition(" error: ")[2].strip()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_help_names_the_program_and_every_default(name: str) -> None:
    made = parser(name)
    assert made.format_usage().startswith(f"usage: python -m benchmarks.{name} ")
    options = [each for each in made._actions if each.dest != "help"]
    assert options
    assert [each.dest for each in options if "default: " not in (each.help or "")] == []


@pytest.mark.parametrize(("name", "option"), [(name, each) for name, options in NUMBERS.items() for each in options])
def test_numbers_are_whole_and_positive(capsys: pytest.CaptureFixture[str], name: str, option: str) -> None:
    for word in NATURAL:
        assert f"argument {option}: must be a whole number from " in refused(capsys, name, f"{option}={word}")


@pytest.mark.parametrize(
    ("name", "option"),
    [("push_pull", "--in-flight"), ("ab_honesty", "--real"), ("steps", "--steps"), ("train_step", "--seed")],
)
def test_some_numbers_may_be_zero(capsys: pytest.CaptureFixture[str], name: str, option: str) -> None:
    parser(name).parse_args([option, "0"])
    assert "must be a whole number from 0" in refused(capsys, name, f"{option}=-1")


@pytest.mark.parametrize(("name", "option"), SECONDS)
def test_seconds_are_finite(capsys: pytest.CaptureFixture[str], name: str, option: str) -> None:
    parser(name).parse_args([option, "0.5"])
    for word in ("nan", "inf", "-1", "1e9", "soon", *(["0"] if option == "--seconds" else [])):
        assert f"argument {option}: must be a number of seconds " in refused(capsys, name, f"{option}={word}")
    if option == "--warmup":
        parser(name).parse_args([option, "0"])


@pytest.mark.parametrize("name", [each for each in PROGRAMS if each not in ("stage_times", "steps")])
def test_a_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    wrong = {
        "": "must name a file",
        os.fspath(tmp_path): "is a folder; name a file in it",
        os.fspath(tmp_path / "none" / "figures.json"): f"there is no folder '{tmp_path / 'none'}'; make it first",
        os.fspath(tmp_path / ("x" * 300)): "cannot be used",
    }
    for word, message in wrong.items():
        assert message in refused(capsys, name, "--json", word)
    assert list(tmp_path.iterdir()) == [], "looking makes no file"
    assert parser(name).parse_args(["--json", os.fspath(tmp_path / "figures.json")]).json.parent == tmp_path


def test_a_file_in_a_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be written"):
        arguments.json_file(os.fspath(tmp_path / "figures.json"))


def test_a_file_that_cannot_be_written_after_all(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"the figures could not be written to .*: Is a directory"):
        figures.write(tmp_path, {})


@pytest.mark.parametrize("name", ["wait_policy", "ab_honesty", "stage_times"])
def test_a_folder_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    file = tmp_path / "file"
    file.touch()
    for word in (file, file / "inside"):
        assert f"'{file}' is no folder; name another one" in refused(capsys, name, "--out", os.fspath(word))
    assert parser(name).parse_args(["--out", os.fspath(tmp_path / "new" / "folder")]).out.name == "folder"


@pytest.mark.parametrize(
    ("words", "variable", "expected"),
    [
        ((), None, "auto"),
        ((), "", "auto"),
        ((), "tcp", "tcp"),
        ((), " SHM ", "shm"),
        (("--transport", "auto"), "tcp", "auto"),
        (("--transport", "shm"), "rdma", "shm"),
    ],
)
@pytest.mark.parametrize("name", ["push_pull", "train_step"])
def test_the_transport_in_force(
    monkeypatch: pytest.MonkeyPatch, name: str, words: tuple[str, ...], variable: str | None, expected: str
) -> None:
    if variable is not None:
        monkeypatch.setenv("BYTEPS_TRANSPORT", variable)
    options = importlib.import_module(f"benchmarks.{name}").parse(words)
    assert options.transport == expected
    settings = figures.settings(options, systems.ours_environment(options.transport))
    assert settings["transport"] == settings["variables"]["BYTEPS_TRANSPORT"] == expected


def test_a_transport_that_there_is_not(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_TRANSPORT", "rdma")
    message = "BYTEPS_TRANSPORT=rdma must be one of auto, tcp, shm; correct it, or give --transport"
    assert refused(capsys, "push_pull") == refused(capsys, "train_step") == message


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("push_pull", "--bytes 10", "--bytes 10 is no multiple of 4, the bytes of one float32"),
        ("push_pull", "--bytes 12 --dtype int64", "--bytes 12 is no multiple of 8, the bytes of one int64"),
        ("raw_transport", "--bytes 10 --push-pull", "--bytes 10 is no multiple of 4, the bytes of one float32"),
        ("kernels", "--bytes 8 3 --dtypes int8", "--bytes 3 is no multiple of 4, the bytes of one float32"),
        ("kernels", "--bytes 4", "--bytes 4 is no multiple of 8, the bytes of one float64"),
        ("steps", "--bytes 10", "--bytes 10 is no multiple of 4, the bytes of one float32"),
        ("push_pull", "--bytes 4000000000000000", "ask for less"),
        ("raw_transport", "--beyond 4000000000000000", "ask for less"),
        ("train_step", "--batch 4000000000000", "ask for less"),
        ("kernels", "--sources 4000000000000", "ask for less"),
        ("steps", "--tensors 4000000000000", "ask for less"),
        ("push_pull", "--workers 1 --peer gloo", "--peer gloo needs at least 2 workers"),
        ("push_pull", "--workers 1 --peer gloo-fused", "--peer gloo-fused needs at least 2 workers"),
        ("train_step", "--workers 1", "--peer ddp-gloo needs at least 2 workers"),
        ("train_step", "--pixels 31", "must be a whole number from 32"),
        ("train_step", "--pixels 32 --batch 1", "use --batch 2, or --pixels 33"),
        ("push_pull", "--peer-python x", "--peer-python is for --peer mxnet only"),
        ("push_pull", "--peer mxnet --dtype int32", "MXNet's store does not sum int32"),
        ("raw_transport", "--pairs 2", "--pairs counts only with --push-pull; leave it out"),
        ("raw_transport", "--warmup 0", "--warmup counts only with --push-pull; leave it out"),
        ("raw_transport", "--push-pull --beyond 4", "--beyond counts only without --push-pull; leave it out"),
        ("ab_honesty", "--out x", "--out is for --real only"),
        ("kernels", "--divisor 9999999999", "must be a whole number from 1 to "),
        ("kernels", "--threads 100000", "--threads 100000 is more than the "),
    ],
)
def test_words_that_do_not_fit(capsys: pytest.CaptureFixture[str], name: str, words: str, message: str) -> None:
    assert message in refused(capsys, name, *words.split())


def test_what_fits_is_taken() -> None:
    assert push_pull.parse(["--workers", "1", "--bytes", "2", "--dtype", "float16"]).peer_python is None
    assert train_step.parse(["--batch", "1", "--pixels", "33"]).pixels == 33
    assert train_step.parse(["--workers", "1", "--peer", "none", "--batch", "1", "--model", "mlp"]).workers == 1
    assert steps.parse(["--bytes", "3", "--dtype", "int8"]).bytes == 3
    alone, paired = raw_transport.parse(["--bytes", "1"]), raw_transport.parse(["--push-pull", "--pairs", "2"])
    assert (alone.repeats, alone.pairs) == (3, None)
    assert (paired.repeats, paired.pairs, paired.tensors) == (None, 2, 25)


@pytest.mark.parametrize(
    ("python", "why"), [("/nowhere/python", "No such file or directory"), (sys.executable, "No module named 'mxnet'")]
)
def test_a_python_without_mxnet(capsys: pytest.CaptureFixture[str], python: str, why: str) -> None:
    said = refused(capsys, "push_pull", "--peer", "mxnet", "--peer-python", python)
    assert why in said
    assert said.endswith("give --peer-python PATH of a Python with mxnet==1.9.1 and numpy==1.23.5")
    if python == sys.executable:
        assert refused(capsys, "push_pull", "--peer", "mxnet") == said, "it is the default"


def test_an_instruction_set_that_is_not_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("byteps_py.kernels.native.lib", type("Old", (), {"byteps_best_level": lambda: 0}))
    assert refused(capsys, "kernels", "--level", "avx2") == (
        "--level: no kernels for 'avx2' on this processor; it can use baseline"
    )


def test_the_best_instruction_set_is_the_default() -> None:
    options, chosen = kernels.parse([])
    assert options.level is None
    assert chosen.level == NativeKernels().level in LEVELS


@pytest.mark.parametrize(("ended", "status"), [(1, 1), (2, 2), (-9, 1)])
def test_a_refused_setting_keeps_its_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ended: int, status: int
) -> None:
    def fail(options: argparse.Namespace) -> None:
        raise SideError("why", ended)

    for module, name in ((push_pull, "measure"), (train_step, "measure"), (raw_transport, "all_ceilings")):
        monkeypatch.setattr(module, name, fail)
        assert module.main([]) == status
        assert capsys.readouterr().err.endswith(": why\n")


def test_figures_in_words() -> None:
    assert [figures.rate(each) for each in (1.1784, 0.1, 0.04217, 4.2e-6)] == [
        *("1.178 GB/s", "0.100 GB/s", "42.2 MB/s", "4.2 kB/s")
    ]
    assert [figures.ratio(each) for each in (1.844, 0.1, 0.00123)] == ["1.84", "0.10", "0.0012"]
    assert [figures.in_flight(each) for each in (0, 1, 10)] == ["all at once", "one at a time", "10 in flight"]
