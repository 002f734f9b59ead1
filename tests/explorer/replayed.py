"""Product code as a machine of the explorer: it runs up to its next question to the world.

A coroutine cannot be copied. But the same answers lead it to the same question, so a state of it is
the list of the answers that it got. `Work` keeps these lists as a tree: a node is a number, and
what stands there is worked out once, by a run from the beginning. Several questions at once are
answered in the order in which they were asked.

With each answer comes a `View`: what the process knows without a question at that moment. Answers
that differ by it alone lead to the same node if the code does not look before its next question.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

from bookie.errors import BookieError
from bookie.testing.simulation.loop import SimulatedLoop, simulated_loop


class View(NamedTuple):
    """What a process sees of the cluster and of its session."""

    registered: tuple[tuple[str, str], ...]
    """Bookies and their incarnations."""
    is_certain: bool = True
    epoch: int = 0
    """Of the session."""


class Question(NamedTuple):
    kind: str
    about: tuple[Any, ...]


class Raised(NamedTuple):
    """An answer that is an error."""

    error: type[BookieError]


class Answer(NamedTuple):
    value: Any
    view: View


@dataclass(frozen=True, slots=True)
class Ended:
    """The code has returned, or raised a `BookieError`."""

    result: object = None
    error: BookieError | None = None


class Doors:
    """By which product code talks with the world: each `ask` waits for the explorer's answer."""

    def __init__(self, loop: SimulatedLoop, view: View) -> None:
        self._loop = loop
        self._view = view
        self.has_looked = False
        """Whether the code has looked at the view since the last answer."""
        self._waiting: deque[tuple[Question, asyncio.Future[Any]]] = deque()
        self._is_over = False
        self.tokens = 0
        """Drawn so far."""

    @property
    def view(self) -> View:
        self.has_looked = True
        return self._view

    async def ask(self, kind: str, *about: Any) -> Any:
        """The world's answer.

        Raises:
            BookieError: the answer is one.
        """
        if self._is_over:
            raise asyncio.CancelledError
        future = self._loop.create_future()
        self._waiting.append((Question(kind, about), future))
        value = await future
        if isinstance(value, Raised):
            raise value.error("by the explorer")
        return value

    def settle(self, task: asyncio.Task[object]) -> Question | Ended:
        """Let the code run until it asks or ends. Time passes only if it waits for nothing else."""
        while True:
            while self._loop._ready:
                self._loop._turn()
            while self._waiting and self._waiting[0][1].done():
                self._waiting.popleft()  # its caller was cancelled
            if task.done():
                error = task.exception()
                if error is not None and not isinstance(error, BookieError):
                    raise error
                return Ended(error=error) if error is not None else Ended(task.result())
            if self._waiting:
                return self._waiting[0][0]
            self._loop._turn()

    def answer(self, answer: Answer) -> None:
        self._view, self.has_looked = answer.view, False
        _, future = self._waiting.popleft()
        future.set_result(answer.value)

    def end(self, task: asyncio.Task[object]) -> None:
        """The process is forgotten: nothing that its code asks at the end is answered."""
        self._is_over = True
        task.cancel()
        while not task.done():
            self._loop._turn()
        if not task.cancelled():
            task.exception()


Begin = Callable[[Doors], Coroutine[Any, Any, object]]


class Work:
    """Everything that is known of the runs of one piece of product code."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._answers: list[tuple[int, Answer]] = []
        """By node: the node before, and the answer that leads here."""
        self._found: list[Question | Ended] = []
        """By node."""
        self._nodes: dict[tuple[int, Answer], int] = {}
        self._blind: dict[tuple[int, Any], int] = {}
        """Nodes behind answers after which the code does not look at the view."""

    def begin(self, view: View) -> int:
        """The node of a process that has just begun."""
        return self.after(-1, Answer(None, view))

    def after(self, node: int, answer: Answer) -> int:
        """The node to which an answer leads."""
        number = self._nodes.get((node, answer), self._blind.get((node, answer.value)))
        if number is None:
            number = len(self._answers)
            found, has_looked = self._run(node, answer)
            self._answers.append((node, answer))
            self._found.append(found)
            if has_looked:
                self._nodes[node, answer] = number
            else:
                self._blind[node, answer.value] = number
        return number

    def at(self, node: int) -> Question | Ended:
        """What the code asks at a node, or how it has ended there."""
        return self._found[node]

    def _run(self, node: int, last: Answer) -> tuple[Question | Ended, bool]:
        """What follows the last answer, and whether the code has looked at the view after it."""
        answers = [last]
        while node >= 0:
            node, answer = self._answers[node]
            answers.append(answer)
        first, *others = answers[::-1]
        loop = simulated_loop()
        before = events._get_running_loop()
        events._set_running_loop(loop)
        try:
            doors = Doors(loop, first.view)
            task = loop.create_task(self._begin(doors))
            found = doors.settle(task)
            for answer in others:
                doors.answer(answer)
                found = doors.settle(task)
            has_looked = doors.has_looked
            if not task.done():
                doors.end(task)
            return found, has_looked
        finally:
            events._set_running_loop(before)
            loop.close()
