"""The model card of a trained draft: what it is for, what it came to, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.train.checkpoint import replace_file

FILE = "README.md"
_KINDS = {
    "eagle3": "An EAGLE-3 draft head",
    "medusa": "Medusa heads",
    "self_draft": "An exit head behind the target's own first layers",
    "draft_model": "A draft model of some of the target's layers, which borrows embedding and output head from it",
}
_LICENCE = """\
Licence: Apache-2.0 unless the target's own licence asks for another. The files hold no text of prompts or answers.
"""


def write_card(folder: Path, method: str, target: str, provenance: Mapping[str, Any]) -> None:
    """Writes `README.md` from what `provenance.json` holds."""
    text = card(method, target, provenance)
    replace_file(folder / FILE, lambda file: file.write(text.encode()))


def card(method: str, target: str, provenance: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    return "\n".join(
        [_purpose(method, target), _outcome(provenance["figures"]), _making(provenance), _LICENCE]
    )


def _purpose(method: str, target: str) -> str:
    return f"""---
license: apache-2.0
base_model: {target}
library_name: outrider
---

# {method} for {target}

{_KINDS[method]} for speculative decoding of `{target}`.
It changes no text: the target checks every guess. For another target it is of no use.

```python
from outrider import LLM

llm = LLM("{target}", speculative_config={{"method": "{method}", "model": "this folder"}})
```
"""


def _outcome(figures: Mapping[str, Any]) -> str:
    shares = " ".join(f"{share:.2f}" for share in figures["acceptance_by_position"])
    return f"""## What it came to

On {figures["held_out_texts"]} held-out prompts, greedy, decoded live:

* {figures["tokens_per_pass"]:.2f} tokens per pass ({figures["tokens_per_pass_offline"]:.2f} counted offline), by chains
  of full length
* drafts of these kept to depth 1, 2, ...: {shares}
* {figures["speed_ratio"]:.2f} times plain decoding on the machine that trained it, by chains cut to what is worth its
  cost, as they are by default
* {figures["differing_texts"]} texts differed from plain decoding
"""


def _making(provenance: Mapping[str, Any]) -> str:
    figures, prompts = provenance["figures"], provenance["prompts"]
    settings = ", ".join(
        f"{name} {value}" for name, value in provenance["settings"].items() if value is not None
    )
    return f"""## How it was made

From {figures["train_answer_tokens"]:,} tokens of the target's own answers to {figures["train_texts"]:,} prompts, at
temperatures 0, 0.7 and 1.0; {figures["tokens_seen"]:,} tokens with repetitions. Prompts: {", ".join(prompts)}.
Settings: {settings}. `provenance.json` has the command, versions and hashes, `training.html` the learning curve.
"""
