"""One engine in a process of its own, driven by JSON lines: run under the interpreter that has the engine installed.

A request `{"call": NAME, "arguments": {...}}` on stdin is answered by `{"value": ...}` or `{"error": TEXT}` on stdout.
The first call is `open`; the others are methods of the engine. Between requests the process sleeps.

Every engine has the same methods; all but the last answer in seconds, `write` with the text before them:
    passes(rows, cached, count)     one target pass over `rows` new tokens, all logits, after `cached` tokens
    batch(sequences, cached, count) one pass over one new token of each sequence; empty where it is not measured
    prefill(tokens, count)          from `tokens` new tokens to the logits after the last of them
    write(ids, tokens, lookup)      a greedy text; `lookup` tokens drafted by the engine's own lookup, None: plain
    rows(ids, first, path)          float32 logits of positions `first`.. of `ids`, saved as a .npy file
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, TextIO

ENGINES = {
    "outrider": ("peer_outrider", "OutriderEngine"),
    "llama.cpp": ("peer_llama", "LlamaEngine"),
    "openvino": ("peer_openvino", "OpenVinoEngine"),
}


def private_stdout() -> TextIO:
    """The pipe to the caller; whatever a library prints from now on goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return pipe


def open_engine(engine: str, model: str, settings: dict[str, Any]) -> Any:
    module, name = ENGINES[engine]
    return getattr(importlib.import_module(module), name)(model, settings)


def main() -> None:
    answers = private_stdout()
    engine = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["call"] == "open":
                engine = open_engine(**request["arguments"])
                answer = {"value": None}
            else:
                answer = {"value": getattr(engine, request["call"])(**request["arguments"])}
        except Exception as error:  # whatever an engine raises is the caller's to report
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
