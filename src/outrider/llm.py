"""`LLM`: the facade that joins model, tokenizer, drafter and engine. The only place that wires parts."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from outrider.compiled.contenders import compiled_search
from outrider.config import MOST_DRAFTED, SpeculativeConfig
from outrider.core.completion import Completion
from outrider.core.protocols import Chunk, Drafter, TappedTarget, TargetModel
from outrider.core.records import Budget, Context, Draft, Guarantee, RoundResult
from outrider.core.rules import RejectionMethod, RuleBook
from outrider.core.sampling import SamplingParams
from outrider.core.sequence import Sequence as Running
from outrider.drafters.auto import settled
from outrider.drafters.calibration import Prompts, calibration_prompts
from outrider.drafters.chain import ChainedDrafter
from outrider.drafters.head_check import HeadReport, examine
from outrider.drafters.registry import build_drafter, check_methods
from outrider.drafters.setup import DrafterSetup, tapped
from outrider.engine.controller import BatchSizeController, Controller, FixedController
from outrider.engine.engine import Engine, Parts, run_to_end
from outrider.errors import GenerationError, ModelLoadError, ParameterError
from outrider.intake import Intake, Limits, Prompt, as_params, as_prompts
from outrider.models.heads import Head
from outrider.models.load import check_run, load, resolve
from outrider.models.placement import spare_torch
from outrider.pairing import check_draft, load_draft, load_head
from outrider.stream import Delta, TextStream
from outrider.text import Tokenizer, load_tokenizer

logger = logging.getLogger("outrider")

LOGIT_ROWS = 64
"""Rows per forward of `LLM.logits`: enough to be quick, few enough to bound its memory."""

SpeculativeSettings = Mapping[str, Any] | SpeculativeConfig | None


class LLM:
    """A model with a drafter, ready to write.

    `model`: a name (`smollm2-135m`), a GGUF file, a folder of safetensors, or a hub id in the local cache.
    `target`, `dtype`, `activations` and `threads`: which implementation runs it and how, as `models.load` takes
    them; `threads` given for the compiled decoder leave torch one thread. `speculative_config`: vLLM's keys; None is
    plain decoding. Threads may share it: they take turns, a round each, and their requests are written together.
    Raises `ModelLoadError`, `ConfigError` or `PairError`.
    """

    def __init__(self, model: str, *, target: str = "auto", dtype: str = "auto", device: str = "cpu",
                 activations: str = "auto", threads: int | None = None,
                 speculative_config: SpeculativeSettings = None) -> None:  # fmt: skip
        config = _checked(speculative_config)
        check_run(target, dtype=dtype, device=device, activations=activations, threads=threads)
        source = resolve(model)
        loaded = load(
            source, target=target, dtype=dtype, device=device, activations=activations, threads=threads
        )
        self._join(loaded, load_tokenizer(source), config, threads)
        spare_torch(loaded, threads)  # last: loading a draft for torch sets its threads

    @classmethod
    def from_model(
        cls, hf_model: Any, tokenizer: Any, *, speculative_config: SpeculativeSettings = None
    ) -> LLM:
        """Wraps a transformers model and tokenizer that the caller holds; nothing is reloaded or changed.

        Raises `ModelLoadError`, `ConfigError` or `PairError`.
        """
        from outrider.models.hf import HfTarget

        if not isinstance(hf_model, torch.nn.Module) or not hasattr(hf_model, "config"):
            raise ModelLoadError(
                f"from_model wraps a loaded transformers model, not {type(hf_model).__name__}: load it first, or name "
                "it in LLM(model)"
            )
        config = _checked(speculative_config)
        held = (
            tokenizer
            if isinstance(tokenizer, Tokenizer)
            else Tokenizer.of_transformers(tokenizer, _eos_ids(hf_model))
        )
        return cls.from_parts(HfTarget.wrap(hf_model), held, speculative_config=config)

    @classmethod
    def from_parts(
        cls, target: TargetModel, tokenizer: Tokenizer, *, speculative_config: SpeculativeSettings = None
    ) -> LLM:
        """Joins a target and a tokenizer that are loaded already."""
        llm = cls.__new__(cls)
        llm._join(target, tokenizer, _checked(speculative_config), None)
        return llm

    def with_speculation(self, speculative_config: SpeculativeSettings) -> LLM:
        """The same loaded target under other speculative settings; the two may be used in turn, not at once."""
        return LLM.from_parts(self.target, self.tokenizer, speculative_config=speculative_config)

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 params: SamplingParams | Sequence[SamplingParams] | None = None) -> list[Completion]:  # fmt: skip
        """One completion per prompt, in input order, written in batched rounds.

        Raises `ParameterError` before anything runs, and `GenerationError` after everything ran if some
        requests failed.
        """
        listed, _ = as_prompts(prompts)
        settings = as_params(params, len(listed))
        requests = [self._intake.requests(prompt, sampling) for prompt, sampling in zip(listed, settings)]
        running = [
            [self._engine.submit(r, self._intake.tracker(r.sampling)) for r in choices]
            for choices in requests
        ]
        run_to_end(self._engine, [sequence for choices in running for sequence in choices])
        completions = [self._with_choices(choices) for choices in running]
        self._raise_failures(completions)
        return completions

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> TextStream:
        """The deltas of one completion as they become certain; close or abort it to stop early."""
        sampling = as_params(params, 1)[0]
        if sampling.n != 1:
            raise ParameterError(f"n must be 1 when streaming, not {sampling.n}; `streams` takes more")
        [stream] = self.streams(prompt, sampling)
        return stream

    def streams(self, prompt: Prompt, params: SamplingParams | None = None) -> list[TextStream]:
        """A stream per choice of `params.n`; reading one advances all, in shared rounds."""
        listed, single = as_prompts(prompt)
        if not single:
            raise ParameterError("stream takes one prompt; use generate for a list")
        requests = self._intake.requests(listed[0], as_params(params, 1)[0])
        return [
            TextStream(
                self._engine, self._engine.submit(r, self._intake.tracker(r.sampling)), self._completion
            )
            for r in requests
        ]

    def chat(self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None) -> Completion:
        """The assistant's answer to a conversation, through the model's own chat template."""
        return self.generate(self.tokenizer.chat(messages).token_ids, params)[0]

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Teacher-forced raw logits, float32 [n, vocab] on the host: row i follows `token_ids[: i + 1]`.

        Up to the whole context. Raises `ParameterError` for what is no list of token ids, or too long a one.
        """
        sequence_id, tokens = self._intake.scored(token_ids)
        with self._engine.turn:
            return self._scored(sequence_id, tokens)

    def _scored(self, sequence_id: int, tokens: tuple[int, ...]) -> torch.Tensor:  # [n, vocab]
        rows: list[torch.Tensor] = []
        try:
            self.target.extend([Chunk(sequence_id, ())])
            for start in range(0, len(tokens), LOGIT_ROWS):
                piece = tokens[start : start + LOGIT_ROWS + 1]
                context = Context.of(tokens[: start + 1], sequence_id=sequence_id)
                draft = Draft.chain(piece[1:LOGIT_ROWS])
                [scores] = self.target.score([context], [draft])
                rows.append(scores.logits.to("cpu", torch.float32, copy=True))
                kept = tuple(range(len(draft)))
                self.target.commit([RoundResult(sequence_id, piece[1:], kept, draft, scores)])
        finally:
            self.target.release(sequence_id)
        return torch.cat(rows)

    def check_head(self, head: Head) -> HeadReport | None:
        """How often a head is right on this target, other readings of its files compared.

        None where the target shows no hidden states, or no calibration text fits it. The target stays tapped.
        """
        if not isinstance(self.target, TappedTarget):
            return None
        return examine(self.target, head, _calibration(self.tokenizer))

    @property
    def guarantee(self) -> str:
        """What holds for every text: the configured guarantee, qualified where the target is not row-invariant."""
        if self.config.guarantee == Guarantee.SAME_TEXT.value and not self.target.row_invariant:
            return "same_text up to rounding ties"
        return self.config.guarantee

    @property
    def guarantee_reason(self) -> str:
        """Why `guarantee` is what it is, in one sentence."""
        name = type(self.target).__name__
        if self.config.guarantee == Guarantee.SAME_DISTRIBUTION.value:
            return f"the acceptance rule keeps the law of the logits that {name} returns"
        if self.target.row_invariant:
            return "the target's logits are bitwise equal at any width"
        return f"{name} may round a row differently in a wider pass, which can move a near tie between two tokens"

    def _join(
        self, target: TargetModel, tokenizer: Tokenizer, config: SpeculativeConfig, threads: int | None
    ) -> None:
        compiled_search()  # a wrong OUTRIDER_ISA is told here, whatever the target, and not amid a text
        config = _fitting(settled(config, target), target)
        self.target = target
        self.tokenizer = tokenizer
        self.config = config
        self._intake = Intake(
            tokenizer, Limits(target.vocab_size, target.max_length), Guarantee(config.guarantee)
        )
        setup = DrafterSetup(
            config,
            target,
            load_draft=lambda: load_draft(config, tokenizer, target, threads),
            load_head=lambda: load_head(config),
            prompts=lambda: _calibration(tokenizer),
        )
        self.drafter = drafter = _tapping(build_drafter(setup), target)
        method = config.rejection_sample_method
        self._engine = Engine(
            Parts(
                target=target,
                drafter=drafter,
                rules=RuleBook(None if method is None else RejectionMethod(method)),
                controller=_controller(config),
                num_spec_tokens=config.longest,
            )
        )

    def _completion(self, running: Running) -> Completion:
        sampling = running.request.sampling
        return Completion(
            text=running.text,
            token_ids=running.token_ids,
            finish_reason=running.finish_reason.value if running.finish_reason else None,
            seed=running.request.seed,
            guarantee=self.guarantee,
            stats=running.stats,
            prompt_tokens=len(running.request.prompt),
            timings=running.timings,
            logprobs=None if sampling.logprobs is None else tuple(running.logprobs),
            from_draft=tuple(piece.from_draft for piece in running.pieces),
            error=running.error,
        )

    def _with_choices(self, choices: Sequence[Running]) -> Completion:
        completions = tuple(self._completion(running) for running in choices)
        if len(completions) == 1:
            return completions[0]
        return dataclasses.replace(completions[0], choices=completions)

    def _raise_failures(self, completions: list[Completion]) -> None:
        failed = [
            (i, c.error) for i, done in enumerate(completions) for c in (done.choices or (done,)) if c.error
        ]
        if failed:
            index, error = failed[0]
            more = f" ({len(failed)} requests failed)" if len(failed) > 1 else ""
            raise GenerationError(f"prompt {index}: {error}{more}", completions)


def _eos_ids(hf_model: Any) -> tuple[int, ...]:
    """The end-of-text ids of a transformers model's generation settings; empty when it names none."""
    settings = getattr(hf_model, "generation_config", None) or hf_model.config
    ids = getattr(settings, "eos_token_id", None)
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)


def _checked(settings: SpeculativeSettings) -> SpeculativeConfig:
    """The settings, refused where that can be told without a model. Raises `ConfigError`."""
    config = SpeculativeConfig.of(settings)
    check_methods(config)
    check_draft(config)
    return config


def _fitting(config: SpeculativeConfig, target: TargetModel) -> SpeculativeConfig:
    """The settings without trees where the target cannot score them, with a line saying so."""
    if not config.drafts_trees or target.supports_trees:
        return config
    logger.warning("%s takes no tree mask: drafting chains instead of trees", type(target).__name__)
    return dataclasses.replace(config, topk=None, tree_budget=None)


def _calibration(tokenizer: Tokenizer) -> Prompts:
    """The tokens of the texts that heads are checked on."""
    prompts: list[tuple[int, ...]] = []
    for text in calibration_prompts():
        with suppress(ParameterError):  # this vocabulary cannot write it
            prompts.append(tuple(tokenizer.encode(text)))
    return tuple(prompts)


def _tapping(drafter: Drafter, target: TargetModel) -> Drafter:
    """The drafter, handed its own columns of whatever the target's features hold. Raises `ConfigError`."""
    if not drafter.taps:
        return drafter
    shown = tapped(target)
    shown.tap(drafter.taps)
    return ChainedDrafter([drafter], columns=shown.taps)


def _controller(config: SpeculativeConfig) -> Controller:
    budget = Budget(config.depth, config.nodes)
    schedule = config.num_speculative_tokens_per_batch_size
    if schedule is None:
        return FixedController(budget)
    rows = tuple((first, last, depth) for first, last, depth in schedule)
    return BatchSizeController(rows, budget, config.tree_budget or MOST_DRAFTED)


__all__ = ["LLM", "Delta"]
