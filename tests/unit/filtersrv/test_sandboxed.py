"""The seccomp program allows the listed system calls with the listed arguments, and no others."""

from __future__ import annotations

import struct

import pytest

from cometmq.filtersrv.sandboxed import MACHINES, Machine, program

ALLOW, EPERM, KILL = 0x7FFF0000, 0x00050001, 0x80000000
PROT_EXEC = 4
FUTEX_PRIVATE, FUTEX_LOCK_PI = 128, 6

machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


def run(code: bytes, data: bytes) -> int:
    """Interpret classic BPF as the kernel does; returns what the program returns."""
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, operand = struct.unpack_from("<HBBI", code, 8 * at)
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x06:
            return int(operand)
        else:
            holds = {
                0x15: accumulator == operand,
                0x35: accumulator >= operand,
                0x45: accumulator & operand != 0,
            }[operation]
            at += if_true if holds else if_false


def outcome(machine: Machine, number: int, *arguments: int, architecture: int = 0) -> int:
    values = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, architecture or machine.architecture, 0, *values)
    return run(program(machine), data)


@machines
def test_every_other_call_fails(machine: Machine) -> None:
    conditional = {machine.read, machine.mmap, machine.mprotect, machine.futex}
    allowed = {*machine.free.values(), *conditional}

    assert {number for number in range(2_000) if outcome(machine, number) == ALLOW} == allowed
    assert {outcome(machine, number) for number in range(2_000)} == {ALLOW, EPERM}


@machines
def test_only_the_two_pipes_are_read_and_written(machine: Machine) -> None:
    descriptors = range(300)

    assert [n for n in descriptors if outcome(machine, machine.read, n) == ALLOW] == [0]
    assert [n for n in descriptors if outcome(machine, machine.write, n) == ALLOW] == [1]


@machines
def test_no_memory_becomes_executable(machine: Machine) -> None:
    for number in (machine.mmap, machine.mprotect):
        for protection in range(16):
            wanted = EPERM if protection & PROT_EXEC else ALLOW
            assert outcome(machine, number, 0, 4096, protection) == wanted


@machines
def test_memory_is_given_back_and_no_page_is_taken_from_the_machine(machine: Machine) -> None:
    advice = range(256)

    assert [n for n in advice if outcome(machine, machine.madvise, 0, 4096, n) == ALLOW] == [4, 8]


@pytest.mark.parametrize(
    ("machine", "number"), [(MACHINES["x86_64"], 15), (MACHINES["aarch64"], 139)], ids=MACHINES
)
def test_no_return_from_a_signal_blocks_the_signal_of_the_cpu_limit(
    machine: Machine, number: int
) -> None:
    assert outcome(machine, number) == EPERM


@machines
def test_futexes_wait_and_wake_and_do_nothing_else(machine: Machine) -> None:
    commands = range(FUTEX_PRIVATE)
    found = [n for n in commands if outcome(machine, machine.futex, 0, n | FUTEX_PRIVATE) == ALLOW]

    assert found == [0, 1, 9, 10]
    assert outcome(machine, machine.futex, 0, FUTEX_LOCK_PI) == EPERM


@machines
def test_calls_of_another_architecture_kill(machine: Machine) -> None:
    assert outcome(machine, machine.read, architecture=0x40000003) == KILL
    assert outcome(machine, 0x40000000 + machine.read) == KILL
