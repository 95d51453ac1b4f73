"""Files of others run no code and write nowhere else; keys and tokens stay where they are."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import pickle
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from support import bad_files, original_files, study_small
from support.waiting import LIMIT

from fedbench.core.errors import BadInput
from fedbench.data.prepare.archives import check_source, open_source

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.py")])
# What this program packed itself, in the same or a parent process, and never from a file.
PICKLES = {
    "parallel/processes.py",
    "report/running/plan.py",
    "report/running/pool.py",
    "report/running/execute.py",
    "report/running/calibrate.py",
}
NEVER = (
    "yaml.unsafe_load",
    "yaml.full_load",
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "shutil.unpack_archive",
)
QUICK = (
    "rounds=1",
    "client.epochs=1",
    "partition.clients=3",
    "runtime.workers=1",
    "data.subset=60",
)
SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "MY_SERVICE_TOKEN": "token-that-nobody-may-see",
    "AWS_SECRET_ACCESS_KEY": "another-secret-that-nobody-may-see",
}
PASSWORD = "fedcba9876543210fedcba9876543210fedcba98"  # in the netrc file


def calls(file: Path) -> list[tuple[str, ast.Call]]:
    """Every call in a file, with the dotted name of what is called."""
    return [
        (ast.unparse(node.func), node)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
    ]


def keyword(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(given.value) for given in call.keywords if given.arg == name), None)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_file_is_read_in_a_way_that_runs_code(file):
    for name, call in calls(file):
        told = f"{file}:{call.lineno}: {ast.unparse(call)}"
        if name == "torch.load":
            assert keyword(call, "weights_only") == "True", told
        if name in ("np.load", "numpy.load"):
            assert keyword(call, "allow_pickle") in (None, "False"), told
            assert len(call.args) < 3, f"{told}: the third one is allow_pickle"
        if name.startswith("pickle."):
            assert any(str(file).endswith(allowed) for allowed in PICKLES), told
            assert name in ("pickle.dumps", "pickle.loads"), told
        if name in ("yaml.load", "yaml.load_all"):
            assert "SafeLoader" in ast.unparse(call), told
        assert name not in NEVER, told
        assert not name.endswith((".extractall", ".extract")), told
        assert keyword(call, "shell") in (None, "False"), told


@pytest.mark.parametrize(
    "line",
    [
        "torch.load('x')",
        "np.load('x', None, True)",
        "np.load('x', allow_pickle=True)",
        "pickle.loads(b'x')",
        "yaml.load('x', yaml.Loader)",
        "archive.extractall()",
        "subprocess.run('x', shell=True)",
        *(f"{name}('x')" for name in NEVER),
    ],
)
def test_the_check_of_the_sources_can_fail(tmp_path, line):
    (tmp_path / "bad.py").write_text(f"{line}\n")
    with pytest.raises(AssertionError):
        test_no_file_is_read_in_a_way_that_runs_code(tmp_path / "bad.py")


def test_pickles_in_given_files_are_never_run(fedbench, tmp_path):
    bad_files.write_all(tmp_path / "files")
    with pytest.raises(bad_files.Opened):
        pickle.loads((tmp_path / "files" / "pickle.npz").read_bytes())  # it would be noticed
    words = [
        ("data=npz", f"data.path={tmp_path}/files/pickle.npz"),
        ("data=npz", f"data.path={tmp_path}/files/objects.npz"),
        (f"model.weights={tmp_path}/files/pickle.safetensors",),
    ]
    for given in words:
        run = fedbench(*QUICK, *given)
        assert run.status == 2
        assert "Opened" not in run.err


HOSTILE = (
    "../escaped.txt",
    "../../escaped.txt",
    "/tmp/fedbench-escaped.txt",
    "train/../../escaped.txt",
    "a/escaped.txt",
)


def zip_with(path: Path, names: Sequence[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "out")
    return path


def tar_with(path: Path, names: Sequence[str]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 3
            archive.addfile(entry, io.BytesIO(b"out"))
    return path


def hostile_zip(path: Path) -> Path:
    return zip_with(path, HOSTILE)


def hostile_tar(path: Path) -> Path:
    return tar_with(path, HOSTILE)


def tar_of(kind: bytes) -> Callable[[Path], Path]:
    """An archive whose only fault is a link or a device."""

    def make(path: Path) -> Path:
        with tarfile.open(path, "w") as archive:
            entry = tarfile.TarInfo("train/airplane/image.png")
            entry.type = kind
            entry.linkname = "/etc/passwd"
            archive.addfile(entry)
        return path

    return make


SPECIAL_TARS = [tar_of(kind) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE)]


@pytest.mark.parametrize("make", [hostile_zip, hostile_tar, *SPECIAL_TARS])
def test_a_hostile_archive_is_refused_before_it_is_unpacked(make, tmp_path):
    (tmp_path / "inner").mkdir()
    archive = make(tmp_path / "inner" / "archive")
    before = sorted(tmp_path.rglob("*"))
    for refuse in (check_source, lambda path: open_source(path, tmp_path / "scratch")):
        with pytest.raises(BadInput, match="must hold only"):
            refuse(archive)
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/fedbench-escaped.txt").exists()


@pytest.mark.parametrize("name", HOSTILE[:-1])
@pytest.mark.parametrize("make", [zip_with, tar_with])
def test_every_path_that_leaves_the_folder_is_refused(make, name, tmp_path):
    with pytest.raises(BadInput, match="must hold only paths inside its own folder"):
        check_source(make(tmp_path / "archive", [name]))
    check_source(make(tmp_path / "harmless", ["a/b..c/d.txt"]))


@pytest.mark.parametrize("make", [hostile_zip, hostile_tar])
@pytest.mark.parametrize("name", ["svhn", "cinic10", "tinyimagenet", "qqp", "mnist"])
def test_a_hostile_archive_is_one_line(fedbench_data, make, name, tmp_path):
    status, _, err = fedbench_data(name, "--from", make(tmp_path / "archive"))
    assert status == 2
    assert err.count("\n") == 1
    assert not list(tmp_path.rglob("*escaped*"))
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_pickles_of_another_archive_than_the_published_one_are_never_run(
    fedbench_data, name, tmp_path, monkeypatch
):
    """Not even where the archive's own checksum is accepted: every file in it has one, too."""
    folder = tmp_path / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    folder.mkdir()
    bomb = pickle.dumps(bad_files.Bomb())
    names = [f"data_batch_{number}" for number in range(1, 6)]
    for file in (*names, "test_batch", "batches.meta", "train", "test", "meta"):
        (folder / file).write_bytes(bomb)
    archive = original_files.packed(folder, tmp_path / "archive.tar.gz")
    status, _, err = fedbench_data(name, "--from", archive)
    assert (status, err.count("\n")) == (2, 1)
    assert "must be the published cifar" in err
    original_files.publish(name, [archive], monkeypatch)
    status, _, err = fedbench_data(name, "--from", archive)
    assert (status, err.count("\n")) == (2, 1)
    assert "torchvision cannot read" in err
    assert "Opened" not in err


@pytest.fixture
def planted(tmp_path, monkeypatch) -> list[bytes]:
    """Secrets in the environment and in a netrc file."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text(f"machine api.wandb.ai login user password {PASSWORD}\n")
    (home / ".netrc").chmod(0o600)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    return [secret.encode() for secret in (*SECRETS.values(), PASSWORD)]


def telling(folder: Path, output: str, secrets: list[bytes]) -> list[str]:
    """The files of a folder in which one of the secrets stands, and the output if it does there."""
    texts = {"output": output.encode()}
    texts |= {
        str(file): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != ".netrc"
    }
    assert len(texts) > 10
    return [name for name, text in texts.items() if any(secret in text for secret in secrets)]


def test_no_secret_is_written_or_printed(fedbench, tmp_path, planted):
    run = fedbench(*QUICK, "logger.mode=offline", quiet=False)
    assert run.status == 0, run.err
    assert list(run.folder.glob("wandb/offline-run-*/*.wandb"))
    assert telling(tmp_path, run.out + run.err, planted) == []
    assert telling(tmp_path, "MY_SERVICE_TOKEN=token-that-nobody-may-see", planted) == [
        "output"
    ]  # it would be noticed


@pytest.mark.heavy
def test_no_secret_is_in_the_report(tmp_path, planted, monkeypatch, capfd):
    """Of a study that is planned, run and rendered, with runs that cannot be run, whose reasons it
    tells.
    """
    monkeypatch.chdir(tmp_path)
    study_small.use(
        study_small.write_configuration(tmp_path / "conf", mixed=study_small.MIXED), monkeypatch
    )
    for name in ("small/table1", "small/mixed"):
        study_small.reproduce(
            "--only", name, "--scale", "smoke", "--results", "results", "--jobs", "1"
        )
    pages = [page.read_text() for page in tmp_path.rglob("*.html")]
    assert any("FedProx is better" in page for page in pages)
    captured = capfd.readouterr()
    assert telling(tmp_path, captured.out + captured.err, planted) == []


def test_hydras_own_help_is_still_there(start_fedbench):
    out, err = start_fedbench("--hydra-help").communicate(timeout=LIMIT)
    assert "--config-dir" in out
    assert err == ""


@pytest.mark.parametrize("option", ["--help", "--cfg=job"])
def test_what_only_shows_settings_still_does(fedbench, option):
    run = fedbench(option, quiet=False)
    assert (run.status, run.err) == (0, "")
    assert run.out
    assert list(Path().iterdir()) == []


def test_a_wrong_key_is_not_told_and_does_not_end_the_run(fedbench, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "short-and-secret")
    run = fedbench(*QUICK, "logger.mode=online", quiet=False)
    assert run.status == 0, run.err
    assert run.out.count("W&B cannot be used") == 1
    assert "logging offline" in run.out
    assert "short-and-secret" not in run.out + run.err
    assert json.loads((run.folder / "summary.json").read_text())["status"] == "finished"
    assert list(run.folder.glob("wandb/offline-run-*/*.wandb"))


def test_a_tracker_that_fails_does_not_end_the_run(fedbench, monkeypatch):
    import wandb

    def refuse(*arguments, **settings):
        raise RuntimeError(f"no {settings['mode']} run today\nand more")

    monkeypatch.setattr(wandb, "init", refuse)
    run = fedbench(*QUICK, "logger.mode=online", quiet=False)
    assert run.status == 0, run.err
    assert "W&B cannot be used (no online run today); logging offline\n" in run.out
    assert "W&B cannot be used (no offline run today); the run's folder has everything\n" in run.out
    assert json.loads((run.folder / "summary.json").read_text())["status"] == "finished"


def audit(monkeypatch, stdout: str = "", stderr: str = "", status: int = 0) -> tuple[int, str]:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    done = subprocess.CompletedProcess([], status, stdout, stderr)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **settings: done)
    return module.audit(["pip-audit"])


def test_the_audit_goes_on_without_a_network_and_fails_on_a_vulnerability(monkeypatch):
    status, told = audit(
        monkeypatch, stderr="Traceback\nrequests.exceptions.ConnectionError: Max retries", status=1
    )
    assert (status, told.count("\n")) == (0, 0)
    assert told.startswith("audit: skipped, the list of known vulnerabilities cannot be reached")
    good = {"name": "good", "version": "1", "vulns": []}
    packages = [good, {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1"}]}]
    status, told = audit(monkeypatch, json.dumps({"dependencies": packages}), status=1)
    assert (status, told) == (1, "audit: known vulnerabilities\nbad 2: CVE-1")
    assert audit(monkeypatch, json.dumps({"dependencies": [good]})) == (
        0,
        "audit: 1 packages without known vulnerabilities",
    )
    unknown = {
        "name": "unknown",
        "skip_reason": "Dependency not found",
    }  # what pip-audit says of all behind a mirror
    told = audit(monkeypatch, json.dumps({"dependencies": [unknown, unknown]}))
    assert told == (0, "audit: skipped, none of 2 packages could be looked up")
    assert audit(monkeypatch, json.dumps({"dependencies": [good, unknown]}))[1].endswith(
        "; 1 could not be looked up"
    )
    assert audit(monkeypatch, stderr="No module named pip_audit", status=1)[0] == 1


def test_mapped_arrays_of_objects_are_refused(tmp_path):
    from fedbench.data.arrays import open_mapped

    np.save(tmp_path / "objects.npy", np.array([bad_files.Bomb()]), allow_pickle=True)
    with pytest.raises(BadInput, match="not a readable"):
        open_mapped(tmp_path / "objects.npy", "images")
