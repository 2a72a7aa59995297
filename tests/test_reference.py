"""The stacks equal PyTorch's own, given the same weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import sixfold
from sixfold.core.inputs import begin
from sixfold.core.memory import Memory

SIZES = sixfold.Sizes(d_model=16, d_ff=24, heads=4, encoder_layers=2, decoder_layers=3, vocab=13, dropout=0.0)
SOURCE = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 0, 0, 0], [10, 0, 11, 12, 3]])
TARGET = torch.tensor([[1, 5, 6, 7], [1, 9, 0, 0], [1, 0, 3, 3]])  # padding may stand anywhere
KINDS = pytest.mark.parametrize("modifications", [[], ["post_norm"]], ids=["pre_norm", "post_norm"])


class Reference(nn.Module):
    """nn.TransformerEncoder and nn.TransformerDecoder in the sizes of a model of ours."""

    def __init__(self, sizes: sixfold.Sizes, pre_norm: bool):
        super().__init__()
        how = {"dropout": 0.0, "layer_norm_eps": 1e-6, "batch_first": True, "norm_first": pre_norm}
        one = nn.TransformerEncoderLayer(sizes.d_model, sizes.heads, sizes.d_ff, **how)
        other = nn.TransformerDecoderLayer(sizes.d_model, sizes.heads, sizes.d_ff, **how)
        last = [nn.LayerNorm(sizes.d_model, eps=1e-6) if pre_norm else None for _ in range(2)]
        self.encoder = nn.TransformerEncoder(one, sizes.encoder_layers, norm=last[0], enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(other, sizes.decoder_layers, norm=last[1])

    def forward(self, x: Tensor, y: Tensor, real_x: Tensor, real_y: Tensor) -> tuple[Tensor, Tensor]:
        future = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)  # True: hidden
        memory = self.encoder(x, src_key_padding_mask=~real_x)
        return memory, self.decoder(y, memory, future, None, ~real_y, ~real_x)


def ours(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    states, call = model.encoder(x, begin(SOURCE, None, causal=False))
    memory = Memory(model.bridge(states), call.real)
    return states[-1], model.decoder(y, begin(TARGET, None, causal=True, memory=memory))[0][-1]


def pairs(model: nn.Module, reference: Reference) -> list[tuple[list[Tensor], Tensor]]:
    """Our weights (side by side where theirs are one matrix), and the weight of theirs that they are."""
    found: list[tuple[list[Tensor], Tensor]] = []

    def same(mine: nn.Module, its: nn.Module) -> None:
        found.extend(([p], q) for p, q in zip(mine.parameters(), its.parameters(), strict=True))

    for stack in ("encoder", "decoder"):
        mine, its = getattr(model, stack), getattr(reference, stack)
        for one, other in zip(mine.layers, its.layers, strict=True):
            norms = [one.around_attention.norm, one.around_feed_forward.norm]
            found.append(([one.attention.qkv.weight], other.self_attn.in_proj_weight))
            found.append(([one.attention.output.weight], other.self_attn.out_proj.weight))
            if stack == "decoder":
                norms.insert(1, one.around_cross.norm)
                found.append(([one.cross.q.weight, one.cross.kv.weight], other.multihead_attn.in_proj_weight))
                found.append(([one.cross.output.weight], other.multihead_attn.out_proj.weight))
            for i, norm in enumerate(norms, 1):
                same(norm, getattr(other, f"norm{i}"))
            same(one.feed_forward.inner, other.linear1)
            same(one.feed_forward.outer, other.linear2)
        if its.norm is not None:
            same(mine.final, its.norm)
    return found


@pytest.fixture
def twins(modifications: list[str]) -> tuple[nn.Module, Reference]:
    """Two models with the same weights, none of them at a special value such as 0 or 1."""
    model = sixfold.build(SIZES, modifications, seed=1)
    reference = Reference(SIZES, pre_norm=not modifications)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
        for name, p in reference.named_parameters():
            if name.endswith(("in_proj_bias", "out_proj.bias")):
                p.zero_()  # we have none
        for mine, its in pairs(model, reference):
            its.copy_(torch.cat(mine))
    return model, reference


def states(rows: int, length: int, seed: int) -> Tensor:
    return torch.randn(rows, length, 16, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@KINDS
def test_every_weight_of_the_stacks_has_a_counterpart(twins):
    model, reference = twins
    of_stacks = sum(p.numel() for stack in (model.encoder, model.decoder) for p in stack.parameters())
    biases = sum(p.numel() for n, p in reference.named_parameters() if n.endswith(("in_proj_bias", "out_proj.bias")))
    compared = sum(p.numel() for mine, _ in pairs(model, reference) for p in mine)
    assert compared == of_stacks == sum(p.numel() for p in reference.parameters()) - biases


@KINDS
def test_states_equal_those_of_pytorchs_stacks(twins):
    model, reference = twins
    x, y = states(3, 5, seed=3), states(3, 4, seed=4)
    memory, out = ours(model, x, y)
    its_memory, its_out = reference(x, y, SOURCE != 0, TARGET != 0)
    close(memory[SOURCE != 0], its_memory[SOURCE != 0])
    close(out[TARGET != 0], its_out[TARGET != 0])


@KINDS
def test_gradients_equal_those_of_pytorchs_stacks(twins):
    model, reference = twins
    factors = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(5))[TARGET != 0]
    grads = []
    for run in (lambda x, y: ours(model, x, y), lambda x, y: reference(x, y, SOURCE != 0, TARGET != 0)):
        x, y = states(3, 5, seed=3), states(3, 4, seed=4)
        (run(x, y)[1][TARGET != 0] * factors).sum().backward()
        grads.append((x.grad[SOURCE != 0], y.grad[TARGET != 0]))
    close(grads[0][0], grads[1][0])
    close(grads[0][1], grads[1][1])
    for mine, its in pairs(model, reference):
        assert its.grad.abs().sum() > 0
        close(torch.cat([p.grad for p in mine]), its.grad)


@KINDS
def test_encode_and_decode_are_embedding_sinusoids_and_pytorchs_stacks(twins):
    model, reference = twins

    def embedded(ids: Tensor) -> Tensor:
        waves = torch.tensor(
            [[(math.cos if i % 2 else math.sin)(t / 10000 ** ((i - i % 2) / 16)) for i in range(16)] for t in range(5)]
        )
        positions = (ids != 0).cumsum(1) - 1  # padding does not count
        return model.tables[0].weight[ids] * math.sqrt(16) + waves[positions]

    memory = model.encode(SOURCE)
    its_memory, its_out = reference(embedded(SOURCE), embedded(TARGET), SOURCE != 0, TARGET != 0)
    close(memory.states[-1][SOURCE != 0], its_memory[SOURCE != 0])
    close(model.decode(TARGET, memory)[TARGET != 0], its_out[TARGET != 0])
    its_log_probs = (its_out @ model.tables[0].weight.T).log_softmax(-1)
    close(model.log_probs(model.decode(TARGET, memory))[TARGET != 0], its_log_probs[TARGET != 0])


@KINDS
def test_what_stands_at_padding_changes_nothing(twins):
    model, _ = twins
    x, y = states(3, 5, seed=3), states(3, 4, seed=4)
    other_x = torch.where((SOURCE != 0)[..., None], x, 7.0)
    other_y = torch.where((TARGET != 0)[..., None], y, 7.0)
    close(ours(model, x, y)[1][TARGET != 0], ours(model, other_x, other_y)[1][TARGET != 0])


def test_heads_need_not_fill_the_model_width():
    sizes = sixfold.Sizes(d_model=16, d_ff=8, heads=3, d_head=5, encoder_layers=1, decoder_layers=1, vocab=13)
    model = sixfold.build(sizes, seed=1).eval()
    attention = model.encoder.layers[0].attention
    assert attention.qkv.weight.shape == (3 * 15, 16)
    assert attention.output.weight.shape == (16, 15)
    x = states(3, 5, seed=3)
    W_Q, W_K, W_V = attention.qkv.weight.split(15)
    heads = []
    for h in range(3):
        q, k, v = (x @ W[5 * h : 5 * h + 5].T for W in (W_Q, W_K, W_V))
        scores = (q @ k.transpose(1, 2) / math.sqrt(5)).masked_fill((SOURCE == 0)[:, None, :], -math.inf)
        heads.append(scores.softmax(-1) @ v)
    close(attention(x, begin(SOURCE, None, causal=False)), torch.cat(heads, -1) @ attention.output.weight.T)
    log_probs = model.log_probs(model.decode(TARGET, model.encode(SOURCE)))
    close(log_probs.exp().sum(-1), torch.ones(3, 4))
