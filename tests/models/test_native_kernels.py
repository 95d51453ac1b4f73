"""The native kernels against float64, against PyTorch's layers, and across compilers."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import textwrap
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
from fedbench.models.cpu_kernels import Conv3x3, choose_kernels, library

pytestmark = needs_kernels

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


def worst_error(settings, shape: tuple[int, ...], count: int, kernels: str = "native") -> float:
    """The largest relative error of a parameter's gradient, and of the output, against float64."""
    model = build(settings, shape)
    exact = copy.deepcopy(model).double()
    with_kernels(model, kernels)
    FlatModel(model)  # weights in the engine's memory layout
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))
    x = x.permute(0, 3, 1, 2)
    found, wanted = gradients(model, x), gradients(exact, x.double())
    errors = [relative_error(found[name], wanted[name]) for name in wanted]
    return max([relative_error(model(x), exact(x.double())), *errors])


@pytest.mark.parametrize(("settings", "shape"), SHAPES, ids=NAMES)
@pytest.mark.parametrize("count", [1, 10, 17, 64])
def test_gradients_agree_with_float64(settings, shape, count):
    assert worst_error(settings, shape, count) <= 2e-6


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("settings", "shape"), SHAPES[:1] + SHAPES[2:4], ids=NAMES[:1] + NAMES[2:4]
)
def test_gradients_agree_with_float64_for_every_size_of_a_batch(settings, shape):
    """A sum that nearly cancels costs PyTorch's layers as many digits. Two values that differ only
    in the last bit are now and then pooled differently, by PyTorch's layers no less often.
    """
    pooled_differently = 0
    for count in range(1, 131):
        error = worst_error(settings, shape, count)
        if error > 2e-6:
            pooled_differently += error > 2 * worst_error(settings, shape, count, "torch")
    assert pooled_differently <= 2


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
    for native_one, torch_one in zip(found["native"], found["torch"], strict=True):
        assert torch.equal(native_one, torch_one)


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
    """Infinite weights make a NaN of the zeros there; the ten images are unharmed."""
    model = build(LeNet(), GRAY)
    with torch.no_grad():
        model.conv1.weight[2] = -float("inf")
    x = batch(GRAY, 10).abs() + 0.1
    found = {}
    for kernels in ("torch", "native"):
        found[kernels] = gradients(with_kernels(model, kernels), x)
    for name, expected in found["torch"].items():
        assert torch.equal(found["native"][name].isfinite(), expected.isfinite()), name


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
    for layout in (torch.contiguous_format, torch.channels_last):
        own = x.clone(memory_format=layout).requires_grad_()
        layer.zero_grad()
        y = layer(own)
        assert type(y.grad_fn).__name__ == "NativeWinogradBackward"
        y.backward(arriving.contiguous(memory_format=layout))
        assert close(y, wanted)
        assert close(own.grad, wanted_x.grad)
        assert close(layer.weight.grad, exact.weight.grad)


def test_winograd_with_channels_that_fill_no_vectors_is_pytorchs():
    layer = with_kernels(Conv3x3(5, 8), "native")
    assert type(layer(torch.randn(1, 5, 8, 8)).grad_fn).__name__ == "WinogradBackward"


def test_what_each_request_gives(monkeypatch):
    lenet, mlp = build(LeNet(), GRAY), build(Mlp(), GRAY)
    with_norm = build(LeNet(batch_norm=True), GRAY)
    assert choose_kernels("auto", lenet, "cpu", 1).name == "native"
    for other in (mlp, with_norm):
        choice = choose_kernels("auto", other, "cpu", 1)
        assert (choice.name, choice.reason) == ("torch", "")
        with pytest.raises(BadInput, match=r"runtime\.kernels=native: must be .* no layer"):
            choose_kernels("native", other, "cpu", 1)
    assert "computes on cuda" in choose_kernels("auto", lenet, "cuda", 1).reason
    assert "runtime.threads=2" in choose_kernels("auto", lenet, "cpu", 2).reason
    assert not lenet.blocks.native
    assert choose_kernels("native", lenet, "cpu", 2).name == "native"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    library.load.cache_clear()
    assert "no AVX2" in choose_kernels("auto", lenet, "cpu", 1).reason
    monkeypatch.undo()
    library.load.cache_clear()
    assert choose_kernels("auto", lenet, "cpu", 1).name == "native"


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "cache_folder", lambda: tmp_path / "kernels")
    library.load.cache_clear()
    yield tmp_path / "kernels"
    monkeypatch.undo()
    library.load.cache_clear()


def reason() -> str:
    library.load.cache_clear()
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


def test_a_damaged_library_is_compiled_again(empty_cache, capsys):
    file = library.library_file(empty_cache, library.find_compiler())
    empty_cache.mkdir()
    file.write_bytes(b"not a library")
    file.with_suffix(".sha256").write_text("0" * 64)
    library.load()
    assert "compiling the CPU kernels" in capsys.readouterr().out
    library.load.cache_clear()
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
import ctypes, itertools, sys
import numpy as np

library = ctypes.CDLL(sys.argv[1])
library.lenet_forward_floats.restype = library.lenet_backward_floats.restype = ctypes.c_int64
counts = [int(word) for word in sys.argv[2].split(",")]
shapes = [(1, 28, 28, 2), (3, 32, 32, 0), (2, 13, 12, 2), (1, 17, 29, 0), (3, 16, 63, 0)]
draw, total = np.random.default_rng(0), np.zeros(0, np.float32)


def array(*shape):
    return draw.standard_normal(shape).astype(np.float32)


def address(values):
    return ctypes.c_void_p(values.ctypes.data)


for count, (channels, height, width, padding) in itertools.product(counts, shapes):
    for middle, features in [(6, 16), (1, 5)]:
        sizes = (ctypes.c_int64 * 7)(count, channels, height, width, padding, middle, features)
        rows, columns = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width))
        images = array(count, height, width, channels)
        output = array(count, features * rows * columns)
        own = [array(middle, 5, 5, channels), array(middle), array(features, 5, 5, middle)]
        own += [array(features)]
        addresses = [address(one) for one in own]
        for keep in (0, 1):
            memory = np.empty(library.lenet_forward_floats(sizes, keep), np.float32)
            library.lenet_forward(
                sizes, keep, address(images), *addresses, address(memory), address(output)
            )
        scratch = np.empty(library.lenet_backward_floats(sizes), np.float32)
        found = [np.empty_like(one) for one in own]
        library.lenet_backward(
            sizes, address(output), addresses[2], address(memory), address(scratch),
            *(address(one) for one in found),
        )
        total = np.concatenate([total[-1:], output.ravel(), *(one.ravel() for one in found)])
        print(hash(total.tobytes()))
for count, height, width, channels in [(1, 4, 4, 8), (3, 8, 12, 24), (2, 32, 32, 32)]:
    sizes = (ctypes.c_int64 * 4)(count, height, width, channels)
    images = array(count, height, width, channels)
    tiles = [array(count * height * width // 16, channels) for _ in range(36)]
    places = (ctypes.c_void_p * 36)(*(one.ctypes.data for one in tiles))
    library.winograd_inputs(sizes, address(images), places)
    library.winograd_outputs(sizes, places, address(images))
    library.winograd_outputs_backward(sizes, address(images), places)
    library.winograd_inputs_backward(sizes, places, address(images))
    print(hash(images.tobytes()), hash(b"".join(one.tobytes() for one in tiles)))
"""


def drive(options: list[str], counts: str, folder: Path, **environment: str) -> str:
    """Compile with these options, run every kernel on every shape, and return the results' hashes.

    A process of its own without PyTorch: NumPy's arrays are as long as the kernels say, so that a
    sanitizer sees every access beyond them.
    """
    file = folder / "kernels.so"
    sources = [str(Path(library.__file__).parent / name) for name in library.SOURCES]
    command = [*library.find_compiler(), *library.OPTIONS, *options, *sources, "-o", str(file)]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(file), counts],
        env={**os.environ, "PYTHONHASHSEED": "0", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.heavy
def test_bits_do_not_depend_on_optimisation(tmp_path):
    found = [drive([f"-O{level}"], "1,10,16,33", tmp_path) for level in (1, 2, 3)]
    assert len(found[0].splitlines()) == 43
    assert found[0] == found[1] == found[2]


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
    drive(options, counts, tmp_path, LD_PRELOAD=":".join(names), ASAN_OPTIONS="detect_leaks=0")
