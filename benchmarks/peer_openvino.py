"""OpenVINO as an engine of `peer_worker`: the runtime for passes, OpenVINO GenAI for texts and prefill."""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from peer_tokens import END, series


class OpenVinoEngine:
    """Settings: `threads`, and any property of the CPU plugin by its own name."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        given = dict(settings)
        self._folder = Path(model)
        self._properties = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": given.pop("threads"),
        }
        self._properties.update(given)
        assert (self._folder / "openvino_model.xml").is_file(), f"{model} holds no openvino_model.xml"

    def passes(self, rows: int, cached: int, count: int) -> list[float]:
        """The cache cannot be set back, so the counted passes lie around `cached`, not at it."""
        length = cached - rows * (count + 1) // 2
        self._infer.reset_state()
        self._pass(series(length), 0)
        seconds = []
        for _ in range(count + 1):
            start = time.perf_counter()
            logits = self._pass(series(rows, length), length)
            seconds.append(time.perf_counter() - start)
            assert logits.shape[1] == rows, f"logits of {logits.shape[1]} rows, not {rows}"
            length += rows
        return seconds[1:]

    def batch(self, sequences: int, cached: int, count: int) -> list[float]:
        return []

    def prefill(self, tokens: int, count: int) -> list[float]:
        return [self._generate(self._plain, series(tokens), self._greedy(1))[1] for _ in range(count)]

    def write(self, ids: list[int], tokens: int, lookup: int | None) -> tuple[list[int], float]:
        config = self._greedy(tokens)
        if lookup is None:
            return self._generate(self._plain, ids, config)
        config.num_assistant_tokens, config.max_ngram_size = lookup, 2
        return self._generate(self._lookup, ids, config)

    def rows(self, ids: list[int], first: int, path: str) -> None:
        self._infer.reset_state()
        np.save(path, self._pass(ids, 0)[0, first:])

    @cached_property
    def _infer(self) -> Any:
        core = openvino.Core()
        model = core.read_model(self._folder / "openvino_model.xml")
        return core.compile_model(model, "CPU", self._properties).create_infer_request()

    @cached_property
    def _plain(self) -> Any:
        return self._pipeline()

    @cached_property
    def _lookup(self) -> Any:
        return self._pipeline(prompt_lookup=True)

    def _pipeline(self, **settings: Any) -> Any:
        """Without the prefix cache that is on by default: it would answer a repeated prompt without reading it."""
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens, scheduler.cache_size = 4096, 1
        return openvino_genai.LLMPipeline(
            str(self._folder), "CPU", scheduler_config=scheduler, **settings, **self._properties
        )

    def _pass(self, ids: list[int], cached: int) -> np.ndarray:
        """Logits, float32 [1, len(ids), vocab], valid until the next pass."""
        inputs = {
            "input_ids": np.array([ids], dtype=np.int64),
            "attention_mask": np.ones((1, cached + len(ids)), dtype=np.int64),
            "position_ids": np.arange(cached, cached + len(ids), dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        self._infer.infer(inputs, share_inputs=True)
        return self._infer.get_output_tensor(0).data

    def _greedy(self, tokens: int) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.apply_chat_template = tokens, False, False
        config.eos_token_id, config.stop_token_ids = END, {END}
        return config

    def _generate(self, pipeline: Any, ids: list[int], config: Any) -> tuple[list[int], float]:
        tokens = openvino.Tensor(np.array([ids], dtype=np.int64))
        mask = openvino.Tensor(np.ones((1, len(ids)), dtype=np.int64))
        start = time.perf_counter()
        result = pipeline.generate(openvino_genai.TokenizedInputs(tokens, mask), config)
        return [int(token) for token in result.tokens[0]], time.perf_counter() - start
