"""Token trees and drafts: shapes, paths, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.core.law import POINT_MASS, Drawn, DrawnWithoutReplacement
from outrider.core.records import EMPTY_DRAFT, Context, Draft, Group
from outrider.core.tree import TokenTree

TREE = TokenTree((5, 6, 7, 5, 9), (None, None, 0, 0, 2))


def test_a_tree_knows_its_paths_depths_and_children() -> None:
    assert TREE.depths == (1, 1, 2, 2, 3)
    assert TREE.children == ((0, 1), (2, 3), (), (4,), (), ())
    assert TREE.leaves == (1, 3, 4)
    assert TREE.path(4) == (0, 2, 4)
    assert TREE.path_tokens(4) == (5, 7, 9)
    assert TREE.path(None) == ()
    assert not TREE.is_chain


@pytest.mark.parametrize(
    "tree", [TREE, TokenTree(tuple(range(40)), (None, *(node // 3 for node in range(39))))]
)
def test_a_row_sees_the_pending_token_its_ancestors_and_itself(tree: TokenTree) -> None:
    for node in (None, *range(len(tree))):
        row = 0 if node is None else node + 1
        assert list(np.flatnonzero(tree.sees[row])) == [0, *(other + 1 for other in tree.path(node))]
    assert not tree.sees.flags.writeable
    assert np.array_equal(TokenTree.chain([3, 4]).sees, np.tri(3, dtype=bool))
    assert TokenTree((), ()).sees.tolist() == [[True]]


def test_a_chain_is_a_tree() -> None:
    chain = TokenTree.chain([3, 4])
    assert chain.is_chain
    assert chain.parents == (None, 0)
    assert EMPTY_DRAFT.nodes.is_chain


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [((1, 2), (None,)), ((1, 2), (1, None)), ((1, 1), (None, None)), ((1, 2, 2), (None, 0, 0))],
)
def test_a_malformed_tree_is_refused(tokens: tuple[int, ...], parents: tuple[int | None, ...]) -> None:
    with pytest.raises(AssertionError):
        TokenTree(tokens, parents)


@pytest.mark.parametrize(
    "groups",
    [
        (Group(POINT_MASS, (0,)),),
        (Group(Drawn(np.ones(9) / 9), (0, 1)),),
        (Group(Drawn(np.ones(9) / 9), (0,)), Group(POINT_MASS, (1,))),
        (Group(POINT_MASS, (0,)), Group(DrawnWithoutReplacement(np.ones(9) / 9), (1,))),
    ],
)
def test_a_draft_whose_laws_do_not_fit_its_children_is_refused(groups: tuple[Group, ...]) -> None:
    with pytest.raises(AssertionError):
        Draft(TokenTree((1, 2), (None, None)), (groups, (), ()))


def test_point_masses_may_stand_before_what_was_drawn_without_them() -> None:
    rest = np.array([0.5, 0.0, 0.5])
    draft = Draft(
        TokenTree((1, 2), (None, None)), ((Group(POINT_MASS, (0,)), Group(Drawn(rest), (1,))), (), ())
    )
    assert len(draft) == 2


def test_a_context_is_a_view_of_its_tokens() -> None:
    context = Context.of([4, 5, 6])
    assert list(context.tokens) == [4, 5, 6]
    assert context.tokens[-1] == 6
    assert context.tokens[:-1] == [4, 5]
    with pytest.raises(IndexError):
        context.tokens[3]
