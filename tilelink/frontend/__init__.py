"""From tile functions, programs and schedules to the tile program."""
