"""Own classes are found in the user's folder, and their code is part of the run's id."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from support import experiments, own_files
from support.data_settings import refusal
from support.run_files import QUICK, summary

from fedbench.config import own_code
from fedbench.config.own_code import add_folders, class_named, code_of

METHOD = """
    from dataclasses import dataclass

    from fedbench.algorithms.modifier import Modifier
    import helper

    @dataclass
    class Half(Modifier):
        def update(self, local, memory):
            local.update.mul_(helper.FACTOR)
"""
YAML = """
    # @package algo.modifiers
    half:
      _target_: methods.Half
"""
OWN = ("--config-dir", "own", "modifier=[half]")


@pytest.fixture
def method(own_folder) -> Path:
    """A method in two files, of which the first imports the second."""
    own_files.write(own_folder, methods=METHOD, helper="FACTOR = 0.5", modifier__half=YAML)
    return own_folder


def code(folder: Path, name: str) -> dict[str, str]:
    add_folders([str(folder)])
    return code_of([class_named(name, "data._target_").__module__])


def test_an_edited_method_is_another_run(fedbench, method):
    first = fedbench(*QUICK, *OWN)
    again = fedbench(*QUICK, *OWN)
    assert first.status == 0, first.err
    assert again.folder == first.folder
    assert "finished already" in again.out
    code = summary(first.folder)["own_code"]
    assert set(code) == {"helper", "methods"}
    assert f"own code: helper ({code['helper']}), methods ({code['methods']})\n" in first.out
    own_files.forget(method)
    own_files.write(method, helper="FACTOR = 0.25")
    edited = fedbench(*QUICK, *OWN)
    assert edited.folder != first.folder
    assert summary(edited.folder)["digest"] != summary(first.folder)["digest"]


def test_a_module_is_hashed_with_all_own_modules_that_it_imports(own_folder):
    own_files.write(
        own_folder,
        target="""
            import json, numpy, fedbench
            import pieces.inner as inner
            from fedbench.data import Digits
            class Own:
                def later(self):
                    from lazy import thing
        """,
        lazy="thing = 1",
        unused="thing = 2",
    )
    package = own_folder / "pieces"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("from . import outer\nfrom .deep.most import x\n")
    (package / "outer.py").write_text("from pieces import inner\n")  # a circle
    (package / "deep").mkdir()  # without __init__.py
    (package / "deep" / "most.py").write_text("x = 1\n")
    before = code(own_folder, "target.Own")
    assert set(before) == {
        "lazy",
        "pieces",
        "pieces.deep.most",
        "pieces.inner",
        "pieces.outer",
        "target",
    }
    assert "lazy" not in sys.modules
    own_files.forget(own_folder)
    (package / "deep" / "most.py").write_text("x = 2\n")
    after = code(own_folder, "target.Own")
    assert {name for name in before if before[name] != after[name]} == {"pieces.deep.most"}


TWIN = """
    from dataclasses import dataclass

    from fedbench import Modifier

    @dataclass
    class Scale(Modifier):
        def update(self, local, memory):
            local.update.mul_({factor})
"""


def test_two_classes_of_one_name_are_two_runs(fedbench, own_folder):
    own_files.write(
        own_folder,
        modifier__scale="""
            # @package algo.modifiers
            scale:
              _target_: twins.one.Scale
        """,
    )
    package = own_folder / "twins"
    package.mkdir()
    for name, factor in (("one", 0.5), ("two", 0.25)):
        (package / f"{name}.py").write_text(dedent(TWIN.format(factor=factor)))
    (package / "__init__.py").write_text("from twins import one, two\n")
    words = (*QUICK, "--config-dir", "own", "modifier=[scale]")
    one = fedbench(*words)
    two = fedbench(*words, "algo.modifiers.scale._target_=twins.two.Scale")
    assert summary(one.folder)["own_code"] == summary(two.folder)["own_code"]
    assert summary(one.folder)["digest"] != summary(two.folder)["digest"]
    assert experiments.config("logger=none", "algo=scaffold").tree["model"]["type"] == "Mlp"


def test_the_packages_of_a_module_count(own_folder):
    inner = own_folder / "outer" / "inner"
    inner.mkdir(parents=True)
    (own_folder / "outer" / "__init__.py").write_text("import helper\nFACTOR = 1\n")
    (inner / "__init__.py").write_text("")
    (inner / "method.py").write_text("class Own: pass\n")
    own_files.write(own_folder, helper="")
    before = code(own_folder, "outer.inner.method.Own")
    assert set(before) == {"helper", "outer", "outer.inner", "outer.inner.method"}
    own_files.forget(own_folder)
    (own_folder / "outer" / "__init__.py").write_text("import helper\nFACTOR = 2\n")
    after = code(own_folder, "outer.inner.method.Own")
    assert {name for name in before if before[name] != after[name]} == {"outer"}


def test_a_module_that_is_imported_by_a_call_counts(own_folder):
    own_files.write(own_folder, by_function="", by_name="", never="")
    package = own_folder / "pieces"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "near.py").write_text("")
    (package / "target.py").write_text(
        "import importlib\nfrom importlib import import_module\n"
        "importlib.import_module('by_function')\n"
        "__import__('by_name')\n"
        "import_module('.near', package=__package__)\n"
        "print('never')\n"
        "class Own: pass\n"
    )
    found = set(code(own_folder, "pieces.target.Own"))
    assert found == {"by_function", "by_name", "pieces", "pieces.near", "pieces.target"}


def test_the_hash_is_that_of_the_code_in_memory(own_folder):
    own_files.write(own_folder, target="class Own: factor = 1")
    before = code(own_folder, "target.Own")
    own_files.write(own_folder, target="class Own: factor = 200")
    assert code(own_folder, "target.Own") == before
    importlib.reload(sys.modules["target"])  # as notebooks do
    assert code(own_folder, "target.Own") != before


def test_where_the_folder_lies_has_no_effect_and_fedbench_has_no_own_code(own_folder):
    own_files.write(own_folder, target="class Own: pass")
    before = code(own_folder, "target.Own")
    own_files.forget(own_folder)
    moved = own_folder.rename(own_folder.with_name("moved"))
    try:
        assert code(moved, "target.Own") == before
    finally:
        own_files.forget(moved)
    assert code_of(["fedbench.data", "fedbench.data.digits"]) == {}


def test_an_installed_package_counts_as_the_targets_own(own_folder):
    site = own_folder / "site-packages"
    for name in ("installed", "other"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("")
    (site / "installed" / "method.py").write_text(
        "import other, helper\nfrom installed.part import x\nclass Own: pass\n"
    )
    (site / "installed" / "part.py").write_text("x = 1\n")
    own_files.write(own_folder, helper="")
    add_folders([str(site)])
    try:
        found = set(code(own_folder, "installed.method.Own"))
    finally:
        own_files.forget(site)
    assert found == {"helper", "installed", "installed.method", "installed.part"}


def test_a_class_without_a_file_is_refused():
    assert "made_up_here: must be a file" in refusal(lambda: code_of(["made_up_here"]))


def test_a_module_that_changes_a_class_of_fedbench_counts(own_folder):
    """Its classes are fedbench's own; what is named decides."""
    own_files.write(
        own_folder,
        changing="from fedbench.algorithms.fedprox import Prox",
        modifier__changed="""
            # @package algo.modifiers
            changed:
              _target_: changing.Prox
              mu: 0.5
        """,
    )
    add_folders([str(own_folder)])
    words = ("logger=none", f"hydra.searchpath=[file://{own_folder}]", "modifier=[changed]")
    run = experiments.prepare(experiments.config(*words))
    assert set(run.config.own_code) == {"changing"}
    assert "changing" in run.origin()["own code"]
    assert experiments.config("logger=none", "modifier=[prox]").own_code == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            "x = 1\ny = 1 / 0",
            "raised ZeroDivisionError: division by zero (FOLDER/target.py, line 2",
        ),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere' (FOLDER/target.py, li"),
        ("x = (", "raised SyntaxError: '(' was never closed (FOLDER/target.py, line 1)"),
        ("raise SystemExit('bye')", "raised SystemExit: bye (FOLDER/target.py, line 1)"),
        ("import helper", "raised KeyError: 'gone' (FOLDER/helper.py, line 1)"),
        ("class Owl: pass", "must be the name of a class; did you mean 'Owl'?"),
        ("Own = 3", "data._target_=target.Own: must be the name of a class"),
    ],
)
def test_what_is_wrong_with_an_own_module_is_one_line(own_folder, content, words):
    own_files.write(own_folder, target=content, helper="{}['gone']")
    add_folders([str(own_folder)])
    line = refusal(lambda: class_named("target.Own", "data._target_"))
    assert words.replace("FOLDER", str(own_folder)) in line
    assert line.startswith("data._target_=target.Own: ")


def test_a_missing_module_names_the_places(fedbench, method, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (method / "methods.py").unlink()
    refused = fedbench(*QUICK, *OWN)
    assert refused.status == 2
    assert refused.err == (
        "fedbench: algo.modifiers.half._target_=methods.Half: cannot import methods (looked in"
        f" {method} and the installed packages)\n"
    )
    monkeypatch.setattr(own_code, "_folders", [])
    line = refusal(lambda: class_named("nowhere.at.all.Own", "data._target_"))
    assert "cannot import nowhere.at.all (looked in the installed packages; --config-dir" in line


ALIKE = """
    from dataclasses import dataclass

    @dataclass
    class Alike:
        def bind(self, context, key):
            return self

        def coefficients(self, plan):
            return plan.weights

        def step(self, plan, weights, update, state):
            return update, state

        def phases(self, model, steps, steps_an_epoch):
            return []
"""


@pytest.mark.parametrize(
    ("key", "base"),
    [
        ("algo.modifiers.alike", "Modifier"),
        ("algo.aggregate", "Mean"),
        ("algo.server_opt", "Add"),
        ("algo.local_train", "Joint"),
    ],
)
def test_a_class_without_its_base_is_refused_in_one_line(fedbench, own_folder, key, base):
    own_files.write(own_folder, alike=ALIKE)
    new = "+" if "modifiers" in key else ""
    refused = fedbench(*QUICK, "--config-dir", "own", f"{new}{key}._target_=alike.Alike")
    rule = f"must be a class that extends fedbench.{base}"
    assert refused.status == 2
    assert refused.err == f"fedbench: {key}._target_=alike.Alike: {rule}\n"
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("group", "package"),
    [("modifier", "algo.modifiers"), ("scale", "_global_"), ("experiment", "_global_")],
)
def test_a_file_without_its_package_is_told_what_it_must_begin_with(
    fedbench, own_folder, group, package
):
    own_files.write(own_folder, **{f"{group}__mine": "rounds: 3\n"})
    chosen = "modifier=[mine]" if group == "modifier" else f"{group}=mine"
    refused = fedbench(*QUICK, "--config-dir", "own", chosen)
    assert refused.status == 2
    assert refused.err == (
        f"fedbench: unknown key '{group}': a file of your own in {group}/ must begin with the line"
        f" '# @package {package}'\n"
    )
