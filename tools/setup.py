"""Make `.venv` ready for the Makefile's targets, from the Python that runs this and a package registry.

    python3 tools/setup.py torch==2.13.0 triton==3.7.1

- No GPU: the torch and Triton of the command line, and the project with its extras, in one pip command.
- A GPU, and this Python imports torch and triton: those are used, and what they lack is installed. Such a
  machine may be shut off from registries; then tools that cannot be had are named and left out.
- A GPU without them: what pyproject.toml asks for, from the registry.

`.venv/.ready` says what was installed, so that nothing is done twice. `.venv/.unfinished` stands while pip
works: where it is found later, a set-up was interrupted, and the environment is made anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
READY = VENV / ".ready"
UNFINISHED = VENV / ".unfinished"
PROJECT = ("--config-settings", "editable_mode=compat", "-e", ".[bench,dev]")
"""By its path: what setuptools does by default is looked at after a folder `tilelink` that lies beside a script."""
TRY = """
import platform, numpy, sympy, torch, triton
print("Python", platform.python_version(), "torch", torch.__version__, "triton", triton.__version__)
"""


def main(pins: list[str]) -> None:
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # where two targets start side by side, one waits for the other
        wanted = recipe(pins)
        if READY.exists() and READY.read_text() == wanted:
            READY.touch()  # the date of an input is newer, its content is not
            return
        set_up(pins)
        READY.write_text(wanted)


def recipe(pins: list[str]) -> str:
    """All that decides what is installed; the settings of tools in pyproject.toml do not."""
    config = read_config()
    parts = [config["build-system"], config["project"], config["tool"]["setuptools"]]
    return json.dumps([*parts, [] if has_gpu() else pins], indent=1) + "\n"


def read_config() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or os.path.exists("/dev/nvidia0")


def works(python: Path | str, code: str) -> bool:
    try:
        return subprocess.run([python, "-c", code], capture_output=True).returncode == 0
    except OSError:
        return False


def set_up(pins: list[str]) -> None:
    start = time.monotonic()
    linked = has_gpu() and works(sys.executable, "import torch, triton")
    if works(PYTHON, "import pip") and not UNFINISHED.exists():
        print("bringing .venv up to date", flush=True)
    else:
        print("setting up .venv: a minute or two, and 2 GB or more", flush=True)
        create(linked)
    UNFINISHED.touch()
    READY.unlink(missing_ok=True)
    try:
        if linked:
            install_linked()
        else:
            pip(*([] if has_gpu() else pins), *PROJECT)
        subprocess.run([PYTHON, "-c", TRY], check=True)
    except subprocess.CalledProcessError as error:
        if error.returncode > 0:  # it gave up by itself, for want of a registry perhaps, and left all whole
            UNFINISHED.unlink()
        raise
    UNFINISHED.unlink()
    print(f".venv is ready, after {time.monotonic() - start:.0f} s", flush=True)


def create(linked: bool) -> None:
    """An empty environment, or one that sees all that this Python sees."""
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir()
    UNFINISHED.touch()
    flags = []
    if linked:
        flags = ["--system-site-packages"] + ["--without-pip"] * bool(find_spec("pip"))
    elif not find_spec("ensurepip"):
        sys.exit(f"{sys.executable} has no ensurepip for new environments; on Debian python3-venv brings it")
    subprocess.run([sys.executable, "-m", "venv", *flags, VENV], check=True)
    if linked and sys.prefix != sys.base_prefix:  # this Python is an environment's, which the flag skips
        own = sysconfig.get_path("purelib", "venv", {"base": str(VENV)})
        seen = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        lines = [f"import site; site.addsitedir({path!r})\n" for path in seen]
        Path(own, "linked.pth").write_text("".join(lines))


def pip(*arguments: str) -> None:
    command = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
    subprocess.run(command, cwd=ROOT, check=True)


def install_linked() -> None:
    absent = missing()
    if absent:
        try:
            pip(*PROJECT)
            return
        except subprocess.CalledProcessError:
            print(f"no registry: going on without {', '.join(absent)}", flush=True)
    pip("--no-index", "--no-build-isolation", "--no-deps", *PROJECT)


def missing() -> list[str]:
    """The packages that the project names and the environment lacks."""
    project = read_config()["project"]
    lines = sum(project["optional-dependencies"].values(), project["dependencies"])
    names = sorted({re.sub(r"[^\w.-].*", "", line) for line in lines})
    ask = "from importlib.metadata import version; version({!r})"
    return [name for name in names if not works(PYTHON, ask.format(name))]


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(f"setting up .venv failed: {' '.join(map(str, error.cmd))} ended with {error.returncode}")
