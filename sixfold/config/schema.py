"""The configuration: every key with its type, default, bounds and description. torch is not imported.

Each key is declared here once; `--help` and the errors know it from here. files.py reads and writes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from sixfold.config.errors import explain
from sixfold.config.settings import OneOrSeveral, StepsOrShare, giving_way
from sixfold.core.bounds import LARGEST

if TYPE_CHECKING:
    import sixfold.text.tokenizer as text
    from sixfold.core.place import Sizes


_LARGEST_SEED = 2**32 - 1  # some generators take no more, and others multiples of it
_LONGEST = 1_000_000  # tokens of a text
_MOST_TOKENS = 100_000_000  # of a batch
_MOST_STEPS = 1_000_000_000
_MOST_AVERAGED = 10_000  # checkpoints
_WIDEST = 10_000  # hypotheses of a sentence
Words = Annotated[int, Field(le=LARGEST["vocab"])]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Vocabularies(Section):
    """Sizes of separate vocabularies."""

    source: Words
    target: Words


TokenizerKind = Literal["bpe", "unigram", "characters", "bytes", "words", "symbols"]


class TokenizerKinds(Section):
    """Separate tokenizers."""

    source: TokenizerKind
    target: TokenizerKind


class Files(Section):
    """One corpus, where a path alone does not say enough."""

    path: str | None = None  # a prefix, a TSV, a JSONL or a text
    source: str | None = None  # or two files, line by line
    target: str | None = None
    weight: float = Field(1.0, gt=0, le=1e6)  # how often each line comes in an epoch


Corpus = str | Files | list[str | Files]
EMBEDDED = "pronounce:"  # text that comes with sixfold


class Data(Section):
    """The text."""

    train: Corpus | None = Field(
        None,
        description="a prefix (PREFIX.en and PREFIX.de), a .tsv, a .jsonl, a text for language models, a .csv to "
        "classify, each also .gz; or {source: FILE, target: FILE}; or {path: FILE, weight: 2}; or a list of these",
    )
    valid: Corpus | None = Field(None, description="the same, to validate on")
    test: Corpus | None = Field(None, description="the same, never looked at in training")
    source: str | None = Field(None, description="suffix, column (a number, or a name in the first line) or field")
    target: str | None = Field(
        None, description="the same; for a language model the field of the text, to classify the label"
    )
    tokenizer: TokenizerKind | TokenizerKinds = Field(
        "bpe", description="bpe, unigram, characters, bytes, words or symbols; or {source: KIND, target: KIND}"
    )
    vocabulary: Words | Vocabularies | None = Field(
        None, description="words of the joint vocabulary, or {source: N, target: N} for separate ones"
    )
    max_length: int = Field(
        256,
        gt=0,
        le=_LONGEST,
        description="longer pairs, in tokens, are dropped; longer texts to classify are cut; both are counted",
    )
    context: int = Field(256, gt=1, le=_LONGEST, description="tokens a language model sees at once")

    @field_validator("source", "target", mode="before")
    @classmethod
    def _column(cls, value: Any) -> Any:
        return str(value) if type(value) is int else value  # YAML reads a column's number as a number


class ModelConfig(Section):
    """The architecture."""

    kind: Literal["encoder_decoder", "decoder_only", "encoder_only"] = Field(
        "encoder_decoder", description="encoder_decoder, decoder_only or encoder_only [default: by the task]"
    )
    d_model: int = Field(512, le=LARGEST["d_model"], description="width of the model")
    d_ff: int = Field(2048, le=LARGEST["d_ff"], description="width inside the feed-forward layers")
    heads: int = Field(8, le=LARGEST["heads"], description="attention heads")
    d_head: int | None = Field(None, le=LARGEST["d_head"], description="width of a head [default: d_model / heads]")
    layers: int | None = Field(None, le=LARGEST["encoder_layers"], description="layers of each stack [default: 6]")
    encoder_layers: int | None = Field(
        None, le=LARGEST["encoder_layers"], description="layers of the encoder, where it differs"
    )
    decoder_layers: int | None = Field(
        None, le=LARGEST["decoder_layers"], description="layers of the decoder, where it differs"
    )
    classes: int = Field(
        0, le=LARGEST["classes"], description="classes, for an encoder_only model that classifies whole texts"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and sub-layer outputs")
    modifications: OneOrSeveral[str | dict[str, dict[str, Any] | None]] = Field(
        [], description="names, or NAME:key=value; `sixfold list` shows them"
    )


class Training(Section):
    """The loop."""

    steps: int | None = Field(None, gt=0, le=_MOST_STEPS, description="optimiser steps [default: 20000]")
    minutes: float | None = Field(
        None,
        gt=0,
        le=1e7,
        description="in place of steps: minutes from the start to the written model",
    )
    plan: str | None = Field(
        None, description="in place of steps: a run by minutes, whose steps and rates are repeated, whatever the speed"
    )
    batch_tokens: int = Field(
        4096,
        gt=0,
        le=_MOST_TOKENS,
        description="tokens with padding in one optimiser step, of the side that has more, over all processes",
    )
    accumulate: int = Field(1, gt=0, le=10_000, description="micro-batches that make up a step, to save memory")
    optimizer: Literal["adamw", "adafactor", "sgd", "muon"] = Field(
        "adamw", description="adamw, adafactor, sgd or muon"
    )
    learning_rate: float = Field(1e-3, gt=0, le=1e12, description="the highest rate of the schedule")
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "warmup_stable_decay"] = Field(
        "inverse_sqrt", description="inverse_sqrt, cosine, linear, constant or warmup_stable_decay"
    )
    warmup: StepsOrShare = Field(1000, description="steps in which the rate rises, or a share of the run: 10 %")
    betas: tuple[Beta, Beta] = Field((0.9, 0.98), strict=False, description="of adamw")
    weight_decay: float = Field(0.01, ge=0, le=1e3, description="on matrices; vectors and tables do not decay")
    clip: float = Field(1.0, ge=0, le=1e9, description="largest norm of the whole gradient; 0: no clipping")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="share of the target that goes to all other words")
    average: int | float | None = Field(
        None,
        description="validate and keep averaged weights: of the last K checkpoints (2, 3, …), or exponentially (0.999)",
    )
    validate_every: StepsOrShare = Field(1000, description="steps between validations, or a share of the run: 10 %")
    metric: str = Field(
        "auto", description="what says which weights are best: loss, bleu, chrf, exact_match, …  [auto: by the task]"
    )
    patience: int | None = Field(
        None, gt=0, le=_MOST_STEPS, description="stop after so many validations without a better one"
    )
    checkpoint_every: StepsOrShare = Field(1000, description="steps between checkpoints, or a share of the run: 5 %")
    keep: int = Field(2, gt=0, le=1_000_000, description="how many checkpoints to keep, beside the best")
    log_every: int = Field(50, gt=0, le=_MOST_STEPS, description="steps between lines of the log")
    seed: int = Field(1, ge=0, le=_LARGEST_SEED, description="of weights, dropout and the order of the data")
    deterministic: bool = Field(True, description="the same numbers every time, on the same machine")
    device: str = Field("auto", description="auto, cpu, cuda, mps")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto, float32 or bfloat16")
    compile: bool = Field(False, description="compile the model with torch.compile")
    recompute: bool = Field(False, description="recompute activations in the backward pass, to save memory")
    parallel: Literal["ddp", "fsdp"] = Field("ddp", description="with many processes: ddp, or fsdp for large models")

    @model_validator(mode="after")
    def _consistent(self) -> Training:
        if self.steps is not None and self.minutes is not None:
            raise ValueError(f"give training.steps or training.minutes, got both ({self.steps} and {self.minutes})")
        if self.plan is not None and (self.steps is not None or self.minutes is not None):
            raise ValueError("training.plan repeats another run's steps; give no training.steps or training.minutes")
        if self.accumulate > self.batch_tokens:
            raise ValueError(f"accumulate {self.accumulate} divides a batch of {self.batch_tokens} tokens into nothing")
        return self

    @field_validator("average")
    @classmethod
    def _average(cls, value: int | float | None) -> int | float | None:
        if value is not None and not (isinstance(value, int) and 2 <= value <= _MOST_AVERAGED) and not 0 < value < 1:
            raise ValueError(f"say how many checkpoints (2 to {_MOST_AVERAGED:,}), or a decay between 0 and 1")
        return value


class Decoding(Section):
    """How texts are written: in validation, by `translate`, `generate` and `score`."""

    max_length: int = Field(256, gt=0, le=_LONGEST, description="most tokens of an output")
    max_ratio: float = Field(3.0, gt=0, le=1e6, description="and at most so many for each source token, plus ten")
    min_length: int = Field(0, ge=0, le=_LONGEST, description="fewest tokens of an output")
    max_source: int = Field(1024, gt=0, le=_LONGEST, description="most tokens of a source that are read")
    too_long: Literal["truncate", "refuse"] = Field(
        "truncate", description="what becomes of a longer source: truncate (with a warning) or refuse"
    )
    batch_tokens: int = Field(
        4096, gt=0, le=_MOST_TOKENS, description="source tokens decoded together, times the hypotheses of each"
    )
    precision: Literal["float32", "int8", "auto"] = Field(
        "float32", description="float32: the model's own; int8: linear maps in 8 bits; auto: int8 on a CPU"
    )
    beam_size: int = Field(1, gt=0, le=_WIDEST, description="hypotheses of a sentence side by side; 1: greedy")
    n_best: int = Field(1, gt=0, le=_WIDEST, description="how many outputs to give; those of a beam all differ")
    length_penalty: float | Literal["average", "none"] = Field(
        0.6,
        description="beams are ranked by log p / ((5+L)/6)^VALUE, L tokens with the end; "
        "average: log p / L; none: log p",
    )
    beam_groups: int = Field(
        1, gt=0, le=_WIDEST, description="diverse beam search: groups that avoid each other's words"
    )
    diversity: float = Field(
        0.5, ge=0, le=1e6, description="and how much a word costs for each earlier group that took it"
    )
    sample: bool = Field(False, description="draw words by their probability instead of searching for the best")
    temperature: float = Field(
        1.0, ge=1e-3, le=1e6, description="flatten (> 1) or sharpen (< 1) the probabilities drawn from"
    )
    top_k: int = Field(0, ge=0, le=LARGEST["vocab"], description="draw from the k likeliest words only; 0: all")
    top_p: float = Field(
        1.0, gt=0, le=1, description="draw from the likeliest words that together have this probability"
    )
    min_p: float = Field(0.0, ge=0, lt=1, description="draw only words at least so likely as this times the likeliest")
    seed: int = Field(
        1, ge=0, le=_LARGEST_SEED, description="of what is drawn: the same seed and text give the same output"
    )
    no_repeat_ngram_size: int = Field(
        0, ge=0, le=_LONGEST, description="say no n tokens in a row twice; 0: as often as it likes"
    )
    repetition_penalty: float = Field(1.0, ge=1, le=1e6, description="multiply log p of words said before by this")
    coverage_penalty: float = Field(
        0.0, ge=0, le=1e6, description="prefer outputs that looked at all of the source, so much"
    )
    forbidden_words: OneOrSeveral[str] = Field(
        [], description="a word that is never said, or several: '[one, two words]'"
    )
    replace_unknown: bool = Field(
        False, description="copy the source word in place of an unknown one (word vocabularies)"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Decoding:
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        if not isinstance(self.length_penalty, str) and abs(self.length_penalty) > 10:
            raise ValueError(f"a length_penalty is from -10 to 10, got {self.length_penalty:g}")
        if not self.sample and self.n_best > self.beam_size:
            raise ValueError(f"n_best {self.n_best} needs a beam_size at least as large, got {self.beam_size}")
        if self.beam_size % self.beam_groups:
            raise ValueError(f"beam_size {self.beam_size} can't be divided into {self.beam_groups} beam_groups")
        if self.sample and self.beam_size > 1:
            raise ValueError(f"sample draws words and has no beam: give n_best, not beam_size {self.beam_size}")
        return self


class Config(Section):
    """A whole run."""

    task: str | dict[str, Any] | None = Field(
        None,
        description="what the model is trained for: translation, language_model, masked_words or classification, or "
        "{name: NAME, option: value}; `sixfold list --tasks` shows the options [default: by model.kind]",
    )
    data: Data = Data()
    model: ModelConfig = ModelConfig()
    training: Training = Training()
    decoding: Decoding = Decoding()

    def sizes(self) -> Sizes:
        """The sizes of the model, with the vocabulary that is asked for."""
        words = self.data.vocabulary
        if words is None:
            raise ValueError("how many words? Give --data.vocabulary, or a recipe that says it")
        return self._sizes({"vocab": words} if isinstance(words, int) else {f"{k}_vocab": v for k, v in words})

    def sizes_with(self, tokenizers: text.Tokenizers) -> Sizes:
        """The sizes of the model, with the vocabulary that there is."""
        source, target = len(tokenizers.source), len(tokenizers.target)
        return self._sizes({"vocab": target} if tokenizers.joint else {"source_vocab": source, "target_vocab": target})

    def _sizes(self, vocabulary: dict[str, int]) -> Sizes:
        from sixfold.core.place import Sizes

        model, both = self.model, 6 if self.model.layers is None else self.model.layers
        return Sizes(
            d_model=model.d_model,
            d_ff=model.d_ff,
            heads=model.heads,
            d_head=model.d_head or 0,
            encoder_layers=both if model.encoder_layers is None else model.encoder_layers,
            decoder_layers=both if model.decoder_layers is None else model.decoder_layers,
            classes=model.classes,
            dropout=model.dropout,
            **vocabulary,
        )

    def with_task(self, task: dict[str, Any], kind: str) -> Config:
        """The same, with its task and the kind of its model said."""
        return self.model_copy(update={"task": task, "model": self.model.model_copy(update={"kind": kind})})

    def with_classes(self, classes: int) -> Config:
        """The same, with as many classes as the labels that were found."""
        return self.model_copy(update={"model": self.model.model_copy(update={"classes": classes})})

    def with_steps(self, steps: int) -> Config:
        """The same, with a number of steps in place of minutes."""
        training = self.training.model_copy(update={"steps": steps, "minutes": None, "plan": None})
        return self.model_copy(update={"training": training})

    def with_whole_paths(self) -> Config:
        """The same, with paths that mean the same wherever one stands."""
        parts = {part: _whole(getattr(self.data, part)) for part in ("train", "valid", "test")}
        return self.model_copy(update={"data": self.data.model_copy(update=parts)})

    def with_modifications(self, more: Iterable[str]) -> Config:
        """The same, with further modifications."""
        return self.with_only([*self.model.modifications, *more])

    def with_only(self, modifications: list[str | dict[str, dict[str, Any] | None]]) -> Config:
        """The same, with these modifications in place of its own."""
        return self.model_copy(update={"model": self.model.model_copy(update={"modifications": modifications})})


SECTIONS = tuple(name for name in Config.model_fields if name != "task")


def _whole(corpus: Any) -> Any:
    if isinstance(corpus, list):
        return [_whole(item) for item in corpus]
    if isinstance(corpus, Files):
        own = {name: _whole(getattr(corpus, name)) for name in ("path", "source", "target")}
        return corpus.model_copy(update=own)
    return corpus if corpus is None or corpus.startswith(EMBEDDED) else str(Path(os.path.expanduser(corpus)).absolute())


def keys() -> Iterator[tuple[str, FieldInfo]]:
    """Every key that can be set, such as "model.d_model", with its description and default."""
    for section in SECTIONS:
        kind = cast("type[Section]", Config.model_fields[section].annotation)
        for key, leaf in kind.model_fields.items():
            yield f"{section}.{key}", leaf


def change_decoding(decoding: Decoding, changes: Mapping[str, Any]) -> Decoding:
    """The same with other values, which are checked like those of a file."""
    try:
        kept = giving_way(decoding.model_dump(), changes)
        return Config.model_validate({"decoding": {**kept, **changes}}).decoding
    except ValidationError as error:
        raise ValueError(explained(error)) from None


def explained(error: ValidationError) -> str:
    """The mistake in the words of the configuration."""
    return explain(error, Config, Section.__subclasses__())
