"""Published rows, as their sources list them. M is the whole size; N (AG+GEMM) or K (GEMM+RS) is a rank's size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

AG, RS = "AG+GEMM", "GEMM+RS"
GATHER, KRAKEN, ENGINE = "engine gather", "engine gather, kraken", "engine scatter"
EPILOGUE, ADDING, PCIE = "epilogue scatter", "adding scatter", "epilogue scatter, PCIe"


@dataclass(frozen=True)
class Published:
    """The time of one implementation for a row. `value`: milliseconds or, if `speedup`, how many times as fast it was
    as the unfused form. `form`: a key of `forms.FORMS`, or None for the unfused form of a library."""

    implementation: str
    form: str | None
    value: float
    speedup: bool = False


@dataclass(frozen=True)
class Row:
    """A line of a source's list, with all its implementations."""

    operator: str
    m: int
    n: int
    k: int
    published: tuple[Published, ...]

    @property
    def shape(self) -> str:
        return f"M={self.m}, N={self.n}, K={self.k}"


@dataclass(frozen=True)
class Source:
    """A list of rows. Rows alternate between fitting and judging, in this order; the first is for fitting.

    `fitted`: the parameters that fitting rows may set: "matmul" (TFLOP/s of the fused kernel), "library" (TFLOP/s of
    the library's), "collective" (GB/s), "fixed" (microseconds that a run takes in addition to its work), "host"
    (microseconds in which the host enqueues a run; the run can't end earlier), and "link:IMPLEMENTATION:OP" (GB/s that
    this implementation gets from a link). All other parameters come from the machine description.
    """

    name: str
    where: str
    machine: str
    world: int
    rows: tuple[Row, ...]
    fitted: tuple[str, ...]
    note: str = ""

    def split(self) -> Iterator[tuple[Row, bool]]:
        """Yields each row, and whether it is for judging."""
        for k, row in enumerate(self.rows):
            yield row, bool(k % 2)


def _row(operator: str, m: int, n: int, k: int, *published: Published) -> Row:
    return Row(operator, m, n, k, published)


def _kraken(m: int, k: int, nccl: float, triton: float) -> Row:
    return _row(AG, 8 * m, 6656, k, Published("NCCL", None, nccl / 1e3), Published("kraken", KRAKEN, triton / 1e3))


def _chart(operator: str, n: int, k: int, flux: float, distributed: float) -> Row:
    """Returns a row for a layer of n and k over 8 ranks, with the speed-ups of FLUX and Triton-distributed."""
    forms = (GATHER, GATHER) if operator == AG else (EPILOGUE, ENGINE)
    shape = (n // 8, k) if operator == AG else (n, k // 8)
    return _row(
        operator,
        8192,
        *shape,
        Published("FLUX", forms[0], flux, True),
        Published("Triton-d.", forms[1], distributed, True),
    )


SOURCES = (
    Source(
        "ParallelKittens, 8x H100",
        "arXiv 2511.13940: GEMM+RS, M=N=32768",
        "h100",
        8,
        tuple(
            _row(RS, 32768, 32768, k, Published("ParallelKittens", ADDING, fused))
            for k, fused in ((512, 6.483), (1024, 6.613), (4096, 11.828))
        ),
        ("matmul", "link:ParallelKittens:RS"),
        "Its stores add up at the home; our program stores as many bytes there and adds nothing.",
    ),
    Source(
        "flux, 8x L20",
        "bytedance/flux docs/performance.md, M=4096, N=49152, K=12288 in fp16",
        "l20",
        8,
        (
            _row(AG, 4096, 6144, 12288, Published("NCCL", None, 16.946), Published("FLUX", GATHER, 5.903)),
            _row(RS, 4096, 12288, 6144, Published("NCCL", None, 17.664), Published("FLUX", PCIE, 5.730)),
        ),
        ("matmul",),
    ),
    Source(
        "flux issue 90, 8x H100",
        "bytedance/flux issue 90: AG+GEMM with K=8192, N=57344, then GEMM+RS with N=8192, K=28672",
        "h100",
        8,
        (
            *(
                _row(AG, m, 7168, 8192, Published("NCCL", None, nccl), Published("FLUX", GATHER, flux))
                for m, nccl, flux in (
                    (1024, 0.24725, 0.25),
                    (2048, 0.454, 0.426125),
                    (4096, 0.867, 0.673),
                    (8192, 1.692, 1.31525),
                    (16384, 3.38675, 2.80363),
                    (32768, 6.83137, 5.819),
                )
            ),
            *(
                _row(RS, m, 8192, 3584, Published("NCCL", None, nccl), Published("FLUX", EPILOGUE, flux))
                for m, nccl, flux in (
                    (1024, 0.18, 0.18325),
                    (2048, 0.2895, 0.331),
                    (4096, 0.54225, 0.632875),
                    (8192, 1.04, 1.241),
                    (16384, 2.01063, 2.4585),
                    (32768, 3.978, 4.98637),
                )
            ),
        ),
        ("matmul", "fixed", "link:FLUX:RS", "library", "collective"),
    ),
    Source(
        "charts, 8x H800",
        "Triton-distributed, arXiv 2504.19442, M=8192, read off charts (+-2 %)",
        "h800",
        8,
        (
            _chart(AG, 11008, 4096, 1.17, 1.32),
            _chart(AG, 14336, 4096, 1.14, 1.31),
            _chart(AG, 53248, 16384, 1.43, 1.42),
            _chart(RS, 4096, 11008, 0.79, 1.06),
            _chart(RS, 4096, 14336, 0.80, 1.10),
            _chart(RS, 4608, 36864, 1.10, 1.43),
        ),
        ("collective", "link:FLUX:AG", "link:Triton-d.:AG", "link:FLUX:RS", "link:Triton-d.:RS"),
    ),
    Source(
        "kraken, 8x H100, AG+GEMM",
        "meta-pytorch/kraken pull request 2, shape (M of a rank, N, K)",
        "h100",
        8,
        (
            _kraken(128, 4096, 141.984, 194.624),
            _kraken(128, 8192, 284.288, 395.040),
            _kraken(128, 16384, 513.6, 849.024),
            _kraken(256, 4096, 272.992, 282.752),
            _kraken(256, 8192, 499.392, 553.088),
            _kraken(256, 16384, 953.216, 1217.248),
            _kraken(512, 4096, 514.496, 455.296),
            _kraken(512, 8192, 912.384, 810.368),
            _kraken(512, 16384, 1810.432, 1679.776),
        ),
        ("matmul", "fixed", "link:kraken:AG", "library", "collective"),
    ),
    Source(
        "kraken, 8x H100, GEMM+RS",
        "meta-pytorch/kraken pull request 19, N=4096, K=14336 on a rank",
        "h100",
        8,
        tuple(
            _row(RS, m, 4096, 14336, Published("NCCL", None, nccl), Published("kraken", ENGINE, fused))
            for m, nccl, fused in ((512, 0.133653, 0.307717), (1024, 0.223621, 0.314597), (2048, 0.422704, 0.409870))
        ),
        ("host", "library"),
        "A host enqueues a wait and a copy for every peer. Its time is a lower bound of the run's time.",
    ),
)
