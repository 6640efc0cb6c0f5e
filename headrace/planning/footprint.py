"""What one microbatch costs at each segment, weights aside: bytes that stay, bytes at the most, floating-point operations.

The model runs once, forward and backward, at its real shape with tensors that have no memory (torch's fake tensors): the
same operations, the same tensors saved by autograd, counted as they come and go. Nothing is guessed from a formula, so it
holds for any model; of equal blocks one is run. Kernels' own workspace does not show.
"""

import copy
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from headrace.models.segments import segments_of
from headrace.streaming.activations import ALIGNMENT_BYTES, SMALL_BYTES
from headrace.streaming.segment import install_segments

Microbatch = Callable[[nn.Module, Callable[..., Any]], Tensor]
"""(model, run_head) -> loss of one microbatch, any values; run_head as `Streaming.run_head`."""


@dataclass(frozen=True)
class Footprint:
    """One microbatch at one visit of a segment."""

    segment: int
    goes_back: bool
    """Whether there is a backward: something in it or before it trains."""
    input_bytes: int
    """Inputs that need a gradient: what stays under `recompute`."""
    output_bytes: int
    saved_bytes: int
    """What autograd keeps under `keep`, inputs included."""
    spilled_bytes: int
    """Of that, what `spill` writes to disk and reads again; the size of a record."""
    spilled_original_bytes: int
    """The same before records are rounded up."""
    plain_bytes: int
    """Forward without a graph, at the most."""
    forward_bytes: int
    """Forward with a graph, at the most, what it saves included."""
    backward_bytes: int
    """Backward, at the most, beyond what was saved."""
    whole_bytes: int
    """Forward and backward in one go, at the most."""
    forward_flops: float
    backward_flops: float


@dataclass(frozen=True)
class ModelFootprint:
    """One microbatch through the whole model. `visits` in forward order; a segment may be visited more than once."""

    visits: tuple[Footprint, ...]
    between_saved_bytes: int
    """What autograd keeps between segments (a loss over logits, dropout between blocks), and masks all segments share."""
    between_peak_bytes: int
    """Between segments, at the most, beyond that."""
    between_flops: float


def measure(
    model: nn.Module,
    microbatch: Microbatch,
    autocast: Callable[[], Any],
    run_by_task: str | None = None,
    masked: bool = True,
) -> ModelFootprint:
    """Run a microbatch through a weightless copy of the model. run_by_task: the segment the task runs itself. masked: False
    where the real microbatch gives no attention mask and no positions that restart: transformers makes none then, but
    cannot know that of tensors without values and makes one here, which blocks are not given."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(fake):
        model = copy.deepcopy(model)
    for module in model.modules():  # a cache of keys and values would remember the first run in the second
        if hasattr(getattr(module, "config", None), "use_cache"):
            module.config.use_cache = False  # pyright: ignore
    with fake, torch.random.fork_rng(devices=[]):
        _to_cpu(model)
        segments = segments_of(model)
        for parameter in model.parameters():
            parameter.data = torch.empty(parameter.shape)
            if parameter.requires_grad:
                parameter.grad = torch.empty(parameter.shape)
        live = _Live(model)
        head = next((i for i, segment in enumerate(segments) if segment.name == run_by_task), len(segments) - 1)
        eager = (
            getattr(getattr(model, "config", None), "_attn_implementation", "sdpa") != "sdpa"
        )  # needs it written out
        measuring = _Measuring(live, head, autocast, masked or eager)
        install_segments(model, segments, measuring, [run_by_task] if run_by_task else [])  # pyright: ignore
        with live:
            measuring.after_segment()
            with saved_tensors_hooks(measuring.saved_between, lambda tensor: tensor), autocast():
                loss = microbatch(model, measuring.run_head)
            measuring.before_segment()
            live.begin()
            before = live.flops
            if loss.grad_fn is not None:
                loss.backward()
            measuring.between_peak_bytes = max(measuring.between_peak_bytes, live.peak_bytes)
            measuring.between_flops += live.flops - before
    return ModelFootprint(
        tuple(measuring.visits),
        sum(measuring.between.values()) + measuring.shared_bytes,
        measuring.between_peak_bytes,
        measuring.between_flops,
    )


def _to_cpu(model: nn.Module) -> None:
    """Wherever the model will run, it is measured on the CPU. (A fake tensor's device does not change with its data.)"""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.device.type != "cpu":
                fresh = nn.Parameter(torch.empty(parameter.shape), parameter.requires_grad)
                setattr(module, name, made.setdefault(id(parameter), fresh))
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.device.type != "cpu":
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


class _Live(TorchDispatchMode):
    """Counts the memory of tensors that are alive, the model's own aside."""

    def __init__(self, model: nn.Module):
        super().__init__()
        kept = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
        self.model_storages = {_storage(tensor) for tensor in kept}
        self.weights = {_storage(parameter) for parameter in model.parameters()}
        self.bytes: dict[int, int] = {}
        self.now_bytes = self.peak_bytes = self.start_bytes = 0
        self.total = 0
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        count = _FLOPS.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **kwargs, out_val=result)
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        return result

    def begin(self) -> None:
        """Peak and growth are counted from here."""
        self.start_bytes, self.peak_bytes = self.total, 0

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.bytes or key in self.model_storages:
            return
        self.bytes[key] = size
        self.total += size
        weakref.finalize(storage, self._forget, key)
        self.peak_bytes = max(self.peak_bytes, self.total - self.start_bytes)

    def _forget(self, key: int) -> None:
        self.total -= self.bytes.pop(key, 0)


@dataclass
class _Measuring:
    """Stands where `Streaming` stands: runs each segment and counts."""

    live: _Live
    head: int
    autocast: Callable[[], Any]
    masked: bool = True
    visits: list[Footprint] = field(default_factory=list)
    known: dict[Any, tuple[Footprint, Any]] = field(default_factory=dict)
    between: dict[int, int] = field(default_factory=dict)
    outputs: set[int] = field(default_factory=set)  # storages of segments' outputs: counted as the next one's input
    shared: dict[int, Tensor] = field(default_factory=dict)  # masks and tables; held, so that numbers stay theirs
    shared_bytes: int = 0
    between_peak_bytes: int = 0
    between_flops: float = 0.0
    training: bool = True
    _flops_then: float = 0.0

    def after_segment(self) -> None:
        self.live.begin()
        self._flops_then = self.live.flops

    def before_segment(self) -> None:
        self.between_peak_bytes = max(self.between_peak_bytes, self.live.peak_bytes)
        self.between_flops += self.live.flops - self._flops_then

    def saved_between(self, tensor: Tensor) -> Tensor:
        key = _storage(tensor)
        if key not in self.live.model_storages and key not in self.outputs:
            self.between[key] = tensor.untyped_storage().nbytes()
        return tensor

    def run_head(self, function: Callable[..., Any], *tensors: Tensor) -> Any:
        return self.run(self.head, function, tensors, {}, True)

    def run(self, i: int, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], training: bool):
        self.before_segment()
        if not self.masked and isinstance(function, nn.Module):
            args, kwargs = _without_mask(function, args, kwargs)
        given, structure = pytree.tree_flatten((args, kwargs))
        for tensor in given:
            if isinstance(tensor, Tensor) and not tensor.requires_grad and _storage(tensor) not in self.shared:
                self.shared[_storage(tensor)] = tensor
                self.shared_bytes += tensor.untyped_storage().nbytes()
        kind = _kind_of(i, function, given)
        if kind not in self.known:
            self.known[kind] = self._count(i, function, given, structure)
        footprint, result = self.known[kind]
        self.visits.append(replace(footprint, segment=i))
        result = pytree.tree_map_only(Tensor, _fresh, result)
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.outputs.add(_storage(tensor))
                weakref.finalize(tensor.untyped_storage(), self.outputs.discard, _storage(tensor))
        self.after_segment()
        return result

    def _count(self, i: int, function: Callable[..., Any], given: list[Any], structure: Any) -> tuple[Footprint, Any]:
        live = self.live

        def run() -> tuple[Any, list[Tensor]]:
            fresh = [t.detach().requires_grad_() if isinstance(t, Tensor) and t.requires_grad else t for t in given]
            args, kwargs = pytree.tree_unflatten(fresh, structure)
            return function(*args, **kwargs), [t for t in fresh if isinstance(t, Tensor) and t.requires_grad]

        live.begin()
        with torch.no_grad():
            result, _ = run()
        plain_bytes = live.peak_bytes
        del result

        saved: dict[int, int] = {}
        stay = {_storage(t) for t in given if isinstance(t, Tensor) and not t.requires_grad}

        def pack(tensor: Tensor) -> Tensor:
            if _storage(tensor) not in live.weights:
                saved[_storage(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        flops = live.flops
        live.begin()
        with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
            result, inputs = run()
        forward_bytes, forward_flops = live.peak_bytes, live.flops - flops
        grown_bytes = live.total - live.start_bytes
        outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.grad_fn is not None]
        result = pytree.tree_map_only(Tensor, lambda t: t.detach().requires_grad_(t.requires_grad), result)
        gradients = [torch.empty_like(t) for t in outputs]
        flops = live.flops
        live.begin()
        if outputs:
            torch.autograd.backward(outputs, gradients)
        for tensor in inputs:
            tensor.grad = None
        spilled = [size for key, size in saved.items() if key not in stay and size >= SMALL_BYTES]
        footprint = Footprint(
            segment=i,
            goes_back=bool(outputs),
            input_bytes=sum({_storage(t): t.untyped_storage().nbytes() for t in inputs}.values()),
            output_bytes=sum(t.untyped_storage().nbytes() for t in outputs),
            saved_bytes=sum(size for key, size in saved.items() if key not in stay),
            spilled_bytes=sum(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in spilled),
            spilled_original_bytes=sum(spilled),
            plain_bytes=plain_bytes,
            forward_bytes=forward_bytes,
            backward_bytes=live.peak_bytes,
            whole_bytes=max(forward_bytes, grown_bytes + live.peak_bytes),
            forward_flops=forward_flops,
            backward_flops=live.flops - flops,
        )
        return footprint, result


def _without_mask(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with None for an attention mask that causality alone has made."""
    names = list(inspect.signature(block.forward).parameters)
    if "attention_mask" not in names:
        return args, kwargs
    at = names.index("attention_mask")
    kwargs = {name: None if name == "attention_mask" else value for name, value in kwargs.items()}
    return tuple(None if k == at else value for k, value in enumerate(args)), kwargs


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _fresh(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor).requires_grad_(tensor.requires_grad)


def _kind_of(i: int, function: Callable[..., Any], given: list[Any]) -> Any:
    """Equal for visits that cost the same."""
    inputs = tuple((t.shape, t.dtype, t.requires_grad) if isinstance(t, Tensor) else repr(t) for t in given)
    if not isinstance(function, nn.Module):
        return i, inputs
    shapes = tuple((name, p.shape, p.requires_grad) for name, p in function.named_parameters())
    words = tuple(sorted((name, value) for name, value in vars(function).items() if isinstance(value, str)))
    return type(function), shapes, words, inputs


def _attention_flops(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward_flops(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape)


_FLOPS: dict[Any, Callable[..., float]] = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,  # torch's own table has CUDA's only
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}
