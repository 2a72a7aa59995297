"""The configuration: every key with its type, default, bounds and description. torch is not imported.

Each key is declared here once; `--help` and the errors know it from here. files.py reads and writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from sixfold.config.errors import explain
from sixfold.config.settings import AverageSetting, Column, HeldOut, Interval, OneOrSeveral, StepsOrShare, giving_way
from sixfold.core.bounds import LARGEST

if TYPE_CHECKING:
    import sixfold.text.tokenizer as text
    from sixfold.core.place import Sizes


_LARGEST_SEED = 2**32 - 1  # some generators accept no larger seed, and some are seeded with a multiple of this one
_LONGEST = 1_000_000  # tokens of a text
_MOST_TOKENS = 100_000_000  # tokens of a batch
_MOST_STEPS = 1_000_000_000
_WIDEST = 10_000  # hypotheses of a sentence
Words = Annotated[int, Field(ge=1, le=LARGEST["vocab"])]
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
    """One corpus with a weight, or given as two files."""

    path: str | None = None  # a prefix, a TSV, a JSONL or a text
    source: str | None = None  # or two files, line by line
    target: str | None = None
    weight: float = Field(1.0, gt=0, le=1e6)  # how often each line occurs in an epoch


Corpus = str | Files | list[str | Files]
EMBEDDED = "pronounce:"  # text that comes with sixfold


class Data(Section):
    """The text."""

    train: Corpus | None = Field(
        None,
        description="training text: a prefix (PREFIX.en and PREFIX.de), a .tsv or .jsonl file of pairs, a plain text "
        "for a language model, a .csv file to classify; each may be gzipped (.gz). Or {source: FILE, target: FILE}, "
        "or {path: FILE, weight: 2}, or a list of these",
    )
    valid: Corpus | None = Field(None, description="validation text, given in the same way")
    test: Corpus | None = Field(None, description="test text, given in the same way; training does not use it")
    source: Column | None = Field(
        None,
        description="where the source is: suffix of a file, column (a number, or a name in the first line) or field",
    )
    target: Column | None = Field(
        None, description="the same for the target; for a language model the field of the text, to classify the label"
    )
    tokenizer: TokenizerKind | TokenizerKinds = Field(
        "bpe", description="bpe, unigram, characters, bytes, words or symbols; or {source: KIND, target: KIND}"
    )
    vocabulary: Words | Vocabularies | None = Field(
        None,
        description="size of the joint vocabulary, or {source: N, target: N} for separate ones "
        "[default: for bpe and unigram chosen by the size of the text, for the other kinds all pieces of the text]",
    )
    bpe_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="for bpe: probability that a piece of the training text is divided into the two that it was merged "
        "from, drawn again in each epoch; 0: off",
    )
    max_length: int = Field(
        256,
        gt=0,
        le=_LONGEST,
        description="most tokens of a training text: longer pairs are dropped, longer texts to classify are cut, and "
        "the data report says how many",
    )
    context: int = Field(256, gt=1, le=_LONGEST, description="tokens that a language model sees at once")

    held_out: HeldOut = Field(
        "auto",
        description="how much of data.train validates if there is no data.valid: a number of pairs or texts (of plain "
        "text: characters), or a share, such as 5 %; 0: none; auto: 5 %, but at most 1,000 (500,000 characters)",
    )
    seed: int = Field(1, ge=0, le=_LARGEST_SEED, description="random seed of the choice of what is held out")

    @property
    def validates(self) -> bool:
        """Whether there is validation text, or some is to be held out of the training text."""
        return self.valid is not None or self.held_out != 0

    @model_validator(mode="after")
    def _consistent(self) -> Data:
        if self.valid is not None and self.held_out not in ("auto", 0):
            raise ValueError(f"with data.valid nothing is held out; leave out data.held_out {self.held_out}")
        return self


class ModelConfig(Section):
    """The architecture."""

    kind: Literal["encoder_decoder", "decoder_only", "encoder_only"] = Field(
        "encoder_decoder", description="encoder_decoder, decoder_only or encoder_only; if not given, the task sets it"
    )
    d_model: int = Field(512, le=LARGEST["d_model"], description="width of the model")
    d_ff: int = Field(2048, le=LARGEST["d_ff"], description="width inside the feed-forward layers")
    heads: int = Field(8, le=LARGEST["heads"], description="attention heads")
    d_head: int | None = Field(None, le=LARGEST["d_head"], description="width of a head [default: d_model / heads]")
    layers: int | None = Field(
        None, le=LARGEST["encoder_layers"], description="layers of each stack [default: planned]"
    )
    encoder_layers: int | None = Field(
        None, le=LARGEST["encoder_layers"], description="layers of the encoder [default: model.layers]"
    )
    decoder_layers: int | None = Field(
        None, le=LARGEST["decoder_layers"], description="layers of the decoder [default: model.layers]"
    )
    classes: int = Field(
        0,
        le=LARGEST["classes"],
        description="classes of an encoder_only model that classifies whole texts; training counts the labels itself",
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="probability of dropout on embeddings and on sub-layer outputs")
    modifications: OneOrSeveral[str | dict[str, dict[str, Any] | None]] = Field(
        [], description="a NAME or NAME:key=value, or a list of these; `sixfold list` shows the names"
    )


class Training(Section):
    """The training loop."""

    steps: int | None = Field(None, gt=0, le=_MOST_STEPS, description="optimiser steps [default: until patience ends]")
    minutes: float | None = Field(
        None,
        gt=0,
        le=1e7,
        description="train for this many minutes, from the start to the written model, instead of a number of steps",
    )
    plan: str | None = Field(
        None,
        description="a run by minutes whose plan is repeated: its steps and learning rates, at any speed",
    )
    batch_tokens: int = Field(
        4096,
        gt=0,
        le=_MOST_TOKENS,
        description="most tokens in one optimiser step, padding included, over all processes; of source and target, "
        "the side with more tokens counts",
    )
    accumulate: int = Field(1, gt=0, le=10_000, description="micro-batches of each step; more need less memory")
    optimizer: Literal["adamw", "adafactor", "sgd", "muon"] = Field(
        "adamw", description="adamw, adafactor, sgd or muon"
    )
    learning_rate: float = Field(1e-3, gt=0, le=1e12, description="the peak of the schedule")
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "warmup_stable_decay"] = Field(
        "inverse_sqrt", description="inverse_sqrt, cosine, linear, constant or warmup_stable_decay"
    )
    warmup: StepsOrShare = Field(
        1000, description="steps until the learning rate is at its peak, or a share of the run: 10 %"
    )
    betas: tuple[Beta, Beta] = Field((0.9, 0.98), strict=False, description="adamw's β₁ and β₂")
    weight_decay: float = Field(0.01, ge=0, le=1e3, description="decay of matrices; vectors and tables do not decay")
    clip: float = Field(1.0, ge=0, le=1e9, description="largest norm of the whole gradient; 0: no clipping")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="share of probability spread over all other words")
    average: AverageSetting = Field(
        None,
        description="validate and save averaged weights: a number from 2 averages the last K checkpoints, one below 1 "
        "(such as 0.999) is the decay of an exponential average",
    )
    validate_every: Interval = Field(1000, description="steps between validations, or a share of the run: 10 %")
    metric: str = Field(
        "auto",
        description="the metric by which the best weights are chosen: loss, bleu, chrf, exact_match, …; auto: the "
        "task's first metric",
    )
    patience: int | None = Field(
        None, gt=0, le=_MOST_STEPS, description="stop after this many validations in a row without an improvement"
    )
    checkpoint_every: Interval = Field(1000, description="steps between checkpoints, or a share of the run: 5 %")
    keep: int = Field(2, gt=0, le=1_000_000, description="number of newest checkpoints to keep, beside the best")
    log_every: int = Field(50, gt=0, le=_MOST_STEPS, description="steps between two lines of the log")
    seed: int = Field(1, ge=0, le=_LARGEST_SEED, description="random seed of weights, dropout and order of the data")
    deterministic: bool = Field(True, description="deterministic operations only: the same run gives the same numbers")
    device: str = Field("auto", description="auto, cpu, cuda or mps")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto, float32 or bfloat16")
    compile: bool = Field(False, description="compile the model with torch.compile")
    recompute: bool = Field(False, description="recompute activations in the backward pass, to save memory")
    parallel: Literal["ddp", "fsdp"] = Field("ddp", description="several processes: ddp, or fsdp for large models")

    @model_validator(mode="after")
    def _consistent(self) -> Training:
        if self.steps is not None and self.minutes is not None:
            raise ValueError(f"give training.steps or training.minutes, got both ({self.steps} and {self.minutes})")
        if self.plan is not None and (self.steps is not None or self.minutes is not None):
            raise ValueError("training.plan sets the steps; leave out training.steps and training.minutes")
        if self.accumulate > self.batch_tokens:
            raise ValueError(
                f"accumulate {self.accumulate} is more than batch_tokens {self.batch_tokens}, "
                "but each micro-batch needs a token"
            )
        return self


class Decoding(Section):
    """How outputs are decoded: in validation, by `translate`, `generate` and `score`."""

    max_length: int = Field(256, gt=0, le=_LONGEST, description="most tokens of an output")
    max_ratio: float = Field(
        3.0, gt=0, le=1e6, description="most tokens of an output per token of its source; 10 more are allowed"
    )
    min_length: int = Field(0, ge=0, le=_LONGEST, description="fewest tokens of an output")
    max_source: int = Field(1024, gt=0, le=_LONGEST, description="most tokens of a source")
    too_long: Literal["truncate", "refuse"] = Field(
        "truncate", description="what to do with a longer source: truncate it (with a warning) or refuse it"
    )
    batch_tokens: int = Field(
        4096, gt=0, le=_MOST_TOKENS, description="most tokens of a batch: sentences × hypotheses × longest source"
    )
    precision: Literal["float32", "int8", "auto"] = Field(
        "float32", description="float32: as trained; int8: linear maps in 8 bits; auto: int8 on a CPU"
    )
    beam_size: int = Field(1, gt=0, le=_WIDEST, description="hypotheses kept for each sentence; 1: greedy search")
    n_best: int = Field(1, gt=0, le=_WIDEST, description="outputs for each input; those of a beam all differ")
    length_penalty: float | Literal["average", "none"] = Field(
        0.6,
        description="hypotheses are ranked by log p / ((5+L)/6)^VALUE, where L is the number of tokens with the end; "
        "average: by log p / L; none: by log p",
    )
    beam_groups: int = Field(
        1, gt=0, le=_WIDEST, description="diverse beam search: groups of the beam that avoid each other's words"
    )
    diversity: float = Field(
        0.5, ge=0, le=1e6, description="diverse beam search: penalty of a word for each earlier group that chose it"
    )
    sample: bool = Field(False, description="draw words by their probability instead of searching for the likeliest")
    temperature: float = Field(
        1.0, ge=1e-3, le=1e6, description="sampling: above 1 flattens the probabilities, below 1 sharpens them"
    )
    top_k: int = Field(0, ge=0, le=LARGEST["vocab"], description="sampling: draw from the k likeliest words; 0: all")
    top_p: float = Field(
        1.0, gt=0, le=1, description="sampling: draw from the likeliest words whose probabilities sum to this"
    )
    min_p: float = Field(
        0.0, ge=0, lt=1, description="sampling: least probability of a word, as a share of the likeliest word's"
    )
    seed: int = Field(
        1, ge=0, le=_LARGEST_SEED, description="sampling: random seed; the same seed and text give the same output"
    )
    no_repeat_ngram_size: int = Field(
        0, ge=0, le=_LONGEST, description="forbid repeating any n-gram of this many tokens; 0: off"
    )
    repetition_penalty: float = Field(
        1.0, ge=1, le=1e6, description="multiply log p of words that the output already has by this; 1: off"
    )
    coverage_penalty: float = Field(
        0.0, ge=0, le=1e6, description="beam search: penalty for source tokens that got little attention; 0: off"
    )
    forbidden_words: OneOrSeveral[str] = Field(
        [], description="a word or phrase that no output may contain, or several: '[one, two words]'"
    )
    replace_unknown: bool = Field(
        False, description="replace an unknown word by the source word aligned with it (for data.tokenizer words)"
    )
    dictionary: str | None = Field(None, description="with replace_unknown: a file of lines WORD, tab, TRANSLATION")

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
        if self.dictionary is not None and not self.replace_unknown:
            raise ValueError("a dictionary is for unknown words that are replaced: give replace_unknown true, too")
        if self.sample and self.beam_size > 1:
            raise ValueError(f"sampling has no beam: for several outputs give n_best, not beam_size {self.beam_size}")
        return self


class Config(Section):
    """A whole run."""

    task: str | dict[str, Any] | None = Field(
        None,
        description="what the model is trained for: translation, language_model, masked_words or classification, or "
        "{name: NAME, option: value}; `sixfold list --tasks` shows the options [default: chosen by model.kind]",
    )
    data: Data = Data()
    model: ModelConfig = ModelConfig()
    training: Training = Training()
    decoding: Decoding = Decoding()

    def sizes(self) -> Sizes:
        """The sizes of the model, with the vocabulary size of the configuration."""
        words = self.data.vocabulary
        if words is None:
            raise ValueError("the size of the vocabulary is missing: give --data.vocabulary, or a recipe that has it")
        return self._sizes({"vocab": words} if isinstance(words, int) else {f"{k}_vocab": v for k, v in words})

    def sizes_with(self, tokenizers: text.Tokenizers) -> Sizes:
        """The sizes of the model, with the vocabularies of these tokenizers."""
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
        """A copy with this task and this kind of model."""
        return self.model_copy(update={"task": task, "model": self.model.model_copy(update={"kind": kind})})

    def with_classes(self, classes: int) -> Config:
        """A copy with this number of classes."""
        return self.model_copy(update={"model": self.model.model_copy(update={"classes": classes})})

    def with_steps(self, steps: int) -> Config:
        """A copy with a number of steps in place of minutes."""
        training = self.training.model_copy(update={"steps": steps, "minutes": None, "plan": None})
        return self.model_copy(update={"training": training})

    def with_modifications(self, more: Iterable[str]) -> Config:
        """A copy with further modifications, which count as given only if its own are: the plan may add to them."""
        changed = self.with_only([*self.model.modifications, *more])
        if "modifications" not in self.model.model_fields_set:
            changed.model.model_fields_set.discard("modifications")
        return changed

    def with_only(self, modifications: list[str | dict[str, dict[str, Any] | None]]) -> Config:
        """A copy with these modifications in place of its own."""
        return self.model_copy(update={"model": self.model.model_copy(update={"modifications": modifications})})


SECTIONS = tuple(name for name in Config.model_fields if name != "task")


def keys() -> Iterator[tuple[str, FieldInfo]]:
    """Every key that can be set, such as "model.d_model", with its description and default."""
    for section in SECTIONS:
        kind = cast("type[Section]", Config.model_fields[section].annotation)
        for key, leaf in kind.model_fields.items():
            yield f"{section}.{key}", leaf


def change_decoding(decoding: Decoding, changes: Mapping[str, Any]) -> Decoding:
    """A copy with other values, which are checked like those of a file."""
    try:
        kept = giving_way(decoding.model_dump(), changes)
        return Config.model_validate({"decoding": {**kept, **changes}}).decoding
    except ValidationError as error:
        raise ValueError(explained(error)) from None


def explained(error: ValidationError) -> str:
    """Pydantic's error in terms of the configuration's keys."""
    return explain(error, Config, Section.__subclasses__())
