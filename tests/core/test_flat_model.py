"""Selections of the flat vector, and where parameters stand in it."""

from __future__ import annotations

import pytest
import torch
from support.networks import COLOUR, NETWORKS, outline
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.core.flat_model import FlatModel, Selection
from fedbench.models import Vgg16, VitB32

SPANS = [[(2, 7)], [(0, 3), (5, 6), (9, 20)], []]


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("scale", [1.0, 0.3, -1.7])
def test_a_selection_is_written_to_the_bits_of_an_index(spans, scale):
    """But without one: on a GPU in deterministic mode, each use of it sorts."""
    vector = torch.randn(20)
    index = torch.cat([torch.arange(0), *(torch.arange(*span) for span in spans)])
    selection = Selection.of(spans, torch.device("cpu"))
    values = torch.randn(len(index))
    written, added = vector.clone(), vector.clone()
    with Operators() as operators:
        selection.write(written, values)
        selection.add(added, values, scale)
    assert not {name for name in operators.names if name.startswith("index")}
    assert torch.equal(written, vector.index_copy(0, index, values))
    if len(spans) > 1:
        assert torch.equal(added, vector.index_add(0, index, values, alpha=scale))
    else:
        torch.testing.assert_close(added, vector.index_add(0, index, values, alpha=scale))
    assert torch.equal(selection.read(written), values)


TWO_CHANNELS = (20, 30, 2)  # no dataset has them: half of LeNet is out of line
LARGE = [(Vgg16(), COLOUR), (VitB32(), COLOUR)]


@pytest.mark.parametrize(
    ("settings", "shape"),
    [*(one[:2] for one in NETWORKS if one[1] != TWO_CHANNELS), *LARGE],
    ids=lambda given: type(given).__name__,
)
def test_weights_begin_where_a_gpu_can_load_four_at_a_time(settings, shape):
    """At multiples of 16 bytes, or libraries take slower kernels: all but some biases of 6 maps."""
    model = FlatModel(outline(settings, shape), "meta")
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    odd = {names[id(parameter)] for parameter, start, _ in model.parameter_slices if start % 4}
    few = {"LeNet": {"conv1.bias", "bn1.bias"}, "Cnn5": {"conv1.bias"}}
    assert odd <= few.get(type(settings).__name__, set())
