"""Linear layers with weights packed once for oneDNN, whose sums do not depend on the number of rows."""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
import torch.nn.functional as F

_LOG = logging.getLogger(__name__)

# oneDNN packs for a number of rows. Packed for 16 it runs one blocked kernel at every width from MIN_ROWS up, with
# the same sum per row; packed for 1 a single row takes another kernel, with another rounding, and is slower.
_PACKED_FOR = 16
MIN_ROWS = 4


@lru_cache(maxsize=1)
def packing_available() -> bool:
    """Whether this build of torch can pack linear weights; warns once where it cannot."""
    try:
        weight = torch.ones(8, 8)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR)
        out = torch.ops.mkldnn._linear_pointwise(torch.ones(1, 8), packed, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        _LOG.warning("packed linear layers are not available (%s): decoding on the CPU is slower", reason)
        return False
    return bool((out == 8).all())


class Linear:
    """x [rows, in] -> [rows, out]. Holds the packed weight only, so memory is not doubled."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._bias = bias
        self._packed = weight.device.type == "cpu" and _packs(weight.dtype) and packing_available()
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        if self._packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_FOR)
        self._weight = weight

    def matrix(self) -> torch.Tensor:  # [out, in]
        """The weight as it was given, in a copy where it is packed."""
        return self._weight.to_dense() if self._packed else self._weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed:
            out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self._bias, "none", [], ""
            )
            return out
        return F.linear(x, self._weight, self._bias)


def _packs(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32
