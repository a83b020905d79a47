"""`outrider generate`: one prompt, one text."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from outrider.cli.display import SILENT, Display, display_on, follow, summary
from outrider.cli.exit_codes import INTERRUPTED
from outrider.cli.options import (
    EngineSettings,
    engine_options,
    sampling_options,
    sampling_params,
    speculation_options,
)
from outrider.cli.progress import Progress
from outrider.cli.report import completion_report, print_json
from outrider.errors import ParameterError

if TYPE_CHECKING:
    from outrider.core.completion import Completion
    from outrider.core.sampling import SamplingParams
    from outrider.intake import Prompt
    from outrider.llm import LLM


@click.command()
@click.argument("model")
@click.argument("prompt")
@click.option(
    "--chat", "as_chat", is_flag=True, help="PROMPT is a user's message, put into the chat template."
)
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object and nothing else.")
@click.option("--n", type=int, default=1, show_default=True, metavar="N", help="How many texts to write.")
@click.option(
    "--logprobs", type=int, metavar="N", help="Log-probabilities, with N alternatives (in the JSON)."
)
@engine_options
@speculation_options
@sampling_options
def generate(model: str, prompt: str, as_chat: bool, as_json: bool, **given: Any) -> int:
    """Writes on from PROMPT with MODEL.

    MODEL is a name (smollm2-135m), a GGUF file, a folder, or a hub id in the local cache. PROMPT is raw text; -
    reads it from standard input, without its last line break.
    """
    if given["logprobs"] is not None and not as_json:
        raise click.UsageError("--logprobs needs --json: the log-probabilities are in the JSON")
    sampling = sampling_params(given)
    settings = EngineSettings.of(model, given)
    text = _prompt_text(prompt)
    llm = settings.open()
    tokens: Prompt = llm.tokenizer.chat([{"role": "user", "content": text}]).token_ids if as_chat else text
    completion = _written(llm, tokens, sampling, SILENT if as_json else display_on(sys.stdout))
    if as_json:
        print_json(completion_report(llm, completion))
    else:
        click.echo()
        click.echo(summary(completion), err=True)
    texts = completion.choices or (completion,)
    return INTERRUPTED if any(text.finish_reason == "abort" for text in texts) else 0


def _written(llm: LLM, prompt: Prompt, sampling: SamplingParams, display: Display) -> Completion:
    """One text as it grows; several after they are all there, each under its seed."""
    if sampling.n == 1:
        return follow(llm.stream(prompt, sampling), display)
    choices = _choices(llm, prompt, sampling)
    parts = [f"[{i} of {sampling.n}, seed {c.seed}]\n{c.text}" for i, c in enumerate(choices, start=1)]
    display.write("\n".join(parts), False)
    return dataclasses.replace(choices[0], choices=choices)


def _choices(llm: LLM, prompt: Prompt, sampling: SamplingParams) -> tuple[Completion, ...]:
    """All choices of `n`, written in shared rounds. Ctrl-C ends those under way: they keep what was certain."""
    streams = llm.streams(prompt, sampling)
    with Progress(f"writing {sampling.n} texts"), contextlib.suppress(KeyboardInterrupt):
        for stream in streams:
            for _ in stream:
                pass
    return tuple(stream.abort() for stream in streams)


def _prompt_text(prompt: str) -> str:
    """The prompt, or standard input when it is `-`. Raises `ParameterError` when there is nothing to write on from."""
    text = prompt
    if prompt == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ParameterError(
                f"standard input is not UTF-8 text (byte {error.start}): convert it"
            ) from None
        text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ParameterError("the prompt is empty: give a text, or pipe one into -")
    return text
