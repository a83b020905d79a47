"""The draft vocabulary of a head: `d2t` and `t2d` as they are stored, target ids as `Head.token_map` has them."""

from __future__ import annotations

import torch

from outrider.errors import ModelLoadError
from outrider.models.head_formats.tensors import HeadTensors


def read_offsets(
    tensors: HeadTensors, rows: int, vocab_size: int, findings: list[str]
) -> torch.Tensor | None:
    """The target's id of each draft id from `d2t` (the offset to it) and `t2d` (which target ids have a draft id).

    None where the vocabularies are equal. Raises `ModelLoadError` when the two contradict each other or the sizes.
    """
    d2t, t2d = tensors.take_index("d2t"), tensors.take_index("t2d")
    if d2t is None and t2d is None:
        if rows != vocab_size:
            raise ModelLoadError(
                f"lm_head.weight has {rows} rows and vocab_size is {vocab_size}, but there is no 'd2t' to translate "
                "draft ids: download the head again"
            )
        return None
    if t2d is not None and (len(t2d) != vocab_size or bool(((t2d != 0) & (t2d != 1)).any())):
        raise ModelLoadError(
            f"t2d must hold {vocab_size} truth values (vocab_size), not {len(t2d)} from {_range(t2d)}: use the "
            "config.json that belongs to the head"
        )
    if d2t is None:
        assert t2d is not None
        findings.append("d2t is not stored: draft ids are the ids that t2d marks, in order")
        token_map = t2d.nonzero().flatten()
    else:
        token_map = d2t + torch.arange(len(d2t))
    check_map(token_map, rows, vocab_size, "d2t" if d2t is not None else "t2d")
    if t2d is None:
        findings.append("t2d is not stored: d2t alone gives the draft vocabulary")
    elif not torch.equal(t2d.nonzero().flatten(), token_map.sort().values):
        marked = set(t2d.nonzero().flatten().tolist())
        odd = min(marked ^ set(token_map.tolist()))
        raise ModelLoadError(
            f"t2d and d2t contradict each other: {'only t2d marks' if odd in marked else 'only d2t reaches'} target "
            f"id {odd}: download the head again"
        )
    return _without_identity(token_map, vocab_size, findings)


def check_map(token_map: torch.Tensor, rows: int, vocab_size: int, source: str) -> None:
    """Raises `ModelLoadError` unless the map names `rows` distinct ids of the target, [rows] int64."""
    if len(token_map) != rows:
        raise ModelLoadError(
            f"{source} is for {len(token_map)} draft ids, but the output matrix has {rows} rows: download the head "
            "again"
        )
    outside = (token_map < 0) | (token_map >= vocab_size)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        raise ModelLoadError(
            f"{source} sends draft id {at} to target id {int(token_map[at])}, beyond the vocabulary of {vocab_size}: "
            "use the config.json that belongs to the head"
        )
    doubled = (token_map.bincount() > 1).nonzero()
    if len(doubled):
        twice = int(doubled[0])
        first, second = (token_map == twice).nonzero().flatten()[:2].tolist()
        raise ModelLoadError(
            f"{source} sends draft ids {first} and {second} both to target id {twice}: download the head again"
        )


def _without_identity(token_map: torch.Tensor, vocab_size: int, findings: list[str]) -> torch.Tensor | None:
    """None for a map that changes nothing, else the map."""
    if len(token_map) == vocab_size and torch.equal(token_map, torch.arange(vocab_size)):
        findings.append("the stored map of draft ids changes nothing: both vocabularies are the target's")
        return None
    return token_map


def d2t_of(token_map: torch.Tensor) -> torch.Tensor:
    """The offsets of a map, [draft_vocab] int64."""
    return token_map - torch.arange(len(token_map))


def t2d_of(token_map: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Which target ids have a draft id, [vocab_size] bool."""
    marks = torch.zeros(vocab_size, dtype=torch.bool)
    marks[token_map] = True
    return marks


def _range(values: torch.Tensor) -> str:
    return f"{int(values.min())} to {int(values.max())}" if len(values) else "nothing"
