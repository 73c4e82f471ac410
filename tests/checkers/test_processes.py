"""Processes that work for a command."""

from __future__ import annotations

import os
import signal

import pytest

from checkers.processes import describe_end, start_process


def answer(connection, *arguments):
    """Sends back what it was started with."""
    connection.send(arguments)


def end(connection, how):
    """Ends by itself, without a word."""
    if how > 0:
        os._exit(how)
    os.kill(os.getpid(), -how)


def test_it_answers_over_its_connection():
    """What is served gets a connection, and the arguments."""
    process, connection = start_process(answer, 1, "two")
    assert (1, "two") == connection.recv()
    process.join()
    assert 0 == process.exitcode


@pytest.mark.parametrize(
    ("how", "expected"),
    [(7, "ended its process with exit code 7"), (-signal.SIGKILL, "was ended by SIGKILL")],
)
def test_an_end_without_a_word_is_told(how, expected):
    """An exit code, or a signal by its name."""
    process, connection = start_process(end, how)
    with pytest.raises(EOFError):
        connection.recv()
    assert expected == describe_end(process)


def ignore_ctrl_c(connection):
    """Says whether Ctrl-C would be let through."""
    connection.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, set()))


def test_ctrl_c_is_for_the_command_alone():
    """The process is born with it blocked, and the command is not left so."""
    _, connection = start_process(ignore_ctrl_c)
    assert connection.recv()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
