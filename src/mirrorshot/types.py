"""Errors and the vocabulary of shapes.

Shape letters, everywhere: `T` tasks, `C` classes of a task (n_way), `N` conditioning points, `M` query points,
`D` features. The task dimension comes first.
"""


class MirrorshotError(Exception):
    """Base of all errors raised by mirrorshot."""


class InvalidInputError(MirrorshotError, ValueError):
    """An argument has the wrong shape, type or values. The message says what was expected and what was got."""


class NumericalError(MirrorshotError, ArithmeticError):
    """A computation left the range of its floating-point type."""
