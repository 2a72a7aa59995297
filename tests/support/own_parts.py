"""Modifications that a user might write, registered for one test."""

from dataclasses import replace

from sixfold.spec import registry


def fills(name="mine", **slots):
    """Register a modification that fills slots. → its name"""

    def change(spec):
        return replace(spec, **slots)

    change.__name__, change.__annotations__ = name, {}
    registry.modification()(change)
    return name
