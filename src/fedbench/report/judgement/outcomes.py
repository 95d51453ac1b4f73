"""What a judged claim consists of: its outcome, its comparisons and their panels."""

from __future__ import annotations

from dataclasses import dataclass, field

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
IN_PART = "supported in part"  # as far as it was tested, which is not all that the claim names
NOT_TESTABLE = "not testable"
OUTCOMES = (SUPPORTED, IN_PART, CONTRADICTED, UNDECIDED, NOT_TESTABLE)  # of a claim
NOT_TESTABLE_HERE, NOT_AN_EXPERIMENT = "not testable here", "not an experiment"  # of a table


@dataclass
class Panel:
    """A comparison that a claim makes in one setting: the paired difference over seeds."""

    setting: str  # "CIFAR100, alpha 0.5"
    outcome: str  # one of OUTCOMES
    mean: float | None = None  # positive: as claimed
    low: float | None = None  # of the 95 % interval
    high: float | None = None
    p: float | None = None  # corrected by Holm for the panels of the comparison
    seeds: int = 0
    published: float | None = None  # the same difference between the paper's numbers
    reason: str = ""
    counted: bool = False  # takes part in what is said of all panels together


@dataclass
class Comparison:
    """One side of a claim against another, over all of its panels."""

    own: str
    other: str
    outcome: str
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    improvement: float | None = None  # probability that a run of the one beats one of the other
    published: float | None = None
    reason: str = ""
    panels: list[Panel] = field(default_factory=list)

    @property
    def judged(self) -> list[Panel]:
        """Those on which the numbers of the comparison rest."""
        return [panel for panel in self.panels if panel.counted]


@dataclass
class Claim:
    """What a paper says, and what the runs say to it."""

    text: str
    outcome: str  # one of OUTCOMES; empty at a scale that judges nothing
    detail: str = ""
    unit: str = ""  # of the differences
    comparisons: list[Comparison] = field(default_factory=list)
    main: bool = False  # one of those that a paper stands for
    reading: bool = False  # about a further reading of a method: shown, not counted
    repeats: str = ""  # the table that has the same claim, where it is counted
    untested: str = ""  # what the claim compares in full, and these runs do not
    rests_on: str = ""  # seeds, scale
    key: frozenset[str] = frozenset()  # what is compared: the same runs in the same measure

    @property
    def counted(self) -> bool:
        return bool(self.outcome) and not self.reading and not self.repeats


def state_of(claims: list[Claim]) -> str:
    """What the claims of a table or figure amount to, further readings aside."""
    found = [claim.outcome for claim in claims if not claim.reading]
    testable = [outcome for outcome in found if outcome != NOT_TESTABLE]
    if not testable:
        return NOT_TESTABLE_HERE if found else "no claim"
    if set(testable) == {UNDECIDED}:
        return UNDECIDED
    return "decided" if {SUPPORTED, CONTRADICTED}.issuperset(testable) else "partly decided"
