"""Drafters with a head: reads it, checks it against the target, and runs its products where they are fastest."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import torch

from outrider.compiled.library import NativeUnavailable
from outrider.core.protocols import Drafter, LayeredTarget, TappedTarget
from outrider.core.records import TokenWeights
from outrider.drafters.eagle import EagleDrafter
from outrider.drafters.head_check import check_at_load
from outrider.drafters.medusa import MedusaDrafter
from outrider.drafters.self_draft import SelfDrafter, layer_bytes
from outrider.drafters.setup import DrafterSetup, tapped
from outrider.errors import ConfigError
from outrider.models.eagle_head import EagleHead
from outrider.models.exit_head import ExitHead
from outrider.models.head_cache import CachedHead, DraftHead
from outrider.models.head_fit import check_head, with_positions
from outrider.models.heads import EagleConfig, ExitConfig, Head
from outrider.models.linear import Linear
from outrider.models.load import device_named
from outrider.models.medusa_head import MedusaHeads
from outrider.models.native_eagle import NativeEagleHead
from outrider.models.native_eagle_load import pack_eagle
from outrider.models.native_matrices import FORMATS, NativeMatrices
from outrider.models.placement import placement_of
from outrider.models.products import MakeProduct

_LOG = logging.getLogger(__name__)
_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
_TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def eagle_drafter(setup: DrafterSetup) -> Drafter:
    """EAGLE-1, 2 or 3 with the configured head. Raises `ModelLoadError`, `PairError` or `ConfigError`."""
    target, head, weights = _fitted(setup)
    return EagleDrafter(
        _eagle_head(setup, target, head, weights),
        target_vocab_size=target.vocab_size,
        topk=setup.children(head.method),
        settings=setup.growth(_bytes_read(setup, head, weights)),
    )


def medusa_drafter(setup: DrafterSetup) -> Drafter:
    """Medusa with the configured heads. Raises as `eagle_drafter`."""
    target, head, weights = _fitted(setup)
    device = _device(setup)
    module = MedusaHeads(head, weights, device=device)
    _swap(setup, device, module.swap_products)
    return MedusaDrafter(
        module.eval(),
        tap=target.num_layers,
        target_vocab_size=target.vocab_size,
        topk=setup.children("medusa"),
        settings=setup.growth(_bytes_read(setup, head, weights)),
    )


def exit_drafter(setup: DrafterSetup) -> Drafter:
    """The target's first layers with the configured exit head. Raises as `eagle_drafter`."""
    target, head, weights = _fitted(setup)
    assert isinstance(head.config, ExitConfig), "a head of this method"
    layers, wanted = head.config.exit_layer, setup.config.assistant_early_exit
    if wanted not in (None, layers):
        raise ConfigError(
            f"assistant_early_exit is {wanted}, but head {head.name!r} was trained for {layers} layers: leave it out"
        )
    assert isinstance(target, LayeredTarget), "looked at before the head is read"
    device = _device(setup)
    module, own = ExitHead(head, weights, device=device), layer_bytes(target, layers)
    _swap(setup, device, module.swap_products)
    return SelfDrafter.early_exit(
        target,
        layers,
        exit_head=module.eval(),
        topk=setup.children("self_draft"),
        settings=setup.growth(None if own is None else own + _bytes_read(setup, head, weights)),
    )


def _fitted(setup: DrafterSetup) -> tuple[TappedTarget, Head, TokenWeights]:
    """The target, its head, and what the head borrows."""
    target, head = tapped(setup.target), setup.load_head()
    check_head(
        head, vocab_size=target.vocab_size, hidden_size=target.hidden_size, num_layers=target.num_layers
    )
    for finding in head.findings:
        _LOG.info("%s: %s", head.name, finding)
    weights = target.token_weights()
    if setup.config.check_draft is not False:
        check_at_load(target, head, weights, setup.prompts())
    if target.max_length is not None:
        head = with_positions(head, target.max_length)
    return target, head, weights


def _eagle_head(setup: DrafterSetup, target: TappedTarget, head: Head, weights: TokenWeights) -> DraftHead:
    """EAGLE-3 on the CPU is one compiled pass where the library is there; others have their products swapped."""
    device = _device(setup)
    if device.type == "cpu" and head.method == "eagle3":
        with contextlib.suppress(NativeUnavailable):
            dtype, threads = _native_dtype(setup), placement_of(setup.target).threads
            return NativeEagleHead(
                pack_eagle(head, weights, num_layers=target.num_layers, dtype=dtype, threads=threads)
            )
    module = EagleHead(head, weights, num_layers=target.num_layers, device=device)
    _swap(setup, device, module.swap_products)
    return CachedHead(module.eval())


def _bytes_read(setup: DrafterSetup, head: Head, weights: TokenWeights) -> int:
    """Weights of a forward of a head: its matrices, and those of the target that it speaks through."""
    own = {name: tensor for name, tensor in head.tensors.items() if name != "embed_tokens.weight"}
    count = sum(tensor.numel() for tensor in own.values())
    if isinstance(head.config, EagleConfig) and "lm_head.weight" not in own:
        count += weights.head.numel()
    if isinstance(head.config, ExitConfig):
        count += head.config.draft_vocab * head.config.hidden
    return count * _BYTES[_native_dtype(setup)]


def _device(setup: DrafterSetup) -> torch.device:
    """Where the head runs: where it was told to, else beside the target."""
    name = setup.config.draft_device
    if name is None:
        return torch.device(placement_of(setup.target).device or "cpu")
    return device_named(name, "draft_device")


def _swap(setup: DrafterSetup, device: torch.device, swap: Callable[[MakeProduct], None]) -> None:
    """On the CPU products go to the compiled library: as int8 unless `draft_dtype` says otherwise; elsewhere to torch.

    How exactly a head computes changes how often it is right, and no text.
    """
    native, dtype = _native_dtype(setup), setup.config.draft_dtype
    obstacle = f"the head runs on {str(device)!r}"
    if device.type == "cpu":
        try:
            threads = placement_of(setup.target).threads
            swap(NativeMatrices(native, threads).linear)
            return
        except NativeUnavailable as error:
            obstacle = str(error)
    if dtype == "int8":
        raise ConfigError(f"draft_dtype 'int8' needs the compiled library, but {obstacle}: use 'bfloat16'")
    held = _TORCH_DTYPES.get(dtype or "auto", torch.float32)
    swap(lambda weight, bias: _Cast(Linear(weight.to(held), None if bias is None else bias.to(held)), held))


def _native_dtype(setup: DrafterSetup) -> str:
    """What the compiled library keeps a head as. Raises `ConfigError`."""
    dtype = setup.config.draft_dtype or "auto"
    if dtype not in ("auto", *FORMATS):
        raise ConfigError(f"draft_dtype of a head must be auto, {', '.join(FORMATS)}, not {dtype!r}")
    return "int8" if dtype == "auto" else dtype


class _Cast:
    """A product in a precision of its own between float32 rows."""

    def __init__(self, product: Linear, dtype: torch.dtype) -> None:
        self._product, self._dtype = product, dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [rows, in] -> [rows, out]
        return self._product(x.to(self._dtype)).to(x.dtype)
