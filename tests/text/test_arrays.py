"""Arrays of tokens on disk."""

import errno
import os

import pytest

from sixfold.text.arrays import RowWriter


def test_a_disk_that_is_full_of_tokens_says_so(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no device that is always full")
    for name in ("ids", "offsets"):
        (tmp_path / f"{name}.{name}").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left") as error, RowWriter(tmp_path, name, 9) as writer:
            writer.write([[5] * 9] * 9000)
        assert error.value.errno == errno.ENOSPC
