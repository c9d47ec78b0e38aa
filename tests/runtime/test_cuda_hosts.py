"""Hosts of several ranks in one process: launches are made together, by rank, and nobody waits for ever."""

from __future__ import annotations

import pytest

from tilelink.errors import ArgumentError
from tilelink.kernels.all_gather_matmul import all_gather_matmul
from tilelink.runtime.cuda.virtual_world import Hosts


def test_launches_are_made_together_by_rank() -> None:
    hosts, seen = Hosts(3), []

    def body(rank: int) -> int:
        for call in range(2):
            seen.append(("before", call, rank))
            hosts.together(rank, lambda call=call: seen.append(("launch", call, rank)))  # type: ignore[misc]
        return 10 * rank

    assert hosts.run(body) == [0, 10, 20]
    assert [s for s in seen if s[0] == "launch"] == [("launch", c, r) for c in range(2) for r in range(3)]
    for call in range(2):
        first = seen.index(("launch", call, 0))
        assert {s[0] for s in seen[first : first + 3]} == {"launch"}, "nothing stands between the launches of a call"
        assert {("before", call, r) for r in range(3)} <= set(seen[:first])


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_rank_that_never_comes_does_not_hold_up_the_others(missing: int) -> None:
    hosts, seen = Hosts(3), []

    def body(rank: int) -> None:
        for call in range(2 if rank != missing else 1):
            hosts.together(rank, lambda call=call: seen.append((call, rank)))  # type: ignore[misc]

    hosts.run(body)
    assert seen == [(0, 0), (0, 1), (0, 2), *((1, r) for r in range(3) if r != missing)]


def test_an_error_of_one_host_ends_all() -> None:
    hosts, seen = Hosts(2), []

    def body(rank: int) -> None:
        hosts.together(rank, lambda: seen.append(rank))
        if rank == 1:
            raise KeyError("mine")
        hosts.together(rank, lambda: seen.append(rank))

    with pytest.raises(KeyError, match="mine"):
        hosts.run(body)
    assert seen == [0, 1] and not hosts.running
    assert hosts.run(lambda rank: rank) == [0, 1], "and the next run is not disturbed"


def test_an_error_of_a_launch_is_raised() -> None:
    hosts = Hosts(2)

    def fail() -> None:
        raise ValueError("no such kernel")

    with pytest.raises(ValueError, match="no such kernel"):
        hosts.run(lambda rank: hosts.together(rank, fail))


def test_an_error_without_a_line_of_the_users_on_the_thread_is_where_the_hosts_are_run() -> None:
    with pytest.raises(ArgumentError) as error:
        Hosts(2).run(all_gather_matmul)
    site = error.value.site
    assert site is not None and (site.file, site.text) == (__file__, "Hosts(2).run(all_gather_matmul)")
