"""How long work shows itself: a live bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

PLAIN_LINE_EVERY_S = 10.0

console = Console(file=sys.stdout, highlight=False, soft_wrap=True)


def say(line: str) -> None:
    """One line for the user, above a running bar if there is one."""
    console.print(line, markup=False)


def say_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, aligned columns elsewhere."""
    if console.is_terminal:
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


class Meter:
    """Progress of one piece of work; `advance` may be called as often as one likes."""

    def __init__(self, description: str, total: float | None, unit: str, done: float):
        self.description, self.total, self.unit = description, total, unit
        self.done = self.done_at_start = done
        self.note = ""
        self.started_s = self.last_line_s = time.monotonic()

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        self.done += amount
        if note is not None:
            self.note = note
        self._show()

    def line(self) -> str:
        elapsed_s = time.monotonic() - self.started_s
        rate = (self.done - self.done_at_start) / max(elapsed_s, 1e-9)
        text = f"{self.description}: {_count(self.done)}"
        if self.total:
            text += f" of {_count(self.total)} {self.unit} ({self.done / self.total:.0%})"
        else:
            text += f" {self.unit}"
        text += f", {_count(rate)} {self.unit}/s"
        if self.total and rate > 0:
            text += f", {duration_text(max(self.total - self.done, 0) / rate)} left"
        return text + (f", {self.note}" if self.note else "")

    def _show(self) -> None:
        now_s = time.monotonic()
        if now_s - self.last_line_s >= PLAIN_LINE_EVERY_S:
            self.last_line_s = now_s
            say(self.line())


class _BarMeter(Meter):
    def __init__(self, description: str, total: float | None, unit: str, done: float, bar: Progress):
        super().__init__(description, total, unit, done)
        self.bar = bar
        self.task = bar.add_task(description, total=total, completed=int(done), unit=unit, note="")

    def _show(self) -> None:
        self.bar.update(self.task, completed=self.done, note=self.note)


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text(f"{_count(rate)} {task.fields['unit']}/s" if rate else "", style="cyan")


@contextmanager
def progress(description: str, total: float | None, unit: str, done: float = 0) -> Iterator[Meter]:
    """Show progress of `total` units of work (None = unknown), `done` of which were done before."""
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            _RateColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            yield _BarMeter(description, total, unit, done, bar)
    else:
        yield Meter(description, total, unit, done)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration_text(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
