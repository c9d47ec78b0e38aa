"""Tile programs in which a rank and its peers touch one place. The lines that conflict, or that do not, are marked."""

import tilelink as tk


@tk.tile
def get(t, data, out):
    """What the right neighbour has."""
    right = (tk.rank() + 1) % tk.world()
    out[t].store(data[t].at(right).load())  # get


@tk.tile
def get_too(t, data, out):
    """What the left neighbour has."""
    left = (tk.rank() - 1) % tk.world()
    out[t].store(data[t].at(left).load())  # second get


@tk.tile
def load(t, data, out):
    out[t].store(data[t].load())  # load


@tk.tile
def store(t, x, data):
    tk.notify(data[t].store(x[t].load()))  # store


@tk.tile
def put(t, x, data):
    """To the right neighbour."""
    right = (tk.rank() + 1) % tk.world()
    tk.notify(data[t].at(right).store(x[t].load()))  # put


@tk.tile
def put_too(t, x, data):
    """To the left neighbour."""
    left = (tk.rank() - 1) % tk.world()
    tk.notify(data[t].at(left).store(x[t].load()))  # second put


@tk.tile
def put_signal(t, x, data):
    """A tile of memory to the right neighbour, and word of it."""
    right = (tk.rank() + 1) % tk.world()
    tk.notify(tk.copy(x[t], data[t].at(right)))  # put_signal


@tk.tile
def put_signal_too(t, x, data):
    """A tile of memory to the left neighbour, and word of it."""
    left = (tk.rank() - 1) % tk.world()
    tk.notify(tk.copy(x[t], data[t].at(left)))  # second put_signal


@tk.tile
def collect(t, data, out):
    """Reads what has been written, when all of it has."""
    out[t].store(tk.wait(data[t]).load())  # collect


def two_readers(first, second):
    """Two roles that read one input of a rank."""

    @tk.program
    def readers(x: tk.Local("M", "K"), out: tk.Local("M", "K"), out_too: tk.Local("M", "K")):
        first[tk.tiles(x)](x, out)
        second[tk.tiles(x)](x, out_too)

    return readers


def writer_and_reader(writer, reader):
    """One role writes a buffer of a rank, another reads it."""

    @tk.program
    def writes_and_reads(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
        data = tk.local("M", "K")
        writer[tk.tiles(x)](x, data)
        reader[tk.tiles(x)](data, out)

    return writes_and_reads


def two_writers(first, second):
    """Two roles write a buffer of a rank, a third reads it when both are done."""

    @tk.program
    def writers(x: tk.Local("M", "K"), y: tk.Local("M", "K"), out: tk.Local("M", "K")):
        data = tk.local("M", "K")
        first[tk.tiles(x)](x, data)
        second[tk.tiles(y)](y, data)
        collect[tk.tiles(x)](data, out)

    return writers
