"""The words of the language, for tile functions and programs.

A program is an ordinary function that is run once to record its buffers and roles. A tile function is never run: its
source is read (`frontend/elaboration/`), so the words used inside it are names, and calling them is an error.
"""

from tilelink.language.declarations import *  # noqa: F403
from tilelink.language.members import *  # noqa: F403
from tilelink.language.recording import *  # noqa: F403
from tilelink.language.tile_functions import *  # noqa: F403
from tilelink.language.words import *  # noqa: F403
