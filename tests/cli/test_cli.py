"""The command line on a tiny target: every verb end to end, and every mistake with its sentence and exit code 2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from draftwing.capture.prompts import prompt_of
from draftwing.formats.features import FeatureStore
from draftwing.formats.files import owned
from tests.tiny import save_tiny


def run(*words: str, cwd: Path | None = None, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "draftwing", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        input=stdin,
        env=environment,
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny target, prompts, features of both splits, and a drafter trained on them: made by the command itself."""
    root = tmp_path_factory.mktemp("world")
    target = str(save_tiny(root / "target"))
    prompts = root / "prompts.txt"
    prompts.write_text("\n".join(f"question number {number}" for number in range(24)))
    common = ("--target", target, "--taps", "2,4,5", "--dtype", "float32", "--threads", "1", "--max-new-tokens", "20")
    made = run(
        "capture", "--prompts", str(prompts), "--split", "all", *common, "--batch", "8", "--out", str(root / "features")
    )
    assert made.returncode == 0, made.stderr
    trained = run(
        *(
            "train",
            "--features",
            str(root / "features"),
            "--heldout",
            str(root / "features"),
            "--out",
            str(root / "drafter"),
        ),
        *(
            "--target",
            target,
            "--dtype",
            "float32",
            "--threads",
            "1",
            "--epochs",
            "2",
            "--depth",
            "2",
            "--batch-tokens",
            "400",
        ),
        *("--draft-vocab-size", "200"),
    )
    assert trained.returncode == 0, trained.stderr
    assert "held-out accept length" in trained.stdout
    return {
        "target": target,
        "prompts": str(prompts),
        "features": str(root / "features"),
        "drafter": str(root / "drafter"),
        "root": str(root),
    }


def test_generate_answers_on_stdout_and_sums_up_on_stderr(world: dict[str, str]) -> None:
    words = (
        "generate",
        "hello",
        "--target",
        world["target"],
        "--dtype",
        "float32",
        "--max-new-tokens",
        "12",
        "--threads",
        "1",
    )
    with_drafter = run(*words, "--drafter", world["drafter"])
    without = run(*words, "--plain")
    assert with_drafter.returncode == without.returncode == 0, with_drafter.stderr
    assert with_drafter.stdout == without.stdout
    assert "accept length" in with_drafter.stderr
    assert "accept length" not in without.stderr
    assert "\x1b" not in with_drafter.stdout


def test_no_drafter_is_needed(world: dict[str, str]) -> None:
    words = ("generate", "a b a b a b", "--target", world["target"], "--dtype", "float32", "--max-new-tokens", "40")
    done = run(*words, "--threads", "1", "--drafter", "none", "--lookup-earlier", "100", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["tokens"] == json.loads(run(*words, "--threads", "1", "--plain", "--json").stdout)["tokens"]
    assert answer["cycles"] > 0
    assert set(answer["accepted_by"]) <= {"lookup"}


def test_generate_json_and_standard_input(world: dict[str, str]) -> None:
    words = (
        "generate",
        "-",
        "--target",
        world["target"],
        "--dtype",
        "float32",
        "--max-new-tokens",
        "9",
        "--drafter",
        world["drafter"],
        "--json",
    )
    answer = json.loads(run(*words, stdin="hello").stdout)
    assert len(answer["tokens"]) == 9 or answer["finish"] == "stop"
    assert answer["cycles"] >= 1


def test_profile_prints_a_table_and_keeps_every_time(world: dict[str, str], tmp_path: Path) -> None:
    words = ("profile", "--target", world["target"], "--dtype", "float32", "--threads", "1", "--rounds", "3")
    done = run(*words, "--largest", "4", "--at", "9", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "t(m) / t(1)" in done.stdout and "Reading the weights once takes" in done.stdout
    (record,) = (tmp_path / "runs").glob("profile-*.json")
    kept = json.loads(record.read_text())
    assert [(row["tokens"], len(row["seconds"])) for row in kept["samples"]] == [(1, 3), (2, 3), (3, 3), (4, 3)]
    assert [size["tokens"] for size in kept["figures"]["sizes"]] == [1, 2, 3, 4]
    again = run(*words, "--largest", "1", "--at", "9", "--json", "--record", str(tmp_path / "one.json"))
    assert json.loads(again.stdout)["sizes"][0]["ratio"] == {"estimate": 1.0, "low": 1.0, "high": 1.0}
    long = run(*words, "--at", "999999")
    assert (long.returncode, "Lower --at." in long.stderr) == (2, True)


def test_bench_writes_a_record_that_holds_every_sample(world: dict[str, str], tmp_path: Path) -> None:
    record = tmp_path / "bench.json"
    done = run(
        *(
            "bench",
            "--prompts",
            world["prompts"],
            "--split",
            "all",
            "--limit",
            "4",
            "--target",
            world["target"],
            "--drafter",
            world["drafter"],
        ),
        *(
            "--dtype",
            "float32",
            "--max-new-tokens",
            "10",
            "--tree",
            "8:2",
            "--threads",
            "1",
            "--record",
            str(record),
            "--json",
        ),
    )
    assert done.returncode == 0, done.stderr
    printed, kept = json.loads(done.stdout), json.loads(record.read_text())
    assert printed["identical"] == printed["prompts"] == len(kept["samples"]) == 4
    assert kept["provenance"]["threads"] == 1
    assert kept["digests"]["target"]
    assert {"plain_tok_s", "speculative_tok_s", "speed_up", "accept_length", "calibration"} <= set(kept["figures"])
    assert 1 < kept["figures"]["tree_size"] <= 8


def test_training_on_the_fly_needs_no_features(world: dict[str, str], tmp_path: Path) -> None:
    lines = tmp_path / "p.txt"
    lines.write_text("\n".join(f"thing {number}" for number in range(8)))
    words = (
        *(
            "train",
            "--on-the-fly",
            "--prompts",
            str(lines),
            "--target",
            world["target"],
            "--taps",
            "2,4,5",
            "--dtype",
            "float32",
        ),
        *(
            "--threads",
            "1",
            "--epochs",
            "1",
            "--depth",
            "2",
            "--draft-vocab-size",
            "64",
            "--out",
            str(tmp_path / "out"),
        ),
    )
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "contract.json").exists()
    _answers_that_exist_are_taken(world, tmp_path)


def _answers_that_exist_are_taken(world: dict[str, str], tmp_path: Path) -> None:
    """The answers that training left behind, into a features folder and into another training."""
    answers = str(tmp_path / "out" / "answers.jsonl")
    common = ("--target", world["target"], "--taps", "2,4,5", "--dtype", "float32", "--threads", "1")
    made = run("capture", "--answers", answers, "--split", "all", *common, "--out", str(tmp_path / "features"))
    assert made.returncode == 0, made.stderr
    assert len(FeatureStore(tmp_path / "features")) == len(Path(answers).read_text().split())
    again = run(
        *("capture", "--only-answers", "--prompts", str(tmp_path / "p.txt"), "--batch", "3", *common),
        *("--out", str(tmp_path / "answers"), "--json"),
    )
    assert again.returncode == 0, again.stderr
    printed = json.loads(again.stdout)
    lines = Path(printed["file"]).read_text().split()
    assert sorted(lines) == sorted(Path(answers).read_text().split())
    assert printed["answers"] == len(lines)
    assert printed["tokens"] == sum(len(json.loads(line)[1]) for line in lines)
    few = ("--epochs", "1", "--depth", "2", "--draft-vocab-size", "64", "--later-rows", "accepted", "--loops", "twice")
    trained = run("train", "--answers", answers, *common, *few, "--out", str(tmp_path / "other"))
    assert trained.returncode == 0, trained.stderr
    kept = json.loads((tmp_path / "other" / "record.json").read_text())
    assert (kept["settings"]["later_rows"], kept["settings"]["loops"]) == ("accepted", "twice")


def test_an_interrupted_capture_goes_on_without_holes(world: dict[str, str], tmp_path: Path) -> None:
    lines = tmp_path / "many.txt"
    texts = [f"number {number} " + "x" * (number % 50) for number in range(60)]
    lines.write_text("\n".join(texts))
    words = (
        *(
            sys.executable,
            "-m",
            "draftwing",
            "capture",
            "--prompts",
            str(lines),
            "--split",
            "all",
            "--target",
            world["target"],
        ),
        *(
            "--taps",
            "2,4,5",
            "--dtype",
            "float32",
            "--threads",
            "1",
            "--batch",
            "4",
            "--max-new-tokens",
            "40",
            "--out",
            str(tmp_path / "f"),
        ),
    )
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        # The first progress line says that samples are coming.
        while "capture:" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.3)
        process.send_signal(sent)
        code = process.wait(timeout=60)
        assert code in ({130} if sent != signal.SIGKILL else {-9}) | {0}
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    ids = [sample.id for sample in FeatureStore(tmp_path / "f")]
    wanted = {prompt_of([{"role": "user", "content": text.strip()}]).id for text in texts}
    assert len(ids) == len(set(ids)) == 60
    assert set(ids) == wanted


def test_the_second_run_into_a_folder_is_refused_and_the_first_goes_on(world: dict[str, str], tmp_path: Path) -> None:
    lines = tmp_path / "two.txt"
    lines.write_text("one\ntwo\n")
    common = ("--target", world["target"], "--dtype", "float32", "--threads", "1")
    capture = ("capture", "--prompts", str(lines), "--split", "all", "--taps", "2,4,5", *common)
    for words in (
        (*capture, "--out", str(tmp_path / "f")),
        (*capture[:5], "--only-answers", *common, "--out", str(tmp_path / "a")),
        (
            "train",
            "--features",
            world["features"],
            "--draft-vocab-size",
            "64",
            "--epochs",
            "1",
            *common,
            "--out",
            str(tmp_path / "t"),
        ),
    ):
        out = Path(words[-1])
        with owned(out):
            second = run(*words)
            assert (second.returncode, "Another run is writing to" in second.stderr) == (2, True), second.stderr
            assert [path.name for path in out.iterdir()] == [".lock"], "the second wrote nothing"
        assert run(*words).returncode == 0


def _mistakes(world: dict[str, str], tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    """name -> (words, what the sentence must contain)"""
    target = ["--target", world["target"], "--dtype", "float32"]
    drafter = ["--drafter", world["drafter"]]
    other = str(save_tiny(tmp_path / "other", seed=7))
    empty, text, cut = tmp_path / "empty.txt", tmp_path / "bad.jsonl", tmp_path / "cut.json"
    empty.write_text("")
    text.write_text('{"messages": [{"role": "user"}]}\n')
    cut.write_text('[{"conversations": [{"from": "hum')
    capture = ["capture", *target, "--taps", "2,4,5", "--out", str(tmp_path / "o"), "--split", "all"]
    return {
        "no such model": (["generate", "hi", "--target", "./nowhere"], "no model folder ./nowhere"),
        "no such drafter": (["generate", "hi", *target, "--drafter", "nowhere"], "no drafter folder nowhere"),
        "drafter of another target": (
            ["generate", "hi", "--target", other, "--dtype", "float32", *drafter],
            "weights_fingerprint",
        ),
        "features of another target": (
            [
                "train",
                "--features",
                world["features"],
                "--target",
                other,
                "--dtype",
                "float32",
                "--out",
                str(tmp_path / "t"),
            ],
            "weights_fingerprint",
        ),
        "zero steps": (["generate", "hi", *target, *drafter, "--tree", "chain:0"], "chain of 0 drafts"),
        "negative steps": (
            ["bench", *target, *drafter, "--prompts", world["prompts"], "--tree", "chain:-2"],
            "chain of -2 drafts",
        ),
        "too many nodes": (["generate", "hi", *target, *drafter, "--tree", "40:2:3"], "--tree 11:2:3"),
        "no such tree": (["generate", "hi", *target, *drafter, "--tree", "big"], "no tree 'big'"),
        "no such proposer": (["generate", "hi", *target, *drafter, "--proposers", "oracle"], "no proposer 'oracle'"),
        "a proposer twice": (["generate", "hi", *target, *drafter, "--proposers", "lookup,lookup"], "one twice"),
        "a drafter that is none": (
            ["generate", "hi", *target, "--drafter", "none", "--proposers", "drafter"],
            "there is none",
        ),
        "prompt too long": (["generate", "x" * 600, *target, *drafter], "context holds 512"),
        "context too large": (["generate", "hi", *target, *drafter, "--context", "9999"], "context of 9999"),
        "bad dtype": (["generate", "hi", "--target", world["target"], "--dtype", "float8"], "no dtype 'float8'"),
        "a device of another kind": (["generate", "hi", *target, "--device", "meta"], "meta is not supported"),
        "bad temperature": (["generate", "hi", *target, "--temperature", "-1"], "temperature is -1"),
        "empty prompts": ([*capture, "--prompts", str(empty)], "holds no prompts"),
        "malformed prompts": ([*capture, "--prompts", str(text)], "line 1"),
        "prompts cut off at once": ([*capture, "--prompts", str(cut)], "is not JSON"),
        "no prompts file": ([*capture, "--prompts", "absent.jsonl"], "no prompts file absent.jsonl"),
        "bad taps": (
            ["capture", *target, "--prompts", world["prompts"], "--taps", "2,9", "--out", str(tmp_path / "o")],
            "do not fit",
        ),
        "taps that are no numbers": (
            ["capture", *target, "--prompts", world["prompts"], "--taps", "low", "--out", str(tmp_path / "o")],
            "not a list of numbers",
        ),
        "features and on the fly": (["train", "--features", "x", "--on-the-fly", "--out", "y"], "one of the three"),
        "no features": (
            ["train", "--features", str(tmp_path), *target, "--out", str(tmp_path / "t")],
            "no feature index",
        ),
        "bad split": (
            ["bench", *target, *drafter, "--prompts", world["prompts"], "--split", "half"],
            "no split 'half'",
        ),
        "unknown option": (["generate", "hi", "--speed", "9"], "No such option"),
    }


MISTAKES = [
    *(
        "no such model",
        "no such drafter",
        "drafter of another target",
        "features of another target",
        "zero steps",
        "negative steps",
        "too many nodes",
        "no such tree",
        "no such proposer",
        "a proposer twice",
        "a drafter that is none",
    ),
    *(
        "prompt too long",
        "context too large",
        "bad dtype",
        "a device of another kind",
        "bad temperature",
        "empty prompts",
        "malformed prompts",
    ),
    *(
        "prompts cut off at once",
        "no prompts file",
        "bad taps",
        "taps that are no numbers",
        "features and on the fly",
        "no features",
    ),
    *("bad split", "unknown option"),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence_and_code_2(world: dict[str, str], tmp_path: Path, mistake: str) -> None:
    table: dict[str, Any] = _mistakes(world, tmp_path)
    words, sentence = table[mistake]
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert set(table) == set(MISTAKES)


@pytest.mark.parametrize("verb", ["pull", "capture", "train", "generate", "bench", "profile"])
def test_help_has_an_example(verb: str) -> None:
    done = run(verb, "--help")
    assert done.returncode == 0
    assert f"draftwing {verb}" in done.stdout


def test_help_answers_without_torch() -> None:
    code = "import sys; from draftwing.cli import main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
