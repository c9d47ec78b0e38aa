"""Machines: that every description holds, and what is said of one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilelink.analysis.machine import MESH, Machine, machine, names
from tilelink.errors import MachineError, UnknownMachineError

WANTED = {
    "h100", "h200", "h800", "a100_nvlink", "a100_pcie", "l20", "b200", "mi300x", "h100_nodes2", "h100_nodes4",
}  # fmt: skip


def changed(path: str, table: str) -> str:
    """A description: an H100 with one number replaced."""
    return f'extends = "h100"\n{path} = {table}\n'


def described(folder: Path, text: str) -> Machine:
    """The machine that a text describes."""
    file = folder / "mine.toml"
    file.write_text(text)
    return machine(str(file))


def test_the_machines_are_there() -> None:
    assert set(names()) == WANTED


@pytest.mark.parametrize("name", sorted(WANTED))
def test_a_description_is_whole_and_every_number_has_a_source(name: str) -> None:
    found = machine(name)
    assert found.name == name and found.sms > 0 and found.matmul_rate("bfloat16") > 0
    assert set(found.sources) == set(found.numbers)
    assert all(source.strip() for source in found.sources.values())
    for agent in found.agents.values():
        assert agent.saturation <= 1e4 and min(agent.push, agent.pull) > 0


def test_what_extends_keeps_the_rest() -> None:
    h100, h200 = machine("h100"), machine("h200")
    assert h200.memory == 141e9 and h200.memory_rate == 4300
    assert h200.agents == h100.agents and h200.fence_us == h100.fence_us


def test_links_and_nodes() -> None:
    assert machine("mi300x").links == MESH
    assert [machine("h100_nodes2").node(r) for r in (0, 7, 8, 15)] == [0, 0, 1, 1]
    assert {machine("h100").node(r) for r in range(8)} == {0} and machine("h100_nodes4").ranks == 32
    assert "tma" not in machine("a100_nvlink").agents and "multicast" not in machine("mi300x").agents


def test_a_machine_changes_by_path() -> None:
    found = machine("h100").changed(**{"agents.load_store.push": 5.0, "matmul.bfloat16": 1.0, "skew_us": 0.0})
    assert found.agent("load_store").push == 5 and found.matmul_rate("bfloat16") == 1 and found.skew_us == 0
    assert found.agent("load_store").pull == machine("h100").agent("load_store").pull


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (changed("sms", '{ value = -1, source = "x" }'), "sms is -1: it has to be above 0"),
        (changed("sms", '{ value = 0, source = "x" }'), "sms is 0: it has to be above 0"),
        (changed("fence_us", '{ value = -0.1, source = "x" }'), "fence_us is -0.1: it has to be at least 0"),
        (changed("memory_rate", "{ value = 3000 }"), "memory_rate has no source"),
        (changed("memory_rate", '{ value = 3000, source = " " }'), "memory_rate has no source"),
        (changed("memory_rate", '{ value = "fast", source = "x" }'), "memory_rate is 'fast', which is no number"),
        (changed("memory_rate", '{ value = nan, source = "x" }'), "memory_rate is nan"),
        (changed("memory_rate", "3000"), "memory_rate is 3000; a number is"),
        (changed("agents.tma.speed", '{ value = 1, source = "x" }'), "agents.tma.speed: a machine has no such number"),
        (changed("links", '"ring"'), "links is 'ring'"),
        (changed("ranks", '{ value = 0, source = "x" }'), "ranks is 0: it has to be above 0"),
        (changed("ranks_per_node", '{ value = 4, source = "x" }'), "agents.nic is missing"),
        ('extends = "h100"\nwithout = ["nic"]\n', "without nic"),
        ("sms = ", "Invalid value"),
        ("", "agents.load_store is missing"),
    ],
)
def test_a_wrong_description_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(MachineError, match=r"mine(\.toml)?: ") as e:
        described(tmp_path, text)
    assert said in str(e.value)


def test_a_missing_number_is_named(tmp_path: Path) -> None:
    source = 'value = 1, source = "x"'
    agent = "".join(f"agents.load_store.{n} = {{ {source} }}\n" for n in ("setup_us", "push", "pull", "saturation"))
    with pytest.raises(MachineError, match=r"mine.toml: ranks is missing"):
        described(tmp_path, agent)


def test_unknown_machines_agents_and_dtypes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownMachineError, match=r"there is no machine h1000; there is a100_nvlink"):
        machine("h1000")
    with pytest.raises(UnknownMachineError, match="there is no machine description"):
        machine(str(tmp_path / "none.toml"))
    with pytest.raises(MachineError, match="mi300x has no agent multicast; it has load_store, copy_engine"):
        machine("mi300x").agent("multicast")
    with pytest.raises(MachineError, match="no matmul rate for float64"):
        machine("h100").matmul_rate("float64")


def test_a_description_of_ones_own_is_read_from_its_path(tmp_path: Path) -> None:
    found = described(tmp_path, changed("sms", '{ value = 4, source = "counted" }'))
    assert isinstance(found, Machine) and (found.name, found.sms) == (str(tmp_path / "mine.toml"), 4)
