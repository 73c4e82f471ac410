from __future__ import annotations

import pytest
import z3

import proofs.unbounded.free_block_queue as module
from impl.free_block_queue import FreeBlockQueue
from proofs.symbolic.heap import Memory
from proofs.symbolic.loops import Loop
from proofs.symbolic.prover import FrameError, Prover
from proofs.symbolic.values import SymInt, UnsupportedError, term
from proofs.unbounded.free_block_queue import FREE, GIVEN, Links, SymbolicQueue, prove_queue
from proofs.unbounded.local_loops import EARLIER, cut_with_local
from proofs.unbounded.watch_queue import OpenQueue, QueuePair, QueueWorld, explore_queues

OPERATIONS = ["remove", "popleft_n", "prepend_n", "append_n"]


def test_every_method_changes_the_ring_as_a_list():
    """Whatever the number of blocks, removing, taking and joining are those of a list."""
    found = dict(prove_queue())
    assert OPERATIONS == list(found)
    assert [None] * 4 == [prover.unproved for prover in found.values()]
    assert all(len(prover.discharged) >= 10 for prover in found.values())


def test_what_is_false_is_not_proved(monkeypatch):
    """What is assumed of a queue does not contradict itself, after any of the operations."""
    false = {"nothing": z3.BoolVal(False)}
    monkeypatch.setattr(module, "_others_keep_their_links", lambda *_: false)
    assert ["nothing"] * 4 == [prover.unproved.clause for _, prover in prove_queue()]


# ---- a real queue as the arrays of a proof -------------------------------------------------------


def array_of(numbers):
    """An array that is 0 wherever no number is given."""
    array = z3.K(z3.IntSort(), z3.IntVal(0))
    for key, number in numbers.items():
        array = z3.Store(array, key, number)
    return array


def symbolic_copy(queue):
    """A symbolic queue that stands for a real one."""
    copied, listed = SymbolicQueue(Prover()), list(queue)
    after, before = queue.links()
    given = {
        "num_free_blocks": z3.IntVal(queue.num_free_blocks),
        "next": array_of(dict(enumerate(after))),
        "prev": array_of(dict(enumerate(before))),
        "where": array_of(dict.fromkeys(listed, FREE)),
        "pos": array_of({block_id: place for place, block_id in enumerate(listed)}),
        "free.arr": array_of(dict(enumerate(listed))),
        "free.lo": z3.IntVal(0),
        "free.hi": z3.IntVal(len(listed)),
    }
    copied.memory.cells.update(given)
    return copied


@pytest.mark.parametrize("removed", [(), (2,), (1, 4), (4, 3, 2, 1)])
def test_a_real_queue_is_what_is_assumed(removed):
    """A queue that was really used satisfies everything that a proof assumes of one."""
    queue = OpenQueue(4)
    for block_id in removed:
        queue.remove(block_id)
    queue.append_n(list(removed[:1]))
    copied = symbolic_copy(queue)
    for claim in (copied.ring() | copied.listed.representation()).values():
        solver = z3.Solver()
        solver.add(z3.Not(claim))
        assert z3.unsat == solver.check()


def test_a_broken_ring_is_not_what_is_assumed():
    """The test above can fail: a ring with a wrong link breaks a claim."""
    queue = OpenQueue(4)
    queue._prev[3] = 1
    solver = z3.Solver()
    solver.add(z3.And(*symbolic_copy(queue).ring().values()))
    assert z3.unsat == solver.check()


# ---- plain queues --------------------------------------------------------------------------------


def test_a_new_queue_holds_all_blocks_in_order():
    """The constructor, which no proof runs, makes the ring of 1, 2, … up to 64 blocks."""
    for num_blocks in range(65):
        world = QueueWorld(num_blocks)
        compared = list(world.compare(world.start()))
        assert 2 * num_blocks + 3 == len(compared)
        assert all(expected == actual for _, expected, actual in compared)


def test_every_run_of_a_few_blocks_is_a_list():
    """With up to 3 blocks every queue that can come up was compared with a list."""
    found = list(explore_queues())
    assert [None] * 3 == [each.difference for each in found]
    assert [(2, 10), (15, 133), (304, 6540)] == [
        (each.num_states, each.num_operations) for each in found
    ]


def test_arrays_that_differ_are_different_queues():
    """What the arrays hold of blocks that are not free counts, since nothing says it does not."""
    world, kept, changed = QueueWorld(3), QueueWorld(3).start(), QueueWorld(3).start()
    for pair in (kept, changed):
        pair.queue.popleft_n(1)
    changed.queue._next[1] = 3
    assert world.key(kept) != world.key(changed)
    assert isinstance(kept, QueuePair)


# ---- the loop rule for a local variable ----------------------------------------------------------


class Steps:
    """The numbers from 0 up to a symbol; a loop over them carries the local variable `last`."""

    def __init__(self, value_at, gathered=None):
        self.prover = Prover()
        self.memory = Memory(self.prover)
        self.memory.add_integers("cursor")
        self.memory.add_arrays("written")
        self.value_at, self.gathered = value_at, gathered
        self.num = self.prover.any_integer("num")

    def symbolic_len(self):
        """Answers `len`."""
        return self.num

    def __getitem__(self, place):
        return place

    def __iter__(self):
        loop = Loop("looping", self.memory, dict, dict, ("cursor",), forgets=False)
        return cut_with_local(loop, self, "last", self.value_at, self.gathered)

    def prove(self, body):
        """What is obliged of the body, and not proved; None if all is."""

        def run():
            self.prover.assume(self.num >= 0)
            body(self)

        self.prover.prove(run)
        unproved = self.prover.unproved
        return unproved and unproved.clause


class Own(SymInt):
    """A symbol that comes of no arithmetic, so nobody else holds it."""


def double(steps):
    """Adds 2 as often as there are steps."""
    last = Own(z3.IntVal(0))
    for _ in steps:
        last = last + 2
    steps.prover.oblige("doubled", last == steps.num * 2)


def gather(steps):
    """Gathers every even number."""
    last, found = Own(z3.IntVal(0)), []
    for _ in steps:
        found.append(last)
        last = last + 2
    assert [EARLIER] == found


def gather_odd(steps):
    """Gathers every odd number."""
    last, found = Own(z3.IntVal(0)), []
    for _ in steps:
        found.append(last + 1)
        last = last + 2


def forget_one(steps):
    """Gathers nothing."""
    last, found = Own(z3.IntVal(0)), []
    for _ in steps:
        last = last + 2
    assert found


def even(place):
    """What `last` holds if every step adds 2."""
    return term(place) * 2


@pytest.mark.parametrize(
    ("body", "value_at", "gathered", "unproved"),
    [
        (double, even, None, None),
        (gather, even, "found", None),
        (double, lambda place: term(place) * 3, None, "last again"),
        (double, lambda place: even(place) + 1, None, "last at first"),
        (gather_odd, even, "found", "one is gathered"),
        (forget_one, even, "found", "one is gathered"),
    ],
)
def test_what_is_said_of_a_local_variable_is_shown(body, value_at, gathered, unproved):
    """The value of a carried variable is obliged before the loop and after an iteration."""
    assert unproved == Steps(value_at, gathered).prove(body)


def carries_another(steps):
    """Carries another variable beside `last`."""
    last = Own(z3.IntVal(0))
    before = last + 0
    for _ in steps:
        before, last = last, last + 2
    return before


def shares_its_symbol(steps):
    """Keeps the symbol that `last` holds."""
    last = Own(z3.IntVal(0))
    first = last
    for _ in steps:
        last = last + 2
    return first


def gathers_unsaid(steps):
    """Gathers what nobody has spoken of."""
    last, found = Own(z3.IntVal(0)), []
    for _ in steps:
        found.append(last)
        last = last + 2


def writes_memory(steps):
    """Writes a cell that the loop is said to leave alone."""
    last = Own(z3.IntVal(0))
    for step in steps:
        Links(steps.memory, "written")[step] = last
        last = last + 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (carries_another, "sets before"),
        (shares_its_symbol, "last and first"),
        (gathers_unsaid, "may fill found"),
        (writes_memory, "writes written"),
    ],
)
def test_what_nobody_speaks_of_is_refused(body, said):
    """A loop that carries or writes more than was said is an error, not a proof."""
    with pytest.raises(FrameError, match=said):
        Steps(even).prove(body)


def test_what_was_gathered_is_not_looked_at():
    """An iteration that depends on what earlier ones have gathered is refused."""

    def looks_back(steps):
        last, found = Own(z3.IntVal(0)), []
        for _ in steps:
            if found and found[-1] == last:
                break
            found.append(last)
            last = last + 2

    with pytest.raises(UnsupportedError, match="gathered"):
        Steps(even, "found").prove(looks_back)


def test_a_method_that_writes_more_is_refused():
    """A queue that keeps something new, or writes an array of the proof's, is an error."""
    queue = SymbolicQueue(Prover())
    with pytest.raises(FrameError, match="last_removed"), queue.watched():
        queue.last_removed = 1
    with pytest.raises(FrameError, match="where"), queue.watched():
        queue.memory.store("where", z3.IntVal(1), z3.IntVal(GIVEN))


def test_a_loop_that_writes_more_is_refused(monkeypatch):
    """The same holds of a loop's body, after which the path ends."""
    link = FreeBlockQueue._link

    def _link(self, left, right):
        link(self, left, right)
        if self.memory.prover.place == "joining body":
            self.last_linked = right

    monkeypatch.setattr(FreeBlockQueue, "_link", _link)
    with pytest.raises(FrameError, match="last_linked"):
        dict(prove_queue())
