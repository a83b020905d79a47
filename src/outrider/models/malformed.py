"""`reading`: turns what malformed files make Python raise into one line that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import ModelLoadError, OutriderError

# What code meets that trusts the types and numbers of a file: a list that is a number, an id beyond the table, ...
_MEANS_MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Reads a model's file or folder; raises `ModelLoadError` where its content is not what it must be.

    Errors that name their own cause pass as they are. The original error stays attached as the cause.
    """
    try:
        yield
    except OutriderError:
        raise
    except _MEANS_MALFORMED as error:
        reason = " ".join(str(error).split())[:160]
        raise ModelLoadError(
            f"{path}: holds malformed data ({type(error).__name__}: {reason}): download it again"
        ) from error
