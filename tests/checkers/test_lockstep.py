from __future__ import annotations

import copy

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.lockstep import MAX_SHOWN, Lockstep, compare
from checkers.run import Run
from spec.actions import AddRequest, Schedule, UpdateFromOutput
from spec.scheduler import ReferenceScheduler
from tests.spec.support import (
    choices,
    configs,
    make_config,
    make_environment,
    make_request,
)


class Renaming(ReferenceScheduler):
    """The specification with other names for its blocks, and another order of handing them out."""

    def __init__(self, config, seed=0):
        super().__init__(config)
        queue = self.block_pool.free_block_queue
        self.block_pool.free_block_queue = queue[seed % len(queue) :] + queue[: seed % len(queue)]


class Altered:
    """The specification, whose answers and looks are altered on their way out."""

    def __init__(self, config):
        self.inner = ReferenceScheduler(config)
        self.alter_output = self.alter_results = self.alter_seen = lambda _: None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def schedule(self):
        """As altered."""
        output = copy.deepcopy(self.inner.schedule())
        self.alter_output(output)
        return output

    def update_from_output(self, output, result):
        """As altered."""
        results = copy.deepcopy(self.inner.update_from_output(output, result))
        self.alter_results(results)
        return results

    def observe(self):
        """As altered."""
        seen = copy.deepcopy(self.inner.observe())
        self.alter_seen(seen)
        return seen


def follow(config, engine, walk_choices, **options):
    """Drives an engine along a walk in lockstep; yields each transition with what was found."""
    run = Run(config, engine, make_environment(config))
    lockstep = Lockstep(config, **options)
    for choice in walk_choices:
        actions = run.model.enabled_actions()
        seen = run.step(actions[choice % len(actions)])
        yield seen, lockstep.step(seen)


@given(configs(), choices, st.integers(0, 99))
def test_names_of_blocks_do_not_matter(config, walk_choices, seed):
    """An engine that hands its blocks out in another order is the same engine."""
    for _, breach in follow(config, Renaming(config, seed), walk_choices):
        assert breach is None


@given(configs(), choices)
def test_the_specification_is_itself_by_exact_ids(config, walk_choices):
    """Block numbers and the order of the free queue are compared on request, and then agree."""
    for _, breach in follow(config, ReferenceScheduler(config), walk_choices, exact_ids=True):
        assert breach is None


def test_exact_ids_tell_names_apart():
    """With exact ids another first block is a difference, shown under its own number."""
    config = make_config(num_blocks=3)
    _, breach = next(follow(config, Renaming(config, 1), [0], exact_ids=True))
    assert ("free_block_ids: the spec has [1, 2, 3], the engine has [2, 3, 1]",) == breach.evidence


def run_altered(alter, num_requests=3, **changes):
    """What lockstep finds once an engine's answers are altered, two steps into a run."""
    config = make_config(num_blocks=8, **changes)
    engine = Altered(config)
    run, lockstep = Run(config, engine), Lockstep(config, explain=True)
    for name in "ABC"[:num_requests]:
        assert lockstep.step(run.step(AddRequest(make_request(name, 4, max_tokens=3)))) is None
    for _ in range(2):
        for action in (Schedule(), UpdateFromOutput({name: [7] for name in "ABC"[:num_requests]})):
            assert lockstep.step(run.step(action)) is None
    alter(engine)
    seen = run.step(Schedule())
    breach = lockstep.step(seen)
    if breach is None:
        sampled = {name: [7] for name in "ABC"[:num_requests]}
        breach = lockstep.step(run.step(UpdateFromOutput(sampled)))
    return breach


def reverse(mapping):
    """Turns the order of a dict."""
    items = list(mapping.items())[::-1]
    mapping.clear()
    mapping.update(items)


def on_output(change):
    """Alters the output of a step."""
    return lambda engine: setattr(engine, "alter_output", change)


def on_results(change):
    """Alters what clients are sent."""
    return lambda engine: setattr(engine, "alter_results", lambda results: change(results[0]))


def on_seen(change):
    """Alters what is observed."""
    return lambda engine: setattr(engine, "alter_seen", change)


ALTERATIONS = {
    "output.order.num_scheduled_tokens": on_output(lambda o: reverse(o.num_scheduled_tokens)),
    "output.order.scheduled_cached_reqs": on_output(lambda o: reverse(o.scheduled_cached_reqs)),
    "output.num_scheduled_tokens.A": on_output(lambda o: o.num_scheduled_tokens.update(A=2)),
    "output.scheduled_cached_reqs.B.resumed": on_output(
        lambda o: setattr(o.scheduled_cached_reqs["B"], "resumed", True)
    ),
    "output.preempted_req_ids": on_output(lambda o: o.preempted_req_ids.append("A")),
    "output.finished_req_ids": on_output(lambda o: o.finished_req_ids.append("A")),
    "output.new_block_ids_to_zero.1": on_output(lambda o: o.new_block_ids_to_zero.append(1)),
    "outputs.0.order": on_results(lambda outputs: outputs.reverse()),
    "outputs.0.sent.A.finish_reason": on_results(
        lambda outputs: setattr(outputs[0], "finish_reason", None)
    ),
    "outputs.0.sent.A.new_token_ids": on_results(lambda outputs: outputs[0].new_token_ids.pop()),
    "running": on_seen(lambda seen: seen.running.reverse()),
    "waiting": on_seen(lambda seen: seen.waiting.append("A")),
    "num_free_blocks": on_seen(lambda seen: setattr(seen, "num_free_blocks", 9)),
    "ref_cnt.1": on_seen(lambda seen: seen.ref_cnt.update({1: 2})),
    "free_block_ids.nameless": on_seen(lambda seen: seen.free_block_ids.pop()),
    "cached_block_ids.1": on_seen(lambda seen: seen.cached_block_ids.append(1)),
    "finished_req_ids": on_seen(lambda seen: seen.finished_req_ids.append("A")),
    "requests.B": on_seen(lambda seen: seen.requests.pop("B")),
    "requests.B.status": on_seen(lambda seen: setattr(seen.requests["B"], "status", "WAITING")),
    "requests.B.num_preemptions": on_seen(
        lambda seen: setattr(seen.requests["B"], "num_preemptions", 1)
    ),
}


@pytest.mark.parametrize("place", ALTERATIONS)
def test_any_difference_is_noticed_in_its_place(place):
    """Whatever an engine answers or looks like otherwise is found, with both sides of it."""
    breach = run_altered(ALTERATIONS[place])
    found = [sentence.partition(": the spec has ") for sentence in breach.evidence]
    assert place in [name for name, _, _ in found]
    assert all("the engine has" in both for _, _, both in found)


def test_a_block_plays_one_part():
    """Blocks have any names, but a name does not change while it is held."""
    exchange = {1: 2, 2: 1}

    def alter(seen):
        for request in seen.requests.values():
            request.block_ids = [exchange.get(b, b) for b in request.block_ids]

    breach = run_altered(on_seen(alter))
    assert (
        "requests.A.block_ids[0]: the engine has block 2, which does not play the part of the "
        "spec's block 1"
    ) in breach.evidence


def forget(seen):
    """What some releases lack."""
    seen.block_contents = None
    for name, request in seen.requests.items():
        seen.requests[name] = attrs.evolve(
            request, num_preemptions=None, num_in_flight_tokens=None, num_stale_output_tokens=None
        )


def evicting(free_block_ids, **options):
    """What lockstep finds of an engine whose one free prefix, of two blocks, stands in an order."""
    config = make_config(enable_prefix_caching=True, num_blocks=3)
    engine = Altered(config)
    run, lockstep = Run(config, engine), Lockstep(config, **options)
    for action in (AddRequest(make_request("A", 9, max_tokens=1)), Schedule()):
        assert lockstep.step(run.step(action)) is None
    engine.alter_seen = lambda seen: setattr(seen, "free_block_ids", free_block_ids)
    return lockstep.step(run.step(UpdateFromOutput({"A": [7]})))


def test_what_is_found_is_evicted_in_one_order():
    """Free blocks with content have their order; where those without stand, nobody sees."""
    assert evicting([3, 2, 1]) is None
    assert evicting([2, 3, 1]) is None
    assert ("free_block_ids that can be found: the spec has [2, 1], the engine has [1, 2]",) == (
        evicting([3, 1, 2]).evidence
    )


def test_the_order_of_evictions_may_be_left_open():
    """A recording may have freed several requests at once, in an order that nobody knows."""
    assert evicting([3, 1, 2], with_evictions=False) is None


def test_what_an_engine_cannot_tell_is_not_compared():
    """None stands for a field that a release lacks, and is no difference; the rest is compared."""

    def alter(engine):
        engine.alter_seen = forget
        engine.alter_output = lambda output: setattr(output, "new_block_ids_to_zero", None)

    assert run_altered(alter) is None

    def alter_more(engine):
        alter(engine)
        engine.alter_output = lambda output: output.num_scheduled_tokens.update(A=2)

    assert run_altered(alter_more) is not None


def test_a_difference_comes_with_the_rules_of_the_specification():
    """The detail of a finding says how the specification came to its decision."""
    breach = run_altered(ALTERATIONS["output.num_scheduled_tokens.A"])
    assert breach.detail.startswith("pass 1: A has a gap of 1 and may get 1 tokens")


def test_without_explanation_there_is_none():
    """Explaining costs time, so it is done on request."""
    lockstep = Lockstep(make_config())
    assert "" == lockstep.explanation()


def test_long_lists_are_not_printed():
    """Of two long lists the first place where they differ is shown."""
    ours = list(range(MAX_SHOWN))
    assert ["x[7]: the spec has 7, the engine has 8"] == list(
        compare("x", [n if n != 7 else 8 for n in ours], ours)
    )
    assert [f"x[{MAX_SHOWN - 1}]: the spec has {MAX_SHOWN - 1}, the engine has None"] == list(
        compare("x", ours[:-1], ours)
    )
