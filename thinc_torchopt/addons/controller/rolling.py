"""The newest numbers of a series, with their mean, median, standard deviation and slope.

Sums are exact: a finite float is a whole number over a power of two, and Python's integers have no limit. So numbers
can be added and removed for ever without an error that grows, and a state is nothing but the numbers.
"""

from __future__ import annotations

import math
import zlib
from base64 import b85decode, b85encode
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence


class Rolling:
    """The newest numbers.

    size (int): The most that are kept.

    Public: `numbers` (oldest first).
    """

    def __init__(self, size: int, numbers: Iterable[float] = ()):
        self._size = size
        self.numbers: list[float] = []
        self._sorted: list[float] = []  # without NaN
        self._infinite = 0  # numbers that are not finite
        # Of finite numbers, in units of 2**-shift (of squares: 4**-shift): their sum, the sum of their squares, and the
        # sum of their products with their places.
        self._sum = self._squares = self._places = self._shift = 0
        for number in numbers:
            self.add(number)

    def add(self, number: float) -> None:
        """Add a number, and remove the oldest if there are too many."""
        numbers = self.numbers
        if len(numbers) == self._size:
            self._remove_oldest()
        if number - number == 0.0:  # finite
            whole = self._whole(number)
            self._sum += whole
            self._squares += whole * whole
            self._places += len(numbers) * whole
        else:
            self._infinite += 1
        if number == number:
            insort(self._sorted, number)
        numbers.append(number)

    def _remove_oldest(self) -> None:
        oldest = self.numbers.pop(0)
        if oldest == oldest:
            del self._sorted[bisect_left(self._sorted, oldest)]
        if oldest - oldest == 0.0:
            whole = self._whole(oldest)
            self._sum -= whole
            self._squares -= whole * whole
        else:
            self._infinite -= 1
        self._places -= self._sum  # all others move one place to the front

    def _whole(self, number: float) -> int:
        """A finite float in units of 2**-shift. Smaller units are used from now on, if it needs them."""
        numerator, denominator = number.as_integer_ratio()
        finer = denominator.bit_length() - 1 - self._shift
        if finer > 0:
            self._shift += finer
            self._sum <<= finer
            self._places <<= finer
            self._squares <<= 2 * finer
            return numerator
        return numerator << -finer

    # ------------------------------------------------------------------ of all numbers, at least one

    def mean(self) -> float:
        """NaN if there is one, or infinities of both signs."""
        if self._infinite:
            return sum(number for number in self.numbers if not math.isfinite(number))
        return self._sum / (len(self.numbers) << self._shift)

    def std(self) -> float:
        """The standard deviation: the root of the mean of squared differences from the mean. NaN if a number is not
        finite.
        """
        if self._infinite:
            return math.nan
        count = len(self.numbers)
        return math.sqrt(_ratio(count * self._squares - self._sum * self._sum, (count * count) << 2 * self._shift))

    def slope(self) -> float:
        """The slope of the line with the least squared distances: the change from one number to the next. 0 for one
        number, NaN if a number is not finite.
        """
        if self._infinite:
            return math.nan
        count = len(self.numbers)
        if count == 1:
            return 0.0
        covariance = 6 * (2 * self._places - (count - 1) * self._sum)
        return _ratio(covariance, (count * (count * count - 1)) << self._shift)

    def median(self) -> float:
        return self.quantile(0.5)

    def quantile(self, q: float) -> float:
        """The number below which a part of the numbers is; between two of them in proportion, as NumPy's. q (float):
        From 0 to 1. NaN if there is one.
        """
        if len(self._sorted) < len(self.numbers):
            return math.nan
        return _quantile(self._sorted, q)


def _quantile(ordered: Sequence[float], q: float) -> float:
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    part = place - below
    if low == high or not part:
        return low
    return (low + high) / 2 if part == 0.5 else low + (high - low) * part


def _ratio(a: int, b: int) -> float:
    """a / b, also if it is larger than any float. b (int): Above 0."""
    try:
        return a / b
    except OverflowError:
        return math.copysign(math.inf, a)


# ---------------------------------------------------------------------- in a state


def packed(numbers: Sequence[float]) -> str:
    """Numbers as a short text."""
    return b85encode(zlib.compress(" ".join(map(repr, numbers)).encode(), 9)).decode()


def unpacked(text: str, at_most: int) -> list[float]:
    """RAISES (ValueError): The text is not from `packed`, or has more numbers."""
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(b85decode(text), 32 * at_most + 32)  # the repr of a float has up to 24 characters
        numbers = [float(number) for number in content.decode().split()]
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(numbers) > at_most or not unpacker.eof:
        raise ValueError(f"expected at most {at_most} numbers, found more")
    return numbers
