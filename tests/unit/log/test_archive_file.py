"""One file of archived records: what is no such file, or cut short, or changed, is said to be so."""

from pathlib import Path

import pytest

from streams.log import archive_file
from streams.log.archive_file import MAGIC, ArchiveFile, Head, write
from streams.log.base import LogDamaged, Record

HEAD = Head("ledger", "claims", 0, 5, 29)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of three blocks."""
    monkeypatch.setattr(archive_file, "BLOCK_RECORDS_MAX", 8)
    path = tmp_path / "x.archive"
    write(path, HEAD, [[Record("claims", 0, offset, 1_000 + offset, b"k", b"v" * offset, ()) for offset in range(5, 29)]])
    return path


def test_a_file_is_read_back_with_its_head_and_the_times_of_its_blocks(path: Path) -> None:
    with ArchiveFile(path) as file:
        assert file.head == HEAD
        assert [(each.first, each.end, each.held, each.time_ms_first, each.time_ms_last) for each in file.frames()] == [
            (5, 13, 8, 1_005, 1_012),
            (13, 21, 8, 1_013, 1_020),
            (21, 29, 8, 1_021, 1_028),
        ]
        assert [record.offset for frame in file.frames() for record in file.records(frame)] == list(range(5, 29))


@pytest.mark.parametrize("content", [b"", MAGIC[:5], b"a shopping list, longer than the head of an archive would be"])
def test_what_is_no_archive_is_called_none(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(LogDamaged, match=r"x\.archive: this is not an archive of claimlog\. Restore the file from a copy"):
        ArchiveFile(path)


def test_an_archive_that_is_cut_short_anywhere_is_damaged_from_the_block_on_in_which_it_ends(path: Path) -> None:
    whole = path.read_bytes()
    with ArchiveFile(path) as file:
        ends = [(frame.place + frame.length, frame.end) for frame in file.frames()]
        begins = file.frames()[0].place - archive_file._FRAME.size - archive_file._CHECK.size

    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        served = 5
        with pytest.raises(LogDamaged) as raised, ArchiveFile(path) as file:
            for frame in file.frames():
                served = file.records(frame)[-1].offset + 1
        if size >= begins:
            assert raised.value.position is not None
            assert raised.value.position.offset == max([5, *(offset for end, offset in ends if end <= size)])
        assert served <= max([5, *(offset for end, offset in ends if end <= size)])


def test_each_byte_of_the_heads_counts(path: Path) -> None:
    whole = path.read_bytes()
    frames_heads = archive_file._FRAME.size + archive_file._CHECK.size
    with ArchiveFile(path) as file:
        first, second, _ = (frame.place for frame in file.frames())

    for at in (*range(first - frames_heads), *range(second - frames_heads, second)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        named = r"claims/0@13: the checksum of a block's header does not hold" if at > first else r"x\.archive: "
        with pytest.raises(LogDamaged, match=named), ArchiveFile(path) as file:
            file.frames()


def test_a_block_that_is_gone_or_stands_in_another_s_place_is_named(path: Path) -> None:
    whole = path.read_bytes()
    with ArchiveFile(path) as file:
        first, second, third = file.frames()
        with pytest.raises(LogDamaged, match="claims/0@13: "):
            file.records(second._replace(place=third.place, length=third.length))

    path.write_bytes(whole[: first.place + first.length] + whole[second.place + second.length :])
    with ArchiveFile(path) as file, pytest.raises(LogDamaged, match="claims/0@13: a block starts at 21 where 13 is expected"):
        file.frames()
