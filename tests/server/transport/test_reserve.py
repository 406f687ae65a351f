from typing import Any

from photonlite.server.transport.connections import _RESERVED, join_reserve, too_many


class Connection:
    def __init__(self, is_silent: bool) -> None:
        self.is_silent = is_silent
        self.refused = False

    def refuse_crowd(self) -> None:
        self.refused = True


def test_the_oldest_silent_connection_is_refused_for_a_newer_one() -> None:
    reserve: dict[Any, None] = {}
    asking = [Connection(is_silent=False) for _ in range(2)]
    silent = [Connection(is_silent=True) for _ in range(_RESERVED)]
    for connection in (*asking, *silent):
        join_reserve(reserve, connection)

    assert [connection.refused for connection in silent] == [True, True, *[False] * (_RESERVED - 2)]
    assert not any(connection.refused for connection in asking)
    assert len(reserve) == _RESERVED


def test_without_silent_connections_the_newest_is_refused() -> None:
    reserve: dict[Any, None] = {}
    connections = [Connection(is_silent=False) for _ in range(_RESERVED + 1)]
    for connection in connections:
        join_reserve(reserve, connection)

    assert [connection.refused for connection in connections] == [*[False] * _RESERVED, True]


def test_a_closed_connection_makes_room() -> None:
    reserve: dict[Any, None] = {}
    connections = [Connection(is_silent=True) for _ in range(_RESERVED + 1)]
    for connection in connections[:-1]:
        join_reserve(reserve, connection)
    del reserve[connections[0]]
    join_reserve(reserve, connections[-1])

    assert not any(connection.refused for connection in connections)


def test_the_refusal_names_the_limit() -> None:
    failure = too_many(5, 7, 3)

    assert (failure.status, failure.code) == (503, "too_many")
    assert "5 of 7 connections are open, 3 of them from your address" in failure.message
    assert "--max-connections" in failure.message
