"""A small model behind the command line: a toy target that speaks bytes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

sys.path.insert(0, str(Path(__file__).parents[1] / "identity"))  # for `tiny_folder`

from outrider.cli.main import run
from outrider.cli.options import EngineSettings
from outrider.core.protocols import Chunk
from outrider.core.records import Context, Draft, Scores
from outrider.llm import LLM
from outrider.testing.toy import ToyTarget
from outrider.text import Tokenizer
from outrider.text.chat import ChatTemplate

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class WatchedTarget(ToyTarget):
    """Remembers the prompts it read; plays a user's Ctrl-C at score number `interrupt_at`."""

    interrupt_at: int | None = None

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.read: list[list[int]] = []

    def extend(self, chunks: Sequence[Chunk]) -> list[object]:  # type: ignore[override]
        self.read += [list(chunk.tokens) for chunk in chunks]
        return super().extend(chunks)  # type: ignore[return-value]

    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        if self.calls["score"] + 1 == self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
        return super().score(contexts, drafts)


def byte_tokenizer() -> Tokenizer:
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, template=ChatTemplate(TEMPLATE, {}))


@dataclass
class Result:
    code: int
    out: str
    err: str


Outrider = Callable[..., Result]


@pytest.fixture
def outrider(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Outrider:
    """Runs one command line in this process, with `stdin` as its standard input."""

    def call(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = run(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> WatchedTarget:
    """The model that every command loads in this test."""
    toy = WatchedTarget(256, order=1, sharpness=6.0, max_length=600)
    tokenizer = byte_tokenizer()

    def load(settings: EngineSettings) -> LLM:
        return LLM.from_parts(toy, tokenizer, speculative_config=settings.speculation)

    monkeypatch.setattr(EngineSettings, "open", load)
    return toy


@pytest.fixture
def ids_of() -> Callable[[str], list[int]]:
    """The toy model's tokens of a text."""
    return byte_tokenizer().encode
