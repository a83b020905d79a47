"""The texts of `outrider demo`: short tasks of the kinds that people give to small models."""

from __future__ import annotations

_LETTER = """\
The bakery on Mill Street will close its doors for two weeks in March. The owner, Ines Duarte, said that the old brick
oven from 1931 needs a new floor, and that the work cannot be done while it is warm. During the closure, bread will be
sold from a van in front of the library, every day from seven to eleven in the morning. Cakes can be ordered by
telephone until Thursday of each week. The bakery will open again on the last Saturday of March with free coffee."""

_CODE = """\
def total_price(items, tax_rate):
    total = 0
    for item in items:
        price = item["price"]
        count = item["count"]
        total = total + price * count
    total = total + total * tax_rate
    return total"""

_CONFIG = """\
[server]
host = "127.0.0.1"
port = 8080
workers = 4
timeout_seconds = 30

[logging]
level = "info"
file = "server.log"
"""

PROMPTS: tuple[tuple[str, str], ...] = (
    ("chat", "What should I think about before I adopt a dog? Give me five points."),
    ("summarise", f"Summarise this notice in three sentences, staying close to its words.\n\n{_LETTER}"),
    ("code edit", f"Rename `total` to `amount` in this function and print the whole function.\n\n{_CODE}"),
    ("config edit", f"Change the port to 9090 and print the whole file again.\n\n{_CONFIG}"),
    ("maths", "A train leaves at 9:40 and arrives at 13:05. How long does it travel? Explain step by step."),
    ("list", "Write the multiplication table of 7 from 1 to 12, one line each, like: 7 x 1 = 7"),
)
"""(name, user message)"""
