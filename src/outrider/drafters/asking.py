"""`Asking`: whether a text keeps enough of what a model drafts that it is worth asking the model at all."""

from __future__ import annotations

from outrider.core.records import RoundResult
from outrider.drafters.plant import Plant
from outrider.models.row_costs import DraftCosts

_MEMORY = 32.0  # rounds that count
_PRIOR_ROUNDS = 8.0  # that count before the text has shown its own,
_PRIOR_KEPT, _PRIOR_PRICE = 0.8, 0.4  # with so many tokens each
_PAUSE, _LONGEST_PAUSE = 16, 64  # rounds without a draft before the model is asked again
_LOOK = 4  # rounds for which it then is


class Asking:
    """Decides round by round, from the rounds before alone. One per sequence: no text moves a draft of another.

    Of the rounds in which the model was asked, the last 32 or so count: the tokens kept of its drafts, against their
    price, in tokens too: what the round without them would have made of the passes that they cost. Where they kept less
    the model is left alone for 16 rounds in which it could have been asked, then asked for 4, as a text may change; for
    twice as many after each look that changed nothing, up to 64. What hangs below chains of others is counted apart.
    """

    def __init__(self) -> None:
        self._alone, self._below = _Balance(), _Balance()
        self._drafted: tuple[_Balance, range, float] | None = None

    def asks(self, given: int) -> bool:
        """Whether to ask for a draft below so many given nodes; one call a round."""
        return self._of(given).asks()

    def drafted(self, given: int, nodes: int, price: float) -> None:
        """The model was asked and drafted so many nodes below the given ones, at this price."""
        self._drafted = self._of(given), range(given, given + nodes), price

    def grown(self, plant: Plant, costs: DraftCosts, levels: int) -> None:
        """As `drafted`, of a plant that took so many forwards."""
        if not costs.free:
            given = plant.given_rows
            price = costs.price(plant.rows, levels, promised=plant.given_promise, given=given)
            self.drafted(given - 1, plant.rows - given, price)

    def observe(self, result: RoundResult) -> None:
        """Counts what became of the nodes drafted last."""
        if self._drafted is not None:
            (balance, nodes, price), self._drafted = self._drafted, None
            balance.count(sum(node in nodes for node in result.accepted), price)

    def _of(self, given: int) -> _Balance:
        return self._below if given else self._alone


class _Balance:
    """Tokens kept against their price, and how long the model is left alone."""

    def __init__(self) -> None:
        self._rounds = _PRIOR_ROUNDS
        self._kept, self._price = _PRIOR_ROUNDS * _PRIOR_KEPT, _PRIOR_ROUNDS * _PRIOR_PRICE
        self._pause = _PAUSE
        self._waited = self._looks = 0

    @property
    def pays(self) -> bool:
        return self._kept >= self._price

    def asks(self) -> bool:
        if self.pays or self._looks:
            return True
        self._waited += 1
        if self._waited > self._pause:
            self._waited, self._looks = 0, _LOOK
        return self._looks > 0

    def count(self, kept: int, price: float) -> None:
        share = 1.0 - 1.0 / _MEMORY if self._rounds >= _MEMORY else 1.0
        self._rounds = self._rounds * share + 1.0
        self._kept, self._price = self._kept * share + kept, self._price * share + price
        if self._looks:
            self._looks -= 1
            if not self._looks:
                self._pause = _PAUSE if self.pays else min(2 * self._pause, _LONGEST_PAUSE)
