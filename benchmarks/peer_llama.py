"""llama.cpp as an engine of `peer_worker`, through the C interface that llama-cpp-python carries.

The decode loop is our own over `llama_decode`: it costs less than the Python sampler of the binding and has no limit on
drafts behind long prompts. Drafts come from the binding's own prompt lookup.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp as lib
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from peer_tokens import END, series

CONTEXT = 1024
FLASH = {
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
}
CACHE = {"f16": lib.GGML_TYPE_F16, "f32": lib.GGML_TYPE_F32, "q8_0": lib.GGML_TYPE_Q8_0}


@lib.llama_log_callback
def _silence(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


class LlamaEngine:
    """Settings: `threads`, `flash` (auto, off, on), `cache` (f16, f32, q8_0)."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        lib.llama_log_set(_silence, ctypes.c_void_p(0))
        self._settings = settings
        self._model = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
        assert self._model, f"llama.cpp cannot load {model}"
        self._vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._context = self._open(1)
        self._memory = lib.llama_get_memory(self._context)

    def system(self) -> str:
        """The instruction sets that the library was built for."""
        return lib.llama_print_system_info().decode()

    def passes(self, rows: int, cached: int, count: int) -> list[float]:
        self._fill(self._context, 1, cached)
        return self._scores(self._context, 1, series(rows, cached), cached, count)

    def batch(self, sequences: int, cached: int, count: int) -> list[float]:
        context = self._open(sequences)
        self._fill(context, sequences, cached)
        seconds = self._scores(context, sequences, series(1, cached), cached, count)
        lib.llama_free(context)
        return seconds

    def prefill(self, tokens: int, count: int) -> list[float]:
        ids, seconds = series(tokens), []
        for _ in range(count):
            lib.llama_memory_clear(self._memory, True)
            start = time.perf_counter()
            self._decode(self._context, [ids], 0, 1)
            self._logits(self._context, 1)
            seconds.append(time.perf_counter() - start)
        return seconds

    def write(self, ids: list[int], tokens: int, lookup: int | None) -> tuple[list[int], float]:
        drafter = None if lookup is None else LlamaPromptLookupDecoding(2, lookup)
        lib.llama_memory_clear(self._memory, True)
        start = time.perf_counter()
        text = [*ids]
        pending, draft = ids, []  # the first pass reads the prompt
        while (len(text) - len(ids) < tokens and text[-1] != END) or len(text) == len(ids):
            cached = len(text) - len(pending)
            self._decode(self._context, [[*pending, *draft]], cached, len(draft) + 1)
            best = self._logits(self._context, len(draft) + 1).argmax(axis=1).tolist()
            kept = next((i for i, token in enumerate(draft) if token != best[i]), len(draft))
            lib.llama_memory_seq_rm(self._memory, 0, len(text) + kept, -1)
            text += _until_end(best[: kept + 1])[: tokens - (len(text) - len(ids))]
            pending = text[-1:]
            room = tokens - (len(text) - len(ids)) - 1
            draft = (
                [] if drafter is None or room < 1 else drafter(np.array(text, dtype=np.intc)).tolist()[:room]
            )
        return text[len(ids) :], time.perf_counter() - start

    def rows(self, ids: list[int], first: int, path: str) -> None:
        lib.llama_memory_clear(self._memory, True)
        self._decode(self._context, [ids], 0, len(ids) - first)
        np.save(path, self._logits(self._context, len(ids) - first))

    def _open(self, sequences: int) -> Any:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT * sequences, CONTEXT, 512
        params.n_seq_max, params.kv_unified = sequences, False
        params.n_threads = params.n_threads_batch = self._settings["threads"]
        params.flash_attn_type = FLASH[self._settings.get("flash", "auto")]
        params.type_k = params.type_v = CACHE[self._settings.get("cache", "f16")]
        context = lib.llama_init_from_model(self._model, params)
        assert context, f"llama.cpp refuses the settings {self._settings}"
        return context

    def _fill(self, context: Any, sequences: int, cached: int) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        for sequence in range(sequences):
            self._decode(context, [series(cached, 31 * sequence)], 0, 1, sequence)

    def _scores(self, context: Any, sequences: int, ids: list[int], cached: int, count: int) -> list[float]:
        """Seconds of `count` passes over `ids` in every sequence, after one that is not counted."""
        memory, seconds = lib.llama_get_memory(context), []
        for _ in range(count + 1):
            start = time.perf_counter()
            self._decode(context, [ids] * sequences, cached, len(ids))
            self._logits(context, 1)
            seconds.append(time.perf_counter() - start)
            for sequence in range(sequences):
                lib.llama_memory_seq_rm(memory, sequence, cached, -1)
        return seconds[1:]

    def _decode(
        self, context: Any, texts: Sequence[Sequence[int]], cached: int, wanted: int, first: int = 0
    ) -> None:
        """Tokens of the sequences `first`.. from position `cached` on; logits of the last `wanted` of each."""
        batch = lib.llama_batch_init(sum(map(len, texts)), 0, 1)
        for number, text in enumerate(texts, first):
            for place, token in enumerate(text):
                row = batch.n_tokens
                batch.token[row], batch.pos[row] = token, cached + place
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, number
                batch.logits[row] = place >= len(text) - wanted
                batch.n_tokens += 1
        code = lib.llama_decode(context, batch)
        lib.llama_batch_free(batch)
        assert code == 0, f"llama_decode answers {code}"

    def _logits(self, context: Any, rows: int) -> np.ndarray:
        """The wanted logits of the last pass, float32 [rows, vocab]; valid until the next."""
        return np.ctypeslib.as_array(lib.llama_get_logits(context), (rows * self._vocab,)).reshape(rows, -1)


def _until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens
