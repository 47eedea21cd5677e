"""How many of the kinds of trainings the tests go through: all of them take hours.

``DET_KERAS_TEST_AMOUNT`` is

- ``few``: a third, for versions of Keras beside the locked one;
- ``usual``, the default: without those that differ from another one in what belongs to Keras alone, and over Horovod
  without what engines do not see. Of long lists it leaves the third to ``few``: continuous integration runs both;
- ``all``: all, and drawn combinations beside them (`tox -e long`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

__all__ = ["AMOUNT", "chosen"]

AMOUNT = os.environ.get("DET_KERAS_TEST_AMOUNT", "usual")
assert AMOUNT in ("few", "usual", "all"), f"DET_KERAS_TEST_AMOUNT is few, usual or all, not {AMOUNT!r}."


def chosen(
    names: Iterable[str],
    alike: Collection[str] = (),
    *,
    are_many: bool = False,
    pilots: Collection[str] = (),
) -> list[str]:
    """Return the names that are tested.

    Args:
        names: of all trainings.
        alike: those of them that only ``all`` includes.
        are_many: ``usual`` leaves those that ``few`` goes through to it.
        pilots: those that ``few`` includes in any case.
    """
    if AMOUNT == "all":
        return list(names)
    found = [name for name in names if name not in alike]
    few = [name for index, name in enumerate(found) if index % 3 == 0 or name in pilots]
    if AMOUNT == "few":
        return few
    return [name for name in found if name not in few] if are_many else found
