"""Files that must be whole, and files that must be files: written at once or not at all, read within bounds."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# More than any config, plan, report or graph of ours has.
LONGEST = 256 * 2**20
_CHUNK = 2**20


@dataclass(frozen=True)
class FileSum:
    """By what a file is recognised: its length in bytes and the SHA-256 of its content."""

    size: int
    sha256: str

    def packed(self) -> bytes:
        """As 40 bytes, the same number for every file."""
        return self.size.to_bytes(8, "big") + bytes.fromhex(self.sha256)

    @classmethod
    def unpacked(cls, data: bytes) -> FileSum:
        """The inverse of ``packed``."""
        return cls(int.from_bytes(data[:8], "big"), data[8:].hex())


def sum_of(path: Path) -> FileSum:
    """Reads the file to its end. Raises OSError where that fails, or where it is no regular file."""
    digest, size = hashlib.sha256(), 0
    with _open_regular(path) as descriptor:
        while part := os.read(descriptor, _CHUNK):
            digest.update(part)
            size += len(part)
    return FileSum(size, digest.hexdigest())


def read_bytes(path: str | Path, longest: int = LONGEST) -> bytes:
    """A file's content. Raises OSError for a pipe, a device or a folder, which may have no end, and for a long file."""
    with _open_regular(Path(path)) as descriptor:
        if os.fstat(descriptor).st_size > longest:
            raise OSError(errno.EFBIG, f"is longer than {longest} bytes", str(path))
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read()


def read_text(path: str | Path, longest: int = LONGEST) -> str:
    """As ``read_bytes``, as text. Raises UnicodeDecodeError, a ValueError, for what isn't UTF-8."""
    return read_bytes(path, longest).decode()


def publish(partial: Path, target: Path) -> None:
    """Renames a written file into place once its bytes are on the disk, and then makes the name last as well."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(target)
    sync_folder(target.parent)


def write_whole(target: Path, text: str, mode: int = 0o644) -> None:
    """Writes a file that a reader sees whole or not at all; a link in its place is replaced, not followed."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        publish(partial, target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a loss of power, as far as its file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _open_regular(path: Path) -> Iterator[int]:
    # O_NONBLOCK: opening a pipe would wait for whoever writes it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        yield descriptor
    finally:
        os.close(descriptor)
