"""The forms in which a trained draft is written, by method."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.errors import ConfigError, nearest

FORMS: Mapping[str, tuple[str, ...]] = {
    "eagle3": ("eagle3", "speculators"),
    "medusa": ("medusa_vllm", "medusa"),
    "draft_model": ("outrider", "transformers"),
    "self_draft": ("outrider",),
}
"""The first is the one that this library drafts with."""


def own_form(method: str) -> str:
    """The form that a draft of this method is loaded from."""
    return FORMS[method][0]


def check_form(method: str, form: str) -> None:
    """Raises `ConfigError` naming the forms of a method on any other."""
    if form not in FORMS[method]:
        known = ", ".join(FORMS[method])
        raise ConfigError(f"form must be one of {known}, not {form!r}{nearest(form, FORMS[method])}")
