"""In which settings the next round walks: most rounds only where the change can show.

Entry point: `Rounds`. Now and then all settings are walked in, and each walk is asked whether it
touched the change; the rounds in between go to those settings in which one did.
"""

from __future__ import annotations

from attrs import define, field

from checkers.patch.protocol import Job

FULL_EVERY = 4
"""Of the rounds walk in all settings, and are watched, which takes twice as long as the rest."""
MIN_ROUNDS = 8
"""Before a change is called fine: two in all settings, and six where it can show. Faults that named
settings show at all mostly do so by then; each round of all settings takes our engine 2 to 3 CPU
seconds, so that a minute on an idle machine is enough, and a tenth of one is not."""
MOSTLY = 0.5
"""The share of drawn settings from which on new ones touch the change as well as those known to."""


@define
class Rounds:
    """Chooses settings by what the walks have touched, the same ones for both sides."""

    job: Job
    closed: set[int] = field(factory=set)
    """Settings in which a side has died."""
    touched: dict[int, None] = field(factory=dict)
    """Settings in which a walk touched the change, in the order of their first."""

    @property
    def num_wanted(self) -> int:
        """How many rounds must have been walked."""
        return self.job.num_walks or MIN_ROUNDS

    def is_full(self, number: int) -> bool:
        """Whether a round walks in all settings; while nothing was touched, each does."""
        return number % FULL_EVERY == 0 or not self.touched

    def choose(self, number: int) -> list[int]:
        """The settings of a round, by their places in the job."""
        named, drawn = [*range(len(self.job.settings))], [*self.job.places_drawn(number)]
        if not self.is_full(number):
            known = [place for place in self.touched if place not in named]
            named = [place for place in named if place in self.touched]
            if not self._is_mostly_touched(number):
                drawn = known[-self.job.num_mixed :]
        return [place for place in (*named, *drawn) if place not in self.closed]

    def _is_mostly_touched(self, number: int) -> bool:
        """Whether most settings that were drawn for the last full round touched the change."""
        latest = self.job.places_drawn(number - number % FULL_EVERY)
        return sum(place in self.touched for place in latest) > MOSTLY * len(latest)

    def note(self, places: list[int]) -> None:
        """Notes in which settings walks have touched the change."""
        self.touched |= dict.fromkeys(places)
