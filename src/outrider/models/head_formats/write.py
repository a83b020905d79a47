"""Writes a head to a folder in one of the public forms, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import ModelLoadError, nearest
from outrider.models.head_formats.eagle_forms import eagle3_form, eagle_form, speculators_form
from outrider.models.head_formats.exit import exit_form
from outrider.models.head_formats.form import HeadForm, cannot_hold
from outrider.models.head_formats.medusa_forms import medusa_form, medusa_vllm_form
from outrider.models.heads import EagleConfig, ExitConfig, Head
from outrider.models.new_folder import new_folder, write_model

_EAGLE_FORMS = {"eagle": eagle_form, "eagle3": eagle3_form, "speculators": speculators_form}
_MEDUSA_FORMS = {"medusa": medusa_form, "medusa_vllm": medusa_vllm_form}
_EXIT_FORMS = {"outrider": exit_form}
FORMS = (*_EAGLE_FORMS, *_MEDUSA_FORMS, *_EXIT_FORMS)


def write_head(head: Head, folder: str | Path, form: str, *, target: str | None = None) -> None:
    """Writes config.json and safetensors of `form` (one of `FORMS`) to a new or empty folder.

    `target`: the name of the model that the head was trained for, where the form has a place for it. What `read_head`
    reads back has the same config, the same map and the same bits. The folder appears when it is complete. Raises
    `ModelLoadError` when the form has no place for something the head needs, or the folder cannot be written.
    """
    contents = _contents(head, form, target)
    with new_folder(folder) as path:
        write_model(path, contents.config, contents.tensors, contents.file)


def _contents(head: Head, form: str, target: str | None) -> HeadForm:
    if form not in FORMS:
        raise ModelLoadError(f"form must be one of {', '.join(FORMS)}, not {form!r}{nearest(form, FORMS)}")
    if isinstance(head.config, EagleConfig):
        if form not in _EAGLE_FORMS:
            raise cannot_hold(form, f"it is an EAGLE head: use one of {', '.join(_EAGLE_FORMS)}")
        return _EAGLE_FORMS[form](head, head.config, target)
    if isinstance(head.config, ExitConfig):
        if form not in _EXIT_FORMS:
            raise cannot_hold(form, f"it is an exit head: use {', '.join(_EXIT_FORMS)}")
        return _EXIT_FORMS[form](head, head.config, target)
    if form not in _MEDUSA_FORMS:
        raise cannot_hold(form, f"these are Medusa heads: use one of {', '.join(_MEDUSA_FORMS)}")
    return _MEDUSA_FORMS[form](head, head.config, target)
