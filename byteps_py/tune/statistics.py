"""How sure a ratio of two speeds is.  Pure, and without a statistics package: only Student's t is needed.

Each block gives one number: the logarithm of the ratio of two cells that ran close together in time.  What changed the
speed of the whole block is in both and cancels.  The blocks' numbers are taken for independent draws from one normal
distribution of unknown spread; their mean has a t interval with one degree of freedom fewer than there are blocks.
The effect of a factor in a grid is a mean of such means.

The distribution function of t for whole degrees of freedom is a finite sum (Abramowitz and Stegun, *Handbook of
Mathematical Functions*, 26.7.3 and 26.7.4), and its inverse is found by bisection.  The power of the test, which is a
noncentral t, is the probability of a shifted normal averaged over the distribution of the estimated spread, by
Simpson's rule.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import TypeAlias

from byteps_py.tune.results import Interval

__all__ = ["CONFIDENCE", "SURE", "Pair", "blocks_needed", "combine", "detectable", "interval", "power", "t_quantile"]

CONFIDENCE = 0.95
"""How often an interval holds the true ratio."""

SURE = 0.9
"""How often an experiment is to find a difference that it is said to be able to find."""

Pair: TypeAlias = tuple[float, float]
"""Two values of one block: the baseline's, and the other's."""

_MOST_BLOCKS = 1000
_PANELS = 600


def interval(pairs: Sequence[Pair]) -> Interval:
    """Where the ratio other / baseline lies, from one pair of values for each block.

    With fewer than two pairs there is a ratio and no interval.  If all pairs have the same ratio, both ends are that
    ratio: exact figures, such as a metric that counts something, need no test.

    Raises:
        ValueError: there is no pair, or a value is not a finite number above 0, so that it has no logarithm.
    """
    return combine([[pair] for pair in pairs])


def combine(blocks: Sequence[Sequence[Pair]]) -> Interval:
    """The same for the effect of one factor: each block has one pair for each combination of the other factors.

    A block's pairs are averaged, and a block counts as one observation.  With two pairs, as in a 2x2 grid, that would
    waste data that are scarce: there the effect is the mean of the two combinations' own effects, each with the spread
    of its own blocks.  Runs are independent, so the squares of the two standard errors add up, with the degrees of
    freedom of Satterthwaite (*Biometrics Bulletin* 2, 1946), rounded down: between those of one combination, if only
    that is noisy, and twice as many, if both are equally so.  This takes what a block does to the effect itself to be
    small against the noise of a run: where it is as large (5 % both), an interval misses in 7 of 100 instead of 5.
    With more combinations it would be far more often, and there is no need: the average of a block is exact enough.

    Args:
        blocks: for each block the pairs, in the same order of combinations.

    Raises:
        ValueError: there is no block or no pair, blocks have different numbers of them, or a value is not a finite
            number above 0.
    """
    if not blocks or not blocks[0] or len(set(map(len, blocks))) > 1:
        raise ValueError("a ratio needs at least one block, and each block at least one pair, as many as the others")
    logs = [[_log_ratio(pair) for pair in block] for block in blocks]
    count, width = len(logs), len(logs[0])
    means = [math.fsum(block) / width for block in logs]
    middle = math.fsum(means) / count
    ratio, median = math.exp(middle), math.exp(statistics.median(means))
    if count < 2:
        return Interval(count, ratio, None, None, median, None)
    columns = list(zip(*logs, strict=True)) if width == 2 else [means]
    shares = [_variance(column) / count / len(columns) ** 2 for column in columns]
    error, dof = math.sqrt(math.fsum(shares)), _freedom(shares, count - 1)
    reach = t_quantile((1 + CONFIDENCE) / 2, dof) * error
    most = detectable(error * math.sqrt(count), count, dof)
    return Interval(count, ratio, math.exp(middle - reach), math.exp(middle + reach), median, most)


def detectable(spread: float, blocks: int, dof: int | None = None) -> float:
    """The ratio above 1 that is shown with probability :data:`SURE`.

    Args:
        spread: standard deviation of the blocks' log-ratios. One that is estimated from a few blocks is itself
            uncertain, and so is the answer: from 5 blocks by about a third in either direction.
        blocks: number of blocks, at least 2.
        dof: degrees of freedom of the estimated spread; None: one fewer than there are blocks.
    """
    return math.exp(_shift(dof or blocks - 1) * spread / math.sqrt(blocks))


def power(ratio: float, spread: float, blocks: int, dof: int | None = None) -> float:
    """How probable it is that a true ``ratio`` is shown as what it is: above 1, if it is.

    Args:
        ratio: other / baseline, above 0.
        spread: standard deviation of the blocks' log-ratios, above 0; of two runs with independent
            noise s each it is s * sqrt(2).
        blocks: number of blocks, at least 2.
        dof: degrees of freedom of the estimated spread; None: one fewer than there are blocks.
    """
    return _power(abs(math.log(ratio)) * math.sqrt(blocks) / spread, dof or blocks - 1)


def blocks_needed(ratio: float, spread: float, probability: float = SURE) -> int:
    """The least number of blocks that show a true ``ratio`` with at least this probability; arguments as above.

    Raises:
        ValueError: more than a thousand would be needed.
    """
    if power(ratio, spread, _MOST_BLOCKS) < probability:
        raise ValueError(f"a ratio of {ratio} cannot be shown at a spread of {spread} with {_MOST_BLOCKS} blocks")
    return next(each for each in range(2, _MOST_BLOCKS + 1) if power(ratio, spread, each) >= probability)


def t_quantile(p: float, dof: int) -> float:
    """The value below which Student's t with ``dof`` degrees of freedom lies with probability ``p``.

    Raises:
        ValueError: ``p`` is not between 0 and 1, or ``dof`` is below 1.
    """
    if not 0 < p < 1 or dof < 1:
        raise ValueError(f"no quantile for p={p} and {dof} degrees of freedom: 0 < p < 1 and 1 or more are needed")
    return _t_quantile(p, dof) if p >= 0.5 else -_t_quantile(1 - p, dof)


@functools.lru_cache(maxsize=256)
def _t_quantile(p: float, dof: int) -> float:
    return _root(lambda t: (1 + _two_sided(t, dof)) / 2, p)


def _two_sided(t: float, dof: int) -> float:
    """The probability that the absolute value of t is below ``t``, which is not negative."""
    angle = math.atan(t / math.sqrt(dof))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = dof % 2
    term = cosine if odd else 1.0
    total = term if dof > 1 else 0.0
    for k in range(2 + odd, dof - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


@functools.lru_cache(maxsize=256)
def _shift(dof: int) -> float:
    """By how many standard errors a mean must differ from 0 to be shown with probability :data:`SURE`."""
    return _root(lambda shift: _power(shift, dof), SURE)


def _power(shift: float, dof: int) -> float:
    """The probability that a t, whose numerator is moved up by ``shift``, is above the end of the interval."""
    critical = t_quantile((1 + CONFIDENCE) / 2, dof)
    # The estimated spread as a share of the true one follows a chi distribution divided by sqrt(dof).
    scale = math.log(2) + dof / 2 * math.log(dof / 2) - math.lgamma(dof / 2)
    end = 1 + 10 / math.sqrt(dof)
    total = 0.0
    for panel in range(_PANELS + 1):
        share = end * panel / _PANELS
        if share > 0 or dof == 1:
            density = math.exp(scale + (dof - 1) * math.log(share or 1.0) - dof * share * share / 2)
            weight = 1 if panel in (0, _PANELS) else 4 if panel % 2 else 2
            total += weight * density * _normal(shift - critical * share)
    return total * end / _PANELS / 3


def _normal(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


def _root(rising: Callable[[float], float], goal: float) -> float:
    """Where a function that rises from 0 on reaches ``goal``."""
    low, high = 0.0, 1.0
    while rising(high) < goal:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if rising(middle) < goal else (low, middle)
    return high


def _variance(values: Sequence[float]) -> float:
    middle = math.fsum(values) / len(values)
    return math.fsum((each - middle) ** 2 for each in values) / (len(values) - 1)


def _freedom(shares: Sequence[float], dof: int) -> int:
    """Degrees of freedom of a sum of squared errors, each of which has ``dof``."""
    largest = max(shares)
    if largest == 0:
        return dof
    relative = [each / largest for each in shares]  # so that no square becomes 0
    exact = math.fsum(relative) ** 2 / math.fsum(each**2 for each in relative) * dof
    return max(dof, int(exact + 1e-9))


def _log_ratio(pair: Pair) -> float:
    if not all(0 < value < math.inf for value in pair):
        raise ValueError(f"{pair[1]} against {pair[0]}: a ratio needs two finite numbers above 0")
    return math.log(pair[1] / pair[0])
