"""The check of heads: what it measures is what drafting keeps, and each thing that shapes cannot tell is found.

Targets speak by a rule, so that a head of a few thousand weights learns them within seconds. Then one setting of the
trained head is broken on purpose.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from outrider.core.law import Floats
from outrider.core.records import TokenWeights
from outrider.drafters.calibration import CalibrationText, calibration_prompts, calibration_texts, features_of
from outrider.drafters.head_check import HeadReport, check_at_load, examine
from outrider.drafters.head_measure import Material, kept_guesses
from outrider.drafters.head_variants import reading_of
from outrider.models.arch import Arch, RopeScaling
from outrider.models.eagle_head import EagleHead
from outrider.models.exit_head import ExitHead, untrained_exit
from outrider.models.head_cache import CachedHead, Entries, Guesses
from outrider.models.heads import EagleConfig, ExitConfig, Head, MedusaConfig
from outrider.models.medusa_head import MedusaHeads, untrained_head
from outrider.testing.toy import ToyTarget
from outrider.train.eagle3 import Eagle3Recipe, eagle3_config, initial_head
from outrider.train.teacher import Lesson, Numbers, Teacher
from outrider.train.texts import Text, batch_of

HIDDEN, LAYERS, VOCAB = 32, 6, 7
Rule = Callable[[Sequence[int]], int]


def mixing(tokens: Sequence[int]) -> int:
    """The next token hangs on the last two."""
    return (tokens[-1] + 5 * tokens[-2] + 3) % VOCAB if len(tokens) > 1 else 0


def stepping(tokens: Sequence[int]) -> int:
    """The next token hangs on the last."""
    return (3 * tokens[-1] + 1) % VOCAB if tokens else 0


class RuledTarget(ToyTarget):
    """Speaks by a rule. Each hidden state shows the last token, in a code of its layer."""

    hidden_size = HIDDEN

    def __init__(self, rule: Rule, *, late: bool = False) -> None:
        super().__init__(VOCAB, num_layers=LAYERS, language=_Ruled(rule))
        self.arch = Arch("llama", LAYERS, HIDDEN, 64, 2, 1, 16, VOCAB, 1e-5, 10000.0, RopeScaling(),
                         False, False, False, False, False, 128)  # fmt: skip
        made = torch.Generator().manual_seed(9)
        self._codes = torch.randn(LAYERS + 1, VOCAB, HIDDEN, generator=made)
        self._late = late

    def token_weights(self) -> TokenWeights:
        made = torch.Generator().manual_seed(3)
        embedding, head = torch.randn(2, VOCAB, HIDDEN, generator=made)
        return TokenWeights(embedding, head / 6, torch.exp(0.7 * torch.randn(HIDDEN, generator=made)), 1e-5)

    def _states(self, texts: Sequence[Sequence[int]], taps: Sequence[int]) -> torch.Tensor:
        return torch.stack([torch.stack([self._state(tap, text) for tap in taps]) for text in texts])

    def _state(self, tap: int, text: Sequence[int]) -> torch.Tensor:  # [hidden]
        seen = [0, *(text[:-1] if self._late else text)]
        return self._codes[tap, seen[-1]]


class _Ruled:
    vocab_size = VOCAB

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def __call__(self, tokens: Sequence[int]) -> Floats:  # [vocab]
        return np.eye(VOCAB)[self._rule(tokens)] * 9.0


def prompts(count: int = 8, seed: int = 1) -> tuple[tuple[int, ...], ...]:
    made = torch.Generator().manual_seed(seed)
    return tuple(tuple(torch.randint(VOCAB, (5,), generator=made).tolist()) for _ in range(count))


def spoken(rule: Rule, count: int = 48, length: int = 20) -> list[CalibrationText]:
    texts = [list(prompt) for prompt in prompts(count, seed=2)]
    for text in texts:
        while len(text) < length:
            text.append(rule(text))
    return [CalibrationText(tuple(text), 5) for text in texts]


def trained(target: RuledTarget, rule: Rule, steps: int) -> Head:
    """An EAGLE-3 head of the target's own shape after this many steps on texts of the rule."""
    config = replace(eagle3_config(target.arch, (1, 3, 5), VOCAB), fc_norm=False)
    weights = target.token_weights()
    recipe = Eagle3Recipe(
        initial_head(config, weights, None, seed=0),
        Teacher(weights, LAYERS),
        Lesson(steps=3),
        numbers=Numbers(),
    )
    texts = spoken(rule)
    features = features_of(target, texts, recipe.taps)
    batch = batch_of([Text(t.tokens[: t.start], t.tokens[t.start :], 0.0, "rule") for t in texts], features)
    parameters = [p for p in recipe.module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
    for _ in range(steps):
        loss = sum(
            F.cross_entropy(
                F.linear(step.spoken, step.matrix), batch.tokens[step.texts, step.pending + 1 + j]
            )
            for j, step in enumerate(recipe.unroll(batch))
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()
        rates.step()
    return replace(recipe.trained(torch.float32), name="trained")


@cache
def mixing_head() -> Head:
    return trained(RuledTarget(mixing), mixing, 60)


def changed(head: Head, **settings: object) -> Head:
    assert isinstance(head.config, EagleConfig)
    theta = settings.pop("rope_theta", head.config.arch.rope_theta)
    arch = replace(head.config.arch, rope_theta=theta)
    return replace(head, config=replace(head.config, arch=arch, **settings))  # type: ignore[arg-type]


def report(target: RuledTarget, head: Head) -> HeadReport:
    found = examine(target, head, prompts())
    assert found is not None
    return found


def test_a_head_that_is_read_as_it_was_trained_gets_no_warning() -> None:
    found = report(RuledTarget(mixing), mixing_head())
    assert found.acceptance.rate > 0.6
    assert found.compared
    assert found.better is None
    assert found.warning is None
    assert found.acceptance.by_position[0] >= found.acceptance.by_position[1]


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"taps": (0, 2, 4)}, "set eagle_aux_hidden_state_layer_ids to [1, 3, 5]"),
        ({"taps": (2, 4, 6)}, "set eagle_aux_hidden_state_layer_ids to [1, 3, 5]"),
        ({"taps": (5, 3, 1)}, "set eagle_aux_hidden_state_layer_ids to [1, 3, 5]"),
        ({"norm_before_residual": False}, "set norm_before_residual to true"),
        ({"norm_output": False}, "set norm_output to true"),
        ({"rope_theta": 1_000_000.0}, "set rope_theta to 10000"),
    ],
    ids=["a layer below", "a layer above", "reversed", "residual", "output", "rope"],
)
def test_a_broken_setting_is_found_with_its_remedy(settings: dict[str, object], remedy: str) -> None:
    target = RuledTarget(mixing)
    right, broken = report(target, mixing_head()), report(target, changed(mixing_head(), **settings))
    assert broken.better is not None
    assert [change.remedy for change in broken.better.changes] == [remedy]
    assert broken.better.acceptance == right.acceptance
    assert broken.warning is not None
    assert remedy in broken.warning


def test_two_broken_settings_are_found_together() -> None:
    found = report(RuledTarget(mixing), changed(mixing_head(), taps=(2, 4, 6), norm_before_residual=False))
    assert found.better is not None
    assert {change.remedy for change in found.better.changes} == {
        "set eagle_aux_hidden_state_layer_ids to [1, 3, 5]",
        "set norm_before_residual to true",
    }


READING = tuple(f"layers.0.self_attn.{name}_proj.weight" for name in "qkv")  # [token, state] columns


def with_halves_exchanged(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.roll(tensors[name], HIDDEN, dims=1) for name in READING}


def with_norms_exchanged(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of the same head with norms that differ more: columns of the token take back what its norm scales."""
    scale = torch.exp(2 * torch.randn(HIDDEN, generator=torch.Generator().manual_seed(4)))
    columns = torch.cat([scale, torch.ones(HIDDEN)])
    token, state = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
    exchanged = {token: tensors[state], state: tensors[token] * scale}
    return exchanged | {name: tensors[name] / columns for name in READING}


@pytest.mark.parametrize(
    ("exchange", "remedy"),
    [
        (with_halves_exchanged, "exchange the two halves in its file"),
        (with_norms_exchanged, "exchange the two tensors in its file"),
    ],
    ids=["halves", "norms"],
)
def test_what_was_exchanged_is_found(
    exchange: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]], remedy: str
) -> None:
    head = mixing_head()
    found = report(RuledTarget(mixing), replace(head, tensors={**head.tensors, **exchange(head.tensors)}))
    assert found.better is not None
    assert [change.remedy for change in found.better.changes] == [remedy]


def stepping_exit(target: RuledTarget) -> Head:
    """An exit head that has learnt the rule from the states behind three layers."""
    token = target.token_weights()
    start = untrained_exit(ExitConfig(3, HIDDEN, 64, VOCAB, VOCAB), token)
    module = ExitHead(start, token)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01)
    states, wanted = target._codes[3], torch.tensor([stepping([last]) for last in range(VOCAB)])
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(module(states), wanted).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return replace(start, tensors=module.tensors(), name="trained")


@pytest.mark.parametrize("exit_layer", [2, 4])
def test_an_exit_head_behind_another_layer_is_found(exit_layer: int) -> None:
    target = RuledTarget(stepping)
    head = stepping_exit(target)
    right = report(target, head)
    assert right.acceptance.rate == 1.0
    assert right.warning is None
    assert isinstance(head.config, ExitConfig)
    found = report(target, replace(head, config=replace(head.config, exit_layer=exit_layer)))
    assert found.better is not None
    assert [change.remedy for change in found.better.changes] == ["set exit_layer to 3"]
    assert found.better.acceptance == right.acceptance


def test_states_that_come_one_position_late_are_found() -> None:
    found = report(RuledTarget(mixing, late=True), mixing_head())
    assert found.better is not None
    [change] = found.better.changes
    assert change.instead == "pairing it with that of the same position"


def test_medusa_heads_that_were_trained_one_token_off_are_found() -> None:
    target = RuledTarget(stepping)
    for shift, instead in ((0, None), (-1, "pairing it with that of the same position")):
        found = report(target, medusa(target, shift))
        assert (found.better is None) == (instead is None)
        if found.better is not None:
            assert [change.instead for change in found.better.changes] == [instead]
            assert found.better.acceptance.rate > 0.95


def test_medusa_heads_that_were_trained_on_another_layer_are_found() -> None:
    target = RuledTarget(stepping)
    found = report(target, medusa(target, 0, tap=LAYERS - 1))
    assert found.better is not None
    assert [change.instead for change in found.better.changes] == [f"reading {LAYERS - 1}"]


def medusa(target: RuledTarget, shift: int, tap: int = LAYERS) -> Head:
    """Two heads that speak of the tokens `shift` places behind those that they should speak of."""
    config = MedusaConfig(2, 1, HIDDEN, VOCAB, VOCAB)
    weights = target.token_weights()
    heads = MedusaHeads(untrained_head(config, weights), weights)
    texts = spoken(stepping, count=24)
    states = torch.stack([features[:, 0] for features in features_of(target, texts, (tap,))])
    tokens = torch.tensor([text.tokens for text in texts])
    optimizer = torch.optim.AdamW(heads.parameters(), lr=0.02)
    for _ in range(60):
        rows = heads(states[:, 4:-4].flatten(0, 1))  # [n, 2, vocab]
        wanted = torch.stack(
            [tokens[:, 4 + 2 + i + shift : tokens.shape[1] - 4 + 2 + i + shift].flatten() for i in range(2)],
            dim=1,
        )
        loss = F.cross_entropy(rows.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Head(config, heads.tensors(), name="heads")


def test_an_untrained_head_is_told_from_a_misread_one() -> None:
    target = RuledTarget(
        lambda tokens: 1 + tokens[-1] % (VOCAB - 1)
    )  # never says token 0, the head nothing else
    tensors = {name: torch.zeros_like(tensor) for name, tensor in mixing_head().tensors.items()}
    head = replace(mixing_head(), tensors=tensors, name="blank")
    found = report(target, head)
    assert found.better is None
    assert found.warning is not None
    assert "use a head that was trained for this target" in found.warning


def test_what_is_measured_is_what_drafting_keeps() -> None:
    target, head = RuledTarget(mixing), mixing_head()
    reading = reading_of(head, LAYERS)
    texts, features = calibration_texts(target, prompts(3), reading.taps)
    kept = kept_guesses(reading, Material(texts, features, reading.taps), target.token_weights(), LAYERS)
    drafted = [
        drafted_and_kept(head, target, text, shown, pending)
        for text, shown in zip(texts, features)
        for pending in range(text.start - 1, len(text.tokens) - 3)
    ]
    assert kept.tolist() == drafted
    assert 0 < sum(drafted) < 3 * len(drafted)


def drafted_and_kept(
    head: Head, target: RuledTarget, text: CalibrationText, features: torch.Tensor, pending: int
) -> int:
    """How many tokens of a greedy chain of three below the token at `pending` are the text's."""
    cached = CachedHead(EagleHead(head, target.token_weights(), num_layers=LAYERS))
    cached.extend([Entries(0, 0, text.tokens[1 : pending + 1], features[:pending])])
    row, kept = cached.pending_rows([0])[0], 0
    while kept < 3 and int(row.argmax()) == text.tokens[pending + 1 + kept]:
        row = cached.guess([Guesses(0, (int(row.argmax()),), (kept,))])[0][0]
        kept += 1
    return kept


def test_a_sound_head_is_measured_once_and_compared_only_when_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = RuledTarget(mixing)
    with caplog.at_level(logging.INFO):
        first = check_at_load(target, mixing_head(), target.token_weights(), prompts())
        calls = dict(target.calls)
        assert check_at_load(target, mixing_head(), target.token_weights(), prompts()) is first
    assert dict(target.calls) == calls
    assert first is not None
    assert not first.compared
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert target.taps == (1, 3, 5)
    assert target.open_sequences == ()
    assert report(target, mixing_head()).compared


def test_a_misread_head_warns_at_load_and_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    broken = changed(mixing_head(), taps=(2, 4, 6))
    with caplog.at_level(logging.INFO):
        target = RuledTarget(mixing)
        check_at_load(target, broken, target.token_weights(), prompts())
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "reads hidden states [2, 4, 6], reading [1, 3, 5] is right" in caplog.text
    assert broken.config.taps == (2, 4, 6)  # type: ignore[union-attr]


def test_texts_are_the_target_s_own_and_fit_its_context() -> None:
    target = RuledTarget(mixing)
    texts, features = calibration_texts(target, prompts(), (1, 4))
    again = features_of(target, texts, (1, 4))
    for text, prompt, shown, whole in zip(texts, prompts(), features, again):
        assert torch.equal(shown, whole[:-1])
        assert text.tokens[: text.start] == prompt
        assert len(text.tokens) == text.start + 16
        for end in range(text.start, len(text.tokens)):
            assert text.tokens[end] == mixing(text.tokens[:end])
    short = ToyTarget(VOCAB, max_length=12)
    assert [len(text.tokens) for text in calibration_texts(short, ((1, 2, 3), (1, 2)), (1,))[0]] == [12, 11]
    assert calibration_texts(short, ((1,) * 7, (VOCAB,), ()), (1,)) == ((), [])
    assert calibration_texts(ToyTarget(VOCAB, max_length=4), ((1, 2),), (1,)) == ((), [])


def test_the_package_brings_prompts_of_prose_code_and_chat() -> None:
    assert len(calibration_prompts()) == 12
    assert all(text.strip() for text in calibration_prompts())
