"""The properties that a part of a model declares, so that other code need not know its class.

Any nn.Module can fill a slot. A part that has something to declare derives from `ModelPart`:

    class Mine(ModelPart):
        map = "softmax"                                      # its weights are shown by call.show(self.place, weights=…)

        def __init__(self, spec, place):
            super().__init__()
            self.place, self.heads = place, spec.sizes.heads    # so gates can scale its heads
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from sixfold.core.forms import Form, altered, torch_form

if TYPE_CHECKING:
    from sixfold.core.place import Place

Map = Literal["softmax", "kernel", "slots", "none"]


class ModelPart(nn.Module):
    """A part that declares its properties. The defaults are those of an ordinary nn.Module."""

    place: Place = None  # type: ignore[assignment]  # where it was built; a part with heads, map or limit must set it
    heads: int = 0  # heads that gates can scale; 0: none
    map: Map = "none"  # the weights that it shows to a tap: of a softmax, of a convolution's kernel, or of memory slots
    limit: int | None = None  # the largest number of positions, for example of a table of positions
    memory_width: int | None = None  # of a bridge: the width of the states that it makes, if it is not d_model
    position_places: tuple[str, ...] = ()  # where it lets a position act: "rotate", "bias", "values"
    keeps_length: bool = True  # whether it returns as many states as it reads
    needs_one_length: bool = False  # whether all states of a stack must have one length
    batch_dependent: bool = False  # whether, in training, the result of a row depends on the other rows of the batch
    not_exported: str = ""  # why torch.export cannot trace it

    _form: type[Form] | None = None

    def __init_subclass__(cls, form: type[Form] | None = None, **rest: Any):
        """`class Mine(ModelPart, form=…)`. A form belongs to the class that states it: subclasses don't inherit it.

        What a forward does with positions and weights is inherited only together with the forward.
        """
        super().__init_subclass__(**rest)
        cls._form = form
        for name in ("position_places", "map"):  # another forward may neither call the position nor show weights
            declaring = next(each for each in cls.__mro__ if name in vars(each))
            if cls.forward is not getattr(declaring, "forward", None):  # its own, or that of a mixin
                setattr(cls, name, getattr(ModelPart, name))
        if "form" not in vars(cls):
            cls.form = ModelPart.form  # type: ignore[method-assign]

    def form(self) -> Form | None:
        """The form of its computation, for `form_of`; None if no form describes it."""
        return None if self._form is None else self._form.of(self)

    def after_drawing(self) -> None:
        """Called once the weights of the whole model are drawn: a part may then compute buffers from them."""

    def units(self) -> Iterable[nn.Module]:
        """The modules that FSDP2 shards one by one: the layers of a stack, each once."""
        return ()


_PLAIN = ModelPart()


def declared(part: nn.Module) -> ModelPart:
    """The declarations of a part. A plain nn.Module has the defaults."""
    return part if isinstance(part, ModelPart) else _PLAIN


def form_of(part: nn.Module) -> Form | None:
    """The form that a part's own class states; None if there is none, or if this one part was altered."""
    if altered(part):
        return None
    return part.form() if isinstance(part, ModelPart) else torch_form(part)


def ignored_declaration(part: nn.Module) -> str | None:
    """The name of a property that a plain nn.Module declares. It would be ignored: only a `ModelPart` can declare."""
    if isinstance(part, ModelPart):
        return None
    set_by_part = {*vars(part), *(name for kind in type(part).__mro__ for name in vars(kind))}
    names = ["position_places", "keeps_length", "batch_dependent", "not_exported"]
    if "place" in set_by_part:
        names.append("limit")
    return next((name for name in names if name in set_by_part), None)
