"""Other readings of a head's files: what its tensors cannot tell, each changed alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from outrider.core.protocols import TappedTarget
from outrider.models.eagle_shapes import feature_taps
from outrider.models.heads import EagleConfig, ExitConfig, Head

_THETAS = (10_000.0, 500_000.0, 1_000_000.0)
_TAPS_KEY = "eagle_aux_hidden_state_layer_ids"
_ATTENTION = "layers.0.self_attn"
_NORMS = ("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")


@dataclass(frozen=True, eq=False)
class Reading:
    """A head, the hidden states that it is handed, and how much older they are than its pairing says."""

    head: Head
    taps: tuple[int, ...]
    lag: int = 0


@dataclass(frozen=True)
class Change:
    """What one reading does, what another does instead, and how to make that so."""

    reads: str
    instead: str
    remedy: str


def reading_of(head: Head, num_layers: int) -> Reading:
    """The head as its files describe it, on a target of `num_layers`."""
    if isinstance(head.config, ExitConfig):
        return Reading(head, (head.config.exit_layer,))
    if not isinstance(head.config, EagleConfig):
        return Reading(head, (num_layers,))
    return Reading(head, tuple(dict.fromkeys(feature_taps(head.config, num_layers))))


def other_readings(reading: Reading, target: TappedTarget) -> Iterator[tuple[Reading, Change]]:
    """Every reading that differs in one thing and that the target can serve."""
    config = reading.head.config
    if isinstance(config, ExitConfig):
        yield from _exits(reading, config, target.num_layers)
        return
    yield from _pairings(reading)
    if not isinstance(config, EagleConfig):
        yield from _last_layer(reading, target.num_layers)
        return
    if config.is_eagle3:
        yield from _tapped_layers(reading, config, target.num_layers)
        yield from _norms(reading, config)
    else:
        yield from _last_layer(reading, target.num_layers)
        yield _halves(reading, ("fc",), "fc")
    yield from _thetas(reading, config, target)


def _pairings(reading: Reading) -> Iterator[tuple[Reading, Change]]:
    says = {-1: "of the same position", 0: "of the position before", 1: "of two positions before"}
    for lag in (-1, 0, 1):
        if lag == reading.lag:
            continue
        if lag < 0:
            remedy = "train it anew, since a draft cannot know that state of the pending token"
        else:
            remedy = "train it anew with tokens paired with the states before them"
        yield (
            replace(reading, lag=lag),
            Change(
                f"pairs a token with the state {says[reading.lag]}",
                f"pairing it with that {says[lag]}",
                remedy,
            ),
        )


def _exits(reading: Reading, config: ExitConfig, num_layers: int) -> Iterator[tuple[Reading, Change]]:
    now = config.exit_layer
    for layer in (now - 1, now + 1):
        if 1 <= layer < num_layers:
            changed = replace(reading.head, config=replace(config, exit_layer=layer))
            yield (
                replace(reading, head=changed, taps=(layer,)),
                Change(f"reads hidden state {now}", f"reading {layer}", f"set exit_layer to {layer}"),
            )


def _last_layer(reading: Reading, num_layers: int) -> Iterator[tuple[Reading, Change]]:
    """For heads that read the last hidden state and have no key that says so."""
    for layer in (num_layers - 1, num_layers):
        if (layer,) != reading.taps:
            yield (
                replace(reading, taps=(layer,)),
                Change(
                    f"reads hidden state {reading.taps[0]} of {num_layers}",
                    f"reading {layer}",
                    "train it anew on the last hidden state, after the final norm",
                ),
            )


def _tapped_layers(
    reading: Reading, config: EagleConfig, num_layers: int
) -> Iterator[tuple[Reading, Change]]:
    now = feature_taps(config, num_layers)
    for taps in (
        tuple(tap - 1 for tap in now),
        tuple(tap + 1 for tap in now),
        now[::-1],
        (2, num_layers // 2, num_layers - 3),
    ):
        if taps == now or not all(0 <= tap <= num_layers for tap in taps) or len(taps) != len(now):
            continue
        changed = replace(reading.head, config=replace(config, taps=taps))
        wanted = tuple(dict.fromkeys(taps))
        shown = list(taps)
        yield (
            replace(reading, head=changed, taps=wanted),
            Change(f"reads hidden states {list(now)}", f"reading {shown}", f"set {_TAPS_KEY} to {shown}"),
        )


def _norms(reading: Reading, config: EagleConfig) -> Iterator[tuple[Reading, Change]]:
    for key, changed in (
        ("norm_before_residual", replace(config, norm_before_residual=not config.norm_before_residual)),
        ("norm_output", replace(config, norm_output=not config.norm_output)),
    ):
        now, then = _json(getattr(config, key)), _json(getattr(changed, key))
        yield (
            replace(reading, head=replace(reading.head, config=changed)),
            Change(f"has {key} {now}", then, f"set {key} to {then}"),
        )
    first, second = _NORMS
    tensors = dict(reading.head.tensors)
    tensors[first], tensors[second] = tensors[second], tensors[first]
    yield (
        replace(reading, head=replace(reading.head, tensors=tensors)),
        Change(
            f"takes {first} for the token and {second} for the state",
            "taking them the other way round",
            "exchange the two tensors in its file",
        ),
    )
    yield _halves(reading, tuple(f"{_ATTENTION}.{name}_proj" for name in "qkv"), "q_proj, k_proj and v_proj")


def _halves(reading: Reading, names: tuple[str, ...], called: str) -> tuple[Reading, Change]:
    """The columns that read the token and those that read the state, exchanged."""
    tensors = dict(reading.head.tensors)
    for name in names:
        weight = tensors[f"{name}.weight"]
        tensors[f"{name}.weight"] = torch.roll(weight, weight.shape[1] // 2, dims=1)
    return (
        replace(reading, head=replace(reading.head, tensors=tensors)),
        Change(
            f"reads the token in the first half of the columns of {called}, the state in the second",
            "the other order",
            "exchange the two halves in its file",
        ),
    )


def _thetas(reading: Reading, config: EagleConfig, target: TappedTarget) -> Iterator[tuple[Reading, Change]]:
    now = config.arch.rope_theta
    own = getattr(getattr(target, "arch", None), "rope_theta", None)
    for theta in dict.fromkeys(value for value in (own, *_THETAS) if value not in (None, now)):
        assert theta is not None
        changed = replace(config, arch=replace(config.arch, rope_theta=float(theta)))
        whose = " (the target's)" if theta == own else ""
        yield (
            replace(reading, head=replace(reading.head, config=changed)),
            Change(f"has rope_theta {now:g}", f"{theta:g}{whose}", f"set rope_theta to {theta:g}"),
        )


def _json(value: bool) -> str:
    return str(value).lower()
