"""Which replica answers: affinity of keys, and bounds of load."""

from collections import Counter

from photonlite.ray.placement import Placement, ranked

FOUR = ("a", "b", "c", "d")
KEYS = [f"image {number}" for number in range(2000)]


def placement(load_factor: float = 1.5, least_load: int = 1, **open_requests: int) -> Placement:
    made = Placement(load_factor, least_load)
    made.set_replicas(open_requests)
    for replica, count in open_requests.items():
        for _ in range(count):
            made.began(replica)
    return made


def test_keys_are_spread_evenly() -> None:
    owners = Counter(ranked(key, FOUR)[0] for key in KEYS)

    assert set(owners) == set(FOUR)
    assert all(400 < count < 600 for count in owners.values())  # 500 each, standard deviation 19


def test_the_order_of_a_key_does_not_depend_on_the_order_of_replicas() -> None:
    assert [ranked(key, FOUR) for key in KEYS[:50]] == [ranked(key, reversed(FOUR)) for key in KEYS[:50]]


def test_only_keys_of_a_lost_replica_move_and_to_all_others() -> None:
    before = {key: ranked(key, FOUR)[0] for key in KEYS}
    after = {key: ranked(key, FOUR[:3])[0] for key in KEYS}

    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == "d"}
    assert {after[key] for key in moved} == {"a", "b", "c"}


def test_a_key_goes_to_its_owner_while_that_is_not_overloaded() -> None:
    owner, second = ranked("key", FOUR)[:2]
    calm = placement(**dict.fromkeys(FOUR, 2))

    assert calm.order("key")[0] == owner
    calm.began(owner)
    assert calm.limit == 4  # 1.5 times the mean of 10 requests, the new one among them
    assert calm.order("key")[0] == owner
    calm.began(owner)  # now 5 would be open at the owner of 11, and 1.5 times the mean is 4.125
    calm.began(owner)
    assert calm.order("key") == [second, *ranked("key", FOUR)[2:], owner]
    calm.ended(owner)
    calm.ended(owner)
    assert calm.order("key")[0] == owner


def test_few_open_requests_are_never_too_many() -> None:
    owner = ranked("key", FOUR)[0]

    assert placement(least_load=4, **{**dict.fromkeys(FOUR, 0), owner: 3}).order("key")[0] == owner
    assert placement(least_load=4, **{**dict.fromkeys(FOUR, 0), owner: 4}).order("key")[0] != owner


def test_no_replica_is_loaded_beyond_the_bound_by_one_hot_key() -> None:
    crowded = placement(load_factor=1.25, **dict.fromkeys(FOUR, 0))
    for _ in range(400):
        crowded.began(crowded.order("the only key")[0])

    assert sum(crowded.open.values()) == 400
    assert max(crowded.open.values()) <= 126  # the ceiling of 1.25 times the mean, and a request that was counted


def test_without_a_key_the_least_busy_replica_comes_first_and_ties_take_turns() -> None:
    assert placement(a=3, b=1, c=2).order(None) == ["b", "c", "a"]
    idle = placement(**dict.fromkeys(FOUR, 0))
    assert {idle.order(None)[0] for _ in range(100)} == set(FOUR)


def test_replicas_that_stay_keep_their_counts() -> None:
    changing = placement(a=2, b=3)

    changing.set_replicas(["b", "c"])
    assert changing.open == {"b": 3, "c": 0}
    changing.ended("a")  # one that was lost
    changing.began("a")
    changing.ended("c")  # one from before it was known
    assert changing.open == {"b": 3, "c": 0}


def test_without_replicas_there_is_no_order() -> None:
    empty = placement()

    assert empty.order("key") == empty.order(None) == []
