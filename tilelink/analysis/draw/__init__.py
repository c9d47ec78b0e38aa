"""Pictures of timelines: a page of HTML, a trace for ui.perfetto.dev, and a PNG.

Every picture says its unit and its source, so that nobody takes the logical time of an execution on the CPU
for performance.
"""

from tilelink.analysis.draw.html import About, page, write_page
from tilelink.analysis.draw.picture import png
from tilelink.analysis.draw.trace_events import perfetto, write_perfetto

__all__ = ["About", "page", "perfetto", "png", "write_page", "write_perfetto"]
