"""The likeliest tree: the best of all trees of its size, of nodes named by their ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest

from outrider.drafters.rank_tree import Ranks, likeliest_tree, node_chances

CHANCES = ((0.6, 0.2, 0.05), (0.4, 0.3, 0.1), (0.5, 0.1, 0.02))


def nodes_of(counts: Mapping[Ranks, int]) -> set[Ranks]:
    return {(*parent, rank) for parent, count in counts.items() for rank in range(count)}


def worth(nodes: set[Ranks]) -> float:
    """Kept nodes to expect: the sum of what each path's chances multiply to."""
    total = 0.0
    for path in nodes:
        chance = 1.0
        for depth, rank in enumerate(path):
            chance *= CHANCES[depth][rank]
        total += chance
    return total


def all_trees(size: int) -> Iterator[set[Ranks]]:
    """Every tree of `size` nodes whose siblings are the first ranks of their level."""
    paths = [p for n in (1, 2, 3) for p in itertools.product(range(3), repeat=n)]
    for chosen in itertools.combinations(paths, size):
        tree = set(chosen)
        if all(
            (len(p) == 1 or p[:-1] in tree) and (p[-1] == 0 or (*p[:-1], p[-1] - 1) in tree) for p in tree
        ):
            yield tree


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_tree_of_its_size_is_worth_more(size: int) -> None:
    found = nodes_of(likeliest_tree(CHANCES, size))
    assert len(found) == size
    assert worth(found) == pytest.approx(max(map(worth, all_trees(size))), abs=1e-12)


def test_one_rank_per_level_is_a_chain() -> None:
    assert likeliest_tree([(0.5,), (0.1,), (0.9,)], 2) == {(): 1, (0,): 1}
    assert likeliest_tree([(0.5,), (0.1,), (0.9,)], 9) == {(): 1, (0,): 1, (0, 0): 1}


def test_a_likely_child_brings_along_the_less_likely_ones_before_it() -> None:
    assert likeliest_tree([(0.1, 0.8), (0.1, 0.7)], 4) == {(): 2, (1,): 2}


def test_every_node_is_used_where_there_is_room_and_none_beyond() -> None:
    assert sum(likeliest_tree(CHANCES, 39).values()) == 39
    assert sum(likeliest_tree(CHANCES, 100).values()) == 3 + 9 + 27
    assert likeliest_tree(CHANCES, 0) == {}
    assert likeliest_tree((), 5) == {}


def test_the_chance_of_a_node_is_the_product_along_its_path() -> None:
    shape = {(): 2, (0,): 1, (1,): 1, (0, 0): 1}
    chances = [(0.5, 0.25), (0.5,), (0.9,)]
    assert node_chances(shape, chances) == [0.5, 0.25, 0.25, 0.225, 0.125]
    assert node_chances({}, chances) == []
