"""The run's section `decoding` for another engine: its options, and a sentence for each setting that it lacks.

A setting becomes an option of the engine, or is applied by the exported program; – means that it is lost.

setting                                       CTranslate2                        torch
beam_size, n_best, min_length                 its options                        the program
max_length, max_ratio, max_source, too_long   the program (a limit for each line)        the program
length_penalty                                its own; ranked by the program     the program
no_repeat_ngram_size                          its option                         the program
temperature, top_k, top_p                     its options                        the program
min_p                                         –                                  the program
repetition_penalty                            its own, on logits                 the program
coverage_penalty                              its option                         –
beam_groups, diversity, forbidden_words,
replace_unknown, dictionary                   –                                  –
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sixfold.config.schema import Decoding
from sixfold.foreign.length_limits import LengthLimits

PATIENCE = 2  # CTranslate2 ends a beam search after patience · beam_size outputs, sixfold when none can still win


def ctranslate2_options(
    decoding: Decoding, reads_source: bool, never: Sequence[str], limits: LengthLimits
) -> dict[str, Any]:
    """Options of `translate_batch` or `generate_batch`, except the length limit, which differs by line."""
    options: dict[str, Any] = {
        "suppress_sequences": [[name] for name in never],
        "no_repeat_ngram_size": decoding.no_repeat_ngram_size,
        "repetition_penalty": decoding.repetition_penalty,
        "max_batch_size": max(1, decoding.batch_tokens // max(decoding.beam_size, decoding.n_best)),
        "batch_type": "tokens",
        "return_scores": True,
        "return_end_token": True,
        **(_sampling(decoding) if decoding.sample else _beam(decoding)),
    }
    if not reads_source:
        return {**options, "min_length": decoding.min_length, "include_prompt_in_result": False}
    if _covers(decoding):
        options["coverage_penalty"] = decoding.coverage_penalty
    return {**options, "min_decoding_length": decoding.min_length, "max_input_length": limits.read + 1}  # with EOS


def _sampling(decoding: Decoding) -> dict[str, Any]:
    """Options for sampling. With top_k 1, CTranslate2 gives one output only."""
    return {
        "beam_size": 1,
        "num_hypotheses": 1 if decoding.top_k == 1 else decoding.n_best,
        "length_penalty": 0.0,
        "sampling_topk": decoding.top_k,
        "sampling_topp": decoding.top_p,
        "sampling_temperature": decoding.temperature,
    }


def _beam(decoding: Decoding) -> dict[str, Any]:
    """Options for beam search. With penalties, all outputs are returned, to be ranked by the program."""
    penalty = {"none": 0.0, "average": 1.0}.get(str(decoding.length_penalty), decoding.length_penalty)
    options = {"beam_size": decoding.beam_size, "length_penalty": penalty, "sampling_topk": 1}
    if decoding.beam_size == 1 or not (penalty or decoding.coverage_penalty):
        return {**options, "num_hypotheses": decoding.n_best}
    return {**options, "num_hypotheses": PATIENCE * decoding.beam_size, "patience": PATIENCE}


def _covers(decoding: Decoding) -> bool:
    return decoding.coverage_penalty > 0 and decoding.beam_size > 1


def not_carried(to: str, decoding: Decoding, spells: bool, quantization: str | None = None) -> list[str]:
    """A sentence for each setting of the run that the exported program lacks, or has in another form."""
    sentences = list(_in_neither(decoding, spells))
    if to == "ctranslate2":
        sentences += _not_in_ctranslate2(decoding)
    elif _covers(decoding):
        sentences.append(
            f"coverage_penalty {decoding.coverage_penalty:g}: the programs do not return attention weights"
        )
    if decoding.precision != "float32" and quantization in (None, "float32"):
        instead = "; export with --quantization int8 for that" if to == "ctranslate2" else ""
        sentences.append(f"precision {decoding.precision}: the weights are float32{instead}")
    return sentences


def _in_neither(decoding: Decoding, spells: bool) -> Iterator[str]:
    if decoding.sample:
        yield "seed: words are drawn from the same probabilities with other random numbers, so texts differ"
    if decoding.beam_groups > 1:
        yield f"beam_groups {decoding.beam_groups}, diversity {decoding.diversity:g}: the search has one plain beam"
    if decoding.forbidden_words:
        yield f"forbidden_words {', '.join(decoding.forbidden_words)}: outputs may contain them"
    if decoding.replace_unknown and not spells:
        dictionary = "" if decoding.dictionary is None else f", dictionary {decoding.dictionary}"
        yield f"replace_unknown{dictionary}: unknown words are written as <unk>"


def _not_in_ctranslate2(decoding: Decoding) -> Iterator[str]:
    if decoding.sample and decoding.min_p > 0:
        yield f"min_p {decoding.min_p:g}: CTranslate2 has no such option"
    if decoding.repetition_penalty != 1:
        yield (
            f"repetition_penalty {decoding.repetition_penalty:g}: CTranslate2 applies it to logits, sixfold to "
            "log-probabilities, so other words may be chosen"
        )
    if decoding.beam_size > 1 and (decoding.no_repeat_ngram_size or decoding.min_length):
        yield (
            "no_repeat_ngram_size, min_length in a beam: CTranslate2 spreads the probability of a forbidden word over "
            "the others, sixfold does not, so other hypotheses may survive"
        )
    if _covers(decoding) and decoding.length_penalty == "average":
        yield (
            f"coverage_penalty {decoding.coverage_penalty:g} with length_penalty average: long outputs win, but "
            "CTranslate2 ends its search before it finds them"
        )
