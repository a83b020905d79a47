"""Engine settings: what is accepted, and that every mistake is one clear error."""

from __future__ import annotations

import pytest

from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError


def test_no_settings_is_plain_decoding() -> None:
    config = SpeculativeConfig.of(None)
    assert config.methods == ("none",)
    assert config.depth == 0


def test_defaults_follow_the_method() -> None:
    assert SpeculativeConfig.of({"method": "ngram"}).depth == 8
    assert SpeculativeConfig.of({"method": "draft_model", "model": "m"}).depth == 4
    assert SpeculativeConfig.of({"model": "m"}).methods == ("draft_model",)
    assert SpeculativeConfig.of({"method": ["ngram", "draft_model"], "model": "m"}).methods == (
        "ngram",
        "draft_model",
    )


def test_a_tree_needs_only_its_size_or_its_width() -> None:
    config = SpeculativeConfig.of({"model": "m", "topk": 3, "num_steps": 2})
    assert (config.children("draft_model"), config.depth, config.nodes) == (3, 2, 6)
    config = SpeculativeConfig.of({"model": "m", "tree_budget": 9})
    assert (config.children("draft_model"), config.nodes) == (2, 9)


def test_sizes_of_methods_without_a_model_have_their_defaults() -> None:
    recycling, lookahead = (SpeculativeConfig.of({"method": name}) for name in ("recycling", "lookahead"))
    assert recycling.drafts_trees
    assert lookahead.drafts_trees
    assert (recycling.depth, recycling.children("recycling")) == (4, 8)
    assert recycling.nodes >= recycling.depth
    assert lookahead.window == (5, 3, 4)
    assert lookahead.nodes == 2 * (5 + 4)
    small = SpeculativeConfig.of(
        {"method": "lookahead", "max_window_size": 2, "max_verification_set_size": 1}
    )
    assert small.nodes == 2 * (2 + 1)
    assert not SpeculativeConfig.of({"method": "suffix"}).drafts_trees
    assert SpeculativeConfig.of({"method": ["ngram", "recycling"]}).nodes >= 8


def test_no_settings_together_draft_more_than_the_most() -> None:
    wide = SpeculativeConfig.of({"model": "m", "topk": 64, "num_steps": 1024})
    deep = SpeculativeConfig.of(
        {
            "method": "lookahead",
            "max_window_size": 1024,
            "max_ngram_size": 1024,
            "max_verification_set_size": 1024,
        }
    )
    assert (wide.depth, wide.nodes) == (deep.depth, deep.nodes) == (1024, 1024)


def test_the_caller_s_settings_are_left_as_they_are() -> None:
    given = {"method": "ngram", "num_speculative_tokens": 3}
    SpeculativeConfig.of(given)
    assert given == {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "ngram", "num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({"method": ["auto", "ngram"]}, "'auto' chooses a list itself and stands alone"),
        ({"method": "medusa", "model": "m", "check_draft": 1}, "check_draft must be true or false, not 1"),
        ({"method": "ngram", "check_draft": False}, "check_draft belongs to method draft_model"),
        ({"method": ["draft_model", "eagle3"], "model": "m"}, "keep one of them"),
        ({"method": "ngram", "adaptive": True}, "'adaptive' is not supported yet"),
        ({"method": "ngram", "suffix_share_requests": True}, "belongs to method suffix"),
        ({"method": "suffix", "suffix_share_requests": "yes"}, "true or false, not 'yes'"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "from 0 to 1, not 1.5"),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": float("nan")}, "not nan"),
        ({"method": "ngram", "topk": 4}, "topk belongs to method"),
        ({"method": "self_draft"}, "either assistant_early_exit or skip_layers"),
        ({"method": "self_draft", "assistant_early_exit": 3, "skip_layers": [1]}, "either"),
        ({"method": "self_draft", "model": "m", "skip_layers": [1]}, "skip_layers contradicts 'model'"),
        ({"method": "self_draft", "skip_layers": [1], "draft_dtype": "int8"}, "name one as 'model'"),
        ({"method": ["self_draft", "eagle3"], "model": "m"}, "either assistant_early_exit or skip_layers"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "at least 1, not 0"),
        ({"method": "ngram", "num_speculative_tokens": float("nan")}, "not nan"),
        ({"method": "ngram", "num_speculative_tokens": True}, "not True"),
        (
            {"method": "ngram", "prompt_lookup_min": 6, "prompt_lookup_max": 3},
            "6 is above prompt_lookup_max 3",
        ),
        ({"method": []}, "empty list"),
        ({"method": ["ngram", "ngram"]}, "names each drafter once"),
        ({"method": ["ngram", "none"]}, "not 'none'"),
        ({"method": 3}, "method"),
        ({"method": [None]}, "method must be a name"),
        ({3: 4}, "unknown key 3"),
        ({"method": "suffix", "topk": 10**5000}, "topk must be at most 64, not an integer of 16610 bits"),
        (
            {"assistant_early_exit": 10**400},
            "assistant_early_exit must be at most 2147483647, not an integer of",
        ),
        (
            {"skip_layers": [-(10**5000)]},
            "skip_layers must be a list of layer numbers, not a list with an integer too",
        ),
        (
            {"method": "suffix", "suffix_decoding_max_spec_factor": 10**5000},
            "0 to 1e+06, not an integer of 16610 bits",
        ),
        ({"qqq": 1}, "unknown key 'qqq'; known: method, "),
        ({"method": "ngram", "guarantee": None}, "guarantee must be one of"),
        ({"method": "ngram", "num_speculative_tokens": 10**8}, "at most 1024"),
        ({"model": "m", "topk": 65}, "topk must be at most 64, not 65"),
        ({"method": "eagle3", "model": "m", "topk": 1024}, "topk must be at most 64, not 1024"),
        ({"method": "ngram", "prompt_lookup_max": 10**30}, "prompt_lookup_max must be at most 1024"),
        ({"method": "recycling", "recycling_successors": 10**9}, "recycling_successors must be at most 1024"),
        ({"method": "lookahead", "max_window_size": 10**9}, "max_window_size must be at most 1024"),
        ({"method": "lookahead", "max_verification_set_size": 1025}, "must be at most 1024"),
        ({"method": "lookahead", "max_ngram_size": 1}, "max_ngram_size must be an integer of at least 2"),
        ({"num_speculative_tokens_per_batch_size": [[1, 4, 2]]}, "method is 'none'"),
        (
            {"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, 10**9]]},
            "[[start, end, K], ...]",
        ),
        ({"model": "m", "num_steps": 3, "num_speculative_tokens": 4}, "contradicts"),
        (
            {"model": "m", "topk": 2, "rejection_sample_method": "block", "guarantee": "same_distribution"},
            "judges chains",
        ),
        ({"method": "ngram", "rejection_sample_method": "block"}, "same_distribution"),
        ({"method": "ngram", "guarantee": "same"}, "same_text, same_distribution"),
        ({"num_speculative_tokens": 4}, "method is 'none'"),
        ({"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4]]}, "[[start, end, K], ...]"),
        (
            {"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, 2], [4, 8, 1]]},
            "without overlap",
        ),
        ({"method": "self_draft", "skip_layers": "1,2"}, "list of layer numbers"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        SpeculativeConfig.of(settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
