"""The table of events: what it refuses, and what its hash covers."""

from __future__ import annotations

import json
import pickle
import traceback
from dataclasses import replace

import pytest

from megatrace.errors import SchemaMismatch, UsageError
from megatrace.schema import CORE, Arg, Cause, Event, EventTable, Kind
from megatrace.schema.emit import table_header, words_header
from megatrace.schema.layout import arg_word, record_word

TILE = Event(16, "tile", Kind.SPAN, "A tile.")
FULL = Event(18, "full", Kind.STALL, "Not there.", cause=Cause.DATA)
TABLE = EventTable("t", (TILE, FULL))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((replace(TILE, id=3),), "outside 16..255"),
        ((replace(TILE, id=255),), "outside 16..255"),
        ((TILE, replace(FULL, id=17)), "taken by tile"),
        ((TILE, replace(FULL, name="tile")), "repeats"),
        ((replace(TILE, name="a tile"),), "no C\\+\\+ identifier"),
        ((replace(FULL, cause=None),), "needs a cause"),
    ],
)
def test_a_table_that_cannot_be_told_apart_is_refused(
    events: tuple[Event, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        EventTable("t", events)


def test_the_hint_of_an_error_stands_in_the_traceback() -> None:
    """Who uses the library sees no other: only the program's verbs print it themselves."""
    with pytest.raises(UsageError) as caught:
        EventTable("t", (TILE, replace(FULL, id=17)))
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        shown = "".join(traceback.format_exception(error))
        assert shown.count("hint: a span takes two ids: its own and the next") == 1


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((replace(TILE, name="args"),), "is one of"),
        ((replace(TILE, name="Kind"),), "is one of"),
        ((replace(TILE, name="switch"),), "keyword of C\\+\\+"),
        ((replace(TILE, name="__global__"),), "no C\\+\\+ identifier of your own"),
        ((replace(TILE, doc="One.\nTwo."),), "more than a line"),
        ((replace(TILE, doc="One. \\"),), "more than a line"),
        ((replace(FULL, kind=Kind.WAIT),), "a wait needs an edge"),
    ],
)
def test_what_makes_no_header_is_refused_there_and_can_be_read(
    events: tuple[Event, ...], words: str
) -> None:
    table = EventTable("t", events)
    assert EventTable.from_json(table.to_json()) == table
    with pytest.raises(UsageError, match=words):
        table_header(table)


@pytest.mark.parametrize("name", ["switch", "uint32_t", "__t"])
def test_a_table_whose_name_is_no_namespace_makes_no_header(name: str) -> None:
    with pytest.raises(UsageError, match="table name"):
        table_header(EventTable(name, (TILE,)))


def test_a_table_comes_back_from_its_json_with_the_same_hash() -> None:
    again = EventTable.from_json(TABLE.to_json())
    assert again == TABLE
    assert again.hash == TABLE.hash


@pytest.mark.parametrize(
    "changed",
    [
        replace(FULL, id=20),
        replace(FULL, name="empty"),
        replace(FULL, cause=Cause.SPACE),
        replace(FULL, args=(Arg("stage"),)),
        replace(FULL, doc="Other words."),
    ],
)
def test_the_hash_covers_every_row(changed: Event) -> None:
    assert EventTable("t", (TILE, changed)).hash != TABLE.hash


def test_another_layout_is_refused_with_both_versions_named() -> None:
    body = json.loads(TABLE.to_json())
    body["layout"] = 99
    with pytest.raises(SchemaMismatch, match="layout 99, this megatrace reads layout 1"):
        EventTable.from_json(json.dumps(body))


def test_other_core_events_are_refused() -> None:
    body = json.loads(TABLE.to_json())
    body["core"][1]["name"] = "heading"
    with pytest.raises(SchemaMismatch, match=f"{TABLE.hash:016x}"):
        EventTable.from_json(json.dumps(body))


def test_a_kind_says_what_follows_its_word() -> None:
    wait = Event(20, "w", Kind.WAIT, "W.", cause=Cause.PEER, edge="e", args=(Arg("rank"),))
    assert [arg.name for arg in wait.all_args] == ["dur_cycles", "slot", "rank"]
    assert [arg.name for arg in TILE.all_args] == []


def test_the_core_events_are_numbered_in_order() -> None:
    assert [event.id for event in CORE] == list(range(len(CORE)))


def test_the_emitted_table_carries_ids_hash_and_causes() -> None:
    text = table_header(TABLE)
    assert f"kTableHash = 0x{TABLE.build_hash:016x}ull" in text
    assert "struct full {" in text
    assert "id = 18;" in text
    assert "cause = Cause::data;" in text


def test_the_words_header_names_the_causes_in_the_order_of_the_counters() -> None:
    assert "enum class Cause : uint32_t { data, space, input, peer };" in words_header()


def test_a_word_is_a_record_or_an_argument() -> None:
    assert record_word(255, (1 << 23) + 5) == (255 << 23) | 5
    assert arg_word((1 << 31) + 7) == (1 << 31) | 7
