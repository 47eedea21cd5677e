"""What differs between two experiments: configs, submitted files, packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from det_keras.master.web.differences import (
    MOST_LINES,
    FileDifference,
    PackageDifference,
    file_differences,
    marked_lines,
    package_differences,
    patch,
    side_by_side,
)


@dataclass(frozen=True)
class Side:
    """An experiment that is compared.

    Attributes:
        number: of the experiment.
        config: its config as YAML, without secrets.
        files: the submitted files.
        packages: ``name==version`` of each package; empty if they are unknown.
    """

    number: int
    config: str
    files: Mapping[str, bytes]
    packages: Sequence[str]


@dataclass(frozen=True)
class ComparedFile:
    """A file that differs, as the page shows it.

    Attributes:
        name: its path.
        kind: ``changed``, ``added`` or ``removed``.
        is_text: whether it can be shown.
        lines: lines with their kinds, as `marked_lines` returns them; without the head, which repeats the name.
    """

    name: str
    kind: str
    is_text: bool
    lines: list[tuple[str, str]]


@dataclass(frozen=True)
class Comparison:
    """What differs between two experiments.

    Attributes:
        numbers: of the experiments.
        config: the configs where they differ, in two columns as of `side_by_side`; empty if they are equal.
        files: the files that differ.
        packages: the packages that differ.
        has_packages: whether the packages of both are known.
        is_cut: whether lines are left out.
    """

    numbers: tuple[int, int]
    config: list[tuple[str | None, str | None, bool]]
    files: list[ComparedFile]
    packages: list[PackageDifference]
    has_packages: bool
    is_cut: bool


def compare(before: Side, after: Side) -> Comparison:
    """Return what differs between two experiments, with at most `MOST_LINES` lines of configs, and of files."""
    config = _without_head(patch("config.yaml", before.config, after.config))
    files, left = [], MOST_LINES
    found = file_differences(before.files, after.files)
    is_cut = len(config) > MOST_LINES
    for difference in found:
        lines = _without_head(difference.patch)
        is_cut = is_cut or len(lines) > left
        files.append(_compared(difference, lines[:left]))
        left -= min(left, len(lines))
    has_packages = bool(before.packages) and bool(after.packages)
    return Comparison(
        numbers=(before.number, after.number),
        config=side_by_side(config[:MOST_LINES]),
        files=files,
        packages=package_differences(before.packages, after.packages) if has_packages else [],
        has_packages=has_packages,
        is_cut=is_cut,
    )


def _compared(difference: FileDifference, lines: list[tuple[str, str]]) -> ComparedFile:
    return ComparedFile(difference.name, difference.kind, difference.is_text, lines)


def _without_head(text: str) -> list[tuple[str, str]]:
    return [(kind, line) for kind, line in marked_lines(text) if kind != "head"]
