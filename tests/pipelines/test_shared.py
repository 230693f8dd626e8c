"""Many requests in one batch: each text is the one that its request gives alone, and nobody waits for a place that is free."""

from __future__ import annotations

import itertools
import shutil
import threading
import time

import models
import numpy as np
import pytest

import opsmith
from opsmith.errors import OpsmithError
from opsmith.pipelines import shared as shared_pipeline
from opsmith.pipelines.sampling import Sampling
from opsmith.pipelines.shared import SharedWriter
from opsmith.pipelines.text import TextGenerator


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    home = tmp_path_factory.mktemp("shared") / "llama"
    shutil.copytree(models.tiny_model("llama"), home)
    opsmith.compile(home / "dynamo", home / "fast", regions="whole", verify=False)
    return TextGenerator(home, "fast")


def at_once(calls):
    """Run the calls in threads of their own; their results in order, an exception in place of one."""
    results = [None] * len(calls)

    def run(i):
        try:
            results[i] = calls[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return results


def when_there_are(shared, texts, once=None):
    """Hold the steps (from the event `once` on) until so many texts wait: on a busy machine threads start one by one."""
    step = shared._step

    def held():
        if once is None or once.is_set():
            until = time.monotonic() + 60
            while len(shared._waiting) < texts and time.monotonic() < until:
                time.sleep(0.001)
            shared._step = step
        step()

    shared._step = held


def requests():
    random = np.random.default_rng(5)
    sizes = [1, 40, 7, 90, 2, 33, 64, 12, 5, 71, 20, 3]
    for i, size in enumerate(sizes):
        yield {
            "prompts": [random.integers(3, 500, size).tolist()],
            "max_new_tokens": [30, 4, 18, 25][i % 4],
            "sampling": Sampling(temperature=0.9 if i % 2 else 0.0, seed=i),
            "n": 2 if i == 4 else 1,
            "lookup": 4 if i % 5 == 2 else 0,
            "ends": (),
        }


def tokens_of(generations):
    return [g.tokens for g in generations]


def test_texts_written_together_are_those_written_alone(compiled):
    shared = SharedWriter(compiled)
    assert shared.slots == 8
    asked = list(requests())
    alone = [tokens_of(compiled.generate(**a)) for a in asked]
    when_there_are(shared, sum(len(made) for made in alone))
    together = at_once([lambda a=a: shared.generate(**a) for a in asked])
    assert [tokens_of(made) for made, _ in together] == alone
    # 13 texts of up to 30 tokens share their passes
    steps = sum(speed.decode_steps for _, speed in together)
    assert steps < sum(len(t) - 1 for texts in alone for t in texts) / 2
    # and again, with slots that hold other texts by now
    again = at_once([lambda a=a: shared.generate(**a) for a in reversed(asked)])
    assert [tokens_of(made) for made, _ in again] == alone[::-1]


def test_a_beginning_that_some_slot_holds_is_not_read_again(compiled):
    shared = SharedWriter(compiled)
    system = list(range(10, 60))
    _, speed = shared.generate([[*system, 7]], max_new_tokens=5, ends=())
    assert speed.prompt_tokens == 51
    for i in range(3):  # the slot that holds it is in use meanwhile, or not
        prompt = [*system, 8 + i, 9]
        made, speed = shared.generate([prompt], max_new_tokens=5, ends=(), n=2)
        assert speed.prompt_tokens == 2 + 1  # the second text shares all of the prompt but its last token
        assert tokens_of(made) == tokens_of(compiled.generate([prompt], max_new_tokens=5, ends=(), n=2))


def test_a_cancelled_text_leaves_its_slot_within_a_step(compiled):
    shared = SharedWriter(compiled, slots=2)
    stop, said = threading.Event(), []

    def watch(index, piece):
        said.append(piece)
        stop.set()

    long = {"max_new_tokens": 100, "ends": ()}
    (cut, _), (whole, _) = at_once(
        [
            lambda: shared.generate([[5, 6]], on_text=watch, cancelled=stop.is_set, **long),
            lambda: shared.generate([[7, 8, 9]], **long),
        ]
    )
    assert 1 <= len(cut[0].tokens) <= 8 and len(whole[0].tokens) == 100
    assert whole[0].tokens == compiled.generate([[7, 8, 9]], **long)[0].tokens
    assert all(slot.text is None for slot in shared._cache.slots)


def test_what_goes_wrong_in_one_request_does_not_touch_the_others(compiled):
    shared = SharedWriter(compiled, slots=2)

    def fail(index, piece):
        raise RuntimeError("the client is gone")

    broken, sane, refused = at_once(
        [
            lambda: shared.generate([[5, 6], [6, 7], [7, 8]], max_new_tokens=20, ends=(), on_text=fail),
            lambda: shared.generate([[9, 10]], max_new_tokens=20, ends=()),
            lambda: shared.generate([[100000]]),
        ]
    )
    assert isinstance(broken, RuntimeError) and isinstance(refused, OpsmithError)
    assert tokens_of(sane[0]) == tokens_of(compiled.generate([[9, 10]], max_new_tokens=20, ends=()))


def test_who_comes_first_gets_the_free_slot_first(compiled):
    shared, order = SharedWriter(compiled, slots=2), []
    when_there_are(shared, 6)

    def ask(i):
        until = time.monotonic() + 60
        while len(shared._waiting) < i and time.monotonic() < until:
            time.sleep(0.001)
        shared.generate([[20 + i]], max_new_tokens=20, ends=(), on_text=lambda *_: order.append(i))

    at_once([lambda i=i: ask(i) for i in range(6)])
    assert [i // 2 for i in dict.fromkeys(order)] == [0, 0, 1, 1, 2, 2]


def test_a_long_prompt_is_read_in_pieces_between_the_steps_of_the_others(compiled, monkeypatch):
    monkeypatch.setattr(shared_pipeline, "PIECE", 8)
    shared, sizes = SharedWriter(compiled), []
    run = shared._cache._run
    monkeypatch.setattr(
        shared._cache, "_run", lambda a, b, ids, *rest: (sizes.append(ids.shape), run(a, b, ids, *rest))[1]
    )
    long = list(np.random.default_rng(1).integers(3, 500, 80))
    begun = threading.Event()

    when_there_are(shared, 1, once=begun)
    at_once(
        [
            lambda: shared.generate([[5]], max_new_tokens=60, ends=(), on_text=lambda i, p: begun.set()),
            lambda: (begun.wait(60), shared.generate([long], max_new_tokens=2, ends=())),
        ]
    )
    pieces = [i for i, (_, new) in enumerate(sizes) if new == 8]
    assert len(pieces) == 10 and all(b - a > 1 for a, b in itertools.pairwise(pieces))


def test_a_model_that_is_not_compiled_writes_one_request_after_the_other():
    generator = TextGenerator(models.tiny_model("llama"), "dynamo")
    shared = SharedWriter(generator)
    assert shared.slots == 1
    asked = [{"prompts": [[i, 5]], "max_new_tokens": 6, "ends": ()} for i in range(4)]
    assert [tokens_of(made) for made, _ in at_once([lambda a=a: shared.generate(**a) for a in asked])] == [
        tokens_of(generator.generate(**a)) for a in asked
    ]
