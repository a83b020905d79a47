"""`StudentFiles`: how a trained student is written, borrowing from its target or as a model of its own."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outrider.core.records import TokenWeights
from outrider.models.arch_config import arch_config
from outrider.models.borrowed import BorrowingDraft, files_of, fingerprint_of
from outrider.models.load import ModelSource, SourceKind, load_arch
from outrider.models.new_folder import new_folder, write_model
from outrider.text.gguf import gguf_tokenizer
from outrider.train.forms import check_form
from outrider.train.student import Student

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "vocab.json", "merges.txt",
    "chat_template.jinja", "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class StudentFiles:
    """What a student's files need beside its layers, which are written as bfloat16.

    `source` and `weights`: the target's. `token_map` [draft vocab] int64: the target's ids that it speaks; None: all.
    """

    source: ModelSource
    weights: TokenWeights
    token_map: torch.Tensor | None

    def write(self, student: Student, folder: Path, form: str) -> None:
        """`outrider`: the layers alone, borrowing from the target. `transformers`: a whole model with the target's
        vocabulary and tokenizer, for any engine.

        Raises `ConfigError` on another form, and `ModelLoadError` where the folder cannot be written.
        """
        check_form("draft_model", form)
        if form == "outrider":
            with new_folder(folder) as path:
                write_model(path, *files_of(self.draft(student)))
            return
        with new_folder(folder) as path:
            self._write_whole(student, path)
            self._write_tokenizer(path)

    def draft(self, student: Student) -> BorrowingDraft:
        """The student as it is now."""
        known = fingerprint_of(self.weights)
        return BorrowingDraft(student.arch, _layers(student), known, self.token_map, self.source.name)

    def _write_whole(self, student: Student, path: Path) -> None:
        arch = replace(student.arch, tied_head=load_arch(self.source).tied_head)
        config = {
            "architectures": [_CLASSES[arch.family]],
            **arch_config(arch),
            **self._end_of_text(),
            "torch_dtype": "bfloat16",
        }
        lent = {"model.embed_tokens.weight": self.weights.embedding.to(torch.bfloat16)}
        if not arch.tied_head:
            lent["lm_head.weight"] = self.weights.head.to(torch.bfloat16)
        write_model(path, config, {**lent, **_layers(student)})

    def _end_of_text(self) -> dict[str, int]:
        """The ids of a GGUF file's begin and end of text, which a folder's own files hold."""
        if self.source.kind is SourceKind.FOLDER:
            return {}
        found = self.source.gguf.metadata
        keys = {f"{name}_token_id": f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos")}
        return {name: int(found[key]) for name, key in keys.items() if key in found}

    def _write_tokenizer(self, path: Path) -> None:
        if self.source.kind is SourceKind.FOLDER:
            for name in _TOKENIZER_FILES:
                if (self.source.path / name).is_file():
                    shutil.copyfile(self.source.path / name, path / name)
            return
        metadata = self.source.gguf.metadata
        tokenizer = gguf_tokenizer(metadata)
        tokenizer.save(str(path / "tokenizer.json"))
        settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        for name, index in self._end_of_text().items():
            settings[name.removesuffix("_id")] = tokenizer.id_to_token(index)
        if "tokenizer.chat_template" in metadata:
            settings["chat_template"] = metadata["tokenizer.chat_template"]
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (path / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _layers(student: Student) -> dict[str, torch.Tensor]:
    return {f"model.{name}": tensor.to(torch.bfloat16) for name, tensor in student.state_dict().items()}
