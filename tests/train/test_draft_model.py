"""Distilled draft models: what is trained is what drafts; who is judged where; what is written comes back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tiny_target import ARCH, VARIANTS, VOCAB, save_target

from outrider import LLM, SamplingParams
from outrider.cli.inspect import inspect
from outrider.core.protocols import Chunk
from outrider.core.records import Context, Draft
from outrider.errors import ConfigError, ModelLoadError, PairError
from outrider.models.arch import Arch
from outrider.models.borrowed import read_borrowing
from outrider.models.load import load, load_arch, load_state, resolve
from outrider.models.torch_decoder import TorchDecoder
from outrider.text import load_tokenizer
from outrider.train.draft_model import DraftModelRecipe
from outrider.train.student import initialised
from outrider.train.student_files import StudentFiles
from outrider.train.teacher import Lesson, Teacher
from outrider.train.texts import Batch, Text, batch_of

MAP = torch.arange(3, VOCAB, 2)
STEPS = 3


def opened(folder: Path | str) -> TorchDecoder:
    target = load(str(folder), target="torch", dtype="float32")
    assert isinstance(target, TorchDecoder)
    return target


def recipe_of(
    folder: str, layers: tuple[int, ...] = (0, 2), token_map: torch.Tensor | None = MAP, loss: str = "kl_div"
) -> DraftModelRecipe:
    source = resolve(folder)
    arch, weights = load_arch(source), opened(folder).token_weights()
    student = initialised(arch, load_state(source), layers)
    files = StudentFiles(source, weights, token_map)
    teacher = Teacher(weights, arch.layers)
    return DraftModelRecipe(student, teacher, files, Lesson(loss, STEPS))


def spoken_texts(target: TorchDecoder, count: int = 3, length: int = 20) -> Batch:
    """Prompts of different lengths with the target's greedy answers."""
    target.tap([target.num_layers])
    made = torch.Generator().manual_seed(5)
    texts, features = [], []
    for number in range(count):
        prompt = torch.randint(0, VOCAB, (3 + number,), generator=made).tolist()
        tokens = list(prompt)
        target.extend([Chunk(number, tokens[:-1])])
        while len(tokens) < length - number:
            target.rewind(number, len(tokens) - 1)
            [scores] = target.score([Context.of(tokens, sequence_id=number)], [Draft.chain([])])
            target.extend([Chunk(number, tokens[-1:])])
            tokens.append(int(scores.logits[0].argmax()))
        target.rewind(number, 0)
        [states] = target.extend([Chunk(number, tokens)])
        assert states is not None
        features.append(states.clone())
        texts.append(Text(tuple(prompt), tuple(tokens[len(prompt) :]), 0.0, "made"))
    return batch_of(texts, features)


def rows_of(decoder: TorchDecoder, tokens: list[int]) -> torch.Tensor:  # [n, spoken]
    decoder.release(0)
    return decoder.score([Context.of(tokens[:1])], [Draft.chain(tokens[1:])])[0].logits.clone()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_target(tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture(scope="module")
def draft(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that borrows from the target, untrained."""
    path = tmp_path_factory.mktemp("tiny") / "draft"
    recipe_of(folder).write(path, "outrider")
    return path


@pytest.mark.parametrize("arch", list(VARIANTS.values()), ids=list(VARIANTS))
def test_a_forward_in_half_precision_is_near(arch: Arch, tmp_path: Path) -> None:
    folder = save_target(tmp_path / "target", arch)
    recipe, batch = recipe_of(folder), spoken_texts(opened(folder))
    whole = recipe.judge(batch)
    with torch.autocast("cpu", torch.bfloat16):
        half = recipe.judge(batch)
    torch.testing.assert_close(half.losses, whole.losses, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("arch", list(VARIANTS.values()), ids=list(VARIANTS))
@pytest.mark.parametrize("token_map", [MAP, None], ids=["part", "all"])
def test_what_is_trained_is_what_drafts(arch: Arch, token_map: torch.Tensor | None, tmp_path: Path) -> None:
    """The rows of a padded batch under training are those of the decoder that the written folder makes."""
    folder = save_target(tmp_path / "target", arch)
    recipe = recipe_of(folder, token_map=token_map)
    recipe.write(tmp_path / "draft", "outrider")
    found = read_borrowing(tmp_path / "draft", "draft")
    recipe.module.load_state_dict({name.removeprefix("model."): t for name, t in found.tensors.items()})
    weights = opened(folder).token_weights()
    state = found.state(weights)
    decoder = TorchDecoder(found.arch, state, spoken_size=len(state["lm_head.weight"]))
    tokens = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        states = recipe.module(weights.embedding[tokens])
    for text, own in zip(tokens.tolist(), states @ state["lm_head.weight"].T):
        torch.testing.assert_close(own, rows_of(decoder, text), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arch", list(VARIANTS.values()), ids=list(VARIANTS))
def test_a_folder_gives_back_the_same_bits(arch: Arch, tmp_path: Path) -> None:
    recipe = recipe_of(save_target(tmp_path / "target", arch))
    recipe.write(tmp_path / "draft", "outrider")
    found = read_borrowing(tmp_path / "draft", "draft")
    written = {f"model.{name}": tensor.bfloat16() for name, tensor in recipe.module.state_dict().items()}
    assert found.tensors.keys() == written.keys()
    assert all(torch.equal(found.tensors[name], written[name]) for name in written)
    assert found.token_map is not None
    assert torch.equal(found.token_map, MAP)
    assert (found.arch, found.target) == (replace(arch, layers=2, tied_head=False), "target")


def test_a_student_of_all_layers_is_the_target(folder: str) -> None:
    """Judged on the target's own text at temperature 0, it is always right and has no loss."""
    batch = spoken_texts(opened(folder))
    recipe = recipe_of(folder, (0, 1, 2), None)
    judged = recipe.judge(batch)
    assert judged.loss.detach() < 1e-5
    torch.testing.assert_close(judged.overlaps, judged.counts.float(), rtol=1e-4, atol=0)
    assert judged.hits.sum(dim=(0, 1)).tolist() == judged.counts.tolist()


def test_guess_j_of_a_pending_token_is_the_row_j_behind_it(folder: str) -> None:
    batch = spoken_texts(opened(folder))
    recipe = recipe_of(folder)
    judged = recipe.judge(batch)
    weights = opened(folder).token_weights()
    with torch.no_grad():
        best = MAP[(recipe.module(weights.embedding[batch.tokens]) @ weights.head[MAP].T).argmax(dim=-1)]
    counts = [0] * STEPS
    for text, answered in enumerate(batch.answered.tolist()):
        for pending in range(len(answered)):
            for step in range(STEPS):
                successor = pending + 1 + step
                counts[step] += all(answered[pending + 1 : successor + 1]) and successor < len(answered)
                hit = bool(judged.hits[text, pending, step])
                if successor < len(answered) and all(answered[pending + 1 : successor + 1]):
                    assert hit == bool(best[text, successor - 1] == batch.tokens[text, successor])
                else:
                    assert not hit
    assert judged.counts.tolist() == counts
    assert judged.hits.any()


def test_tokens_that_it_does_not_speak_are_misses_without_loss(folder: str) -> None:
    batch = spoken_texts(opened(folder))
    outside = batch.answered & ~torch.isin(batch.tokens, MAP)
    assert outside.any()
    whole = recipe_of(folder, token_map=None).judge(batch)
    part = recipe_of(folder).judge(batch)
    assert part.counts.tolist() == whole.counts.tolist()
    assert float(part.overlaps[0]) < float((batch.answered & ~outside).sum())
    assert not part.hits[:, :-1, 0][outside[:, 1:]].any()


@pytest.mark.parametrize("loss", ["kl_div", "lk_hybrid"])
def test_training_raises_what_it_gets_right_and_leaves_the_targets_own_alone(folder: str, loss: str) -> None:
    target = opened(folder)
    batch = spoken_texts(target, count=6, length=40)
    recipe = recipe_of(folder, loss=loss)
    before = recipe.judge(batch)
    optimizer = torch.optim.AdamW(recipe.module.parameters(), lr=3e-3)
    for _ in range(25):
        optimizer.zero_grad()
        recipe.judge(batch).loss.backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in recipe.module.parameters())
        optimizer.step()
    after = recipe.judge(batch)
    assert after.loss.detach() < 0.5 * before.loss.detach()
    assert int(after.hits.sum()) > 1.2 * int(before.hits.sum())
    assert float(after.overlaps[0]) > 1.2 * float(before.overlaps[0])


def refused(draft: Path, arch: Arch, folder: Path, seed: int = 1) -> str:
    target = save_target(folder / "other", arch, seed)
    with pytest.raises(PairError) as error:
        LLM(target, speculative_config={"method": "draft_model", "model": str(draft)})
    return str(error.value)


def test_another_target_is_refused_by_what_differs(draft: Path, tmp_path: Path) -> None:
    for index, (arch, seed, reason) in enumerate((
        (replace(ARCH, vocab_size=260), 1, "with a vocabulary of 256 tokens, and this target has a vocabulary of 260"),
        (replace(ARCH, hidden=16), 1, "with hidden states of 32 values, and this target has hidden states of 16"),
        (ARCH, 2, "'target', and this target has another embedding"),
    )):  # fmt: skip
        (tmp_path / str(index)).mkdir()
        message = refused(draft, arch, tmp_path / str(index), seed)
        assert reason in message
        assert "draft model 'draft' was trained for 'target'" in message


def test_the_sample_in_a_file_is_of_tokens_from_the_first_to_the_last(folder: str, draft: Path) -> None:
    embedding = opened(folder).token_weights().embedding
    sample = load_file(draft / "model.safetensors")["embedding_sample"]
    assert torch.equal(sample, embedding[torch.linspace(0, VOCAB - 1, 64).long()].bfloat16())


def test_a_target_in_another_precision_is_known_again(folder: str, draft: Path) -> None:
    found = read_borrowing(draft, "draft")
    for dtype in ("float32", "bfloat16"):
        found.check(load(folder, target="torch", dtype=dtype).token_weights())  # type: ignore[attr-defined]


@pytest.mark.native
def test_a_target_of_four_bits_is_known_again(folder: str, draft: Path) -> None:
    read_borrowing(draft, "draft").check(load(folder, target="native", dtype="int4").token_weights())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("d2t", "t2d and d2t contradict"),
        ("embedding_sample", "has shape"),
        ("model.norm.weight", "is missing"),
    ],
)
def test_a_damaged_folder_is_an_error_that_names_the_part(
    draft: Path, tmp_path: Path, name: str, reason: str
) -> None:
    shutil.copytree(draft, tmp_path / "draft")
    file = tmp_path / "draft" / "model.safetensors"
    tensors = load_file(file)
    if name == "d2t":
        tensors[name][0] += 1
    elif name == "embedding_sample":
        tensors[name] = tensors[name][1:].clone()
    else:
        del tensors[name]
    save_file(tensors, file)
    with pytest.raises(ModelLoadError, match=reason) as error:
        read_borrowing(tmp_path / "draft", "draft")
    assert name in str(error.value)


def test_it_is_no_model_of_its_own(draft: Path) -> None:
    with pytest.raises(ModelLoadError, match="borrow the rest from their target: give them as 'model'"):
        LLM(str(draft))


def test_inspect_tells_a_target_from_another(folder: str, draft: Path, tmp_path: Path) -> None:
    other = save_target(tmp_path / "other", ARCH, seed=2)
    for target, code, verdict in ((folder, 0, "compatible"), (other, 1, "incompatible")):
        done = CliRunner().invoke(inspect, [target, "--draft", str(draft), "--json"], standalone_mode=False)
        pair = json.loads(done.output[done.output.index("{") :])["pair"]
        assert (done.return_value, pair["verdict"]) == (code, verdict)
    assert "this target has another embedding" in pair["first_difference"]


@pytest.mark.parametrize("kind", [pytest.param("native", marks=pytest.mark.native), "torch"])
@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("guarantee", ["same_text", "same_distribution"])
def test_texts_are_those_of_plain_decoding(
    folder: str, draft: Path, kind: str, dtype: str | None, topk: int, guarantee: str
) -> None:
    settings = {"method": "draft_model", "model": str(draft), "topk": topk, "guarantee": guarantee}
    if dtype is not None:
        settings["draft_dtype"] = dtype
    llm = LLM(folder, target=kind, dtype="float32", speculative_config=settings)
    temperatures = (0.0, 0.8) if guarantee == "same_text" else (0.0,)
    params = [SamplingParams(temperature=t, seed=3, max_tokens=50) for t in temperatures]
    prompts = [[40, 41, 42, 43]] * len(params)
    plain = llm.with_speculation(None).generate(prompts, params)
    fast = llm.generate(prompts, params)
    assert [c.token_ids for c in fast] == [c.token_ids for c in plain]
    assert all(c.stats.num_draft_tokens > 0 for c in fast)


def test_a_whole_model_drafts_as_the_one_that_borrows(folder: str, tmp_path: Path) -> None:
    recipe = recipe_of(folder, token_map=None)
    recipe.write(tmp_path / "whole", "transformers")
    recipe.write(tmp_path / "draft", "outrider")
    whole, found = opened(tmp_path / "whole"), read_borrowing(tmp_path / "draft", "draft")
    borrowing = TorchDecoder(found.arch, found.state(whole.token_weights()))
    tokens = list(range(40, 60))
    torch.testing.assert_close(rows_of(whole, tokens), rows_of(borrowing, tokens), rtol=1e-6, atol=1e-6)
    done = []
    for name in ("whole", "draft"):
        settings = {"method": "draft_model", "model": str(tmp_path / name), "draft_dtype": "float32"}
        llm = LLM(folder, target="torch", dtype="float32", speculative_config=settings)
        done.append(llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=30))[0])
    assert done[0].token_ids == done[1].token_ids


def test_unknown_forms_and_layers_are_named(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="form must be one of outrider, transformers, not 'outsider'"):
        recipe_of(folder).write(tmp_path / "draft", "outsider")
    with pytest.raises(ConfigError, match="layer 3 is not one of the target's: they are 0 to 2"):
        recipe_of(folder, (0, 3))
    with pytest.raises(ConfigError, match="needs at least one layer"):
        recipe_of(folder, ())


@pytest.mark.model
def test_a_whole_student_of_the_real_model_has_its_tokenizer(tmp_path: Path) -> None:
    source = resolve("smollm2-135m")
    target = load(source)
    student = initialised(load_arch(source), load_state(source), (0, 29))
    StudentFiles(source, target.token_weights(), None).write(student, tmp_path / "whole", "transformers")  # type: ignore[attr-defined]
    written, text = resolve(str(tmp_path / "whole")), "Hello, world! 12345\n\tdef f(x): return x"
    ours, theirs = load_tokenizer(written), load_tokenizer(source)
    assert ours.encode(text) == theirs.encode(text)
    assert (ours.eos_token_ids, ours.fingerprint) == (theirs.eos_token_ids, theirs.fingerprint)
    assert load_arch(written) == replace(load_arch(source), layers=2)
