"""The flat parameter space: one vector for all parameters, one for their gradients, one for float
buffers.

A model's parameters are views into `w` and their gradients views into `g`, so a correction is one
vector operation, a client's optimizer has one parameter and aggregation is a matrix product.
Parameters follow the order of the model's declared layers: "the last two layers" is the slice
`w[start:]`. Convolution weights are stored in channels_last order (the parameter is a strided
view), because a training step is about a quarter faster that way.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbench.core.errors import require
from fedbench.core.model import Model

NORM_TYPES = (nn.modules.batchnorm._BatchNorm,)


Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class Selection:
    """Some coordinates of the flat vector: a slice when they are contiguous, else an index."""

    spans: Spans  # ascending, disjoint
    size: int
    index: slice | Tensor

    @classmethod
    def of(cls, spans: Spans, device: torch.device) -> Selection:
        merged: Spans = []
        for start, stop in sorted(span for span in spans if span[0] < span[1]):
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((start, stop))
        size = sum(stop - start for start, stop in merged)
        if len(merged) <= 1:
            return cls(merged, size, slice(*merged[0]) if merged else slice(0, 0))
        return cls(merged, size, torch.cat([torch.arange(*span, device=device) for span in merged]))

    def read(self, vector: Tensor) -> Tensor:
        return vector[self.index]

    # Several spans are written one by one: on a GPU in deterministic mode, writing through an index
    # sorts it anew every time.

    def write(self, vector: Tensor, values: Tensor) -> None:
        if isinstance(self.index, slice):
            vector[self.index] = values
            return
        for piece, own in zip(self._pieces(vector), self._split(values), strict=True):
            piece.copy_(own)

    def add(self, vector: Tensor, values: Tensor, scale: float = 1.0) -> None:
        """vector += scale * values, in place, on the selected coordinates."""
        if isinstance(self.index, slice):
            vector[self.index].add_(values, alpha=scale)
            return
        scaled = values if scale == 1.0 else scale * values
        for piece, own in zip(self._pieces(vector), self._split(scaled), strict=True):
            piece.add_(own)

    def _pieces(self, vector: Tensor) -> list[Tensor]:
        return [vector[start:stop] for start, stop in self.spans]

    def _split(self, values: Tensor) -> tuple[Tensor, ...]:
        return values.split([stop - start for start, stop in self.spans])


@dataclass(frozen=True)
class Layer:
    name: str
    start: int
    stop: int


class FlatModel:
    """A model whose parameters, gradients and buffers live in flat vectors."""

    def __init__(self, model: Model, device: torch.device | str = "cpu"):
        self.module = model.to(device)
        self.device = torch.device(device)
        self.layers: list[Layer] = []
        self.buffer_layers: list[Layer] = []  # the slices of `b`
        parameters: list[tuple[nn.Parameter, nn.Module]] = []
        self.parameter_slices: list[
            tuple[nn.Parameter, int, int]
        ] = []  # every parameter and its slice of `w`
        buffers: list[tuple[nn.Module, str, Tensor]] = []
        position = floats = 0
        for name, modules in model.layers():
            start, before = position, len(buffers)
            if _frozen(modules):  # never trained or sent, so no layer to anybody
                continue
            for module in (inner for outer in modules for inner in outer.modules()):
                own = list(module.parameters(recurse=False))
                parameters += [(parameter, module) for parameter in own]
                buffers += [
                    (module, key, value) for key, value in module.named_buffers(recurse=False)
                ]
                position += sum(parameter.numel() for parameter in own)
            self.layers.append(Layer(name, start, position))
            more = sum(
                value.numel() for _, _, value in buffers[before:] if value.is_floating_point()
            )
            self.buffer_layers.append(Layer(name, floats, floats + more))
            floats += more
        self.size = position
        self._adopt_parameters(parameters)
        self._adopt_buffers(buffers)
        self.parameter = nn.Parameter(self.w)  # what the optimizer sees; same storage as w
        self.parameter.grad = self.g

    def _adopt_parameters(self, parameters: list[tuple[nn.Parameter, nn.Module]]) -> None:
        dtype = parameters[0][0].dtype
        self.w = torch.empty(self.size, dtype=dtype, device=self.device)
        self.g = torch.zeros_like(self.w)
        self._norm_spans: Spans = []
        position = 0
        for parameter, module in parameters:
            end = position + parameter.numel()
            if isinstance(module, NORM_TYPES):
                self._norm_spans.append((position, end))
            view = _shaped(self.w[position:end], parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = _shaped(self.g[position:end], parameter.shape)
            self.parameter_slices.append((parameter, position, end))
            position = end

    def _adopt_buffers(self, buffers: list[tuple[nn.Module, str, Tensor]]) -> None:
        """Float buffers become views of `b`, integer ones (batch counters) views of `counters`."""
        self.has_batch_norm = any(isinstance(module, NORM_TYPES) for module, _, _ in buffers)
        floats = [entry for entry in buffers if entry[2].is_floating_point()]
        integers = [entry for entry in buffers if not entry[2].is_floating_point()]
        self.b = self._adopt_vector(floats, self.w.dtype)
        self.counters = self._adopt_vector(integers, torch.int64)
        self.has_buffers = bool(buffers)  # copying nothing takes time, too

    def _adopt_vector(
        self, entries: list[tuple[nn.Module, str, Tensor]], dtype: torch.dtype
    ) -> Tensor:
        vector = torch.empty(
            sum(value.numel() for _, _, value in entries), dtype=dtype, device=self.device
        )
        position = 0
        for module, key, value in entries:
            view = vector[position : position + value.numel()].view(value.shape)
            view.copy_(value)
            module._buffers[key] = view
            position += value.numel()
        return vector

    # Selections: by position, by module type, by the declared head. Nobody tests parameter names.
    def select(self, spans: Spans) -> Selection:
        return Selection.of(spans, self.device)

    def everything(self) -> Selection:
        return self.select([(0, self.size)])

    def nothing(self) -> Selection:
        return self.select([])

    def last(self, layers: int, key: str, skip: int = 0) -> Selection:
        """The last layers of the model, or those before the last `skip` ones; `key` is named when
        there are fewer.
        """
        count = len(self.layers)
        rule = f"must be 0 to {count - skip}: the model has {count} layers with weights"
        require(0 <= layers <= count - skip, key, layers, rule)
        stop = count - skip
        return self.select(
            [(layer.start, layer.stop) for layer in self.layers[stop - layers : stop]]
        )

    def batch_norm(self) -> Selection:
        return self.select(self._norm_spans)

    def without(self, selection: Selection, removed: Selection) -> Selection:
        """The coordinates of `selection` that are not in `removed`."""
        left = selection.spans
        for low, high in removed.spans:
            left = [
                piece
                for start, stop in left
                for piece in ((start, min(stop, low)), (max(start, high), stop))
            ]
            left = [(start, stop) for start, stop in left if start < stop]
        return self.select(left)

    def place(self, wanted: nn.Parameter) -> slice:
        """Where a parameter stands in `w`."""
        return next(
            slice(start, stop)
            for parameter, start, stop in self.parameter_slices
            if parameter is wanted
        )

    def parameters_in(self, selection: Selection) -> list[nn.Parameter]:
        """The parameters of a selection, which never cuts one apart, in its order."""
        spans = selection.spans
        return [
            p
            for p, start, stop in self.parameter_slices
            if any(low <= start and stop <= high for low, high in spans)
        ]

    def layers_in(self, selection: Selection) -> list[slice]:
        """The pieces that the layers take of the values of a selection."""
        pieces, position = [], 0
        for layer in self.layers:
            overlap = self.overlaps(selection, layer)
            if overlap:
                pieces.append(slice(position, position + overlap))
                position += overlap
        return pieces

    def overlaps(self, selection: Selection, layer: Layer) -> int:
        """How many coordinates of a layer are in a selection."""
        return sum(
            max(0, min(stop, layer.stop) - max(start, layer.start))
            for start, stop in selection.spans
        )

    def twin(self) -> FlatModel:
        """A second network of the same kind, in evaluation mode, for other parameters and
        buffers.
        """
        network = FlatModel(copy.deepcopy(self.module), self.device)
        network.module.eval()
        return network

    def load(self, w: Tensor, b: Tensor) -> None:
        self.w.copy_(w)
        self.b.copy_(b)

    def state_dict(self) -> dict[str, Tensor]:
        """Ordinary contiguous tensors under the module's own names, as files hold them."""
        state = self.module.state_dict()
        return {
            name: value.detach().to("cpu").contiguous().clone() for name, value in state.items()
        }


def _frozen(modules: Iterable[nn.Module]) -> bool:
    """Whether no parameter of these modules is trained."""
    return not any(
        parameter.requires_grad for module in modules for parameter in module.parameters()
    )


def _shaped(piece: Tensor, shape: torch.Size) -> Tensor:
    """A parameter-shaped view of a piece of the flat vector; convolution weights in channels_last
    order.
    """
    if len(shape) != 4:
        return piece.view(shape)
    outputs, inputs, height, width = shape
    return piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def flatten(gradients: tuple[Tensor, ...]) -> Tensor:
    """Gradients of parameters in the order in which the flat vector stores them."""
    return torch.cat(
        [g.permute(0, 2, 3, 1).reshape(-1) if g.ndim == 4 else g.reshape(-1) for g in gradients]
    )


def digest(state: dict[str, Tensor]) -> str:
    """A short hash of names, shapes and exact bits."""
    result = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        value = state[name].detach().to("cpu").contiguous()
        result.update(f"{name}:{tuple(value.shape)}:{value.dtype};".encode())
        result.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return result.hexdigest()
