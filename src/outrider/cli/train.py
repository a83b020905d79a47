"""`outrider train`: a draft for any target from prompts alone, stated before, resumable throughout, proven after."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outrider.cli.options import EngineSettings, engine_options
from outrider.cli.report import print_json
from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError
from outrider.train.settings import METHODS, DraftShape, TrainSettings, seconds_of

if TYPE_CHECKING:
    from outrider.train.job import Report

_SHAPE = (
    click.option("--draft-vocab-size", type=int, metavar="N", help="Tokens that the draft speaks; the most frequent."),
    click.option("--target-layer-ids", metavar="I,I,I", help="eagle3: layers of the target whose inputs are read."),
    click.option("--loss-fn", default="kl_div", show_default=True, metavar="NAME", help="kl_div, ce, tv, lk_hybrid."),
    click.option("--ttt-steps", type=int, metavar="N", help="eagle3: unrolled steps. draft_model: guesses judged."),
    click.option("--ttt-retention", type=float, metavar="X",
                 help="eagle3: share of the chains of a step that are unrolled further; below 1 steps are cheaper."),
    click.option("--num-heads", type=int, metavar="N", help="medusa: heads."),
    click.option("--num-layers", type=int, metavar="N", help="medusa: residual blocks of a head."),
    click.option("--lm-head", metavar="NAME",
                 help="eagle3, medusa: speak through the target's rows (target, unless told otherwise), or through own "
                      "ones that are trained (own)."),
    click.option("--layers", metavar="I,I", help="draft_model: the target's layers that the student is made of."),
    click.option("--early-exit", type=int, metavar="K",
                 help="draft_model: the target's first K layers stay as they are, a head behind them is trained."),
)  # fmt: skip
_RUN = (
    click.option("--start-from", metavar="DIR", help="eagle3, medusa: a trained head to go on from."),
    click.option("--budget", metavar="TIME", help="Time for everything, such as 15m, 90s or 1h30m."),
    click.option("--epochs", type=float, default=3.0, show_default=True, help="Passes over the answers."),
    click.option("--steps", type=int, metavar="N", help="Training steps, instead of a budget."),
    click.option("--answer-tokens", type=int, metavar="N", help="Stops answering after so many tokens."),
    click.option("--answers", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
                 help="Where the target's answers are kept, for several runs to share; else within --output."),
    click.option("--max-new-tokens", type=int, default=256, show_default=True, metavar="N", help="Of an answer."),
    click.option("--max-prompt-tokens", type=int, default=768, show_default=True, metavar="N",
                 help="Longer prompts are left out."),
    click.option("--learning-rate", type=float, metavar="X", help="At its peak."),
    click.option("--batch-tokens", type=int, default=2048, show_default=True, metavar="N", help="Tokens of a step."),
    click.option("--memory", type=float, default=6.0, show_default=True, metavar="GB",
                 help="Of hidden states that are kept."),
    click.option("--seed", type=int, default=0, show_default=True, metavar="N"),
    click.option("--export", "forms", multiple=True, metavar="FORM",
                 help="Also written to a folder of this name: speculators, medusa, transformers, or the draft's own."),
)  # fmt: skip


def _options(command: Any) -> Any:
    for option in reversed((*_SHAPE, *_RUN)):
        command = option(command)
    return command


@click.command()
@click.argument("method", type=click.Choice(METHODS))
@click.argument("model", metavar="TARGET")
@click.argument("more", nargs=-1, metavar="", type=click.Path(path_type=Path))
@click.option("--prompts", multiple=True, required=True, type=click.Path(path_type=Path), metavar="FILES...",
              help="Prompts: .jsonl of the common shapes, or text with a prompt per line.")  # fmt: skip
@click.option("--output", required=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="The draft's folder; an interrupted run goes on from it.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object at the end and nothing else.")
@_options
@engine_options
def train(
    method: str, model: str, more: tuple[Path, ...], prompts: tuple[Path, ...], output: Path, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Trains a draft for TARGET on its own answers to prompts.

    Prompts are rendered with the target's chat template and answered by it at temperatures 0, 0.7 and 1.0; a part is
    held out. The draft learns from the target's hidden states and laws, is judged on the held-out prompts on its way,
    and is written to --output with its provenance and a page of its learning curve; then it is timed against plain
    decoding. The same command goes on after an interruption. Several processes: `torchrun --nproc-per-node N -m
    outrider train ...`.
    """
    settings = _settings(method, (*prompts, *more), output, given)
    from outrider.train.distributed import local_device, world
    from outrider.train.inputs import Inputs

    device = local_device(settings.device)
    inputs = Inputs.read(replace(settings, device=device))
    llm = EngineSettings.drafting(model, {**given, "device": device}, SpeculativeConfig()).open()
    from outrider.models.load import resolve
    from outrider.train.job import train_draft
    from outrider.train.narration import Narration

    with world(device) as joined:
        observer = Narration(sys.stderr if as_json else sys.stdout)
        begin = time.monotonic()
        try:
            report = train_draft(llm, resolve(model), inputs, observer, world=joined, command=_command())
        except KeyboardInterrupt:
            print("interrupted: the same command goes on from here", file=sys.stderr)
            raise
        if report is not None:
            _tell(report, time.monotonic() - begin, as_json)


def _settings(method: str, prompts: tuple[Path, ...], output: Path, given: dict[str, Any]) -> TrainSettings:
    shape = DraftShape(
        method, given["draft_vocab_size"], _numbers("--target-layer-ids", given["target_layer_ids"]), given["loss_fn"],
        given["ttt_steps"], given["ttt_retention"], given["num_heads"], given["num_layers"], given["lm_head"],
        _numbers("--layers", given["layers"]), given["early_exit"],
    )  # fmt: skip
    return TrainSettings(
        shape=shape, prompts=prompts, output=output, start_from=given["start_from"],
        budget=None if given["budget"] is None else seconds_of(given["budget"]), epochs=given["epochs"],
        steps=given["steps"], answer_tokens=given["answer_tokens"], answers=given["answers"],
        most_new=given["max_new_tokens"], most_prompt=given["max_prompt_tokens"],
        learning_rate=given["learning_rate"], batch_tokens=given["batch_tokens"], seed=given["seed"],
        forms=given["forms"], device=given["device"], memory=_bytes(given["memory"]),
    )  # fmt: skip


def _command() -> tuple[str, ...]:
    """The command line with paths cut to their names: it goes into files that are passed on."""
    return ("outrider", *(Path(word).name if os.sep in word else word for word in sys.argv[1:]))


def _bytes(gigabytes: float) -> int:
    if not 0 <= gigabytes < math.inf:
        raise ConfigError(f"--memory must be 0 GB or more, not {gigabytes:g}")
    return int(gigabytes * 1e9)


def _numbers(flag: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag} takes whole numbers with commas between them, not {text!r}") from None


def _tell(report: Report, seconds: float, as_json: bool) -> None:
    from outrider.train.live import AGREEMENT

    live, offline = report.live, report.offline
    figures = {**live.figures(offline), "folder": os.fspath(report.folder), "seconds": round(seconds)}
    if as_json:
        print_json(figures)
        return
    print(f"\n{report.folder}: {live.stats.tokens_per_pass:.2f} tokens per pass on held-out prompts at temperature 0 "
          f"by chains of full length; cut to what is worth its cost they come to {live.speed:.2f}x plain decoding, "
          f"{live.differing} texts differ")  # fmt: skip
    if abs(live.apart(offline)) > AGREEMENT:
        print(f"warning: live acceptance is {100 * live.apart(offline):+.1f} % from the offline count "
              f"({offline.tokens_per_pass:.2f} tokens per pass)")  # fmt: skip
    print(f"curve: {report.folder / 'training.html'}")
