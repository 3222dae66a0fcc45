"""What the user can put right, and how it is said."""

from __future__ import annotations


class UserError(ValueError):
    """Something that the user can put right: the message is all they need, a traceback would only hide it."""


def one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    return " ".join(str(error).split()) or type(error).__name__
