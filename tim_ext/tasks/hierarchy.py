"""Which classes go together: from what users pass to `tasks.meta_dataset` to groups of class positions."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from .drawing import Ints

Groups = Mapping[str, Iterable[int | str]]
Members = dict[str, list[int | str]]  # integers are classes; strings are nodes, or not in the pool


def check_names(class_names: Any, numbers: Ints) -> dict[str, int]:
    """The number of each class name; numbers [C] are the classes of the labels, increasing."""
    if class_names is None:
        return {}
    if isinstance(class_names, str) or not isinstance(class_names, Sequence):
        raise TypeError(f"class_names: expected a list of strings, got {type(class_names).__name__}")
    names: dict[str, int] = {}
    for number, name in enumerate(class_names):
        if not isinstance(name, str):
            raise TypeError(f"class_names: expected strings, got {type(name).__name__} {name!r}")
        if name in names:
            raise ValueError(
                f"class_names: expected different names, got {name!r} for class {names[name]} and {number}"
            )
        names[name] = number
    if len(names) <= numbers[-1]:
        raise ValueError(
            f"class_names: expected a name for class 0 to {numbers[-1]} of labels, got {len(names)} names"
        )
    return names


def check_groups(argument: str, groups: Any, names: dict[str, int]) -> Members:
    """Copies groups, with numbers in place of the names of classes."""
    if not isinstance(groups, Mapping):
        raise TypeError(f"{argument}: expected a mapping from names to lists, got {type(groups).__name__}")
    members: Members = {}
    for group, items in groups.items():
        if not isinstance(group, str):
            raise TypeError(f"{argument}: expected strings as keys, got {type(group).__name__} {group!r}")
        where = f"{argument}[{group!r}]"
        if isinstance(items, str) or not isinstance(items, Iterable):
            raise TypeError(f"{where}: expected a list, got {type(items).__name__} {items!r}")
        members[group] = [_check_member(where, item, names) for item in items]
    return members


def _check_member(where: str, member: Any, names: dict[str, int]) -> int | str:
    if isinstance(member, str):
        return names.get(member, member)
    try:
        number = operator.index(member)
    except TypeError:
        number = None
    if number is None or isinstance(member, bool):
        raise TypeError(f"{where}: expected integers or strings, got {type(member).__name__} {member!r}")
    return number


def classes_of_nodes(
    children: Members, names: dict[str, int], numbers: Ints, min_ways: int, max_leaves: int
) -> list[Ints]:
    """The classes that each eligible node spans, as positions in numbers."""
    for node in children.keys() & names.keys():
        raise ValueError(f"hierarchy: expected nothing below class {names[node]}, got the key {node!r}")
    below: dict[int | str, frozenset[int]] = {n: frozenset([i]) for i, n in enumerate(numbers.tolist())}
    # what is left of a node when single children take the place of their parents; without it, nothing is
    left: dict[int | str, int | str] = {number: number for number in below}
    for node in _children_first(children):
        kept = {left[child] for child in children[node] if child in left}
        if kept:
            below[node] = frozenset().union(*(below[child] for child in kept))
            left[node] = kept.pop() if len(kept) == 1 else node
    covered = frozenset[int]().union(*(below[node] for node in children if node in below))
    if len(covered) < len(numbers):
        lost = next(number for i, number in enumerate(numbers) if i not in covered)
        hint = "" if names else " (class_names says which class a name is)"
        raise ValueError(f"hierarchy: expected every class of labels, got none that is class {lost}{hint}")
    spans = [below[node] for node in sorted(children) if left.get(node) == node]
    eligible = [np.array(sorted(span)) for span in spans if min_ways <= len(span) <= max_leaves]
    if not eligible:
        sizes = ", ".join(map(str, sorted({len(span) for span in spans}))) or "none of two or more"
        raise ValueError(
            f"hierarchy: expected a node that spans {min_ways} to {max_leaves} classes of labels, got {sizes}"
        )
    return eligible


def _children_first(children: Members) -> list[str]:
    graph = {node: [child for child in members if child in children] for node, members in children.items()}
    try:
        return [str(node) for node in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        cycle = " below ".join(repr(node) for node in error.args[1])
        raise ValueError(f"hierarchy: expected no cycle, got {cycle}") from None


def classes_of_superclasses(members: Members, numbers: Ints, min_ways: int) -> list[Ints]:
    """The classes of each superclass that has any in numbers, as positions in numbers."""
    owner: dict[int, str] = {}
    for superclass, classes in members.items():
        for number in classes:
            if isinstance(number, str):
                where = f"superclasses[{superclass!r}]"
                raise ValueError(f"{where}: expected class numbers or names of class_names, got {number!r}")
            other = owner.setdefault(number, superclass)
            if other != superclass:
                both = f"{other!r} and {superclass!r}"
                raise ValueError(f"superclasses: expected each class once, got class {number} in {both}")
    groups: dict[str, list[int]] = {}
    for i, number in enumerate(numbers.tolist()):
        if number not in owner:
            raise ValueError(f"superclasses: expected every class of labels, got none with class {number}")
        groups.setdefault(owner[number], []).append(i)
    for superclass, group in groups.items():
        if len(group) < min_ways:
            raise ValueError(
                f"superclasses: expected min_ways={min_ways} classes of labels or more in each, "
                f"got {len(group)} in {superclass!r}"
            )
    return [np.array(group) for group in groups.values()]  # in the order of their first classes
