"""The native kernels against float64, against PyTorch's layers, and across compilers."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
import torch
import torch.nn.functional as functional
from support.native import needs_kernels, with_kernels
from support.networks import COLOUR, GRAY, batch, build, close, gradients
from torch import Tensor, nn

from fedbench.core.errors import BadInput
from fedbench.core.flat_model import FlatModel
from fedbench.models import Cnn5, CnnBn, LeNet, Mlp
from fedbench.models.cpu_kernels import Conv3x3, choose_kernels, library, native

pytestmark = needs_kernels

AGREEMENT = 2e-6  # relative error of any parameter's gradient
ODD = (21, 31, 2)
SHAPES = [
    (LeNet(), GRAY),
    (LeNet(), (12, 12, 1)),  # the smallest
    (LeNet(), ODD),  # pooling leaves a row and a column out
    (Cnn5(), COLOUR),
    (Cnn5(), GRAY),  # without padding
    (Cnn5(), (17, 50, 3)),  # longer than one turn of the backward pass
]
NAMES = [f"{type(settings).__name__}-{'x'.join(map(str, shape))}" for settings, shape in SHAPES]


def relative_error(actual: Tensor, exact: Tensor) -> float:
    exact = exact.detach()
    return float((actual.detach().double() - exact).norm() / exact.norm().clamp(min=1e-12))


def images(shape: tuple[int, ...], count: int) -> Tensor:
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))
    return x.permute(0, 3, 1, 2)


def worst_error(settings, x: Tensor, kernels: str = "native") -> float:
    """The largest relative error of a parameter's gradient, and of the output, against float64."""
    model = build(settings, (*x.shape[2:], x.shape[1]))
    exact = copy.deepcopy(model).double()
    with_kernels(model, kernels)
    FlatModel(model)  # weights in the engine's memory layout
    found, wanted = gradients(model, x), gradients(exact, x.double())
    errors = [relative_error(found[name], wanted[name]) for name in wanted]
    return max([relative_error(model(x), exact(x.double())), *errors])


@pytest.mark.parametrize(("settings", "shape"), SHAPES, ids=NAMES)
@pytest.mark.parametrize("count", [1, 10, 17, 64])
def test_gradients_agree_with_float64(settings, shape, count):
    assert worst_error(settings, images(shape, count)) <= AGREEMENT


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("settings", "shape"), SHAPES[:1] + SHAPES[2:4], ids=NAMES[:1] + NAMES[2:4]
)
def test_gradients_agree_with_float64_for_every_size_of_a_batch(settings, shape):
    """There are two exceptions. A sum that nearly cancels costs PyTorch's layers as many digits.
    And two values that are equal up to the last bit, or a value that is zero up to it, may fall to
    the other side in a maximum or in ReLU. That happens to one image of ten thousand: without it,
    its batch agrees.
    """
    exceptions = {}
    for count in range(1, 131):
        x = images(shape, count)
        error = worst_error(settings, x)
        if error <= AGREEMENT:
            continue
        other_side = [i for i in range(count) if worst_error(settings, x[i : i + 1]) > 1e-4]
        exceptions[count] = f"{error:.1e}, images {other_side}"
        print(f"batch of {count}: {exceptions[count]}")
        assert error <= 1e-2
        assert len(other_side) <= 1
        rest = x[[i for i in range(count) if i not in other_side]]
        error = worst_error(settings, rest)
        assert error <= max(AGREEMENT, worst_error(settings, rest, "torch")), exceptions
    assert len(exceptions) <= 4, exceptions


@pytest.mark.parametrize(("settings", "shape"), SHAPES, ids=NAMES)
def test_whole_numbers_give_the_bits_of_pytorch_ties_included(settings, shape):
    """Small whole numbers are added without rounding, and are full of ties."""
    model = build(settings, shape)
    draw = torch.Generator().manual_seed(0)
    for convolution in (model.conv1, model.conv2):
        for parameter in convolution.parameters():
            parameter.data = torch.randint(-1, 2, parameter.shape, generator=draw).float()
    x = torch.randint(-2, 3, (11, *shape), generator=draw).float().permute(0, 3, 1, 2)
    arriving = None
    found = {}
    for kernels in ("torch", "native"):
        with_kernels(model, kernels)
        model.zero_grad()
        features = model.blocks(x, model.conv1, model.conv2)
        if arriving is None:
            arriving = torch.randint(-3, 4, features.shape, generator=draw).float()
        features.backward(arriving)
        own = [model.conv1.weight, model.conv1.bias, model.conv2.weight, model.conv2.bias]
        found[kernels] = [features.detach(), *(parameter.grad.clone() for parameter in own)]
    for own, torchs in zip(found["native"], found["torch"], strict=True):
        assert torch.equal(own, torchs)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_go_where_they_go_in_pytorch(broken):
    model = build(LeNet(), GRAY)
    x = batch(GRAY, 11)
    x[3, 0, 14, 9] = broken
    results = {}
    for kernels in ("torch", "native"):
        with_kernels(model, kernels)
        results[kernels] = {"output": model(x).detach(), **gradients(model, x)}
    for name, expected in results["torch"].items():
        found = results["native"][name]
        assert torch.equal(found.isnan(), expected.isnan()), name
        assert torch.equal(found.isinf(), expected.isinf()), name
    output = results["native"]["output"]
    assert output[3].isnan().any() or broken < 0
    assert torch.cat([output[:3], output[4:]]).isfinite().all()


def test_a_lane_without_an_image_passes_nothing_on():
    """Infinite weights make a NaN of the zeros there. Every pixel of the ten images is positive and
    there is no padding, so in theirs ReLU cuts minus infinity off.
    """
    model = build(Cnn5(), GRAY)
    with torch.no_grad():
        model.conv1.weight[2] = -float("inf")
    x = batch(GRAY, 10).abs() + 0.1
    wanted = gradients(with_kernels(model, "torch"), x)
    found = gradients(with_kernels(model, "native"), x)
    for name, expected in wanted.items():
        assert expected.isfinite().all(), name
        assert found[name].isfinite().all(), name


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_pixel_that_is_no_number_harms_only_its_image_in_winograds_method(broken):
    """A pixel spoils all outputs of the tiles that contain it, where PyTorch's convolution has 9.
    Infinity becomes NaN.
    """
    layer = with_kernels(Conv3x3(8, 16), "native")
    x = torch.randn(3, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    before = layer(x).detach()
    x[1, 2, 5, 9] = broken
    after = layer(x).detach()
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    spoilt = after[1].isnan()
    assert spoilt[:, 4:7, 8:11].all()
    assert spoilt[:, 4:8, 8:12].sum() == spoilt.sum()
    assert torch.equal(before[1][~spoilt], after[1][~spoilt])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_pixel_that_is_no_number_harms_only_its_image_when_cnn_bn_is_evaluated(broken):
    model, x = with_kernels(build(CnnBn(), COLOUR), "native").eval(), batch(COLOUR, 5)
    before = model(x).detach()
    x[3, 1, 14, 9] = broken
    after = model(x).detach()
    others = [0, 1, 2, 4]
    assert torch.equal(before[others], after[others])
    assert after[3].isnan().all()


@pytest.mark.parametrize(("settings", "shape"), [(LeNet(), GRAY), (CnnBn(), COLOUR)])
def test_what_methods_ask_of_a_network(settings, shape):
    """Losses of single examples (PGVC), embeddings (MOON), torch.func (GSNR), images' gradients."""
    model, x, y = build(settings, shape).eval(), batch(shape, 6), torch.arange(6)
    head = list(model.head.parameters())
    weights = torch.linspace(0, 1, 6)
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        output = torch.func.functional_call(model, values, (image[None],))
        return functional.cross_entropy(output, label[None])

    found = {}
    for kernels in ("torch", "native"):
        with_kernels(model, kernels)
        each = functional.cross_entropy(model(x), y, reduction="none")
        probe = torch.autograd.grad(each @ weights, head, retain_graph=True)
        own = x.clone().requires_grad_()
        (of_images,) = torch.autograd.grad(model(own).square().sum(), own)
        per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
        with torch.inference_mode():
            evaluated = model(x)
        found[kernels] = (*probe, model.embed(x).detach(), evaluated), per_example, of_images
    for native_one, torch_one in zip(found["native"][0], found["torch"][0], strict=True):
        assert close(native_one, torch_one.double(), 1e-4)
    for name, gradient in found["torch"][1].items():  # torch.func never meets the kernels
        assert torch.equal(found["native"][1][name], gradient)
    if isinstance(settings, LeNet):  # its node has no gradient for images: PyTorch's layers have
        assert torch.equal(found["native"][2], found["torch"][2])


@pytest.mark.parametrize("frozen", [1, 2, 3, 4])
def test_a_shorter_backward_pass_gives_the_bits_of_the_whole_one(frozen):
    """Where only the last parameters want a gradient, the kernel goes no further back."""
    model, x = with_kernels(build(LeNet(), GRAY), "native"), batch(GRAY, 11)
    named = dict(model.named_parameters())

    def found() -> dict[str, Tensor | None]:
        model.zero_grad()
        model(x).square().sum().backward()
        return {name: parameter.grad for name, parameter in named.items()}

    whole = found()
    left_out = ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")[:frozen]
    for name in left_out:
        named[name].requires_grad_(False)
    for name, gradient in found().items():
        expected = whole[name]
        assert expected is not None
        assert expected.abs().sum() > 0
        if name in left_out:
            assert gradient is None
        else:
            assert torch.equal(gradient, expected)


def test_other_types_and_autocast_stand_aside():
    model = with_kernels(build(LeNet(), GRAY), "native")
    x = batch(GRAY, 3)
    assert model.double()(x.double()).dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.float()(x).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("count", "inputs", "outputs", "height", "width"),
    [(1, 8, 8, 4, 4), (3, 16, 24, 8, 12), (37, 128, 16, 16, 16), (20, 256, 32, 8, 4)],
)
def test_native_winograd_is_the_convolution(count, inputs, outputs, height, width):
    torch.manual_seed(0)
    layer = with_kernels(Conv3x3(inputs, outputs), "native")
    exact = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False).double()
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(count, inputs, height, width)
    arriving = torch.randn(count, outputs, height, width)
    wanted_x = x.double().requires_grad_()
    wanted = exact(wanted_x)
    wanted.backward(arriving.double())
    all_wanted = (wanted, wanted_x.grad, exact.weight.grad)
    for layout in (torch.contiguous_format, torch.channels_last):
        errors = {}
        for kernels in ("torch", "native"):
            with_kernels(layer, kernels)
            own = x.clone(memory_format=layout).requires_grad_()
            layer.zero_grad()
            y = layer(own)
            y.backward(arriving.contiguous(memory_format=layout))
            pairs = zip((y, own.grad, layer.weight.grad), all_wanted, strict=True)
            errors[kernels] = [relative_error(*pair) for pair in pairs]
        assert type(y.grad_fn).__name__ == "NativeWinogradBackward"
        # oneDNN's product for the filters adds up more numbers at a time than PyTorch's.
        for found, torchs, most in zip(
            errors["native"], errors["torch"], (1.5, 1.5, 2), strict=True
        ):
            assert found <= most * torchs


def test_evaluation_keeps_nothing_for_a_backward_pass(monkeypatch):
    model, x = with_kernels(build(LeNet(), GRAY), "native"), batch(GRAY, 40)
    kept, outputs = [], []
    count = native._forward_floats
    monkeypatch.setattr(
        native, "_forward_floats", lambda sizes, keep: kept.append(keep) or count(sizes, keep)
    )
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            outputs.append(model(x).detach())
    assert kept == [True, False, False]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def outcome(model: nn.Module, x: Tensor) -> str | Tensor:
    """The kind of error that it raises, or what it computes."""
    try:
        return model(x).detach()
    except RuntimeError as error:
        return type(error).__name__


@pytest.mark.parametrize(
    ("network", "change"),
    [
        *(("Cnn5", change) for change in ("weights", "channels", "middle", "size")),
        *(("Conv3x3", change) for change in ("weights", "channels", "side")),
    ],
)
def test_what_does_not_fit_together_is_left_to_pytorch(network, change, monkeypatch):
    """C++ would read other numbers, or beyond the arrays."""
    model = build(Cnn5(), COLOUR) if network == "Cnn5" else Conv3x3(8, 16)
    x = batch(COLOUR if network == "Cnn5" else (16, 16, 8), 3)
    called = []
    for node in (native._LeNetBlocks, native.NativeWinograd):
        monkeypatch.setattr(node, "apply", lambda *_: called.append(1))
    with suppress(TypeError):  # nothing comes back
        with_kernels(model, "native")(x)
    assert called == [1]
    if change == "weights":
        model.double()
    elif change == "channels":
        x = torch.cat([x, x[:, :1]], dim=1)
    elif change == "middle":
        model.conv2 = nn.Conv2d(9, 16, 5)
    elif change == "size":
        x = x[:, :, :8, :8]
    else:
        x = x[:, :, :10, :15]
    wanted, found = (outcome(with_kernels(model, name), x) for name in ("torch", "native"))
    assert called == [1]
    assert found == wanted if isinstance(wanted, str) else torch.equal(found, wanted)


@pytest.mark.parametrize(("settings", "shape"), [(LeNet(), GRAY), (CnnBn(), COLOUR)])
def test_the_default_type_is_not_the_kernels(settings, shape):
    model, x = with_kernels(build(settings, shape), "native"), batch(shape, 9)
    wanted = gradients(model, x)
    torch.set_default_dtype(torch.float64)
    try:
        found = gradients(model, x)
    finally:
        torch.set_default_dtype(torch.float32)
    for name, expected in wanted.items():
        assert torch.equal(found[name], expected), name


def test_an_empty_batch_is_empty():
    model = with_kernels(build(LeNet(), GRAY), "native")
    output = model(batch(GRAY, 0))
    assert output.shape == (0, 10)
    output.sum().backward()
    assert not any(parameter.grad.any() for parameter in model.parameters())


def test_winograd_with_channels_that_fill_no_vectors_is_pytorchs():
    layer = with_kernels(Conv3x3(5, 8), "native")
    assert type(layer(torch.randn(1, 5, 8, 8)).grad_fn).__name__ == "WinogradBackward"


def test_what_each_request_gives(monkeypatch):
    lenet, mlp = build(LeNet(), GRAY), build(Mlp(), GRAY)
    with_norm = build(LeNet(batch_norm=True), GRAY)
    assert choose_kernels("auto", lenet, "cpu", 1).name == "native"
    no_tiles = build(CnnBn(), (9, 12, 1))  # no side is a multiple of 4 where a convolution is
    assert choose_kernels("auto", build(CnnBn(), GRAY), "cpu", 1).name == "native"
    for other in (mlp, with_norm, no_tiles):
        choice = choose_kernels("auto", other, "cpu", 1)
        assert (choice.name, choice.reason) == ("torch", "")
        with pytest.raises(BadInput, match=r"runtime\.kernels=native: must be .* no layer"):
            choose_kernels("native", other, "cpu", 1)
    assert "computes on cuda" in choose_kernels("auto", lenet, "cuda", 1).reason
    assert "runtime.threads=2" in choose_kernels("auto", lenet, "cpu", 2).reason
    assert not lenet.blocks.native
    assert choose_kernels("native", lenet, "cpu", 2).name == "native"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    library.attempt.cache_clear()
    assert "no AVX2" in choose_kernels("auto", lenet, "cpu", 1).reason
    monkeypatch.undo()
    library.attempt.cache_clear()
    assert choose_kernels("auto", lenet, "cpu", 1).name == "native"


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "cache_folder", lambda: tmp_path / "kernels")
    library.attempt.cache_clear()
    yield tmp_path / "kernels"
    monkeypatch.undo()
    library.attempt.cache_clear()


def reason() -> str:
    library.attempt.cache_clear()
    return choose_kernels("auto", build(LeNet(), GRAY), "cpu", 1).reason


def test_machines_that_cannot_compile_use_pytorch(empty_cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert reason() == "there is no C++ compiler here (no-such-compiler)"
    monkeypatch.setenv("CXX", "false")
    assert reason() == "false does not compile the native kernels: status 1"
    assert not list(empty_cache.glob("*.so"))
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert reason() == "there is no C++ compiler here (g++ or clang++)"
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setattr(library, "cache_folder", lambda: Path("/dev/null/kernels"))
    assert reason().startswith("native kernels cannot be stored in /dev/null/kernels")


def test_compilers_that_are_none(empty_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "g++ '-O3")
    assert reason() == "CXX=g++ '-O3 is not a command (No closing quotation)"
    text = tmp_path / "text"
    text.write_bytes(b"\x7fELF, but no program")
    text.chmod(0o700)
    monkeypatch.setenv("CXX", str(text))
    assert reason().startswith(f"{text} cannot be started (")
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(library, "VERSION_SECONDS", 0.2)
    assert reason() == f"{slow} was not ready after 0.2 s"


def test_what_else_is_missing(empty_cache, monkeypatch):
    with monkeypatch.context() as change:
        change.setattr(library, "SOURCES", ("lenet.cpp", "no-such-file.cpp"))
        assert reason().startswith("a source file of the native kernels is missing (")
    with monkeypatch.context() as change:
        change.setattr("filelock.FileLock.acquire", raising(NotImplementedError("no locks")))
        assert reason() == f"native kernels cannot be stored in {empty_cache} (no locks)"
    with monkeypatch.context() as change:
        change.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert "no oneDNN" in reason()


def raising(error: Exception):
    def call(*_, **__):
        raise error

    return call


def test_a_compiler_that_fails_is_tried_once_in_a_process(empty_cache, monkeypatch, tmp_path):
    compiler, calls = tmp_path / "compiler", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho "$1" >> {calls}\nexit 1\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    first, lenet = reason(), build(LeNet(), GRAY)
    assert choose_kernels("auto", lenet, "cpu", 1).reason == first
    assert calls.read_text().splitlines() == ["--version", library.OPTIONS[0]]


def test_the_name_of_the_library_changes_with_whatever_may_change_it(tmp_path, monkeypatch):
    """Sources, options, the compiler's name and its version."""
    for name in library.SOURCES + library.HEADERS:
        shutil.copy(Path(library.__file__).parent / name, tmp_path)
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    compiler = library.find_compiler()
    names = [library.library_file(tmp_path, compiler)]
    assert library.library_file(tmp_path, compiler) == names[0]
    for name in library.SOURCES + library.HEADERS:
        content = bytearray((tmp_path / name).read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / name).write_bytes(content)
        names.append(library.library_file(tmp_path, compiler))
    names.append(library.library_file(tmp_path, [*compiler, "-O1"]))
    with monkeypatch.context() as change:
        change.setattr(library, "OPTIONS", (*library.OPTIONS, "-g"))
        names.append(library.library_file(tmp_path, compiler))
    with monkeypatch.context() as change:
        change.setattr(library, "compiler_version", lambda _: "g++ 99")
        names.append(library.library_file(tmp_path, compiler))
    assert len({*names}) == len(names)


def test_two_processes_at_once_compile_once(empty_cache, tmp_path):
    context = multiprocessing.get_context("fork")
    together = context.Barrier(2)

    def first_use(output: Path) -> None:
        with open(output, "w") as file, redirect_stdout(file):
            together.wait()
            library.load()

    outputs = [tmp_path / "one.txt", tmp_path / "two.txt"]
    processes = [context.Process(target=first_use, args=(output,)) for output in outputs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    said = "".join(output.read_text() for output in outputs)
    assert said.count("compiling the CPU kernels") == 1
    assert len(list(empty_cache.glob("*.so"))) == 1


def test_a_damaged_library_is_compiled_again(empty_cache, capsys):
    file = library.library_file(empty_cache, library.find_compiler())
    empty_cache.mkdir()
    file.write_bytes(b"not a library")
    file.with_suffix(".sha256").write_text("0" * 64)
    library.load()
    assert "compiling the CPU kernels" in capsys.readouterr().out
    library.attempt.cache_clear()
    library.load()
    assert capsys.readouterr().out == ""  # it was kept
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = file.with_name("damaged.so")
    damaged.write_bytes(content)
    shutil.copy(file.with_suffix(".sha256"), damaged.with_suffix(".sha256"))
    with pytest.raises(library.Damaged):
        library.open_library(damaged)


def test_the_run_says_which_kernels_it_used(fedbench):
    words = (
        "rounds=1",
        "data=mnist",
        "data.source=synthetic",
        "data.subset=60",
        "model=lenet",
        "partition=iid",
        "partition.clients=2",
        "runtime.workers=1",
    )
    used = fedbench(*words)
    assert ", native kernels\n" in used.out
    assert '"kernels": "native"' in (used.folder / "summary.json").read_text()
    plain = fedbench(*words, "runtime.kernels=torch")
    assert ", torch kernels (runtime.kernels=torch)\n" in plain.out
    assert '"kernels": "torch"' in (plain.folder / "summary.json").read_text()
    assert plain.folder.name != used.folder.name
    assert "finished already" in fedbench(*words, "runtime.kernels=native").out
    mlp = [word for word in words if word != "model=lenet"] + ["model=mlp"]
    assert "finished already" not in fedbench(*mlp).out
    assert "finished already" in fedbench(*mlp, "runtime.kernels=torch").out  # one id


DRIVER = """
import ctypes, itertools, mmap, sys
import numpy as np

library = ctypes.CDLL(sys.argv[1])
library.lenet_forward_floats.restype = library.lenet_backward_floats.restype = ctypes.c_int64
counts = [int(word) for word in sys.argv[2].split(",")]
side, short = sys.argv[3:]
shapes = [(1, 28, 28, 2), (3, 32, 32, 0), (2, 13, 12, 2), (1, 17, 29, 0), (3, 16, 63, 0)]
draw, total = np.random.default_rng(0), np.zeros(0, np.float32)
protect, PAGE = ctypes.CDLL(None).mprotect, mmap.PAGESIZE


class Array:
    # Floats next to a page that nobody may touch: it follows them or lies before them. Of the array
    # with the name in `short`, the float beside that page is missing.
    def __init__(self, name, count, empty=False):
        given = count - (name == short)
        if side == "heap":
            self.values = np.empty(given, np.float32)
            self.address = self.values.ctypes.data
        else:
            pages = max(-(-4 * given // PAGE), 1) * PAGE
            self.memory = mmap.mmap(-1, pages + PAGE)
            first = np.frombuffer(self.memory, np.uint8).ctypes.data
            guard = first + (pages if side == "after" else 0)
            assert protect(ctypes.c_void_p(guard), PAGE, 0) == 0
            start = pages - 4 * given if side == "after" else PAGE
            self.values = np.frombuffer(self.memory, np.float32, given, start)
            self.address = first + start - 4 * (count - given) * (side == "before")
        if not empty:
            self.values[:] = draw.standard_normal(count)[:given]

    @property
    def _as_parameter_(self):
        return ctypes.c_void_p(self.address)


def product(*numbers):
    return int(np.prod(numbers))


for count, (channels, height, width, padding) in itertools.product(counts, shapes):
    for middle, features in [(6, 16), (1, 5)]:
        sizes = (ctypes.c_int64 * 7)(count, channels, height, width, padding, middle, features)
        rows, columns = (((side_ + 2 * padding - 4) // 2 - 4) // 2 for side_ in (height, width))
        images = Array("images", product(count, height, width, channels))
        output = Array("output", product(count, features, rows, columns))
        lengths = {"weight1": middle * 25 * channels, "bias1": middle}
        lengths |= {"weight2": features * 25 * middle, "bias2": features}
        own = [Array(name, length) for name, length in lengths.items()]
        for keep in (0, 1):
            memory = Array("memory", library.lenet_forward_floats(sizes, keep), empty=True)
            library.lenet_forward(sizes, keep, images, *own, memory, output)
        scratch = Array("scratch", library.lenet_backward_floats(sizes), empty=True)
        found = [Array(name + "_gradient", length) for name, length in lengths.items()]
        library.lenet_backward(sizes, 2, output, own[2], memory, scratch, *found)
        total = np.concatenate([total[-1:], output.values, *(one.values for one in found)])
        print(hash(total.tobytes()))
for count, height, width, channels in [(1, 4, 4, 8), (3, 8, 12, 24), (2, 32, 32, 32)]:
    sizes = (ctypes.c_int64 * 4)(count, height, width, channels)
    images = Array("winograd images", product(count, height, width, channels))
    tiles = [Array("tiles", count * height * width // 16 * channels) for _ in range(36)]
    places = (ctypes.c_void_p * 36)(*(one.address for one in tiles))
    library.winograd_inputs(sizes, images, places)
    library.winograd_outputs(sizes, places, images)
    library.winograd_outputs_backward(sizes, images, places)
    library.winograd_inputs_backward(sizes, places, images)
    shape = tuple(map(ctypes.c_int64, (count * height * width // 16, channels)))
    turned = Array("turned tiles", len(tiles[0].values), empty=True)
    library.winograd_transpose(*shape, tiles[0], turned)
    tiles[0] = turned
    tile_bytes = b"".join(one.values.tobytes() for one in tiles)
    print(hash(images.values.tobytes()), hash(tile_bytes))
"""
FEATURES = ("output", "weight1", "bias1", "weight2", "bias2")
ARRAYS = (
    *("images", "memory", "scratch", "winograd images", "tiles", "turned tiles", *FEATURES),
    *(f"{name}_gradient" for name in FEATURES[1:]),
)


def compile_kernels(options: list[str], folder: Path, compiler: list[str] | None = None) -> str:
    file = folder / "kernels.so"
    sources = [str(Path(library.__file__).parent / name) for name in library.SOURCES]
    command = [*(compiler or library.find_compiler()), *library.OPTIONS, *options, *sources]
    subprocess.run([*command, "-o", str(file)], check=True)
    return str(file)


def drive(
    file: str, counts: str, side: str = "heap", short: str = "", **environment: str
) -> subprocess.CompletedProcess:
    """Run every kernel on every shape and print the results' hashes.

    A process of its own without PyTorch. Arrays are as long as the kernels say. "heap": in NumPy's
    memory, where a sanitizer sees accesses beyond them, but not masked ones. "after", "before":
    beside a page that ends the process when it is touched, by whatever instruction.
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER), file, counts, side, short],
        env={**os.environ, "PYTHONHASHSEED": "0", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("side", ["after", "before"])
def test_no_access_leaves_an_array(side):
    done = drive(library.load()._name, "1,7,8,9,17", side)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == drive(library.load()._name, "1,7,8,9,17").stdout


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("side", ["after", "before"])
def test_an_array_that_is_one_float_short_is_noticed(side, name):
    done = drive(library.load()._name, "9", side, name)
    assert done.returncode == -signal.SIGSEGV, done.stderr[-3000:]


@pytest.mark.heavy
def test_bits_depend_on_no_compiler_and_no_optimisation(tmp_path):
    variants = [[f"-O{level}"] for level in (1, 2, 3)] + [["-O3", "-march=native"]]
    compilers = [[name] for name in ("g++", "clang++") if shutil.which(name)]
    found = {}
    for compiler, options in itertools.product(compilers, variants):
        done = drive(compile_kernels(options, tmp_path, compiler), "1,10,16,33")
        assert done.returncode == 0, done.stderr[-3000:]
        found[f"{compiler} {options}"] = done.stdout
    assert all(len(lines.splitlines()) == 43 for lines in found.values())
    assert len({*found.values()}) == 1, found


@pytest.mark.heavy
def test_sanitizers_find_nothing(tmp_path):
    compiler = library.find_compiler()
    names = [
        subprocess.run(
            [*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(name).is_absolute() for name in names):
        pytest.skip("the compiler has no sanitizers")
    options = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    counts = ",".join(map(str, [*range(1, 18), 31, 32, 33, 64, 65, 130]))
    file = compile_kernels(options, tmp_path)
    sanitized = {"LD_PRELOAD": ":".join(names), "ASAN_OPTIONS": "detect_leaks=0"}
    done = drive(file, counts, **sanitized)
    assert done.returncode == 0, done.stderr[-3000:]
    short = drive(file, "9", "heap", "scratch", **sanitized)
    assert "ERROR: AddressSanitizer" in short.stderr
