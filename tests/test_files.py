"""Replacing files atomically."""

import pytest

from mfedpba_mpi.files import replacing, write_text


def test_a_file_is_replaced_only_at_the_end(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
        assert part.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_the_old_file_remains_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")

    def fail():
        with replacing(path) as part:
            part.write_text("half of the n")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_text_is_written_as_utf_8(tmp_path):
    write_text(tmp_path / "file", "λ₁\n")
    assert (tmp_path / "file").read_bytes() == "λ₁\n".encode()
