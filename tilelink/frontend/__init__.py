"""Makes tile programs of tile functions, programs and schedules."""
