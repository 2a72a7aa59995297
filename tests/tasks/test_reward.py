"""The task `reward`: its gradients are those of what it maximises, computed by enumeration or by finite differences."""

from collections import Counter
from itertools import chain, product

import numpy as np
import pytest
import torch

from sixfold.core.batch import Batch
from sixfold.core.ids import BOS, EOS, PAD
from sixfold.decoding.cpu.step import make_step
from sixfold.decoding.search.sample import Sample
from sixfold.scoring.likelihood import token_log_probs
from sixfold.tasks import _candidates as candidates
from sixfold.tasks.task import find_task
from sixfold.text.arrays import Examples, Ragged, RowRange
from sixfold.text.rows import Rows, random_keys
from tests.support import trained_tokenizers
from tests.support.small import VOCAB, moved_model, random_rows, seeded

METHODS = ("expected", "risk", "self_critical")
ARCHITECTURES = [(), ("rotary", "swiglu"), ("mixture_of_experts:experts=4,every=2",), ("bahdanau",), ("gnmt",)]
A, B, C = 5, 6, 7  # the words of a model that has no others
GOOD = {(): 0.0, (A,): 0.2, (A, B): 1.0, (C,): 0.5, (C, C): 0.1}  # rewards; of every other output 0.3


def options(**values):
    return find_task("reward").with_options({key: str(value) for key, value in values.items()}).options


def rows_of_text(targets, sources=None):
    """Rows as a run has them."""
    sources = sources or [[A, B]] * len(targets)

    def ragged(rows):
        return Ragged(np.array([id_ for row in rows for id_ in row], np.uint16), np.cumsum([0, *map(len, rows)]))

    index = np.arange(len(targets))
    examples = Examples(ragged(sources), ragged(targets), (RowRange(len(targets), 1.0),))
    return Rows(examples, index, random_keys(1, 0, index), VOCAB)


def reward_by(table, otherwise=0.3):
    return lambda outputs, reference: [table.get(tokens, otherwise) for tokens in outputs]


@pytest.fixture(name="three")
def _three(monkeypatch):
    """A model that writes three words and ends; outputs have at most two words."""
    monkeypatch.setattr(candidates, "_RATIO", 0)
    monkeypatch.setattr(candidates, "_MORE", 2)
    model = moved_model(vocab=8)
    with torch.no_grad():  # the first number of every state is large, and multiplied by −40 for the other words
        model.decoder.final.weight[0] = 0
        model.decoder.final.bias[0] = 1
        model.tables[0].weight[[PAD, BOS, 3, 4], 0] = -40
        model.tables[0].weight[[EOS, A, B, C], 0] = 0
    return model.eval()


def with_candidates(model, batch, reward, monkeypatch, **values):
    monkeypatch.setattr(candidates, "reward_of", lambda name, tokenizer: reward)
    with torch.no_grad():
        return candidates.with_candidates(model, batch, options(**values), None)


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
    )


def gradient_of(model, batch):
    """Per row, of all candidates."""
    loss = candidates.candidate_loss(model, batch, recompute=False)
    return gradient(model, loss / len(batch.targets))


def every_output():
    """All outputs of at most two words."""
    return [words for length in (0, 1, 2) for words in product((A, B, C), repeat=length)]


def log_p(model, outputs, source=(A, B, EOS), limit=2):
    """log P of outputs, word by word. One that has reached the limit has no EOS."""
    memory = model.encode(torch.tensor([list(source)]))
    found = []
    for words in outputs:
        text = [*words, EOS][: max(limit, len(words))]
        states = model.decode(torch.tensor([[BOS, *text[:-1]]]), memory)
        found.append(model.log_probs(states)[0].gather(1, torch.tensor(text)[:, None]).sum())
    return torch.stack(found)


def exact_gradient(model):
    """Of −E r, over all outputs."""
    outputs = every_output()
    p = log_p(model, outputs).exp()
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    rewards = torch.tensor([GOOD.get(words, 0.3) for words in outputs], dtype=torch.float64)
    return gradient(model, -(p * rewards).sum())


@pytest.mark.parametrize("method", ["expected", "self_critical"])
def test_the_mean_of_many_draws_is_the_gradient_by_enumeration(three, monkeypatch, method):
    """Draws by NumPy: 40,000 rows of 4 samples, as one row of candidates with their mean weights."""
    outputs, rows = every_output(), 40_000
    p = log_p(three, outputs).exp().detach().numpy()
    drawn = np.random.default_rng(1).choice(len(outputs), (rows, 4), p=p / p.sum())
    row, reward, mean = candidates.SampledPair([A, B, EOS], (A,), 2, 0), reward_by(GOOD), Counter()
    for numbers in drawn.tolist():
        samples = [outputs[number] for number in numbers]
        weigh = candidates._by_mean if method == "expected" else candidates._by_greedy
        for each in weigh(row, samples, *([] if method == "expected" else [(C,)]), reward).candidates:
            mean[each.tokens] += each.weight / rows
    found = [candidates.Candidate(words, len(words) < 2, weight) for words, weight in mean.items()]
    batch = find_task("reward").batch(rows_of_text([[A]]))
    batch = batch.replaced(candidates=torch.tensor([len(found)]), **candidates.arrays(found, torch.device("cpu")))
    expected = exact_gradient(three)
    assert (gradient_of(three, batch) - expected).norm() < 0.02 * expected.norm()


def test_samples_have_the_probabilities_of_the_model(three):
    """Of 4,000 samples; each share lies within four standard deviations."""
    rows = candidates.rows_of(find_task("reward").batch(rows_of_text([[A]] * 500)), None)
    drawn = Counter(chain.from_iterable(candidates.decoded(make_step(three), rows, Sample(8))))
    outputs = every_output()
    assert drawn.keys() <= set(outputs)
    for words, p in zip(outputs, log_p(three, outputs).exp().tolist(), strict=True):
        assert abs(drawn[words] / 4000 - p) < 4 * (p * (1 - p) / 4000) ** 0.5


def test_the_gradient_of_the_risk_by_finite_differences(three, monkeypatch):
    """Σ Q r / α over the candidates of one row, of which Q ∝ P^α; the set stays as it was drawn."""
    alpha = 0.7
    batch = find_task("reward").batch(rows_of_text([[A, B]]))
    drawn = [(A,), (C, C), (A,), (B,), ()]
    monkeypatch.setattr(candidates, "decoded", lambda step, rows, method: [drawn])
    batch = with_candidates(three, batch, reward_by(GOOD), monkeypatch, method="risk", alpha=alpha, reference=False)
    found = gradient_of(three, batch)
    chosen = list(dict.fromkeys(drawn))
    rewards = torch.tensor([GOOD.get(words, 0.3) for words in chosen], dtype=torch.float64)
    direction = torch.randn(found.shape, generator=seeded(3), dtype=torch.float64)
    start = torch.nn.utils.parameters_to_vector(three.parameters()).detach().clone()

    def risk(at):
        torch.nn.utils.vector_to_parameters(at, three.parameters())
        with torch.no_grad():
            return -float(((alpha * log_p(three, chosen)).softmax(0) * rewards).sum() / alpha)

    h = 1e-5
    slope = (risk(start + h * direction) - risk(start - h * direction)) / (2 * h)
    assert float(found @ direction) == pytest.approx(slope, rel=1e-6)
    assert abs(slope) > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_reward_has_no_gradient(three, monkeypatch, method):
    """Exactly, although 0.1 + 0.1 + 0.1 is not 3 · 0.1."""
    batch = find_task("reward").batch(rows_of_text([[A], [B, C]]))
    batch = with_candidates(three, batch, reward_by({}, 0.1), monkeypatch, method=method, samples=3)
    assert batch.get("candidates").tolist() == [0, 0]
    assert batch.get("row_without_signal").tolist() == [1, 1]
    assert candidates.candidate_loss(three, batch, recompute=False).item() == 0
    task = find_task("reward").with_options({"likelihood": 0})
    assert not gradient(three, task.terms(three, batch)["reward"].sum).any()


def test_an_output_equal_to_the_greedy_one_has_no_weight(three, monkeypatch):
    drawn = iter([[[(A,), (B,), (A,)]], [[(A,)]]])  # samples, then the greedy output
    monkeypatch.setattr(candidates, "decoded", lambda *_: next(drawn))
    batch = find_task("reward").batch(rows_of_text([[A]]))
    batch = with_candidates(three, batch, reward_by(GOOD), monkeypatch, method="self_critical", samples=3)
    assert batch.get("candidate_targets").tolist() == [[B, EOS]]
    torch.testing.assert_close(batch.get("candidate_weights"), torch.full((1, 2), (0.3 - 0.2) / 3))


def test_what_is_drawn_twice_counts_twice_in_the_expectation_and_once_in_the_risk():
    row = candidates.SampledPair([A, EOS], (A,), 4, 0)
    once, twice = [(A,), (B,), (A, B)], [(A,), (B,), (A,), (A, B), (B,)]
    reward = reward_by(GOOD)
    for outputs in (once, twice):
        chosen = candidates.distinct(row, outputs, reference=True)
        assert chosen == once  # the reference (A,) is there already
    mean = (0.2 + 0.3 + 0.2 + 1.0 + 0.3) / 5
    found = candidates._by_mean(row, twice, reward)
    weights = {each.tokens: each.weight for each in found.candidates}
    assert weights == pytest.approx({(A,): 2 * (0.2 - mean) / 4, (B,): 2 * (0.3 - mean) / 4, (A, B): (1 - mean) / 4})
    by_risk = [
        candidates._by_risk(row, outputs, candidates.distinct(row, outputs, True), [-1.0, -2.0, -3.0], reward, alpha=1)
        for outputs in (once, twice)
    ]
    assert by_risk[0].candidates == by_risk[1].candidates
    assert sum(each.weight for each in by_risk[0].candidates) == pytest.approx(0)


def test_two_arms(three, monkeypatch):
    """After 200 steps the better of two words is nearly certain."""
    monkeypatch.setattr(candidates, "_MORE", 1)
    three.float()
    optimizer = torch.optim.Adam(three.parameters(), 1e-2)
    batch = find_task("reward").batch(rows_of_text([[A]] * 2))
    for step in range(200):
        drawn = batch.replaced(keys=batch.get("keys") + step)
        drawn = with_candidates(three, drawn, reward_by({(B,): 1.0}, 0.0), monkeypatch, samples=4)
        loss = candidates.candidate_loss(three, drawn, recompute=False)
        if loss.requires_grad:  # else all samples have the same reward
            gradient(three, loss)
            optimizer.step()
    assert log_p(three, [(B,)], limit=1).exp().item() > 0.99


@pytest.mark.parametrize("wishes", ARCHITECTURES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_the_loss_is_the_weighted_log_probability_of_each_candidate(wishes, method, monkeypatch):
    """In training mode, too, where dropout would change it; and the same when activations are recomputed."""
    model = moved_model(modifications=wishes, dropout=0.3)
    generator = seeded(2)
    sources, targets = ([row.tolist() for row in random_rows((4, 2, 6), generator)] for _ in range(2))
    batch = find_task("reward").batch(rows_of_text(targets, sources))
    batch = with_candidates(model, batch, lambda outputs, _: [len(o) / 30 for o in outputs], monkeypatch, method=method)
    numbers = batch.get("candidates")
    assert (len(numbers), int(numbers.sum())) == (3, len(batch.get("candidate_inputs")))
    by_hand, first = 0.0, 0
    for source, target, number in zip(sources, targets, numbers.tolist(), strict=True):
        limit = 2 * len(target) + 10
        for k in range(first, first + number):
            length = int((batch.get("candidate_weights")[k] != 0).sum())
            text = batch.get("candidate_targets")[k, :length].tolist()
            ended = text[-1] == EOS
            words = text[:-1] if ended else text
            assert len(words) < limit if ended else len(words) == limit
            each = token_log_probs(model, [source], [words])[0]
            by_hand -= float(batch.get("candidate_weights")[k, 0]) * sum(each if ended else each[:-1])
        first += number
    model.train()
    losses = [candidates.candidate_loss(model, batch, recompute) for recompute in (False, True)]
    assert [loss.item() for loss in losses] == pytest.approx([by_hand] * 2, abs=1e-6)
    torch.testing.assert_close(*(gradient(model, loss) for loss in losses))
    assert model.training
    assert all(part.training for part in model.modules())


def test_samples_depend_on_their_row_alone(three, monkeypatch):
    """Not on the other rows of the batch, nor on the key of the step; another epoch draws others."""
    whole = find_task("reward").batch(rows_of_text([[A], [B, C], [C]]))
    alone = Batch(counts={"words": 3}, **{name: tensor[1:2] for name, tensor in whole.fields.items()})
    rewards = {"reward": reward_by(GOOD), "monkeypatch": monkeypatch}
    drawn = [
        with_candidates(three, batch, **rewards) for batch in (whole, alone, whole.replaced(keys=whole.get("keys") + 1))
    ]
    first, number = int(drawn[0].get("candidates")[0]), int(drawn[0].get("candidates")[1])
    same = drawn[0].get("candidate_inputs")[first : first + number]
    assert torch.equal(same, drawn[1].get("candidate_inputs"))
    assert drawn[0].get("row_reward")[1] == drawn[1].get("row_reward")[0] != drawn[2].get("row_reward")[1]


def test_a_batch_without_rows_has_no_candidates(three, monkeypatch):
    text = rows_of_text([[A]])
    batch = find_task("reward").batch(Rows(text.examples, text.index[:0], text.keys[:0], VOCAB))
    batch = with_candidates(three, batch, reward_by(GOOD), monkeypatch)
    assert batch.counts == {"words": 0, "reward": 0, "sample_length": 0, "without_signal": 0}
    terms = find_task("reward").terms(three, batch)
    assert all(term.sum.item() == term.shown.item() == 0 for term in terms.values())


def test_rewards():
    """GLEU of the pieces, error rates from 1 downwards, 0 for an output that can't be written."""
    tokenizer = trained_tokenizers.trained("characters")
    reference, others = tokenizer.encode("abc"), [tokenizer.encode(text) for text in ("abc", "ab", "", "abcabcabc")]
    outputs = [tuple(other) for other in others] + [(*reference, BOS)]
    found = {
        name: candidates.reward_of(name, tokenizer)(outputs, tuple(reference))
        for name in ("gleu", "exact_match", "symbol_error_rate", "sentence_bleu", "chrf", "pronunciation")
    }
    assert found["gleu"] == pytest.approx([1, 3 / 6, 0, 6 / 30, 0])
    assert found["exact_match"] == [1, 0, 0, 0, 0]
    assert found["symbol_error_rate"] == pytest.approx([1, 2 / 3, 0, 0, 0])
    assert found["sentence_bleu"][0] == pytest.approx(1)
    assert found["chrf"][0] == pytest.approx(1)
    assert 0 < found["chrf"][1] < 1
    assert found["pronunciation"] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"metric": "bleu"}, "for single texts there is sentence_bleu"),
        ({"metric": "glue"}, "did you mean 'gleu'?"),
        ({"samples": 1}, "samples is a number from 2 to 1,000 for the method expected"),
        ({"samples": 0, "method": "self_critical"}, "from 1 to 1,000"),
        ({"method": "greedy"}, "expected, risk, self_critical"),
        ({"likelihood": -1}, "likelihood is a weight from 0 to 100"),
        ({"alpha": 0}, "alpha is an exponent above 0"),
        ({"candidates": "best"}, "candidates=best is for method=risk"),
    ],
)
def test_options_that_make_no_sense(values, words):
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        options(**values)


def test_one_sample_is_enough_beside_the_greedy_output():
    assert options(method="self_critical", samples=1).samples == 1
