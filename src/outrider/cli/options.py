"""The options that commands share, and the settings they are read into."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from outrider.cli.progress import Progress
from outrider.config import BUILT_IN_METHODS, SpeculativeConfig
from outrider.errors import ConfigError, ParameterError

if TYPE_CHECKING:
    from outrider.core.sampling import SamplingParams
    from outrider.llm import LLM

Command = TypeVar("Command", bound=Callable[..., Any])

_ENGINE = (
    click.option("--target", type=click.Choice(["auto", "native", "torch", "hf"]), default="auto", show_default=True,
                 help="Which implementation runs the model."),
    click.option("--dtype", default="auto", show_default=True, metavar="NAME",
                 help="auto, float32, bfloat16; on native also int8, int4, gguf (the file's own blocks)."),
    click.option("--activations", type=click.Choice(["auto", "float32", "bfloat16", "int8"]), default="auto",
                 show_default=True, help="What native rounds the inputs of products to."),
    click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu or cuda."),
    click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads of the CPU to use."),
)  # fmt: skip
_SPECULATION = (
    click.option("--method", metavar="A[,B]",
                 help=f"Drafter: {', '.join(BUILT_IN_METHODS)}, auto, a package's own, or a list of them."),
    click.option("--num-speculative-tokens", type=int, metavar="K", help="Tokens drafted per round."),
    click.option("--draft-model", "-md", metavar="MODEL",
                 help="The draft model, or the folder or hub id of a head for medusa, eagle, eagle3, self_draft."),
    click.option("--num-steps", type=int, metavar="N", help="Depth of a drafted tree."),
    click.option("--topk", type=int, metavar="N", help="Children per node of a drafted tree."),
    click.option("--tree-budget", type=int, metavar="N", help="Nodes of a drafted tree."),
    click.option("--guarantee", metavar="NAME", help="same_text (default) or same_distribution."),
    click.option("--speculative-config", metavar="JSON", help="All engine settings of speculation, by vLLM's names."),
)  # fmt: skip
_SAMPLING = (
    click.option("--temperature", type=float, default=0.0, show_default=True, help="0 takes the likeliest token."),
    click.option("--top-p", type=float, default=1.0, help="Keeps the likeliest tokens of this much probability."),
    click.option("--top-k", type=int, help="Keeps the N likeliest tokens.", metavar="N"),
    click.option("--min-p", type=float, default=0.0, help="Drops tokens below this share of the likeliest."),
    click.option("--repetition-penalty", type=float, default=1.0, help="Above 1 discourages what the text holds."),
    click.option("--presence-penalty", type=float, default=0.0, help="Taken off tokens that were written."),
    click.option("--frequency-penalty", type=float, default=0.0, help="Taken off once per time written."),
    click.option("--logit-bias", metavar="JSON", help='Added to logits: {"token id": number}.'),
    click.option("--seed", type=int, metavar="N", help="Equal seeds give equal texts; random when not given."),
    click.option("--max-tokens", type=int, default=128, show_default=True, metavar="N", help="Length of the text."),
    click.option("--min-tokens", type=int, default=0, metavar="N", help="No end before this many tokens."),
    click.option("--stop", multiple=True, metavar="TEXT", help="Ends the text before this string; may be repeated."),
    click.option("--stop-token-ids", metavar="ID[,ID]", help="Ends the text at these tokens."),
    click.option("--ignore-eos", is_flag=True, help="Writes past the end-of-text token."),
    click.option("--bad-words", multiple=True, metavar="TEXT", help="Never written; may be repeated."),
    click.option("--no-repeat-ngram-size", type=int, default=0, metavar="N", help="No N tokens occur twice."),
)  # fmt: skip

# The flags that say the same as a key of --speculative-config.
_FLAGS = {
    "method": "--method",
    "num_speculative_tokens": "--num-speculative-tokens",
    "model": "--draft-model",
    "num_steps": "--num-steps",
    "topk": "--topk",
    "tree_budget": "--tree-budget",
    "guarantee": "--guarantee",
}
_SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
    "max_tokens", "min_tokens", "stop", "ignore_eos", "bad_words", "no_repeat_ngram_size",
)  # fmt: skip


def engine_options(command: Command) -> Command:
    """Adds the options of loading a model."""
    return _with(_ENGINE, command)


def speculation_options(command: Command) -> Command:
    """Adds the options of drafting."""
    return _with(_SPECULATION, command)


def sampling_options(command: Command) -> Command:
    """Adds the options of the text itself."""
    return _with(_SAMPLING, command)


@dataclass(frozen=True)
class EngineSettings:
    """Which model to load, how, and how it drafts; checked before anything slow happens."""

    model: str
    target: str
    dtype: str
    activations: str
    device: str
    threads: int | None
    speculation: SpeculativeConfig

    @staticmethod
    def of(model: str, given: Mapping[str, Any]) -> EngineSettings:
        """Reads the values of `engine_options` and `speculation_options`. Raises `ConfigError`."""
        return EngineSettings.drafting(model, given, SpeculativeConfig.of(speculative_settings(given)))

    @staticmethod
    def drafting(model: str, given: Mapping[str, Any], speculation: SpeculativeConfig) -> EngineSettings:
        """Reads the values of `engine_options`; how the model drafts is settled already."""
        return EngineSettings(
            model=model, target=given["target"], dtype=given["dtype"], activations=given["activations"],
            device=given["device"], threads=given["threads"], speculation=speculation,
        )  # fmt: skip

    def open(self) -> LLM:
        """Loads the model, with a progress line when that takes long."""
        with Progress(f"loading {self.model}"):
            from outrider.llm import LLM

            return LLM(
                self.model, target=self.target, dtype=self.dtype, activations=self.activations, device=self.device,
                threads=self.threads, speculative_config=self.speculation,
            )  # fmt: skip


def speculative_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The speculative settings of the JSON and of the flags together. Raises `ConfigError` where they disagree."""
    text = given.get("speculative_config")
    settings = {} if text is None else _json_object("--speculative-config", text)
    for key, flag in _FLAGS.items():
        written = given.get(flag.removeprefix("--").replace("-", "_"))
        if written is None:
            continue
        value = _method(written) if key == "method" else written
        if key in settings and _plain(settings[key]) != value:
            inside = json.dumps({key: settings[key]})
            raise ConfigError(
                f"{flag} {written} contradicts {inside} in --speculative-config: give one of the two"
            )
        settings[key] = value
    return settings


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """Reads the values of `sampling_options`, and `n` and `logprobs` where given. Raises `ParameterError`."""
    from outrider.core.sampling import SamplingParams

    fields = {name: given[name] for name in _SAMPLING_FIELDS}
    fields.update({name: given[name] for name in ("n", "logprobs") if given.get(name) is not None})
    if given["logit_bias"] is not None:
        fields["logit_bias"] = _bias(given["logit_bias"])
    if given["stop_token_ids"] is not None:
        fields["stop_token_ids"] = _ids(given["stop_token_ids"])
    return SamplingParams(**fields)


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def _method(text: str) -> str | list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(
            f"--method {text!r} holds an empty name; write for example --method ngram,draft_model"
        )
    return names[0] if len(names) == 1 else names


def _plain(value: Any) -> Any:
    """A JSON list of one method is that method."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f'{flag} must be a JSON object such as {{"method": "ngram"}}, not {text!r}')
    return value


def _bias(text: str) -> dict[str, Any]:
    try:
        return _json_object("--logit-bias", text)
    except ConfigError as error:
        raise ParameterError(str(error).replace('{"method": "ngram"}', '{"42": -5.0}')) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} occurs twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ParameterError(f"--stop-token-ids must be token ids such as 2,17, not {text!r}") from None
