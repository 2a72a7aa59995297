"""Where keys and values lie: by hand, and that nothing is lost when hypotheses fork, leave and join."""

import numpy as np
import pytest
import torch

from sixfold.decoding.cpu.kv_store import BufferPool, KVStore, LayerKV


def store(*lengths, heads=(1, 1)):
    """Sentences of these lengths, whose memory says which they are."""
    pool = BufferPool()
    memory = LayerKV.make(pool, len(lengths), max(lengths), heads, int8=False)
    memory.states.array[:] = np.array(lengths, np.float32)[:, None, None, None, None]
    past = LayerKV.make(pool, len(lengths), 0, heads, int8=False)
    return KVStore.empty([memory], [past], np.array(lengths), pool)


def say(state, *words):
    """Each hypothesis says a number, which is laid where its keys and values would be."""
    new = state.add(np.ones((len(words), 1), bool))
    states, said = state.past[0].states.array, np.array(words, np.float32)
    states[new.past.sequence, new.slot] = said[:, None, None, None]
    return new


def told(state):
    """What each hypothesis has said."""
    states, width = state.past[0].states.array, state.width
    return [
        states[state.sequence[row // width], state.order[row, :count], 0, 0, 0].tolist()
        for row, count in enumerate(state.count)
    ]


def remembered(state):
    return [state.memory[0].states.array[sequence, 0, 0, 0, 0] for sequence in state.sequence]


def test_hypotheses_fork_and_keep_their_past():
    state = store(3, 2).select(torch.tensor([[0, 0], [1, 1]]))
    say(state, 1, 2, 3, 4)
    state = state.select(torch.tensor([[0, 0], [3, 2]]))
    say(state, 5, 6, 7, 8)
    assert told(state) == [[1, 5], [1, 6], [4, 7], [3, 8]]
    state = state.select(torch.tensor([[3, 2]]))
    say(state, 9, 10)
    assert told(state) == [[3, 8, 9], [4, 7, 10]]
    assert remembered(state) == [2]


def test_positions_and_slots_by_hand():
    state = store(3).select(torch.tensor([[0, 0]]))
    first, second = say(state, 1, 2), say(state, 3, 4)
    assert first.position.tolist() == [0, 0]
    assert second.position.tolist() == [1, 1]
    assert [first.slot.tolist(), second.slot.tolist()] == [[0, 1], [2, 3]]
    assert second.past.visible.tolist() == [2, 2]
    assert second.memory.visible.tolist() == [3, 3]


def test_padding_is_not_laid():
    state = store(1, 1)
    new = state.add(np.array([[False, True, True], [True, True, True]]))
    assert new.position.tolist() == [0, 1, 0, 1, 2]
    assert state.count.tolist() == [2, 3]
    assert say(state, 1, 2).position.tolist() == [2, 3]


def test_others_take_free_places_and_further_ones_follow():
    state, other = store(1, 2, 3), store(4, 5)
    say(state, 1, 2, 3)
    state = state.join(other, [1])
    say(state, 4, 5, 6, 7)
    assert told(state) == [[1, 4], [5], [3, 6], [7]]
    assert remembered(state) == [1, 4, 3, 5]


@pytest.mark.parametrize("seed", range(5))
def test_in_any_coming_and_going_everybody_keeps_what_they_said(seed):
    chance, width = np.random.default_rng(seed), 1 + seed % 3
    wide = [list(range(width))]
    next_name, sizes = 1, list[int]()

    def newcomers():
        nonlocal next_name
        number = int(chance.integers(1, 6))
        names = list(range(next_name, next_name + number))
        next_name += number
        return store(*names).select(torch.arange(number)[:, None].expand(-1, width)), names

    state, names = newcomers()
    texts = [[] for _ in range(len(names) * width)]
    for step in range(60):
        words = [step * 100 + row for row in range(len(texts))]
        say(state, *words)
        texts = [[*text, word] for text, word in zip(texts, words, strict=True)]
        stay = sorted(chance.permutation(len(names))[: max(1, int(len(names) * 0.8))].tolist())
        lines = [[s * width + int(chance.integers(width)) for _ in wide[0]] for s in stay]
        state, names = state.select(torch.tensor(lines)), [names[s] for s in stay]
        texts = [texts[row] for line in lines for row in line]
        if step % 3 == 0:
            other, new = newcomers()
            free = [0] if len(names) > 1 else []
            state = state.join(other, free)
            for number, name in enumerate(new):
                place = free[number] if number < len(free) else len(names)
                names[place : place + 1] = [name]
                texts[place * width : (place + 1) * width] = [[] for _ in range(width)]
        assert told(state) == texts
        assert remembered(state) == names
        sizes.append(state.past[0].states.array.size)
    assert sizes[-1] <= 40 * 200 * 2


def test_a_store_shrinks_after_a_long_text():
    state = store(500)
    for word in range(400):
        say(state, word)
    state = state.join(store(*[2] * 30), [0])
    sequences, slots = state.past[0].states.array.shape[:2]
    assert sequences * slots < 2000
    assert state.memory[0].states.array.shape[1] < 20


def test_a_sentence_that_is_chosen_twice_has_two_sequences():
    state = store(3, 4)
    say(state, 1, 2)
    state = state.select(torch.tensor([[1], [1], [0]]))
    say(state, 3, 4, 5)
    assert told(state) == [[2, 3], [2, 4], [1, 5]]


def test_what_cannot_be():
    state = store(1, 1)
    with pytest.raises(ValueError, match="different sentences"):
        state.select(torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="2 hypotheses per sentence here, 1 there"):
        state.select(torch.tensor([[0, 0], [1, 1]])).join(store(1))
