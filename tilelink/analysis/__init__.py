"""What is derived from a tile program: its events, timelines, drawings."""
