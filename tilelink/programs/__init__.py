"""Programs as users hold them: what `@tk.program` makes of a function, and all that can be asked of it."""
