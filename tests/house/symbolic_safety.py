"""What the step code of `spec` must not say, since a proof runs it on symbols.

Step code is every function of `STEP_FILES` except those of `CONCRETE`. Some of what is forbidden
here fails loudly on a symbol. The rest is worse: it takes one branch, or one hash, without a word,
and the proof then covers less than it says.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import attrs

from spec.interface import SchedulerConfig
from tests.house.source import FunctionNode, functions, parse

STEP_FILES = (
    "spec/lifecycle.py",
    "spec/scheduler.py",
    "spec/block_pool.py",
    "spec/deferred_frees.py",
    "spec/padding.py",
    "spec/remote_kv.py",
    "spec/request.py",
    "spec/request_queue.py",
    "spec/slots.py",
    "spec/stop.py",
    "spec/streaming.py",
)

NO_STEP_FILES = {
    "spec/interface.py": "declares what is handed over, and computes nothing of it",
    "spec/observe.py": "looks at a scheduler between two calls; a proof looks at the state itself",
}
"""What step code imports all the same, and why a proof never runs it on symbols."""

NO_LOADS = "is for loads from a remote store; proofs leave them off"
NO_KEPT_BLOCKS = "is for frees that are deferred; proofs leave them off"

# File: function, class or method, and why a proof never runs it on symbols.
CONCRETE = {
    "spec/lifecycle.py": {
        "RequestLifecycle.__init__": "builds queues and pool once, before any symbol is there",
        "RequestLifecycle.streaming_update": "is for resumable requests; proofs leave them out",
        "RequestLifecycle._end_turn": "is for resumable requests; proofs leave them out",
        "RequestLifecycle._begin_turn": "is for resumable requests; proofs leave them out",
    },
    "spec/scheduler.py": {
        "ReferenceScheduler.__init__": "builds a step once, before any symbol is there",
        "ReferenceScheduler.reset_prefix_cache": "is asked between steps; proofs leave it out",
        "ReferenceScheduler._load_next_waiting": NO_LOADS,
        "ReferenceScheduler._has_room_to_load": NO_LOADS,
    },
    "spec/block_pool.py": {
        "BlockPool": "the pool of identities; a proof runs CountedBlockPool, which it refines",
        "make_block_pool": "builds the pool of identities",
    },
    "spec/deferred_frees.py": {
        "KeptBlocks": NO_KEPT_BLOCKS,
        "DeferredFrees.__init__": "builds the pool once, before any symbol is there",
        "DeferredFrees._keep_back": NO_KEPT_BLOCKS,
        "DeferredFrees._all_who_wait": NO_KEPT_BLOCKS,
        "DeferredFrees._free_next_kept": NO_KEPT_BLOCKS,
    },
    "spec/padding.py": {
        "compute_num_padding": "answers 0 at once without drafts, as in every proof",
        "was_granted": "is asked where admissions are padded; proofs leave drafts off",
    },
    "spec/remote_kv.py": {
        "DeferredLoad": NO_LOADS,
        "RemoteKV.__init__": "builds two dictionaries once, before any symbol is there",
        "RemoteKV.finish_recving": NO_LOADS,
        "RemoteKV._free_abandoned": NO_LOADS,
        "RemoteKV._is_loading": NO_LOADS,
        "RemoteKV._begin_load": NO_LOADS,
        "RemoteKV._tell_loads": NO_LOADS,
        "RemoteKV._all_who_wait": NO_LOADS,
        "RemoteKV._free_request_blocks": "does as its parent at once without loads, as in proofs",
        "num_blocks_of_prefills": NO_LOADS,
        "num_tokens_of_drafts": NO_LOADS,
    },
    "spec/request.py": {
        "Request.__init__": "copies what arrives; a proof then sets the counters",
        "Request._begin_counting": "sets the counters to 0 before a proof sets them",
    },
    "spec/slots.py": {
        "has_lora_slot": "opens at once while its limit is off, as in every proof",
        "has_long_prefill_slot": "opens at once while its limit is off, as in every proof",
    },
    "spec/streaming.py": {
        "end_turn": "is for resumable requests; proofs leave them out",
        "begin_turn": "is for resumable requests; proofs leave them out",
    },
    "spec/stop.py": {
        "_repeats_itself": "looks at the tokens themselves, which a proof leaves out",
        "ends_in_repetition": "looks at the tokens themselves, which a proof leaves out",
    },
}

# Places in step code where a construct is safe all the same: file, function, construct, and why.
SAFE = {
    ("spec/request_queue.py", "RequestQueue.__init__", "an empty container"): (
        "is the queue itself; unbounded proofs bring a queue of their own"
    ),
    ("spec/scheduler.py", "ReferenceScheduler._begin_step", "an empty container"): (
        "is set before the loops, where a proof puts its own `skipped`"
    ),
    ("spec/scheduler.py", "ReferenceScheduler._end_step", "an empty container"): (
        "is set after the loops of the step"
    ),
    ("spec/lifecycle.py", "RequestLifecycle.update_from_output", "an empty container"): (
        "is keyed by client; proofs run `_settle`, which is handed it"
    ),
    **{
        (f"spec/{name}.py", function, "the truth of `request.resumable`"): (
            "is a plain flag of an arrival, and false in every proof"
        )
        for name, function in (
            ("lifecycle", "RequestLifecycle._handle_stopped_request"),
            ("scheduler", "ReferenceScheduler._is_ready"),
        )
    },
    **{
        (f"spec/{name}.py", function, f"the truth of `{request}.drop_stale_output`"): (
            "is a plain flag that only a reset and streaming input set, so false in every proof"
        )
        for name, function, request in (
            ("lifecycle", "RequestLifecycle._settle", "request"),
            ("scheduler", "ReferenceScheduler._is_ready", "request"),
            ("scheduler", "ReferenceScheduler._preempt", "victim"),
        )
    },
    ("spec/lifecycle.py", "RequestLifecycle._deliver", "an empty container"): (
        "holds the tokens of one request and step, of which there are finitely many"
    ),
}

FORBIDDEN_CALLS = {
    name: reason
    for names, reason in (
        ("isinstance issubclass type", "says that a symbol is no int"),
        ("int float bool str repr format", "turns a symbol into one value"),
        ("range slice divmod round", "needs a concrete number"),
        ("set frozenset hash id", "takes a symbol for something that equals nothing else"),
        ("any all sum sorted", "loops where the prover cannot cut; use a rule"),
    )
    for name in names.split()
}

# As written, or resolved by whoever asked for the types before.
BOOL_FIELDS = {f.name for f in attrs.fields(SchedulerConfig) if f.type in ("bool", bool)}
"""Flags of the configuration, which may be asked as they are."""


def breaches(path: str, source: str) -> list[str]:
    """Names each forbidden construct in the step code of a file."""
    return [sentence for (_, sentence) in _find(path, source)]


def imported_files(tree: ast.Module) -> set[str]:
    """Returns the files of `spec` that a file imports, for its types alone or not."""
    return {
        f"{node.module.replace('.', '/')}.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("spec.")
    }


def used_exceptions(path: str, source: str) -> set[tuple[str, str, str]]:
    """Returns the entries of `SAFE` that the step code of a file needs."""
    return {key for key, _ in _find(path, source, safe={})}


def step_functions(path: str, source: str) -> Iterator[tuple[str, FunctionNode]]:
    """Yields the functions of a file that a proof may run on symbols, by qualified name."""
    concrete = CONCRETE.get(path, {})
    for name, function in functions(ast.parse(source)):
        owner = name.partition(".")[0]
        if name not in concrete and owner not in concrete:
            yield name, function


def names_of(path: str) -> set[str]:
    """Returns the qualified names of the functions of a file, and of the classes that hold them."""
    names = {name for name, _ in functions(parse(Path(path)))}
    return names | {name.partition(".")[0] for name in names}


def _find(
    path: str, source: str, safe: dict[tuple[str, str, str], str] = SAFE
) -> Iterator[tuple[tuple[str, str, str], str]]:
    for name, function in step_functions(path, source):
        for statement in function.body:
            for node in ast.walk(statement):
                for construct, reason in _check(node):
                    key = (path, name, construct)
                    if key not in safe:
                        line = getattr(node, "lineno", function.lineno)
                        yield key, f"{path}:{line} {name}: {construct} {reason}"


def _check(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields what is forbidden about one node: the construct, and why."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in FORBIDDEN_CALLS:
            yield f"{node.func.id}()", FORBIDDEN_CALLS[node.func.id]
    elif isinstance(node, ast.Compare):
        if any(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops):
            yield "is", "compares identities, and every symbol is an object of its own"
    elif isinstance(node, ast.Match):
        yield "match", "asks for types and identities behind the scenes"
    elif isinstance(node, ast.Set | ast.SetComp):
        yield "a set", "hashes a symbol, which equals nothing then"
    elif isinstance(node, ast.DictComp) or (isinstance(node, ast.Dict) and node.keys):
        yield "a filled dict", "hashes its keys; start empty and file under ids"
    elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_empty_container(node.value):
        yield "an empty container", "may be carried by a loop; let a name of the module build it"
    elif isinstance(node, ast.JoinedStr):
        yield "an f-string", "turns a symbol into text"
    elif isinstance(node, ast.While) and not _is_rule_loop(node):
        yield "while", "is not `while self._rule(): pass`, so the prover cannot cut it"
    for condition in _conditions(node):
        if not _is_known_bool(condition):
            yield (
                f"the truth of `{ast.unparse(condition)}`",
                "is asked past the names of the module; compare it, or its len()",
            )


def _is_empty_container(value: ast.expr | None) -> bool:
    return value is not None and ast.unparse(value) in {"[]", "{}", "list()", "dict()"}


def _is_rule_loop(loop: ast.While) -> bool:
    """Whether a loop is `while self._rule(…): pass`."""
    return (
        isinstance(loop.test, ast.Call)
        and ast.unparse(loop.test.func).startswith("self._")
        and [type(statement) for statement in loop.body] == [ast.Pass]
        and not loop.orelse
    )


def _conditions(node: ast.AST) -> list[ast.expr]:
    """Returns the expressions whose truth a node asks for, with `and`, `or`, `not` peeled off."""
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        asked = [node.test]
    elif isinstance(node, ast.BoolOp):
        asked = node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        asked = [node.operand]
    elif isinstance(node, ast.comprehension):
        asked = node.ifs
    else:
        return []
    return [
        condition
        for condition in asked
        if not isinstance(condition, ast.BoolOp)
        and not (isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not))
    ]


def _is_known_bool(condition: ast.expr) -> bool:
    """Whether an expression is a comparison, a call, a constant, or named as a flag."""
    if isinstance(condition, ast.Compare | ast.Call | ast.Constant):
        return True
    name = ast.unparse(condition).rpartition(".")[2]
    return name in BOOL_FIELDS or name.startswith(("is_", "has_"))
