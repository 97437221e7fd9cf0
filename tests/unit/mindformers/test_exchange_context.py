"""The context between dispatch and combine belongs to one call, on one thread."""

from __future__ import annotations

import threading

from hp_memory.mindformers.exchange_context import keep_for_the_call


class Exchange:
    def __init__(self):
        self.ctx = None

    def dispatch(self, value):
        self.ctx = (value,)

    def combine(self):
        return self.ctx


def kept():
    exchange = Exchange()
    keep_for_the_call(exchange)
    return exchange


def test_a_context_is_read_once():
    exchange = kept()
    exchange.dispatch(1)
    assert exchange.combine() == (1,)
    assert exchange.combine() is None


def test_threads_and_layers_dont_see_each_others():
    exchange, other, seen = kept(), kept(), []
    exchange.dispatch("here")
    other.dispatch("another layer")

    def on_a_thread():
        exchange.dispatch("there")
        seen.append(exchange.combine())

    thread = threading.Thread(target=on_a_thread)
    thread.start()
    thread.join()
    assert seen == [("there",)]
    assert (exchange.combine(), other.combine()) == (("here",), ("another layer",))


def test_a_second_installation_changes_nothing():
    exchange = kept()
    cls = type(exchange)
    keep_for_the_call(exchange)
    assert type(exchange) is cls
    assert isinstance(exchange, Exchange)
    assert cls.__name__ == "Exchange"
