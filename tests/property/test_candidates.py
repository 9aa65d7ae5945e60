"""The GPUs that could be selected by hand are those that a placement by hand would take: on any fleet, for any ask."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.placement import Ask, Layout, Placed
from controller.scheduling.explain.gpu_misses import gpu_misses
from controller.scheduling.search.place import place
from support.builders.fleet import GIB, Fleet, gpus_of
from support.builders.random_fleets import SHAPES, asks, fleets
from support.profiles import examples

SINGLE = st.builds(lambda memory, exclusive: Layout(1, memory * GIB, exclusive), st.integers(0, 26), st.booleans())


@st.composite
def single_asks(draw: st.DrawFn) -> Ask:
    """Asks for one GPU, by one or two engines."""
    ask = Ask(instance="i", **{**draw(SHAPES), "layouts": (draw(SINGLE),)})
    other = draw(st.one_of(st.none(), SHAPES))
    if other is not None:
        ask = replace(ask, otherwise=Ask(instance="i", **{**other, "layouts": (draw(SINGLE),)}))
    return ask


def by_hand(ask: Ask, uuid: str, *, all_gpus: bool) -> Ask:
    """The ask with that GPU alone selected."""
    otherwise = None if ask.otherwise is None else by_hand(ask.otherwise, uuid, all_gpus=all_gpus)
    return replace(ask, workers=(), gpus=(uuid,), all_workers=False, all_gpus=all_gpus, otherwise=otherwise)


@given(fleets(), asks(), single_asks(), st.booleans())
@examples()
def test_a_gpu_is_selectable_where_selecting_it_places_there(
    fleet: Fleet, before: list[Ask], ask: Ask, all_gpus: bool
) -> None:
    inventory = fleet.inventory()
    place(inventory, [replace(one, instance=f"b{one.instance}") for one in before])
    misses = gpu_misses(inventory, ask)
    uuids = list(inventory.gpus.uuid)
    for row, uuid in enumerate(uuids):
        fresh = fleet.inventory()
        place(fresh, [replace(one, instance=f"b{one.instance}") for one in before])
        (decision,) = place(fresh, [by_hand(ask, uuid, all_gpus=all_gpus)])
        there = isinstance(decision, Placed)
        assert there == (misses.code(row) == ""), (uuid, misses.code(row), decision)
        assert (misses.message(row) == "") == there
        if isinstance(decision, Placed):
            assert gpus_of(decision) == [uuid]


@given(fleets(), asks())
@examples()
def test_the_automatic_choice_is_selectable(fleet: Fleet, wanted: list[Ask]) -> None:
    inventory = fleet.inventory()
    for ask in wanted:
        misses = gpu_misses(inventory, ask)
        (decision,) = place(inventory, [ask])
        if isinstance(decision, Placed):
            chosen = [row for row in map(inventory.gpu_row, gpus_of(decision)) if row is not None]
            assert [misses.code(row) for row in chosen] == [""] * len(chosen)
