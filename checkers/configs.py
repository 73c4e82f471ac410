"""Settings: a scheduler configuration, the environment it lives in, and what is claimed of the two.

Entry points: `load_settings` for the named ones in `configs.toml`, `read_setting` for a user's own
TOML or JSON.
"""

from __future__ import annotations

import functools
import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import attrs
import cattrs
from attrs import frozen

from checkers.convert import explain, make_converter, name_known, shown, structure_int
from checkers.errors import HarnessError
from checkers.run import select_invariants
from spec.dialects import DIALECTS
from spec.environment import Environment
from spec.interface import (
    ConfigError,
    NewRequest,
    RepetitionDetection,
    SchedulerConfig,
    StreamingUpdate,
)
from spec.registry import WITNESSES

T = TypeVar("T")
USES = ("explore", "lead", "search", "machine", "verify")
"""Commands that take a setting unless others are named; `lead` leads an engine along its states."""

NAMED = Path(__file__).with_name("configs.toml")


@frozen(kw_only=True)
class Setting:
    """What a check runs on."""

    name: str
    about: str
    """One sentence: what it exercises."""
    dialect: str
    """A name in `spec.dialects`, whose choices `scheduler` may override."""
    scheduler: SchedulerConfig
    environment: Environment
    claims: tuple[str, ...] = ()
    """Invariants that do not hold everywhere, and are checked here."""
    witnesses: tuple[str, ...] = ()
    """What must have happened at least once, or the check has looked at too little."""
    num_states: int | None = None
    """How many states a complete exploration finds; another number is a finding."""
    used_by: tuple[str, ...] = ()
    """The commands that use it when no configuration is named."""


@frozen(kw_only=True)
class ShapeDocument:
    """An arrival of the menu, as a file says it."""

    prompt: int | list[int]
    """The prompt's tokens, or how many there are (all of them 0)."""
    max_tokens: int
    min_tokens: int = 0
    eos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    repetition_detection: RepetitionDetection | None = None
    priority: int = 0
    client_index: int = 0
    cache_salt: str | None = None
    lora_id: int = 0
    structured_output: bool = False
    resumable: bool = False
    num_remote_tokens: int = 0

    def build(self) -> NewRequest:
        """The shape as a template."""
        fields = attrs.asdict(self, recurse=False)
        token_ids = _make_prompt(fields.pop("prompt"))
        return NewRequest(request_id="", prompt_token_ids=token_ids, **fields)


@frozen(kw_only=True)
class ChunkDocument:
    """A chunk of the menu, as a file says it."""

    prompt: int | list[int]
    """Its tokens, or how many there are (all of them 0)."""
    max_tokens: int

    def build(self) -> StreamingUpdate:
        """The chunk as a template."""
        return StreamingUpdate(
            prompt_token_ids=_make_prompt(self.prompt), max_tokens=self.max_tokens
        )


@frozen(kw_only=True)
class EnvironmentDocument:
    """An environment, as a file says it."""

    shapes: list[ShapeDocument]
    max_live_requests: int
    max_in_flight: int = 1
    sampled_token_ids: tuple[int, ...] = (0,)
    draft_token_ids: tuple[int, ...] = ()
    with_aborts: bool = True
    with_pauses: bool = False
    with_resets: bool = False
    chunks: tuple[ChunkDocument, ...] = ()
    max_session_tokens: int = 0
    max_queued_chunks: int = 1
    max_arrivals: int = 0

    def build(self) -> Environment:
        """The environment itself."""
        fields = attrs.asdict(self, recurse=False)
        menus = {
            "shapes": tuple(shape.build() for shape in self.shapes),
            "chunks": tuple(chunk.build() for chunk in self.chunks),
        }
        return Environment(**{**fields, **menus})


def _make_prompt(prompt: int | list[int]) -> tuple[int, ...]:
    return (0,) * prompt if isinstance(prompt, int) else tuple(prompt)


@frozen(kw_only=True)
class SettingDocument:
    """A setting, as a file says it."""

    scheduler: dict[str, Any]
    environment: EnvironmentDocument
    about: str = ""
    dialect: str = "vllm-0.33.0"
    claims: tuple[str, ...] = ()
    witnesses: tuple[str, ...] = ()
    num_states: int | None = None
    used_by: tuple[str, ...] = ()

    def build(self, name: str) -> Setting:
        """The setting itself. Raises `ConfigError` or `HarnessError` if it makes no sense."""
        scheduler = make_scheduler_config(self.dialect, self.scheduler)
        environment = self.environment.build()
        environment.check_fits(scheduler)
        select_invariants(self.claims)
        for witness in self.witnesses:
            if witness not in WITNESSES:
                raise ConfigError(
                    f"witness {witness!r} is unknown; {name_known([witness], WITNESSES)}"
                )
        for use in self.used_by:
            if use not in USES:
                raise ConfigError(f"used_by {use!r} is unknown; choose of {', '.join(USES)}")
        return Setting(
            name=name,
            about=self.about,
            dialect=self.dialect,
            scheduler=scheduler,
            environment=environment,
            claims=self.claims,
            witnesses=self.witnesses,
            num_states=self.num_states,
            used_by=self.used_by,
        )


def make_scheduler_config(dialect: str, fields: dict[str, Any]) -> SchedulerConfig:
    """Builds a configuration on top of a dialect. Raises `ConfigError` if it makes no sense."""
    if dialect not in DIALECTS:
        raise ConfigError(f"dialect {dialect!r} is unknown; choose one of {', '.join(DIALECTS)}")
    known = {field.name for field in attrs.fields(SchedulerConfig)}
    for name in fields:
        if name not in known:
            raise ConfigError(
                f"scheduler field {name!r} is unknown; {name_known([name], sorted(known))}"
            )
    required = {f.name for f in attrs.fields(SchedulerConfig) if f.default is attrs.NOTHING}
    missing = sorted(required - fields.keys())
    if missing:
        raise ConfigError(f"scheduler fields {', '.join(missing)} are missing; give them values")
    return SchedulerConfig(**{**DIALECTS[dialect], **fields})


@functools.cache
def load_settings() -> dict[str, Setting]:
    """The named settings, in the order of the file."""
    document = tomllib.loads(NAMED.read_text())
    return {name: _build(f"{NAMED.name}: {name}", name, raw) for name, raw in document.items()}


def load_setting(name_or_path: str) -> Setting:
    """A named setting, or one from a user's own file. Raises `HarnessError` if there is none."""
    settings = load_settings()
    if name_or_path in settings:
        return settings[name_or_path]
    if name_or_path.endswith((".toml", ".json")):
        return read_setting(Path(name_or_path))
    raise HarnessError(
        f"configuration {shown(name_or_path)} is unknown; "
        f"name one of {', '.join(settings)}, or a .toml or .json file"
    )


def read_setting(path: Path) -> Setting:
    """A setting from a file. Raises `HarnessError` if it is not one."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise HarnessError(f"{path} does not exist; name a .toml or .json file") from None
    except OSError as error:
        raise HarnessError(
            f"{path} cannot be read: {error.strerror}; name a .toml or .json file"
        ) from error
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise HarnessError(f"{path} is not {kind}: {error}; mend it there") from error
    return _build(str(path), path.stem, raw)


def change_setting(setting: Setting, changes: tuple[str, ...], claims: tuple[str, ...]) -> Setting:
    """A setting with other values (`field=value`) and further claims.

    What was said of the old one (how many states, which witnesses) is no longer said. Raises
    `HarnessError` if a change makes no sense.
    """
    if not changes and not claims:
        return setting
    select_invariants(claims)
    values = dict(_parse_change(change) for change in changes)
    _expect_fields(values)
    try:
        scheduler = _change(setting.scheduler, _with_token_budget(setting.scheduler, values))
        environment = _change(setting.environment, values)
        environment.check_fits(scheduler)
    except Exception as error:  # cattrs raises what the data provoke; it explains them all.
        raise HarnessError(f"{setting.name} with {', '.join(changes)}: {explain(error)}") from error
    return attrs.evolve(
        setting,
        name=" ".join([setting.name, *changes]),
        scheduler=scheduler,
        environment=environment,
        claims=(*setting.claims, *claims),
        num_states=None if changes else setting.num_states,
        witnesses=() if changes else setting.witnesses,
    )


def _parse_change(change: str) -> tuple[str, Any]:
    name, equals, text = change.partition("=")
    if equals and text.isidentifier() and text not in {"true", "false"}:
        return name, text  # A bare word, such as priority.
    try:
        (value,) = tomllib.loads(f"value = {text}" if equals else "").values()
    except ValueError:
        raise HarnessError(
            f"--set {change!r} is not FIELD=VALUE, such as num_blocks=8 or policy=priority"
        ) from None
    return name, value


def _expect_fields(values: dict[str, Any]) -> None:
    known = {field.name for kind in (SchedulerConfig, Environment) for field in attrs.fields(kind)}
    # A menu is more than a value; it belongs into a file.
    known -= {"shapes", "chunks"}
    for name, value in values.items():
        if name not in known:
            raise HarnessError(
                f"--set {name}={shown(value)}: no such field; known are {', '.join(sorted(known))}"
            )


def _with_token_budget(old: SchedulerConfig, values: dict[str, Any]) -> dict[str, Any]:
    """The token budget goes along with the input budget, unless the two differ."""
    if old.max_num_scheduled_tokens != old.max_num_batched_tokens:
        return values
    budget = values.get("max_num_batched_tokens", old.max_num_batched_tokens)
    return {"max_num_scheduled_tokens": budget, **values}


def _change(old: T, values: dict[str, Any]) -> T:
    """Gives new values to those fields that `old` has."""
    fields = CONVERTER.unstructure(old)
    changed = {**fields, **{name: values[name] for name in values if name in fields}}
    return CONVERTER.structure(changed, type(old))


def _build(place: str, name: str, raw: Any) -> Setting:
    try:
        return CONVERTER.structure(raw, SettingDocument).build(name)
    except Exception as error:  # cattrs raises what the data provoke; it explains them all.
        raise HarnessError(f"{place}: {explain(error)}") from error


def _make_converter() -> cattrs.Converter:
    converter = make_converter()
    converter.register_structure_hook(int | list[int], _structure_prompt)
    return converter


def _structure_prompt(value: Any, kind: Any) -> int | list[int]:
    if isinstance(value, list):
        return [structure_int(token, int) for token in value]
    length = structure_int(value, int)
    if length < 1:
        raise ValueError(f"a prompt of {length} tokens is empty; give it at least one")
    return length


CONVERTER = _make_converter()
