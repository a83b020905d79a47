"""How often a head's greedy guesses are kept on texts of its target, without decoding anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from outrider.core.records import TokenWeights
from outrider.drafters.calibration import CalibrationText
from outrider.drafters.head_variants import Reading
from outrider.models.eagle_head import EagleHead, attention
from outrider.models.exit_head import ExitHead
from outrider.models.heads import ExitConfig, MedusaConfig
from outrider.models.medusa_head import MedusaHeads

STEPS = 3
"""How many tokens ahead heads are judged."""

Kept = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Material:
    """Texts of a target with hidden states of every token, or of all but the last; `taps`: what their columns are."""

    texts: tuple[CalibrationText, ...]
    features: Sequence[torch.Tensor]  # [tokens, taps, hidden] each
    taps: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Places:
    """Entries of all texts in a row: entry t of a text reads its token t + 1, and guesses its token t + 2."""

    text: torch.Tensor  # [entries] which text
    position: torch.Tensor  # [entries] t
    token: torch.Tensor  # [entries] that of t + 1
    judged: torch.Tensor  # [judged] entries whose guesses all are of answered tokens
    following: torch.Tensor  # [judged, STEPS] the text's tokens at t + 2, t + 3, ...


def kept_guesses(reading: Reading, material: Material, weights: TokenWeights, num_layers: int) -> Kept:
    """How many of up to 3 guesses are kept, for each pending token of the answers, [places].

    Guess j + 1 reads the text's tokens up to guess j, so it counts only where all before it are kept: as in a chain
    drafted at temperature 0. Raises `ModelLoadError` where the head does not fit.
    """
    places = _places(material)
    columns = [material.taps.index(tap) for tap in reading.taps]
    lagged = torch.cat(
        [
            _lagged(features[:, columns], reading.lag, len(text.tokens) - 1)
            for text, features in zip(material.texts, material.features)
        ]
    )  # [entries, taps, hidden]
    device = lagged.device
    with torch.inference_mode():
        if isinstance(reading.head.config, ExitConfig):
            guesses = _exit_guesses(ExitHead(reading.head, weights, device=device), lagged[:, 0], places)
        elif isinstance(reading.head.config, MedusaConfig):
            guesses = _medusa_guesses(
                MedusaHeads(reading.head, weights, device=device), lagged[places.judged, 0]
            )
        else:
            head = EagleHead(reading.head, weights, num_layers=num_layers, device=device)
            guesses = _eagle_guesses(head, lagged, places)
    hits = guesses.cpu() == places.following[:, : guesses.shape[1]]
    kept: Kept = hits.to(torch.int64).cumprod(dim=1).sum(dim=1).numpy()
    return kept


def steps_of(reading: Reading) -> int:
    """How many guesses a pending token gets."""
    config = reading.head.config
    return min(STEPS, config.heads) if isinstance(config, MedusaConfig) else STEPS


def _places(material: Material) -> _Places:
    text: list[int] = []
    position: list[int] = []
    token: list[int] = []
    judged: list[int] = []
    following: list[tuple[int, ...]] = []
    for index, each in enumerate(material.texts):
        entries = len(each.tokens) - 1
        for t in range(max(0, each.start - 2), entries - STEPS):
            judged.append(len(text) + t)
            following.append(each.tokens[t + 2 : t + 2 + STEPS])
        text += [index] * entries
        position += range(entries)
        token += each.tokens[1:]
    return _Places(*map(torch.tensor, (text, position, token, judged, following)))


def _lagged(features: torch.Tensor, lag: int, count: int) -> torch.Tensor:  # [count, taps, hidden]
    """Row t holds the states of position t - lag; at the ends of the text the nearest there are."""
    rows = torch.arange(count, device=features.device) - lag
    return features[rows.clamp(0, len(features) - 1)]


def _medusa_guesses(heads: MedusaHeads, states: torch.Tensor) -> torch.Tensor:  # [judged, heads]
    best = heads(states, min(STEPS, heads.count)).argmax(dim=-1)
    return best if heads.token_map is None else heads.token_map[best]


def _exit_guesses(head: ExitHead, states: torch.Tensor, places: _Places) -> torch.Tensor:  # [judged, STEPS]
    """Entry t guesses the token at t + 2, so guess j is what the state of its own position, t + 1 + j, says."""
    rows = places.judged.to(states.device)[:, None] + 1 + torch.arange(STEPS, device=states.device)
    best = head(states[rows.flatten()]).argmax(dim=-1).view_as(rows)
    return best if head.token_map is None else head.token_map[best]


def _eagle_guesses(
    head: EagleHead,
    features: torch.Tensor,  # [entries, taps, hidden]
    places: _Places,
) -> torch.Tensor:  # [judged, STEPS]
    """Step 0 makes all entries; each later one feeds judged entries on the states that the step before came to."""
    device = features.device
    text, position, token, judged, following = (
        x.to(device) for x in (places.text, places.position, places.token, places.judged, places.following)
    )
    attend = _Chains((text[:, None] == text) & (position <= position[:, None]), judged)
    thoughts = head(token, head.fuse(features), position, attend)
    spoken, states = thoughts.spoken[judged], thoughts.states[judged]
    guesses = []
    for step in range(STEPS):
        best = head.lm_head(spoken).argmax(dim=-1)
        guesses.append(best if head.token_map is None else head.token_map[best])
        if step < STEPS - 1:
            thoughts = head(following[:, step], states, position[judged] + step + 1, attend)
            spoken, states = thoughts.spoken, thoughts.states
    return torch.stack(guesses, dim=1)


class _Chains:
    """Attention of entries, then of one guess per judged entry and call: it sees what the entry sees, and its chain."""

    def __init__(self, visible: torch.Tensor, judged: torch.Tensor) -> None:
        self._visible, self._judged = visible, judged  # bool [entries, entries], [judged]
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self._keys.append(keys)
        self._values.append(values)
        steps = len(self._keys) - 1
        seen = self._visible
        if steps:
            own = torch.eye(len(self._judged), dtype=torch.bool, device=seen.device)
            seen = torch.cat([seen[self._judged], *[own] * steps], dim=1)
        joined = [torch.cat(parts).transpose(0, 1) for parts in (self._keys, self._values)]
        return attention(queries, joined[0], joined[1], seen)
