"""Text: tokenizers, chat templates, and text that grows token by token."""

from outrider.text.stream import Detokenizer, StopChecker, TextTracker
from outrider.text.tokenizer import ChatPrompt, Tokenizer, bad_word_ids, load_tokenizer

__all__ = [
    "ChatPrompt",
    "Detokenizer",
    "StopChecker",
    "TextTracker",
    "Tokenizer",
    "bad_word_ids",
    "load_tokenizer",
]
