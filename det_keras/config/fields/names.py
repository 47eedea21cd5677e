"""Generated names for experiments and jobs without a name: `Experiment (quiet-amber-falcon)`."""

from __future__ import annotations

import random

_WORDS = tuple(
    words.split()
    for words in (
        "agile ancient brave bright brisk calm candid clever cool curious eager early fair fine free fresh gentle "
        "grand happy keen kind lively lucky mellow modest nimble noble patient proud quick quiet swift warm wise",
        "amber ashen azure beige black blue bronze coral crimson cyan emerald golden green grey hazel indigo ivory "
        "jade lilac maroon olive orange pink purple red rose ruby rusty sandy scarlet silver teal violet white",
        "badger bear bison cat crane deer dolphin eagle falcon finch fox gecko hare hawk heron horse ibis jackal "
        "koala lark lemur lynx marten mole moose newt otter owl panda puffin raven robin seal swan tiger wolf",
    )
)


def generated_name(noun: str) -> str:
    """Return `noun` with three random words; independent of all seeds."""
    words = random.SystemRandom()
    return f"{noun} ({'-'.join(words.choice(choices) for choices in _WORDS)})"
