"""Four processes for tests of layers, as for those of operators."""

from tests.ops.conftest import pool as pool
