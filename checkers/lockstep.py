"""An engine beside the specification: the same actions, and all that can be seen compared.

Entry point: `Lockstep.step`. Blocks are compared up to renaming: `BlockNames` knows which block of
the engine plays the part of which block of the specification, for as long as that block is held or
can be found by its content. Of the free ones that can be found the order is compared, too: it says
whose content is evicted first, and so whose prompts go on being found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

import attrs

from checkers.explain import ExplainedScheduler
from checkers.run import Breach
from spec.interface import (
    EngineCoreOutput,
    Observation,
    SchedulerConfig,
    SchedulerOutput,
)
from spec.model import Model
from spec.scheduler import ReferenceScheduler
from spec.transition import Outcome, Transition

NAME = "same_as_spec"
RULE = "The engine answers and looks like the specification, up to the names of blocks."
EXACT_RULE = "The engine answers and looks like the specification, block ids included."
NAMELESS = "nameless"
"""How a block is called that nobody holds and nobody can find: any other would do as well."""
MAX_SHOWN = 32
"""Of two lists that are longer together, only the first difference is shown."""
Names = dict[int, int] | None
"""How blocks are called in a comparison; None keeps their own names."""
OPTIONAL_COUNTERS = (
    "num_preemptions",
    "num_output_placeholders",
    "num_in_flight_tokens",
    "num_stale_output_tokens",
    "num_draft_tokens",
)
"""What an engine may not tell of its requests; then it tells it of none."""


class Lockstep:
    """The specification, led through the actions that an engine went through."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        exact_ids: bool = False,
        with_evictions: bool = True,
        explain: bool = False,
    ) -> None:
        self.scheduler = ExplainedScheduler(config) if explain else ReferenceScheduler(config)
        self.spec = Model(None, self.scheduler)
        self.outcome = Outcome()
        """What the specification answered to the last action."""
        self.before = self.after = self.scheduler.observe()
        """The specification around the last action."""
        # None while every block has the same name on both sides.
        self.names: BlockNames | None = None
        self.exact_ids = exact_ids
        """Whether block ids and the order of the free queue must be the same, too."""
        self.with_evictions = with_evictions
        """Whether what is free and can be found must be evicted in the same order."""

    def step(self, seen: Transition) -> Breach | None:
        """Does the same action on the specification; returns how the engine differs from it."""
        self.outcome = self.spec.do(seen.action)
        self.before, self.after = self.after, self.scheduler.observe()
        output, expected = as_told(seen, self.outcome.output, self.after)
        outcome = self.outcome
        if output is not outcome.output:
            outcome = attrs.evolve(outcome, output=output)
        if self.names is None and is_same(seen, outcome, expected):
            return None
        evidence = tuple(self._differences(seen, outcome, expected))
        if not evidence:
            return None
        rule = EXACT_RULE if self.exact_ids else RULE
        return Breach(NAME, rule, evidence, "lockstep", self.explanation())

    def explanation(self) -> str:
        """How the specification came to its last decision, a line per rule.

        Empty unless `explain` was asked for.
        """
        if isinstance(self.scheduler, ExplainedScheduler):
            return "\n".join(self.scheduler.log)
        return ""

    def _differences(
        self, seen: Transition, outcome: Outcome, expected: Observation
    ) -> Iterator[str]:
        theirs: Names = None
        ours: Names = None
        if not self.exact_ids:
            names = self.names = self.names or BlockNames.identity(seen.before)
            yield from names.match(seen.after, self.before, expected)
            theirs, ours = names.to_spec, names.of_spec()
        if seen.outcome.output is not None and outcome.output is not None:
            yield from compare(
                "output",
                view_output(seen.outcome.output, theirs),
                view_output(outcome.output, ours),
            )
        yield from compare(
            "outputs", view_results(seen.outcome.results), view_results(outcome.results)
        )
        yield from compare("reset_prefix_cache()", seen.outcome.is_reset, outcome.is_reset)
        yield from compare("", view(seen.after, theirs), view(expected, ours))
        if self.exact_ids:
            yield from compare("free_block_ids", seen.after.free_block_ids, expected.free_block_ids)
        elif self.with_evictions:
            yield from compare(
                "free_block_ids that can be found",
                view_evictions(seen.after, theirs),
                view_evictions(expected, ours),
            )


def as_told(
    seen: Transition, output: SchedulerOutput | None, expected: Observation
) -> tuple[SchedulerOutput | None, Observation]:
    """Leaves out of the specification's answer and state what the engine does not tell."""
    theirs = seen.outcome.output
    if output is not None and theirs is not None and theirs.new_block_ids_to_zero is None:
        output = attrs.evolve(output, new_block_ids_to_zero=None)
    if seen.after.block_contents is None:
        expected.block_contents = None
    first = next(iter(seen.after.requests.values()), None)
    untold: dict[str, Any] = {n: None for n in OPTIONAL_COUNTERS if getattr(first, n, 0) is None}
    if untold:
        expected.requests = {
            name: attrs.evolve(request, **untold) for name, request in expected.requests.items()
        }
    return output, expected


def is_same(seen: Transition, outcome: Outcome, expected: Observation) -> bool:
    """The common case, decided at C speed: equal to the letter, ids and orders included."""
    ours, theirs = outcome.output, seen.outcome.output
    return (
        theirs == ours
        and (ours is None or theirs is None or _have_same_order(ours, theirs))
        and seen.outcome.results == outcome.results
        and seen.outcome.is_reset == outcome.is_reset
        and seen.after == expected
    )


def _have_same_order(ours: SchedulerOutput, theirs: SchedulerOutput) -> bool:
    """Of outputs that are equal; an order needs two."""
    if len(ours.num_scheduled_tokens) < 2:
        return True
    return view_order(ours) == view_order(theirs)


class BlockNames:
    """Which block of an engine plays the part of which block of the specification."""

    def __init__(self, to_spec: dict[int, int]) -> None:
        self.to_spec = to_spec

    @classmethod
    def identity(cls, seen: Observation) -> BlockNames:
        """Each block that has a part plays its own."""
        return cls({block_id: block_id for block_id in parts(seen)})

    def of_spec(self) -> dict[int, int]:
        """The specification's blocks that have a part, under their own names."""
        return {block_id: block_id for block_id in self.to_spec.values()}

    def match(self, seen: Observation, before: Observation, expected: Observation) -> Iterator[str]:
        """Forgets blocks without a part, and pairs new ones by their places in the block tables.

        A part ends when the specification (`before`, `expected`) gives its block back; if that is
        taken again in the same step, both blocks may play any part. Yields where a place is taken
        by a block that plays another part.
        """
        fixed = find_parts_that_go_on(before, expected)
        ours, theirs = parts(expected), parts(seen)
        self.to_spec = {e: s for e, s in self.to_spec.items() if e in theirs or s in ours}
        for request_id, request in seen.requests.items():
            if request_id not in expected.requests:
                continue
            table = expected.requests[request_id].block_ids
            pairs = zip(request.block_ids, table, strict=False)
            for index, (theirs_id, ours_id) in enumerate(pairs):
                part = self.to_spec.get(theirs_id)
                if part == ours_id:
                    fixed.add(ours_id)
                    continue
                if part in fixed or ours_id in fixed:
                    yield (
                        f"requests.{request_id}.block_ids[{index}]: the engine has block "
                        f"{theirs_id}, which does not play the part of the spec's block {ours_id}"
                    )
                    continue
                self.to_spec = {e: s for e, s in self.to_spec.items() if s != ours_id}
                self.to_spec[theirs_id] = ours_id
                fixed.add(ours_id)


def find_parts_that_go_on(before: Observation, after: Observation) -> set[int]:
    """Blocks of the specification that keep a holder or their content."""
    blocks = {b for b in after.cached_block_ids if content(after, b) == content(before, b)}
    for name, request in before.requests.items():
        if name in after.requests:
            blocks.update(set(request.block_ids).intersection(after.requests[name].block_ids))
    return blocks


def content(seen: Observation, block_id: int) -> object:
    """What a block is found by; just whether it is found where that is not told."""
    if seen.block_contents is None:
        return block_id in seen.cached_block_ids
    return seen.block_contents.get(block_id)


def parts(seen: Observation) -> set[int]:
    """The blocks that somebody holds or can find."""
    return set(seen.cached_block_ids).union(*seen.block_tables)


# ---- comparable views: plain data, blocks under the specification's names ----------------------


def view(seen: Observation, names: Names) -> dict[str, Any]:
    """An observation; the order of the free queue is left out (`view_evictions`)."""
    return {
        "running": seen.running,
        "waiting": seen.waiting,
        "requests": {
            request_id: {**attrs.asdict(request), "block_ids": rename(request.block_ids, names)}
            for request_id, request in seen.requests.items()
        },
        "num_free_blocks": seen.num_free_blocks,
        "free_block_ids": view_set(seen.free_block_ids, names),
        "ref_cnt": dict(zip(rename(seen.ref_cnt, names), seen.ref_cnt.values(), strict=True)),
        "cached_block_ids": view_set(seen.cached_block_ids, names),
        "block_contents": None
        if seen.block_contents is None
        else dict(
            zip(rename(seen.block_contents, names), seen.block_contents.values(), strict=True)
        ),
        "finished_req_ids": sorted(seen.finished_req_ids),
        "retained": [
            {**attrs.asdict(kept), "block_ids": rename(kept.block_ids, names)}
            for kept in seen.retained
        ],
        "deferred_loads": seen.deferred_loads,
    }


def view_output(output: SchedulerOutput, names: Names) -> dict[str, Any]:
    """A step's output; ids that an engine keeps in sets are sorted."""
    zeroed = output.new_block_ids_to_zero
    return {
        "num_scheduled_tokens": output.num_scheduled_tokens,
        "scheduled_new_reqs": {
            name: {**attrs.asdict(new), "block_ids": rename(new.block_ids, names)}
            for name, new in output.scheduled_new_reqs.items()
        },
        "scheduled_cached_reqs": {
            name: {**attrs.asdict(cached), "new_block_ids": rename(cached.new_block_ids, names)}
            for name, cached in output.scheduled_cached_reqs.items()
        },
        "order": view_order(output),
        "scheduled_spec_decode_tokens": output.scheduled_spec_decode_tokens,
        "kv_loads": {
            name: {**attrs.asdict(load), "block_ids": rename(load.block_ids, names)}
            for name, load in output.kv_loads.items()
        },
        "preempted_req_ids": sorted(output.preempted_req_ids),
        "finished_req_ids": sorted(output.finished_req_ids),
        "new_block_ids_to_zero": None if zeroed is None else view_set(zeroed, names),
    }


def view_order(output: SchedulerOutput) -> dict[str, list[str]]:
    """The order in which a step computes its requests, and in which the worker is told of them."""
    return {
        "num_scheduled_tokens": list(output.num_scheduled_tokens),
        "scheduled_new_reqs": list(output.scheduled_new_reqs),
        "scheduled_cached_reqs": list(output.scheduled_cached_reqs),
    }


def view_results(results: dict[int, list[EngineCoreOutput]] | None) -> Any:
    """What each client is sent, in order."""
    if results is None:
        return None
    return {
        str(client): {
            "order": [output.request_id for output in outputs],
            "sent": {output.request_id: attrs.asdict(output) for output in outputs},
        }
        for client, outputs in results.items()
    }


def view_set(block_ids: list[int], names: Names) -> dict[Any, int]:
    """How often each block is named, where order means nothing."""
    return dict(Counter(rename(block_ids, names)))


def view_evictions(seen: Observation, names: Names) -> list[Any]:
    """The blocks that nobody holds and somebody can find, the next one to be evicted first."""
    cached = set(seen.cached_block_ids)
    return rename([block_id for block_id in seen.free_block_ids if block_id in cached], names)


def rename(block_ids: Iterable[int], names: Names) -> list[Any]:
    """Blocks under the names of a comparison."""
    if names is None:
        return list(block_ids)
    return [names.get(block_id, NAMELESS) for block_id in block_ids]


def compare(path: str, theirs: Any, ours: Any) -> Iterator[str]:
    """Yields each place where two views differ."""
    if theirs == ours:
        return
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in [*ours, *[key for key in theirs if key not in ours]]:
            place = f"{path}.{key}" if path else str(key)
            if key not in theirs:
                yield f"{place}: the spec has {ours[key]!r}, the engine has none"
            elif key not in ours:
                yield f"{place}: the spec has none, the engine has {theirs[key]!r}"
            else:
                yield from compare(place, theirs[key], ours[key])
    elif isinstance(theirs, list) and isinstance(ours, list) and len(ours + theirs) > MAX_SHOWN:
        pairs = enumerate(zip_longest(theirs, ours))
        index, (their_item, our_item) = next(p for p in pairs if p[1][0] != p[1][1])
        yield f"{path}[{index}]: the spec has {our_item!r}, the engine has {their_item!r}"
    else:
        yield f"{path}: the spec has {ours!r}, the engine has {theirs!r}"
