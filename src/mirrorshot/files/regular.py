"""Opening of regular files at paths of users, which may be pipes or devices."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotRegularFileError(OSError):
    """The path is a pipe, a socket or a device; reading it may never end."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading bytes. Never blocks.

    Raises:
        NotRegularFileError: the path is a pipe, a socket or a device.
        IsADirectoryError: the path is a folder.
        OSError: the file cannot be opened.

    Example:
        >>> open_regular(Path(os.devnull))
        Traceback (most recent call last):
        mirrorshot.files.regular.NotRegularFileError: [Errno 22] not a regular file: ...
    """
    _check(os.stat(path), path)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = open(descriptor, "rb")  # noqa: SIM115 - the caller closes it
    try:
        _check(os.fstat(descriptor), path)  # the file may have been replaced since the first check
    except OSError:
        file.close()
        raise
    return file


def _check(found: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise NotRegularFileError(errno.EINVAL, "not a regular file", str(path))
